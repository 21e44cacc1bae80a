"""One cell of reinforcement learners: train clients for rounds under one way to share, and evaluate them greedily.

All arms start from one network, draw from the same streams, and are judged on the same episodes. Judged is the model
that a client has at the end of its own round of training, which is the one that it would act with. Returns are divided
by what long training alone reached on the task (``references.json``, from tuning streams) where the task says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.metrics import adjusted_rand_score

from steelyard import rng
from steelyard.contracts import CellInput, Diagram, Measured
from steelyard.errors import InputError
from steelyard.fed.gadaphead import suites
from steelyard.fed.gadaphead.arms import METHOD
from steelyard.fed.gadaphead.diagrams import sharing_diagram
from steelyard.fed.gadaphead.grouping import UpdateCosine
from steelyard.fed.gadaphead.linear import Floats, Ints
from steelyard.fed.gadaphead.mixing import AdaptiveMix
from steelyard.fed.gadaphead.rounds import Broadcast, RoundRecord, federated_rounds
from steelyard.fed.gadaphead.strategies import Clustered, FedAvg, GAdapHead, Local, SharedTrunk

CONVERGED, LONG = 0.9, 4
"""Share of the reference that a converged task reaches, and how many times longer the reference trains."""
_EARLY = 5
REFERENCES: dict[str, list[float]] = json.loads(
    resources.files("steelyard.fed.gadaphead").joinpath("references.json").read_text(encoding="utf-8")
)


class Central(Protocol):
    """A central learner."""

    def advance(self, generator: np.random.Generator) -> None:
        """Train as long as a round of all clients."""
        ...

    def returns(self, generator: Callable[[int], np.random.Generator]) -> list[float]:
        """Return the mean greedy return on each task, with a generator of each task's own."""
        ...


class Suite(Protocol):
    """The tasks of one kind, a client each.

    Attributes:
        names: Of the clients.
        planted: Which of them can share, shape (N,).
        kinds: Number of each client's task, shape (N,); clients of one task have one reference.
    """

    names: tuple[str, ...]
    planted: Ints
    kinds: Ints

    def clients(self, **changes: Any) -> Sequence[Any]:
        """Return fresh clients; ``changes`` are settings that differ from the suite's."""
        ...

    def initial(self, generator: np.random.Generator) -> Broadcast:
        """Return the network that all start from."""
        ...

    def returned(self, client: int, learner: Any, generator: np.random.Generator) -> float:
        """Return the mean greedy return of what a client has after its own training."""
        ...

    def central(self, generator: np.random.Generator, **changes: Any) -> Central:
        """Return a central learner that is told the task."""
        ...

    def at_random(self, client: int, generator: np.random.Generator) -> float:
        """Return the mean return of random actions."""
        ...


SUITES: Mapping[str, Callable[[CellInput], Suite]] = {
    "minigrid": suites.minigrid,
    "minigrid_12": suites.minigrid,
    "pendulum": suites.pendulum,
}
_STRATEGY = ("threshold", "ema", "warmup")
_CLIENT = ("learning_rate", "prox_mu", "alternate", "head_share")


class Curve(NamedTuple):
    """Greedy returns of every client at some rounds, shape (T, N), and the records of all rounds."""

    rounds: list[int]
    returns: Floats
    records: list[RoundRecord]


def run(cell: CellInput) -> Measured:
    """Train and judge one arm on a suite of tasks."""
    suite = SUITES[cell.task](cell)
    if cell.arm == "random":
        seen = np.array([suite.at_random(client, _judge(cell, client)) for client in range(len(suite.names))])
        return Measured(outcome(cell, Curve([0, 0], np.stack([seen, seen]), []), suite), steps=len(seen))
    curve = centralised(cell, suite) if cell.arm == "centralised" else federated(cell, suite)
    steps = _rounds(cell) * len(suite.names)
    return Measured(
        outcome(cell, curve, suite), steps=steps, traces=_traces(curve, suite), diagrams=_pictures(cell, curve, suite)
    )


def _pictures(cell: CellInput, curve: Curve, suite: Suite) -> tuple[Diagram, ...]:
    """Return who shares with whom in the last round, of the first seed."""
    if cell.arm != METHOD or cell.seed:
        return ()
    last, every = curve.records[-1], range(len(suite.names))
    groups = np.array([last.groups[client] for client in every])
    strength = np.array([last.lam[client] for client in every])
    return (sharing_diagram(suite.names, groups, strength, suite.planted, f"sharing_{cell.task}"),)


