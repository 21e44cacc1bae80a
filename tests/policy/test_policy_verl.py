"""verl's rows and tokens at their edges."""

import types

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.policy import broadcast_to_tokens, patch_verl, side_table_estimator
from steelyard.policy.verl import row_batch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


def fields(**changed):
    """Two rollouts of two steps, as ``non_tensor_batch`` has them: arrays of objects."""
    own = {
        "uid": objects("p", "p", "p", "p"), "traj_uid": objects("a", "a", "b", "b"),
        "anchor_obs": objects("s", "t", "s", "u"), "step": objects(0, 1, 0, 1),
    }  # fmt: skip
    return {**own, **changed}


REWARDS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
MASK = torch.ones(4, 2)


def test_copies_that_differ_are_refused():
    double = {name: np.concatenate([values, values[1:2]]) for name, values in fields().items()}
    rewards = torch.cat([REWARDS, REWARDS[1:2]])
    batch, step = row_batch(rewards, double)
    assert len(batch) == 4
    assert step.tolist() == [0, 1, 2, 3, 1]
    with pytest.raises(InputError, match="reward: row 4"):
        row_batch(torch.cat([REWARDS, REWARDS[0:1]]), double)


def test_anchors_that_are_images_are_equal_by_content():
    frames = [np.full((2, 2), value, np.uint8) for value in (0, 1, 0, 2)]
    batch, _ = row_batch(REWARDS, fields(anchor_obs=objects(*frames)))
    nodes, count = batch.nodes
    assert count == 3
    assert nodes[0] == nodes[2]


@pytest.mark.parametrize("times", [objects(0, 1.5, 0, 1), objects(0, "x", 0, 1), objects(0, None, 0, 1)])
def test_steps_are_whole_numbers(times):
    with pytest.raises(InputError, match="whole number"):
        row_batch(REWARDS, fields(step=times))


def test_a_table_is_checked():
    with pytest.raises(InputError, match="'ppo' is not known"):
        side_table_estimator("ppo", {})
    rows = {str(row): {name: values[row] for name, values in fields().items()} for row in range(4)}
    estimate = side_table_estimator("gigpo", rows)
    values, _ = estimate(REWARDS, MASK, index=objects(*"0123"))
    assert values.shape == (4, 2)
    with pytest.raises(InputError, match="index"):
        estimate(REWARDS, MASK)
    del rows["2"]["anchor_obs"]
    with pytest.raises(InputError, match="table: row '2' lacks 'anchor_obs'"):
        estimate(REWARDS, MASK, index=objects(*"0123"))


def test_what_verl_itself_lacks_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'ray'", name="ray")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(InputError, match="'ray'"), patch_verl():
        pass


def test_the_patch_is_taken_back_after_an_error():
    module = types.ModuleType("trainer")
    module.compute_advantage = own = lambda data, adv_estimator: data
    batch = {"token_level_rewards": REWARDS, "response_mask": MASK}
    data = types.SimpleNamespace(batch=batch, non_tensor_batch={})
    with pytest.raises(InputError, match="uid"), patch_verl(module):
        module.compute_advantage(data, "g2po")
    assert module.compute_advantage is own


@pytest.mark.parametrize(
    ("advantage", "mask"),
    [
        ({"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones((2, 3)), "b": np.zeros((2, 1))}),
        ({"a": np.ones(2), "b": np.ones(2)}, {"a": np.ones((2, 3)), "b": np.zeros((2, 2))}),
        (np.ones(2), [[1, 0], [1]]),
    ],
)
def test_masks_of_several_lengths_are_refused(advantage, mask):
    with pytest.raises(InputError, match="mask") as caught:
        broadcast_to_tokens(advantage, mask)
    assert "\n" not in str(caught.value)
