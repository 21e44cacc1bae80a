"""How credit rules are weighed: on a chain whose values are known, and by what a small policy learns from them.

All arms of a seed share the games, the imitated start and the streams of chance; each arm had three learning rates to
choose from on the same tuning seeds (``tuned.json``, by ``steelyard tune g2po``), evaluated on other held-out games.
The arms that leave out a term have the whole method's rate, so that nothing else differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile
from steelyard.policy.g2po import arms, cells, tasks, user
from steelyard.policy.games import tuned_settings


def run(cell: CellInput) -> Measured:
    """Compute one cell: credit on the chain, a training on games, or estimators on the user's rollouts."""
    if cell.task == user.TASK:
        return user.run(cell)
    return cells.run_chain(cell) if cell.task == "chain" else cells.run_games(cell)


PARAMS: Mapping[str, Any] = {
    "groups": 60, "iterations": 30, "tasks": 8, "rollouts": 8, "max_steps": 30,
}  # fmt: skip
QUICK: Mapping[str, Any] = {"groups": 30, "iterations": 12}
_STEPS = 8 * 8 * 30
RECIPE = (
    "By hand, on 4 GPUs of 80 GB: Qwen2.5-1.5B in verl with patch_verl() of this library (or G2POTrainer for TRL), the "
    "alfworld package as the environment, 16 tasks x 8 rollouts an iteration, 50 steps, 2,048 prompt and 512 response "
    "tokens, learning rate 1e-6, KL coefficient .01, clip .2, temperature 1, 100 iterations; at least six seeds, with "
    "the state and the raw observation as anchors side by side."
)


SETTINGS = tuned_settings("steelyard.policy.g2po")
BENCH = BenchSpec(
    method="g2po",
    tasks=tasks.TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="success",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("chain",), arms=arms.CREDIT, params=QUICK),
                Block(tasks=("household",), arms=("g2po", "g2po_obs", "gigpo", "grpo", "bc", "random", "expert"),
                      params=QUICK),
            ),
            seeds=6,
            work=6 * (13 * 30 * 8 * 60 + 4 * 12 * _STEPS + 3 * 60),
            params=PARAMS,
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("chain",), arms=arms.CREDIT),
                Block(tasks=("alfworld",), arms=(*arms.LEARNERS, *arms.FIXED)),
            ),
            seeds=10,
            work=10 * (13 * 60 * 8 * 60 + 11 * 30 * _STEPS + 3 * 134),
            params=PARAMS,
            cell_seconds=300.0,
        ),
        "long": Profile(
            name="long",
            blocks=(Block(tasks=("alfworld", "household"), arms=(*arms.LEARNERS, *arms.FIXED)),),
            seeds=20,
            work=20 * 2 * (11 * 60 * _STEPS + 3 * 134),
            params={**PARAMS, "iterations": 60},
            cell_seconds=900.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="household",
    traces=arms.TRACES,
    cost="train_steps",
    user_task=user.user_task,
    user_arms=arms.USER,
    user_primary="agreement",
    options=user.Options,
    tuned={task: rows | dict.fromkeys(arms.WITHOUT_A_TERM, rows["g2po"]) for task, rows in SETTINGS.items()},
    grid={arm: tuple({"learning_rate": rate} for rate in (0.05, 0.025, 0.1)) for arm in arms.TUNED},
    tuning_tasks=("alfworld",),
    true_ceiling="expert",
)  # fmt: skip
