"""How commitments are weighed: one small policy that states, acts and predicts, under several rules of credit.

All arms of a seed share the games, the imitated start and the streams of chance; each arm had three learning rates to
choose from on the same tuning seeds (``tuned.json``, by ``steelyard tune arc``), evaluated on other held-out games.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile
from steelyard.policy.arc import arms, cells, tasks, user
from steelyard.policy.games import MADE, OFFICIAL, tuned_settings


def run(cell: CellInput) -> Measured:
    """Compute one cell: a training on games, or rules of credit on the user's rollouts."""
    return user.run(cell) if cell.task == user.TASK else cells.run_games(cell)


PARAMS: Mapping[str, Any] = {"iterations": 60, "tasks": 8, "rollouts": 8, "max_steps": 30}
QUICK: Mapping[str, Any] = {"iterations": 8}
SHORT: Mapping[str, Any] = {"iterations": 30}
_STEPS = 8 * 8 * 30
_MAIN = ("arc", "outcome", "coupled_routed", "coupled", "freeform")
RECIPE = (
    "By hand, on 4 GPUs of 80 GB: Qwen2.5-1.5B or 7B in TRL with ARCTrainer (or in verl with patch_verl()), a start of "
    "some 200 supervised turns in CommitmentFormat, the alfworld package as the environment within CommitmentWrapper, "
    "16 tasks x 8 rollouts an iteration, 50 steps, learning rate 1e-6, 100 to 150 iterations; RuleVerifier on ALFWorld "
    "and WebShop, JudgeVerifier on WebArena; at least six seeds, evaluated with inconsistency_report."
)


BENCH = BenchSpec(
    method="arc",
    tasks=tasks.TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="success",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=(MADE,), arms=("arc", "outcome", "coupled_routed", "arc_step", *arms.FIXED), params=QUICK),
            ),
            seeds=6,
            work=6 * (4 * 8 * _STEPS + 3 * 60),
            params=PARAMS,
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=(OFFICIAL,), arms=(*_MAIN, *arms.FIXED)),
                Block(tasks=(OFFICIAL,), arms=("true_state", "arc_comp"), seeds=6),
                Block(tasks=(OFFICIAL,), arms=("arc_step",), params=SHORT),
            ),
            seeds=10,
            work=10 * (5 * 60 + 30) * _STEPS + 6 * 2 * 60 * _STEPS + 10 * 3 * 134,
            params=PARAMS,
            cell_seconds=300.0,
        ),
        "long": Profile(
            name="long",
            blocks=(Block(tasks=(OFFICIAL, MADE), arms=(*arms.LEARNERS, *arms.FIXED)),),
            seeds=20,
            work=20 * 2 * (8 * 60 * _STEPS + 3 * 134),
            params=PARAMS,
            cell_seconds=900.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task=MADE,
    traces=arms.TRACES,
    cost="train_steps",
    user_task=user.user_task,
    user_arms=arms.USER,
    user_primary="own_weight",
    options=user.Options,
    tuned=tuned_settings("steelyard.policy.arc"),
    grid={arm: tuple({"learning_rate": rate} for rate in (0.05, 0.025, 0.1)) for arm in arms.LEARNERS},
    tuning_tasks=(OFFICIAL,),
    tuning_params={"iterations": 40},
    true_ceiling="expert",
)
