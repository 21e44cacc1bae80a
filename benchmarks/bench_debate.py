"""Debate: agent-steps a second of the back ends, milliseconds of a controller's round, and cost of fixed policies.

Run: ``python benchmarks/bench_debate.py``. CPU time of one thread. An agent-step is one agent in one round of a debate
that is still going, with the controller's observation and decision in it. The batched simulator is timed in the same
rounds as the same simulator with one debate at a time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import receipt
import torch

from steelyard.agents.dear.audit import audit_label_leak
from steelyard.agents.dear.committee import CommitteeAgents
from steelyard.agents.dear.controller import DEARController
from steelyard.agents.dear.policies import CritiqueAll, FixedController, FullyConnected, KeepAll, RandomOne, Sparse
from steelyard.agents.dear.rollout import Outcome, rollout
from steelyard.agents.dear.simulator import SimAgents
from steelyard.rng import generator
from steelyard.timing import interleaved

BATCHES = (1, 10, 100, 1_000, 10_000)
TARGETS = {"agent-steps a second": 50_000, "controller, N = 8, ms a round": 2.0, "cost over all-to-all": 0.6}
POLICIES: dict[str, FixedController] = {
    "vote": KeepAll(),
    "all-to-all": FullyConnected(),
    "all-to-all, early stop": FullyConnected(early_stop="unanimous"),
    "ring": Sparse(),
    "random peer": RandomOne(),
    "critique-all, early stop": CritiqueAll(),
}


def played(backend: Any, controller: Any, batch: int, seed: int = 0) -> Outcome:
    """Whole debates of three rounds."""
    return rollout(backend, controller, batch=batch, generator=generator("bench debate", "play", seed))


def median_seconds(arms: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of a call of each arm, arms taking turns."""
    seconds = interleaved(arms, repeats=repeats, warmup=1, clock=time.process_time)
    return {name: statistics.median(values) for name, values in seconds.items()}


def scaling(repeats: int) -> dict[str, Any]:
    """Agent-steps a second by the number of debates at once."""
    sim = SimAgents()
    arms = {str(batch): lambda batch=batch: played(sim, FullyConnected(), batch) for batch in BATCHES}
    seconds = median_seconds(arms, repeats)
    rates = [played(sim, FullyConnected(), batch).steps / seconds[str(batch)] for batch in BATCHES]
    return {
        "agent-steps a second, one thread": {
            "x": list(BATCHES),
            "y": {"simulator, all read all": rates},
            "x_label": "debates at once",
            "y_label": "agent-steps/s",
        }
    }


def speeds(repeats: int) -> dict[str, float]:
    """Agent-steps a second of each back end with 2,000 debates at once."""
    cases = {
        "simulator, all-to-all": (SimAgents(), FullyConnected()),
        "simulator, critique-all, early stop": (SimAgents(), CritiqueAll()),
        "simulator, 8 agents": (SimAgents(8), FullyConnected()),
        "committee, all-to-all": (CommitteeAgents(), FullyConnected()),
    }
    seconds = median_seconds({name: lambda case=case: played(*case, 2000) for name, case in cases.items()}, repeats)
    return {name: played(*case, 2000).steps / seconds[name] for name, case in cases.items()}


def controller_round(repeats: int) -> dict[str, float]:
    """Milliseconds of one decision about one debate."""
    found = {}
    for agents in (5, 8):
        sim = SimAgents(agents)
        controller = DEARController().fit(
            sim, episodes=256, seed=0
        )  # untrained in effect; the time does not depend on it
        state = sim.start(1, generator("bench debate", "act", 0)).public()
        seconds = median_seconds({"act": lambda c=controller, s=state: [c.act(s) for _ in range(20)]}, repeats)
        found[f"controller, N = {agents}, ms a round"] = 1e3 * seconds["act"] / 20
    return found


def policies(batch: int) -> dict[str, dict[str, float]]:
    """Accuracy, conformity, cost and calls of fixed policies in the simulator, mean of two seeds."""
    shown = ("vote_accuracy", "harmful", "beneficial", "cost", "calls")
    found = {}
    for name, controller in POLICIES.items():
        runs = [played(SimAgents(), controller, batch, seed).summary() for seed in (0, 1)]
        found[name] = {key: float(np.mean([run[key] for run in runs])) for key in shown}
        found[name]["cost over all-to-all"] = found[name]["cost"] / 50.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--dry", action="store_true", help="print the figures, write no receipt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "agent-steps a second, 2,000 debates at once": speeds(arguments.repeats),
        "controller": controller_round(arguments.repeats),
        "audit, s": median_seconds({"2,000 debates, 3 rounds": lambda: audit_label_leak(SimAgents())}, 3),
        "fixed policies, simulator, 20,000 debates x 2 seeds": policies(20_000),
        "targets": TARGETS,
        "scaling": scaling(arguments.repeats),
    }
    print(json.dumps(figures, indent=1))
    if not arguments.dry:
        print(receipt.write("speed_debate", figures))


if __name__ == "__main__":
    main()