def strategies(threshold: float = 1.0, **mixing: Any) -> dict[str, Callable[[], Any]]:
    """Return what the server does, by arm; ``mixing`` holds settings of `AdaptiveMix`."""
    return {
        "local": Local,
        "local_long": Local,
        "fedavg": FedAvg,
        "fedprox": FedAvg,
        "fedper": SharedTrunk,
        "fedrep": SharedTrunk,
        "clustered": lambda: Clustered(UpdateCosine(threshold)),
        METHOD: lambda: GAdapHead(UpdateCosine(threshold), AdaptiveMix(**mixing)),
    }


def strategy_of(cell: CellInput) -> Any:
    """Return what the server does in the cell's arm.

    Raises:
        InputError: An arm that does not train in rounds.
    """
    made = strategies(**{name: cell.config[name] for name in _STRATEGY if name in cell.config})
    if cell.arm not in made:
        raise InputError(f"arm '{cell.arm}' is not measured on task '{cell.task}'")
    return made[cell.arm]()


def federated(cell: CellInput, suite: Suite) -> Curve:
    """Train the cell's clients in rounds and evaluate them every few."""
    clients = suite.clients(**_of_clients(cell))
    strategy, marks, seen, records = strategy_of(cell), _marks(cell), list[list[float]](), list[RoundRecord]()

    def after(record: RoundRecord) -> None:
        records.append(record)
        if record.round in marks:
            seen.append([suite.returned(i, client, _judge(cell, i)) for i, client in enumerate(clients)])

    seed = rng.derive_seed(cell.root, f"{cell.task}/rounds", cell.seed)
    federated_rounds(
        clients, _rounds(cell), strategy, seed, initial=suite.initial(cell.rng("initial")), on_round=after,
        skip_failures=False,
    )  # fmt: skip
    return Curve(marks, np.array(seen), records)


def centralised(cell: CellInput, suite: Suite) -> Curve:
    """Train one learner on all tasks, as many steps and updates as all clients together."""
    learner = suite.central(cell.rng("initial"), **_of_clients(cell))
    marks, seen, stream = _marks(cell), list[list[float]](), cell.rng("central")
    for number in range(1, _rounds(cell) + 1):
        learner.advance(stream)
        if number in marks:
            seen.append(learner.returns(lambda client: _judge(cell, client)))
    return Curve(marks, np.array(seen), [])


def outcome(cell: CellInput, curve: Curve, suite: Suite) -> dict[str, float]:
    """Return the figures of a curve by the names of the bench's metrics."""
    reference = np.array(REFERENCES[cell.task])
    share = curve.returns / reference
    returns = share if cell.data.get("relative") else curve.returns
    last = returns[-1]
    found = {
        "return_mean": float(last.mean()),
        "return_worst": float(last.min()),
        "return_std": float(share[-1].std()),
        "auc": float(returns.mean()),
        "converged": float((share[-2:] >= CONVERGED).all(axis=0).mean()),
    }
    if curve.records:
        count = len(suite.names)
        found["strength"] = float(np.mean(_strengths(curve)))
        found["uploaded"] = float(np.mean([record.uploaded_bytes for record in curve.records])) / count / 1e3
    if curve.records and curve.records[-1].groups:
        index = _agreement(curve, suite)
        half = len(index) // 2
        found |= {"ari": index[-1], "ari_mid": index[half], "ari_early": float(np.mean(index[:_EARLY]))}
    return found


def _strengths(curve: Curve) -> list[float]:
    return [float(np.mean(list(record.lam.values()) or [0.0])) for record in curve.records]


def _agreement(curve: Curve, suite: Suite) -> list[float]:
    """Return the adjusted Rand index of the groups of each round with the planted ones."""
    every = range(len(suite.names))
    return [
        float(adjusted_rand_score(suite.planted, [record.groups[client] for client in every]))
        for record in curve.records
    ]


def _traces(curve: Curve, suite: Suite) -> dict[str, tuple[list[float], list[float]]]:
    if len(curve.rounds) < 2:
        return {}  # a point is no curve
    traces = {"return": ([float(mark) for mark in curve.rounds], curve.returns.mean(axis=1).tolist())}
    if curve.records and curve.records[-1].groups:
        numbers = [float(record.round) for record in curve.records]
        traces |= {"strength": (numbers, _strengths(curve)), "ari": (numbers, _agreement(curve, suite))}
    return traces


def _of_clients(cell: CellInput) -> dict[str, Any]:
    return {name: cell.config[name] for name in _CLIENT if name in cell.config}


def _rounds(cell: CellInput) -> int:
    return int(cell.params["rounds"]) * (LONG if cell.arm == "local_long" else 1)


def _marks(cell: CellInput) -> list[int]:
    """Return the rounds after which clients are evaluated, the last among them."""
    rounds, every = _rounds(cell), int(cell.params["every"])
    return sorted({*range(every, rounds + 1, every), rounds})


def _judge(cell: CellInput, client: int) -> np.random.Generator:
    """Return the episodes' stream: the same ones for every arm and round."""
    return cell.rng(f"judged {client}")
