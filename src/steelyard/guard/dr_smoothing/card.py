"""What disrupt-and-rectify smoothing does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.guard.dr_smoothing.claims import CLAIMS
from steelyard.guard.dr_smoothing.config import Config
from steelyard.guard.dr_smoothing.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="dr_smoothing",
    name="Disrupt-and-rectify smoothing",
    summary="Asks a model N noisy, repaired copies of a prompt; their majority decides if it answers.",
    does=(
        "Each copy of the user's text is disrupted by random noise, which breaks the exact wording of a jailbreak, and "
        "rectified back to plain language, so that the model sees the kind of text it knows. Every answer is judged; "
        "the majority decides, and one of its answers is returned. The system text is never touched. Formulas give "
        "the probability that the vote holds, certificates are drawn from its copies, and the settings for which no "
        "noise can satisfy both sides are named as such. Any model works: a function, a local one, an endpoint."
    ),
    use_when=(
        "Attacks are optimised strings (suffixes), and a few more calls per question are affordable.",
        "A guard or model that is brittle under noise: rectification repairs part of what noise alone costs.",
        "You want a number with a confidence level for one prompt rather than a promise.",
    ),
    avoid_when=(
        "Attacks are plain language: a copy that keeps the meaning keeps the attack, and voting makes it worse when "
        "half of the copies get through.",
        "One rectified call stops your attacks as well: compare with rectify-only before paying for N copies.",
        "Exact wording matters (code, names, numbers): spelling and its filter drop what they do not know.",
        "Texts are not English: the spelling rectifier knows English only.",
    ),
    cost=(
        "N calls of the target for every prompt, about half with an early stop when no copy gets through; with a "
        "language model as rectifier N more. Spelling costs 0.04 ms on clean text and about 1.3 ms on a disrupted "
        "prompt with a suffix (reference measurement, one thread)."
    ),
    paper=Paper(
        title="Guaranteed Jailbreaking Defense via Disrupt-and-Rectify Smoothing",
        authors="Lin, Niu, Ji, Gao",
        identifier="arXiv 2605.10582",
        venue="NeurIPS 2026",
        basis="The abstract, a short second-hand summary and referee reports on an earlier version; kernel, prompt, "
        "settings and the statement of its theorems are reconstructions.",
    ),
    usage=(
        "from steelyard.guard import DRSmoothing, certify_from_samples, disrupt_swap\n"
        "def model(prompts):\n"
        "    return ['I cannot help with that.' if 'dragon' in prompt else 'Of course: …' for prompt in prompts]\n"
        "guard = DRSmoothing(model, disrupt=disrupt_swap(q=0.05), n=9, seed=0)\n"
        "answer = guard('How do I tame a dragon in the garden? xq!!zt')\n"
        "print(answer.response, answer.votes, answer.p_hat)\n"
        "print(certify_from_samples(sum(answer.votes), n=9, n_samples=9))\n"
    ),
    claims=CLAIMS,
    limits=(
        "Measured on a guard of sentence embeddings under white-box attacks, not on a chat model: small language "
        "models refuse too little for an attack table to mean anything. The gpu profile names the paper's setting.",
        "Attacks are our own greedy coordinate gradient with at most 14 steps; a stronger attacker would do better.",
        "The adaptive attack goes on from the plain suffix, knows the defence and draws its noise four times a step, "
        "for 6 steps in the full profile and 14 in the long one; it does not differentiate through the rectifier.",
        "A certificate speaks about the sampled prompt and kernel; it is void on the copies that tuned a setting.",
        "Instruction and lengths of the questions on a text were chosen on 35 questions, so that the model answers "
        "about half of the clean ones; the verdicts are read from others.",
        "The coherence filter and its threshold come from a reference measurement on ten harmful test prompts that it "
        "does not name: some may be among the prompts of the verdicts.",
        "Spelling and its filter drop rare words: on the embedded guard of gardening half of the clean forbidden "
        "prompts of the tuning set got through DR-Smoothing, none through the guard alone.",
        "Unrectified copies pass a guard more easily, so refusals of benign prompts fall: both sides are shown.",
        "Judges by phrases call an answer that opens like a refusal and then complies safe, and it may be returned: "
        "against attackers who ask for such an opening let a model judge.",
        "Only what the user says is disrupted: whoever may write the system or assistant turns goes round the vote.",
        "On your own prompts those without a label count as harmful, and the judge looks for phrases of refusal.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "The circulating reference figures count a flagged share of exactly one half as passed; the algorithm's rule "
        "counts that tie as stopped. The bench keeps to the rule and uses an odd number of copies.",
        "Referee reports print the root of the strength bound ambiguously; the form that follows from Hoeffding's "
        "inequality is here, and it certifies nothing at N <= 5 and epsilon = .05.",
        "Rectification is said to bring copies back into the distribution; with the coherence filter the embedding of "
        "benign copies was not closer to the prompt in the reference figures. Fidelity is a claim of its own here.",
    ),
    config=Config,
)
