"""What ARC does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.policy.arc.claims import CLAIMS
from steelyard.policy.arc.config import Config
from steelyard.policy.arc.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="arc",
    name="ARC",
    summary="An agent states its progress and predicts what comes next, is checked against the environment, and gets "
    "credit for both apart from the outcome; reconstructed from an abstract.",
    does=(
        "Each turn has a progress statement, which must agree with everything observed so far, and a prediction, which "
        "the next observation must bear out. Rules, shared words, an encoder or a judge score both. The outcome is "
        "compared among a task's rollouts and each signal among its steps, each normalised by itself; a signal's part "
        "reaches only the tokens that made that commitment."
    ),
    use_when=(
        "An agent's reasoning drifts from what it saw, and its own words are its memory.",
        "Statements can be checked: a tracker knows from observations what is true.",
        "Rewards are sparse and you have a dense signal of another scale beside them.",
    ),
    avoid_when=(
        "Nothing about the state can be checked: a judge's mistakes become rewards.",
        "You would send the process part to every token: a small policy then sought states where its statements were "
        "trivially true, and won nothing.",
        "The agent sees the whole state at every step: there is nothing to remember wrongly.",
    ),
    cost="Some more tokens a turn, a check a step (some microseconds by rules), and two sums by group.",
    paper=Paper(
        title="ARC: Anchored Reasoning with Commitment",
        authors="not known here",
        identifier="none known (several other papers have this name)",
        venue="NeurIPS 2026",
        basis="The abstract alone: the two commitments, decoupled normalisation and six numbers are the paper's; form, "
        "verifiers, weights, routing and every formula are a reconstruction from it and its relatives (ReBel, GDPO, "
        "RLVMR).",
    ),
    usage=(
        "import numpy as np\n"
        "from steelyard.policy import CommitmentFormat, StepBatch, arc_advantage\n"
        "turn = '<progress>hold=none</progress><action>go to desk 1</action><predict>a pencil</predict>'\n"
        "print(CommitmentFormat().parse(turn).action)\n"
        "batch = StepBatch(\n"
        "    task=[0] * 4, traj=[0, 0, 1, 1], t=[0, 1, 0, 1], reward=[0, 10.0, 0, 0],\n"
        "    process={'progress': [1, 1, 1, 0], 'prediction': [0, 1, 0, np.nan]},\n"
        ")\n"
        "print(arc_advantage(batch).for_segment('progress'), arc_advantage(batch).for_segment('action'))\n"
    ),
    claims=CLAIMS,
    limits=(
        "Reconstructed from an abstract: what is weighed here is this reconstruction. The likely form of the paper, "
        "the process part on every token, is an arm.",
        "The policy is log-linear with five decisions a turn, on text games; statements are three values, not "
        "sentences.",
        "In the full weighing, free statements with a penalty for wrong ones won as many games as required ones, "
        "leaving a fifth unsaid: what helped was being checked at all, more than having to say everything.",
        "Consistency can rise while success collapses: the two are always shown together.",
        "A rule checks what a tracker knows. What it does not know is left out, and an agent may learn to state only "
        "what is easy; required keys prevent that.",
        "The free-form arm may leave parts of a statement unsaid and is penalised for wrong ones alone; it stands for "
        "free reasoning under a penalty and is not the same.",
        "Summed rewards are divided by the reward of winning first; another scale would weigh them otherwise.",
        "About seven settings were tried at second hand before these; the weight of .1 comes from there. Here each arm "
        "had three learning rates on three tuning seeds.",
        "Episodes end after 30 commands here, after 50 in the paper.",
        "The official games come from a mirror or from an ALFWorld folder of yours; 600 of the 3,553 training games "
        "are in the packed file.",
        "Being told the true state and the statement by parts have six seeds in the full profile: shown, no verdict. "
        "The plain sum, free statements and the process part everywhere had six at first; they got the same ten as the "
        "others after those had been seen, with claims and settings as they were.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "At second hand it is said that separate normalisation keeps different pairs of outcome and signal apart. It "
        "does not always: with outcomes (1, 0, 1, 0) and signals (0, 1, 1, 0) it ties the same pairs as one "
        "normalisation. What it does ensure is that a signal's weight does not depend on its scale.",
        "Two rules for claims that cannot be checked meet: masked, and worth nothing. Here a claim of something "
        "unknown is left out of the score, and a statement without any checkable claim scores 0; masking it would "
        "make vague statements better than wrong ones.",
    ),
    config=Config,
)
