"""How sharing is weighed: on linear clients where all is known, and on reinforcement learners where it is not.

On linear clients every way to share gets the same fits, so differences pair. Reinforcement learners of all arms start
from one network and draw from the same streams; every arm had five settings to choose from on the same tuning
streams (``tuned.json``, by ``benchmarks/tune_gadaphead.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile
from steelyard.fed.gadaphead import arms, cells, deep, tasks, user

TUNED: dict[str, dict[str, dict[str, Any]]] = json.loads(
    resources.files("steelyard.fed.gadaphead").joinpath("tuned.json").read_text(encoding="utf-8")
)


def run(cell: CellInput) -> Measured:
    """Compute one cell: heads shared once, or learners trained for rounds."""
    if cell.task == user.TASK:
        return user.run(cell)
    if cell.task in deep.SUITES:
        return deep.run(cell)
    return cells.run_shared(cell, cells.linear_clients(cell))


PARAMS: Mapping[str, Any] = {"rounds": 25, "steps": 250, "every": 5, "episodes": 10}
CONTROL: Mapping[str, Any] = {"steps": 200, "episodes": 5}
SMOKE: Mapping[str, Any] = {"rounds": 3, "steps": 64, "every": 1, "episodes": 2}
_LINEAR = tuple(f"linear_{size}" for size in tasks.LINEAR_SIZES)
_CLIENTS = 8
RECIPE = (
    "By hand, on a machine with a GPU of 24 GB or many cores: MetaWorld 3 (pip install metaworld, which pins "
    "mujoco==3.3.0) as one client a task of MT10, then MT50; soft actor-critic with three layers of 400 and linear "
    "heads, 2 million steps a task; the client of federated_rounds is a callable (trunk, head, round, generator) -> "
    "ClientUpdate, the strategy GAdapHead beside SharedTrunk (FedPer); at least six seeds, and long local training of "
    "every task for the share of converged tasks."
)


def _work(linear_cells: int, rounds: int) -> int:
    """Return the declared work: heads that are shared, some forty a cell, and rounds of all clients."""
    return linear_cells * 40 + rounds * _CLIENTS


def chosen_settings() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings by task and arm; those of MiniGrid serve with twelve clients too."""
    chosen = {task: {arm: dict(row["config"]) for arm, row in rows.items()} for task, rows in TUNED.items()}
    return {**chosen, "minigrid_12": chosen["minigrid"]}


BENCH = BenchSpec(
    method="gadaphead",
    tasks=tasks.TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="mse",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("linear_60", "linear_400"), arms=arms.ONCE),
                Block(tasks=("minigrid",), arms=("gadaphead", "fedper", "local", "random"), seeds=1, params=SMOKE),
            ),
            seeds=6,
            work=_work(6 * 2 * 5, 4 * 3),
            params=PARAMS,
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=_LINEAR, arms=arms.ONCE),
                Block(tasks=("minigrid",), arms=arms.TRAINED),
                Block(tasks=("pendulum",), arms=arms.CONTROL, params=CONTROL),
                Block(tasks=("minigrid",), arms=("fedprox", "fedrep"), seeds=3),
                Block(tasks=("minigrid",), arms=("local_long",), seeds=1),
            ),
            seeds=10,
            work=_work(10 * 4 * 5, (10 * 6 + 2 * 3 + 4 + 10 * 4) * 25 + 20),
            params=PARAMS,
            cell_seconds=600.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("minigrid",), arms=(*arms.TRAINED, "fedprox", "fedrep")),
                Block(tasks=("minigrid_12",), arms=arms.TRAINED),
                Block(tasks=("pendulum",), arms=arms.CONTROL, params={**CONTROL, "steps": 400}),
                Block(tasks=("minigrid",), arms=("local_long",), seeds=3),
                Block(tasks=("pendulum",), arms=("local_long",), seeds=3, params={**CONTROL, "steps": 400}),
            ),
            seeds=10,
            work=_work(0, (10 * (8 + 4) + 3 * 8) * 25 + 20 + 10 * 6 * 25 * 3 // 2),
            params={**PARAMS, "steps": 500},
            cell_seconds=1800.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="linear_400",
    traces=arms.TRACES,
    cost="uploaded",
    derive=arms.derive,
    user_task=user.user_task,
    options=user.Options,
    tuned=chosen_settings(),
    true_ceiling="oracle_lambda",
)
