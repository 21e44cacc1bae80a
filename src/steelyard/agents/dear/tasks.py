"""The bench's debates: the simulator at three strengths of conformity, a committee of classifiers, a recording."""

from __future__ import annotations

import json
from importlib import resources
from typing import NamedTuple

import numpy as np

from steelyard.agents.dear.committee import CommitteeAgents
from steelyard.agents.dear.episodes import Backend
from steelyard.agents.dear.recorded import RecordedAgents
from steelyard.agents.dear.recorder import unpacked
from steelyard.agents.dear.simulator import SimAgents
from steelyard.contracts import Arrays, CellInput
from steelyard.data.embedded import digits

HEADLINE, MILD = 3.5, 1.6
SIMULATED = ("sim", "sim_mild", "control", "sweeps")


class Sides(NamedTuple):
    """Where a controller is trained and where it is judged; items are None where questions are drawn afresh."""

    train: Backend
    test: Backend
    train_items: tuple[int, ...] | None
    test_items: tuple[int, ...] | None


def simulated(conformity: float, arguments: bool) -> Arrays:
    """Return the two knobs that a simulated task is made of."""
    return {"conformity": np.array(conformity), "arguments": np.array(arguments)}


def headline() -> Arrays:
    """Return the simulator's headline setting."""
    return simulated(HEADLINE, True)


def mild() -> Arrays:
    """Return the simulator with less than half the pull of peers' answers."""
    return simulated(MILD, True)


def no_gain() -> Arrays:
    """Return the simulator without a pull of answers and without arguments: debating cannot help there."""
    return simulated(0.0, False)


def committee() -> Arrays:
    """Return the digits that the classifiers see, and the simulator's social response."""
    pixels, labels = digits()
    return {**headline(), "pixels": pixels, "labels": labels}


def recorded() -> Arrays:
    """Return the recording of a small language model as text."""
    text = resources.files("steelyard.agents.dear").joinpath("recording.json").read_text(encoding="utf-8")
    return {"recording": np.array(text)}


def sides(cell: CellInput, conformity: float | None = None) -> Sides:
    """Return a cell's back ends; ``conformity`` overrides that of the task.

    A seed of the committee has classifiers of its own (another draw of pixels), so seeds are no repetitions of one
    team; its images for training and for judging are disjoint. A recording's questions are split in two halves.
    """
    if cell.task == "recorded":
        agents = RecordedAgents(unpacked(json.loads(str(cell.data["recording"]))))
        mixed = cell.rng("halves").permutation(len(agents.questions)).tolist()
        half = len(mixed) // 2
        return Sides(agents, agents, tuple(mixed[:half]), tuple(mixed[half:]))
    knobs = {
        "conformity": float(cell.data["conformity"]) if conformity is None else conformity,
        "arguments": bool(cell.data["arguments"]),
    }
    if cell.task == "committee":
        pixels = cell.seed if cell.root == "evaluation" else 1_000 + cell.seed
        train, test = (_committee(split, pixels, knobs) for split in ("controller", "test"))
        return Sides(train, train if cell.root == "tuning" else test, None, None)
    simulator = SimAgents(conformity=knobs["conformity"], arguments=bool(knobs["arguments"]))
    return Sides(simulator, simulator, None, None)


def _committee(split: str, pixels: int, knobs: dict[str, float]) -> CommitteeAgents:
    side = "controller" if split == "controller" else "test"
    return CommitteeAgents(
        side,  # type: ignore[arg-type]  # one of the two literals
        conformity=knobs["conformity"], arguments=bool(knobs["arguments"]), pixel_seed=pixels,
    )  # fmt: skip
