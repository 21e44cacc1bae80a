"""What the room's functions refuse, each in one sentence that names the argument."""

import numpy as np
import pytest

from steelyard.errors import InputError
from steelyard.policy import (
    CommitmentFormat,
    CommitmentWrapper,
    JudgeVerifier,
    LogLinearPolicy,
    StepBatch,
    alias_report,
    arc_advantage,
    coupled,
    decoupled,
    dr_grpo,
    g2po_advantage,
    generate_games,
    gigpo,
    grpo,
    inconsistency_report,
    rloo,
    train_household,
)

GAMES = generate_games(2)


def trained(credit):
    return train_household(LogLinearPolicy(), GAMES, credit, iterations=1, tasks=2, rollouts=2, max_steps=2)


def batch(**fields):
    return StepBatch(**{"task": [0, 0], "traj": [0, 1], "t": [0, 0], "reward": [0.0, 1.0], **fields})


@pytest.mark.parametrize("function", [grpo, dr_grpo, rloo, gigpo, g2po_advantage, arc_advantage])
@pytest.mark.parametrize("given", [None, [1, 2], {"reward": [1]}])
def test_what_is_no_batch(function, given):
    with pytest.raises(InputError, match="batch must be a StepBatch"):
        function(given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: batch(task=None), "task: the steps have none"),
        (lambda: batch(t=None), "t: the steps have none"),
        (lambda: StepBatch.without_copies(task=[0], traj=[0], t=[0]), "reward: the rows have none"),
        (lambda: StepBatch.from_episodes(5), "episodes must be a list"),
        (lambda: StepBatch.from_episodes([[1]]), "episode 0, step 0: a step"),
        (lambda: StepBatch.from_episodes([[{"reward": 1, "process": [1]}]]), "'process' must be mappings"),
        (lambda: alias_report(None), "batch must be a StepBatch or a list of observations"),
        (lambda: alias_report("abc"), "batch must be"),
        (lambda: alias_report(["a", "a"], [1, 2]), "admissible_sets: each entry"),
        (lambda: alias_report(["a", "a"], [["x"], [["y"]]]), "admissible_sets: each entry"),
        (lambda: decoupled({"a": ["x", 2]}, [0, 0], {"a": 1}), "rewards: each"),
        (lambda: coupled({"a": [1, 2]}, [0, 0], {"a": "1"}), "weights: that of 'a'"),
        (lambda: generate_games("x"), "n must be a whole number"),
        (lambda: CommitmentFormat().render(progress="</progress>", action="a", prediction="b"), "progress: a tag"),
        (lambda: CommitmentFormat().segment_mask("abc", [(0, 1, 2)]), "offsets must hold"),
        (lambda: CommitmentFormat().segment_mask("abc", "xx"), "offsets must hold"),
        (lambda: CommitmentWrapper(GAMES[0].make_env(), {"progress": 5}), "verifiers: that of 'progress'"),
        (lambda: JudgeVerifier(5), "judge must be a function"),
        (lambda: inconsistency_report("abc"), "episodes must be a list"),
        (lambda: inconsistency_report([[{"process": {"progress": 0.5}}]], threshold="x"), "threshold must be"),
        (lambda: trained(lambda steps: np.zeros(3)), "estimator: it must return one finite number a step"),
        (lambda: trained(lambda steps: np.full(len(steps), np.nan)), "for action"),
        (lambda: trained(lambda steps: {"action": None}), "for action"),
    ],
)
def test_what_cannot_be_used_is_named(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
