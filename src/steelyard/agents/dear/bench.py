"""How the controller is weighed: simulated debates, a committee of classifiers, a control, and a small recording.

A cell trains a controller on one stream of debates and judges it on another; the cell of ``dear`` plays all fixed
policies on the same debates (see :mod:`steelyard.agents.dear.arms`), so differences pair. Settings come from
``tuned.json``, found on the simulator's tuning streams by ``benchmarks/tune_dear.py``, which tells how many trials each
arm with knobs had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from steelyard.agents.dear import arms, cells, sweeps, tasks, user
from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task, Trace

TUNED: dict[str, dict[str, Any]] = json.loads(
    resources.files("steelyard.agents.dear").joinpath("tuned.json").read_text(encoding="utf-8")
)


def run(cell: CellInput) -> Measured:
    """Compute one cell: train and judge a controller, or measure a curve, or debate the user's own questions."""
    if cell.task == user.TASK:
        return user.run(cell)
    if cell.arm == arms.FLOOR.name:
        return cells.run_chance(cell)
    return sweeps.run_curve(cell) if cell.arm in arms.CURVE_NAMES else cells.run_trained(cell)


_MODEL = "simulated: the social response is a model"
TASKS = (
    Task("sim", "Simulator, strong conformity (3.5)", tasks.headline, _MODEL),
    Task("sim_mild", "Simulator, mild conformity (1.6)", tasks.mild, _MODEL),
    Task("control", "Control: no conformity, no arguments; nothing to gain", tasks.no_gain, _MODEL),
    Task("committee", "Five weak classifiers of digits", tasks.committee,
         "scikit-learn's digits (UCI, CC BY 4.0): real beliefs, a modelled social response"),
    Task("recorded", "Recording of SmolLM2-135M, 20 questions, no verdict", tasks.recorded,
         "20 questions of the project's own; one answer is 5 points"),
    Task("sweeps", "Simulator: curves over budget, price and conformity", tasks.headline, _MODEL),
)  # fmt: skip
PARAMS: Mapping[str, Any] = {
    "controller": TUNED["dear"]["config"],
    "fixed": {name: TUNED[name]["config"] for name in ("ring", "reconcile")},
    "episodes": 30_000,
    "debates": 20_000,
    "repeats": 10,
    "prices": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1),
    "strengths": (0.0, 0.8, 1.6, 3.5, 5.0),
    "curve_episodes": 10_000,
}
RECIPE = (
    "By hand with a GPU of 24 GB or more: serve three to five models such as Qwen2.5-7B, Llama-3.1-8B and Ministral "
    "with vLLM; record their debates on 500 questions of MMLU with steelyard.agents.dear.recorder's format, train "
    "DEARController.fit on RecordedAgents of that file, then judge it with Debate on MMLU-Pro, GSM8K and GPQA beside "
    "FullyConnected(early_stop='unanimous'), CritiqueAll and self-consistency at equal calls; at least six seeds."
)
_STEPS = 30_720 * 15  # agent-steps of a training
_JUDGED = 20_000 * 15  # at most, of one policy


def _work(trainings: int, judged: int) -> int:
    return trainings * _STEPS + judged * _JUDGED


BENCH = BenchSpec(
    method="dear",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="vote_accuracy",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(Block(tasks=("sim",), arms=arms.PLAYED), Block(tasks=("recorded",), arms=arms.PLAYED, seeds=1)),
            seeds=6,
            work=_work(7, 7 * 9),
            params={**PARAMS, "episodes": 10_000, "debates": 10_000},
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("sim",), arms=(*arms.PLAYED, *arms.ABLATIONS)),
                Block(tasks=("committee", "control", "sim_mild"), arms=arms.PLAYED),
                Block(tasks=("sim", "committee"), arms=("identity",), seeds=6),
                Block(tasks=("recorded",), arms=arms.PLAYED, seeds=3, params={"episodes": 5_000}),
                Block(tasks=("sweeps",), arms=arms.CURVE_NAMES, seeds=2),
            ),
            seeds=10,
            work=_work(10 * 7 + 12 + 3 + 22, 10 * (4 * 9 + 3) + 12 + 27 + 100),
            params=PARAMS,
            cell_seconds=300.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("sim", "committee"), arms=(*arms.PLAYED, *arms.ABLATIONS, *arms.VARIANTS)),
                Block(tasks=("control", "sim_mild"), arms=(*arms.PLAYED, *arms.ABLATIONS)),
                Block(tasks=("sweeps",), arms=arms.CURVE_NAMES, seeds=6),
            ),
            seeds=10,
            work=3 * _work(10 * 22 + 66, 10 * 54 + 300),
            params={**PARAMS, "episodes": 60_000},
            cell_seconds=900.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="sim",
    traces=(
        Trace(name="budget", label="Equal budgets: right votes by call-units", x_label="call-units a debate",
              y_label="right votes"),
        Trace(name="by_conformity", label="Right votes by the pull of peers' answers", x_label="conformity",
              y_label="right votes"),
        Trace(name="vote_by_price", label="Right votes by the price of a call-unit in training", x_label="price",
              y_label="right votes"),
        Trace(name="cost_by_price", label="Call-units by their price in training", x_label="price",
              y_label="call-units a debate"),
        Trace(name="training_cost", label="Call-units while training", x_label="debates", y_label="call-units"),
        Trace(name="training_vote", label="Right votes while training", x_label="debates", y_label="right votes"),
    ),
    cost="cost",
    derive=arms.derive,
    user_task=user.user_task,
    options=user.Options,
)  # fmt: skip
