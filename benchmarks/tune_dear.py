"""Renew the settings of DEAR's bench on the simulator's tuning streams, which no verdict is read from.

DEAR has four prices of a call-unit to choose from; sizes and rates of its training were found by hand before, in some
twenty trials on these streams. The ring is tried in 27 settings, more than DEAR had in all; ReConcile in 9, which are
all it has. The ring and ReConcile are chosen by right votes. DEAR is chosen by right votes among the settings whose
mean cost does not exceed that of MAD with early stop, since that is what it has to cost less than.

Run: python benchmarks/tune_dear.py (about five minutes on one core).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steelyard.agents import dear
from steelyard.agents.dear import cells, tasks
from steelyard.agents.dear.episodes import BEHAVIOURS
from steelyard.agents.dear.policies import FullyConnected, ReConcile, Sparse
from steelyard.contracts import CellInput

SEEDS = (0, 1, 2)
STOPS = ("never", "unanimous", "stable")
EPISODES, DEBATES = 30_000, 20_000
COMMON = {
    "credit": "difference", "batch": 1024, "minibatches": 16, "epochs": 2, "learning_rate": 2e-3, "entropy": 0.003
}  # fmt: skip
GRIDS: dict[str, list[dict[str, Any]]] = {
    "ring": [
        {"degree": degree, "behaviour": behaviour, "early_stop": stop}
        for degree, behaviour, stop in itertools.product((1, 2, 3), BEHAVIOURS[1:], STOPS)
    ],
    "reconcile": [
        {"behaviour": behaviour, "early_stop": stop} for behaviour, stop in itertools.product(BEHAVIOURS[1:], STOPS)
    ],
    "dear": [{**COMMON, "lam": lam} for lam in (0.001, 0.0015, 0.002, 0.003)],
}


def measured(arm: str, config: dict[str, Any], seed: int) -> tuple[float, float]:
    """Return right votes and call-units of one setting on one tuning seed."""
    params = {"controller": {}, "episodes": EPISODES, "debates": DEBATES, "repeats": 1}
    own = config if arm == "dear" else {}
    cell = CellInput("sim", arm, own, params, {}, seed, tasks.headline(), root="tuning")
    where = tasks.sides(cell)
    if arm == "dear":
        policy: Any = cells.trained(cell, where.train)[0]
    else:
        policy = {"ring": Sparse, "reconcile": ReConcile, "mad_stop": FullyConnected}[arm](**config)
    found = cells.figures(cells.play(cell, where, policy))
    return found["vote_accuracy"], found["cost"]


def main() -> None:
    """Try every setting and write ``tuned.json`` beside the bench."""
    torch.set_num_threads(1)
    bar = float(np.mean([measured("mad_stop", {"early_stop": "unanimous"}, seed)[1] for seed in SEEDS]))
    chosen = {}
    for arm, grid in GRIDS.items():
        tried = []
        for config in grid:
            right, cost = np.mean([measured(arm, config, seed) for seed in SEEDS], axis=0)
            tried.append({"config": config, "score": round(float(right), 5), "cost": round(float(cost), 3)})
            print(arm, tried[-1], flush=True)
        allowed = [one for one in tried if arm != "dear" or one["cost"] <= bar] or tried
        best = max(allowed, key=lambda one: (one["score"], -one["cost"]))
        chosen[arm] = {**best, "seeds": list(SEEDS), "tried": tried}
    path = Path(str(dear.__path__[0])) / "tuned.json"
    path.write_text(json.dumps(chosen, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
