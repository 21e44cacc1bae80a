"""The decision ledger of G2PO: equations are second hand or the authors' code; where they differ both are told."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="d1", what="What is one state", chosen="the caller's anchor; in the bench the simulator's state",
        source=Source.RECON, why="the authors' code takes the raw observation, which on ALFWorld mixes states: a small "
        "policy then unlearns; the choice decides the sign of the result", knob="anchor",
        alternatives=("history: the observation and the turn before it, nothing privileged", "obs: the authors' code"),
    ),
    Decision(
        id="d2", what="Value of a state", chosen="mean of gamma^(T - j + 1) R over all visits, gamma .95",
        source=Source.SECOND_HAND, why="as transcribed, and as the code computes it", knob="weighting",
        alternatives=("trajectories: each rollout counts once",),
    ),
    Decision(
        id="d3", what="Value after the last step", chosen="the undiscounted return of a success, else 0",
        source=Source.CODE, why="the code asks for a return of exactly 10; here a success flag says it, without one "
        "the return itself is taken", alternatives=("a function", "an array"), knob="terminal_value",
    ),
    Decision(
        id="d4", what="Rollouts cut off by time", chosen="end as failures", source=Source.CODE,
        why="as in the code", alternatives=("bootstrap: the value of the last state",), knob="bootstrap",
    ),
    Decision(
        id="d5", what="Invalid actions", chosen="what they led to is worth .1 less in the node term",
        source=Source.CODE, why="as in the code; the edge term does not see it", alternatives=("0: no penalty",),
        knob="invalid_penalty",
    ),
    Decision(
        id="d6", what="Credit of an edge", chosen="V(next) - V(here), without discount or reward, over the task's "
        "steps", source=Source.SECOND_HAND, why="the value after the end carries the reward", knob="edge",
    ),
    Decision(
        id="d7", what="Statistics of the episode term", chosen="over rollouts", source=Source.SECOND_HAND,
        why="the equation's; the code takes them over steps, so that long rollouts weigh more", knob="episode_stats",
        alternatives=("step: the code",),
    ),
    Decision(
        id="d8", what="Normalisation", chosen="standard deviations, n - 1, plus 1e-6", source=Source.SECOND_HAND,
        why="the equations', and the code's for ALFWorld", alternatives=("mean: the code's for WebShop",), knob="norm",
    ),
    Decision(
        id="d9", what="Weight of the graph terms", chosen="1", source=Source.SECOND_HAND, why="the main runs'",
        alternatives=(".8: best on WebShop",), knob="w",
    ),
    Decision(
        id="d10", what="Terms", chosen="episode, node and edge", source=Source.SECOND_HAND, why="the whole method",
        alternatives=("any subset",), knob="parts",
    ),
    Decision(
        id="d11", what="A task with one rollout", chosen="an episode term of 0, with a warning", source=Source.RECON,
        why="the code keeps the raw return, which is no comparison", knob="lone_rollout",
    ),
    Decision(
        id="d12", what="Mean of the loss", chosen="over steps", source=Source.SECOND_HAND,
        why="as transcribed; long rollouts weigh more", knob="loss",
    ),
    Decision(
        id="d13", what="Least standard deviation", chosen="none", source=Source.RECON,
        why="standardising near-equal rises amplifies noise; a floor is there for who needs it", knob="min_std",
    ),
    Decision(
        id="d14", what="Rises along the rollout", chosen="one step", source=Source.SECOND_HAND,
        why="the paper's edge term is a temporal difference of one step", alternatives=("lam up to 1: reconstruction",),
        knob="lam",
    ),
    Decision(
        id="d15", what="Policy and its training in the bench", chosen="log-linear, 30 on-policy steps of Adam, "
        "learning rate of three on tuning seeds, for each arm alike", source=Source.RECON,
        why="seconds on a core; paper scale needs GPUs and a language model", alternatives=("a small transformer",),
        knob="learning_rate",
    ),
)  # fmt: skip
