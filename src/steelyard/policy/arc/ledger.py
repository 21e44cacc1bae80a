"""The decision ledger of ARC: the abstract names two commitments and decoupled normalisation; the rest is ours."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="r1", what="What an agent commits itself to", chosen="a progress statement and a prediction, every turn",
        source=Source.PAPER, why="the abstract's two commitments", knob="commitments",
    ),
    Decision(
        id="r2", what="Form of a turn", chosen="progress, think, action and predict, each between tags",
        source=Source.RECON, why="strict enough to be parsed, and routed to tokens", knob="tags",
        alternatives=("CommitmentFormat(tags=...)",),
    ),
    Decision(
        id="r3", what="Who judges", chosen="rules on games, shared words elsewhere", source=Source.RECON,
        why="rules are exact where a tracker knows the state from observations; shared words are ReBel's way",
        alternatives=("embedding", "judge: a language model"), knob="verifier",
    ),
    Decision(
        id="r4", what="A missing or malformed segment", chosen="scores 0, and the turn's reward is lower by .05",
        source=Source.RECON, why="ReBel's size; the bench's policy never breaks the form", knob="format_penalty",
        alternatives=("another penalty",),
    ),
    Decision(
        id="r5", what="Claims that cannot be checked", chosen="left out of the score", source=Source.RECON,
        why="a claim of something unknown is neither right nor wrong", knob="unknown_claims",
    ),
    Decision(
        id="r6", what="Statements without a checkable claim", chosen="score 0", source=Source.RECON,
        why="otherwise silence is the best policy", alternatives=("masked",), knob="specificity",
    ),
    Decision(
        id="r7", what="Mean of the two signals", chosen="half and half, where both reach every token",
        source=Source.RECON, why="nothing says otherwise; ReBel has .3, .4 and .3", knob="weights",
        alternatives=("other shares",),
    ),
    Decision(
        id="r8", what="Normalisation", chosen="each signal by itself over the task's steps, n - 1, plus 1e-6",
        source=Source.RECON, why="the abstract has the idea of independent group normalisation, the form is ours",
        alternatives=("joint: coupled, a rival here", "per state, as ReBel per belief"), knob="norm",
    ),
    Decision(
        id="r9", what="Weight of the process part", chosen=".1", source=Source.RECON,
        why="larger ones harmed success in second-hand trials", alternatives=("any below 1",), knob="alpha",
    ),
    Decision(
        id="r10", what="Which tokens the process part reaches", chosen="those of the commitment that it judges",
        source=Source.RECON, why="on action tokens it teaches to seek states where statements are trivially true",
        alternatives=("step: every token, likely the paper's form",), knob="route",
    ),
    Decision(
        id="r11", what="Return of a signal", chosen="its own step's value", source=Source.RECON,
        why="the simplest", alternatives=("to_go: with what follows, discounted by .8",), knob="returns",
    ),
    Decision(
        id="r12", what="Start", chosen="imitation of walkthroughs whose statements are true", source=Source.RECON,
        why="all relatives start from supervised turns in the form", knob="cold_start",
    ),
    Decision(
        id="r13", what="Whitening of the batch", chosen="off", source=Source.RECON, why="GDPO has it; not needed here",
        alternatives=("on",), knob="whiten",
    ),
    Decision(
        id="r14", what="Persistence of an inconsistency", chosen="two definitions, both reported", source=Source.RECON,
        why="the abstract has a number and no definition", knob="persistence",
    ),
    Decision(
        id="r15", what="Policy and training in the bench", chosen="log-linear with five decisions a turn, 60 steps of "
        "Adam, learning rate of three on tuning seeds, for each arm alike", source=Source.RECON,
        why="seconds on a core; paper scale needs GPUs and a language model", knob="learning_rate",
    ),
)  # fmt: skip
