"""The decision ledger: every choice that the paper's abstract does not settle, and the setting that changes it."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="E1", what="What an answer's embedding is", chosen="the model's own hidden states at the answer's tokens",
        source=Source.RECON, why="the abstract speaks of embeddings of the same response, on its own and with its "
        "question; hidden states of the model that answered cost nothing where they are kept from generation",
        alternatives=("a sentence encoder: BlackBoxDiscrepancy",), knob="embedding",
    ),
    Decision(
        id="E2", what="What stands before the answer when it is taken alone", chosen="the bare assistant header of "
        "the chat template; the begin-of-text token for base models", source=Source.RECON,
        why="never nothing: the first token of a sequence becomes a sink with a huge norm and would swamp the mean",
        alternatives=("any text: prefix=",), knob="prefix",
    ),
    Decision(
        id="E3", what="Layer", chosen="0.75 of the depth, fixed without labels", source=Source.RECON,
        why="middle to late layers had the paper's sign in a first measurement; the last is normed and noisier",
        alternatives=("an index", "any fraction", "a band of layers"), knob="layer",
    ),
    Decision(
        id="E4", what="Pooling over the answer's tokens", chosen="mean", source=Source.RECON,
        why="the plainest; it falls with the answer's length, so the token-aligned and the length-stratified figures "
        "are always shown beside it", alternatives=("token: distance per token, then mean; robust to length", "last"),
        knob="pool",
    ),
    Decision(
        id="E5", what="Distance", chosen="1 - cosine", source=Source.RECON,
        why="free of scale, which differs between layers", alternatives=("l2", "rel_l2"), knob="dist",
    ),
    Decision(
        id="E6", what="Sign", chosen="score = -D: a small change by the question means likely hallucinated",
        source=Source.PAPER, why="the abstract's second statement; never flipped, also where a small model inverts it",
    ),
    Decision(
        id="E7", what="Threshold", chosen="none; scores are ranked", source=Source.RECON,
        why="scores are not comparable between models or layers, so there is no number that fits all",
        alternatives=("quantile, gmm, otsu: without labels", "youden: with labels"), knob="threshold",
    ),
    Decision(
        id="E8", what="Normalisation", chosen="none", source=Source.RECON, why="the abstract names none",
        alternatives=("center: subtract the corpus mean of a layer", "length_adjust: take the length out",
        "drop_first: leave the first token out"), knob="center",
    ),
    Decision(
        id="E9", what="Which answers count as right", chosen="the normalised gold text is a part of the answer; "
        "ROUGE-L above .5 beside it", source=Source.SECOND_HAND, why="the second is INSIDE's rule; the two disagree on "
        "answers that are right in a sentence, so both are reported",
    ),
    Decision(
        id="E10", what="Clusters of semantic entropy without an entailment model", chosen="cosine of MiniLM above .9",
        source=Source.RECON, why="an entailment model is too large for a first run; a weaker rival is said to be one",
        alternatives=("match: equal normalised text", "entails=: an entailment model of yours"), knob="clusters",
    ),
    Decision(
        id="E11", what="Which answers are judged", chosen="those that the model under test gave just now",
        source=Source.SECOND_HAND, why="made-up wrong answers differ from right ones in length and wording, which "
        "alone reaches .95 on HaluEval; such pairs are a task of their own, marked, with both controls",
    ),
    Decision(
        id="E12", what="Tokens of prompt and answer", chosen="encoded apart, then joined", source=Source.RECON,
        why="else the first token of the answer can differ between the two passes", knob="tokenisation",
    ),
    Decision(
        id="E13", what="Padding", chosen="right", source=Source.RECON,
        why="positions start at 0 without position ids; equality with single rows is tested", knob="padding",
    ),
    Decision(
        id="E14", what="Samples of multi-response methods", chosen="5 at temperature 1; their cost is also given for "
        "10: drawing in proportion, the prompt read once", source=Source.RECON,
        why="10 do not fit ten minutes on two cores; the long profile draws 10 on one data set",
        alternatives=("any number", "temperature .5 to 1"), knob="samples",
    ),
    Decision(
        id="E15", what="What the answer is conditioned on", chosen="context and question", source=Source.RECON,
        why="the abstract says question; in reading comprehension the passage belongs to what was asked",
        alternatives=("question alone", "condition= and base= in the detector: documents against none"),
        knob="condition",
    ),
    Decision(
        id="E16", what="Length of answers and batches", chosen="16 new tokens, batches of 16", source=Source.DEFAULT,
        why="short answers are what both labelling rules are made for",
    ),
    Decision(
        id="E17", what="When one class is rare", chosen="more questions are answered until 5 of it are there, before "
        "any score is computed; then all of it are judged, and of the other class the first", source=Source.DEFAULT,
        why="the area under the curve needs both classes and does not depend on their shares; 2 in the quick profile",
    ),
)  # fmt: skip
