"""The decision ledger: every choice that the paper does not settle, and the setting that changes it."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="N1", what="Defence", chosen="disrupt, rectify, respond, vote", source=Source.PAPER,
        why="it is the method; the other kinds are controls: no defence, rectify only, floors and a ceiling",
        alternatives=("none", "rectify_only", "erase_and_check", "oracle", "restored", "coin", "block_all",
        "pass_all"), knob="kind",
    ),
    Decision(
        id="N2", what="Share of words masked or deleted", chosen="0.3", source=Source.DEFAULT,
        why="the rate of the reference measurement of word deletion", alternatives=("any in [0, 1]",), knob="rate",
    ),
    Decision(
        id="N3", what="Longest suffix that erase-and-check erases", chosen="20 words", source=Source.SECOND_HAND,
        why="20 tokens in SemanticSmooth's configuration", alternatives=("any",), knob="max_erase",
    ),
    Decision(
        id="D1", what="Vote rule", chosen="jailbroken when the count exceeds floor(gamma N), gamma = 1/2; ties safe",
        source=Source.SECOND_HAND, why="SmoothLLM's code; a tie of an even N therefore refuses benign prompts too",
        alternatives=("any gamma in [0, 1)",), knob="gamma",
    ),
    Decision(
        id="D2", what="Copies", chosen="10; 9 in the bench, since an odd number leaves no ties",
        source=Source.SECOND_HAND, why="the standard setting of the paper as referees tell it, and SmoothLLM's largest",
        alternatives=("any number",), knob="n",
    ),
    Decision(
        id="D3", what="Disruption", chosen="swap of 10 % of the characters; in the bench chosen on tuning prompts",
        source=Source.RECON, why="SmoothLLM's best known kernel; the paper's is not known",
        alternatives=("insert", "patch", "mask_words", "delete_words", "random", "any q"), knob="disrupt",
    ),
    Decision(
        id="D4", what="Alphabet", chosen="letters, digits and punctuation", source=Source.RECON,
        why="the control characters of string.printable break JSON and tokenizers",
        alternatives=("printable: SmoothLLM's", "letters", "any string"), knob="alphabet",
    ),
    Decision(
        id="D4b", what="The paper's own setting", chosen="DRSmoothing.paper: a random operation per copy, spelling, "
        "then a paraphrase, N = 10", source=Source.SECOND_HAND, why="referee reports on an earlier version",
        alternatives=("each part by itself",), knob="rectify",
    ),
    Decision(
        id="D5", what="Rectifier", chosen="SymSpell with the coherence filter", source=Source.RECON,
        why="needs no language model; without the filter spelling gives the attack back",
        alternatives=("llm", "both: spelling, then a language model", "none: SmoothLLM", "coherence=False"),
        knob="rectify",
    ),
    Decision(
        id="D6", what="Count from which a word stays whatever its neighbours", chosen="5e8", source=Source.RECON,
        why="chosen on ten harmful test prompts of the reference measurement, which it does not name",
        alternatives=("any count",), knob="min_unigram",
    ),
    Decision(
        id="D7", what="Instruction and temperature of a rectifying language model", chosen="our wording, temperature "
        "0, 1.5 tokens per token and 16, rounded up to a power of two", source=Source.RECON,
        why="the paper's prompt and model are not given",
        alternatives=("LLMRectifier(template=…)", "0 to 0.5"), knob="temperature",
    ),
    Decision(
        id="D8", what="Judge of an answer", chosen="strict: openings of a refusal, whatever the case; smoothllm, the "
        "list of prior work to the letter, on demand", source=Source.RECON,
        why="the paper's judge is not known; SmoothLLM's list calls harmless answers safe (\"As an\", \"Hello!\")",
        alternatives=("smoothllm", "llm: a model is asked", "any callable"), knob="judge",
    ),
    Decision(
        id="D9", what="Which answer is returned", chosen="uniform over the majority's copies",
        source=Source.SECOND_HAND, why="SmoothLLM's code", alternatives=("first", "longest"), knob="choose",
    ),
    Decision(
        id="D10", what="Form of the bound", chosen="the exact binomial; Chernoff and a matching upper bound beside it",
        source=Source.RECON, why="the abstract says tight; Hoeffding's, which referees report, certifies less",
        alternatives=("chernoff", "hoeffding"), knob="bound",
    ),
    Decision(
        id="D11", what="Threshold of the benign side", chosen="the quantile of Beta(N - t, t + 1)",
        source=Source.DEFAULT, why="derived: a benign prompt is refused when at most t copies comply",
        alternatives=("the attack side's, wrong for an even N",),
    ),
    Decision(
        id="D12", what="Model of a copy behind a rectifier", chosen="(1 - alpha) kappa + alpha (rho + (1 - rho) e)",
        source=Source.DEFAULT, why="derived from four events; the curves may be given instead",
        alternatives=("measured curves in feasible_window",),
    ),
    Decision(
        id="D13", what="Probability that a patch breaks a suffix", chosen="direct sum over all starts",
        source=Source.SECOND_HAND, why="the prior paper's closed form has many cases",
    ),
    Decision(
        id="D14", what="Order of insertions", chosen="from right to left", source=Source.RECON,
        why="the prior code lets earlier insertions move later ones", alternatives=("quirk=True: to the letter",),
        knob="quirk",
    ),
    Decision(
        id="D15", what="What is attacked in the bench", chosen="a guard: logistic regression on MiniLM embeddings",
        source=Source.DEFAULT, why="small language models refuse too little for an end-to-end table to mean anything",
        alternatives=("your model behind an endpoint", "the gpu profile"),
    ),
    Decision(
        id="D16", what="Draws of the defence that an adaptive attack averages", chosen="4", source=Source.RECON,
        why="expectation over transformations; more draws cost as many times more", alternatives=("any number",),
        knob="draws",
    ),
    Decision(
        id="D17", what="A rectifier that refuses", chosen="the copy votes safe", source=Source.RECON,
        why="its refusal would become the prompt", alternatives=("fallback to the disrupted text",),
        knob="on_rectifier_refusal",
    ),
    Decision(
        id="D18", what="Drop-in form", chosen="an OpenAI-compatible proxy that adds x_smoothing to the answer",
        source=Source.DEFAULT, why="no change of a client's code", alternatives=("the class itself",),
    ),
)  # fmt: skip
