"""How the method is weighed: convex group problems with an exact optimum, and small networks on the same data."""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import numpy as np
from pydantic import Field

from steelyard.card import Frozen
from steelyard.contracts import Arm, Arrays, BenchSpec, Block, CellInput, Measured, Metric, Profile, Task, Trace
from steelyard.optim.gdro_fsq import baselines, networks, optimum, problems
from steelyard.optim.gdro_fsq.card import Config
from steelyard.optim.gdro_fsq.core import FSQResult, fsq_minimize
from steelyard.optim.gdro_fsq.player import Floats, Schedule
from steelyard.optim.gdro_fsq.problems import GroupProblem
from steelyard.optim.gdro_fsq.theory import gdro_error_bound
from steelyard.timing import interleaved

GRID = tuple({"c_w": c_w, "c_q": c_q} for c_w in (0.3, 1.0, 3.0) for c_q in (1.0, 4.0))
GRID_W = tuple({"c_w": c_w} for c_w in (0.3, 1.0, 3.0))
TUNING_SEEDS = (0, 1, 2)
TRACE_POINTS = 16
TIMING_SAMPLES = 1000  # per timed run of the sweep
FIXED_R = (1, 2, 5, 10)  # and m

CONVEX = (
    Arm(name="fsq", label="FSQ", role="method"),
    Arm(name="fsq_samples", label="FSQ, rounds weighted by samples", role="ablation",
        config={"round_weight": "samples"}),
    Arm(name="fsq_single", label="FSQ, anchor's gradient only", role="ablation", config={"gradient": "single"}),
    Arm(name="fsq_auto", label="FSQ, exploration at r = 1 only", role="ablation", config={"mode": "auto"}),
    Arm(name="fsq_theory", label="FSQ at c = 1 and the true G", role="ablation", config={"lipschitz": "max"}),
    Arm(name="fixed_r", label="FSQ at fixed r (its gap: r = m, twice the samples)", role="ablation"),
    Arm(name="one_per_round", label="1 query per round (Zhang)", role="baseline"),
    Arm(name="soma_exp3", label="GDRO-EXP3 (Soma)", role="baseline"),
    Arm(name="soma_tinf", label="GDRO-TINF (Soma)", role="baseline"),
    Arm(name="smd_wait", label="SMD, waits for m queries", role="baseline"),
    Arm(name="all_m", label="SMD, all m every round (about twice the samples)", role="baseline"),
    Arm(name="sagawa", label="Online group DRO (Sagawa)", role="baseline"),
    Arm(name="erm", label="ERM", role="baseline"),
    Arm(name="reweighted", label="ERM, groups reweighted", role="baseline"),
    Arm(name="start", label="No learning (start)", role="floor"),
    Arm(name="optimum", label="Exact optimum", role="ceiling"),
)  # fmt: skip
TORCH = (
    Arm(name="torch_fsq", label="Network: FlexGroupDRO", role="method"),
    Arm(name="torch_sagawa", label="Network: online group DRO (Sagawa)", role="baseline"),
    Arm(name="torch_reweighted", label="Network: groups reweighted", role="baseline"),
    Arm(name="torch_erm", label="Network: ERM", role="baseline"),
)
QUICK_ARMS = (
    "fsq", "fsq_samples", "fsq_theory", "fixed_r", "one_per_round", "smd_wait", "all_m", "sagawa", "erm", "reweighted",
    "start", "optimum",
)  # fmt: skip
UNTUNED = ("fsq_theory", "start", "optimum")
ONE_FACTOR = ("erm", "reweighted", "torch_erm", "torch_reweighted")

METRICS = (
    Metric(name="gap", label="Gap to the optimum of the worst group's risk", better="lower", unit="loss / B"),
    Metric(name="worst_risk", label="Worst group's risk", better="lower", unit="loss / B"),
    Metric(name="average_risk", label="Average risk", better="lower", unit="loss / B"),
    Metric(name="worst_accuracy", label="Worst group's accuracy", better="higher", worst=0.0),
    Metric(name="accuracy", label="Accuracy", better="higher", worst=0.0),
    Metric(name="samples", label="Samples used", better="lower"),
    Metric(name="clipped", label="Losses clipped at B", better="lower"),
    Metric(name="bound_ratio", label="Gap over its bound", better="lower"),
    Metric(name="spearman", label="Rank correlation of r and gap, equal rounds", better="lower", worst=1.0),
    Metric(name="gap_spread", label="Largest over smallest gap, equal samples", better="lower"),
    Metric(name="time_ratio", label="Time of r = 1 over r = m, equal samples", better="higher", worst=1.0),
)


class Options(Frozen):
    """What the bench takes beside a table of your own."""

    group: str = Field(description="column whose values are the groups")
    label: str = Field(description="column whose values are the classes")
    loss_range: float = Field(default=4.0, gt=0, description="range B of the cross-entropy")
    radius: float = Field(default=4.0, gt=0, description="radius D of the ball for the weights")
    tune: bool = Field(default=False, description="tune every arm on the same grid, with tuning seeds")
    c_w: float | None = Field(default=None, gt=0, description="factor of the w-player's step, all arms")
    c_q: float | None = Field(default=None, gt=0, description="factor of the q-player's rate, all arms")
    mode: Literal["ix", "auto"] | None = Field(default=None, description="exploration of the FSQ arms")
    query: Literal["anchor", "uniform"] | None = Field(default=None, description="query set of the FSQ arms")
    gradient: Literal["rb", "single", "iw"] | None = Field(default=None, description="gradient of the FSQ arms")
    output: Literal["average", "last"] | None = Field(default=None, description="iterate that is judged")
    delta: float | None = Field(default=None, gt=0, lt=1, description="failure probability of the bound")
    lipschitz: Literal["mean", "max"] | None = Field(default=None, description="gradient bound in the step")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's table.

    Args:
        data: Path of a CSV, Parquet or npz file, a pandas or polars frame, or a mapping of columns.
        options: Fields of ``Options``.

    Raises:
        InputError: The table or a column cannot be used; see ``problems.table_by_group``.
    """
    from steelyard import data as tables

    chosen = Options(**options)
    table = tables.read_table(data)
    arrays = problems.table_by_group(table, chosen.group, chosen.label, chosen.loss_range, chosen.radius)
    return Task(
        name="user",
        label=f"{chosen.label} by {chosen.group}",
        load=lambda: arrays,
        source=table.source,
        prepare=optimum.prepare,
    )


def run(cell: CellInput) -> Measured:
    """Compute one cell."""
    if cell.arm.startswith("torch_"):
        return networks.train(cell)
    if cell.options.get("tune") and cell.root != "tuning" and cell.arm not in UNTUNED:
        cell = dataclasses.replace(cell, config={**cell.config, **_tuned_here(cell)})
    problem = GroupProblem.from_arrays(cell.data)
    if cell.arm == "fixed_r":
        return _sweep(cell, problem)
    if cell.arm in ("start", "optimum"):
        w = problem.w0 if cell.arm == "start" else np.asarray(cell.data["optimum_w"])
        return Measured(_quality(cell, problem, w), steps=1)
    rounds = rounds_of(cell)
    stream = cell.rng("stream").integers(1, problem.m + 1, rounds).tolist()
    marks = tuple(np.unique(np.geomspace(1, rounds, TRACE_POINTS).astype(int)).tolist())

    def gap(w: Floats) -> float:
        return _gap(cell, problem, w)

    config = _config(cell)
    if cell.arm.startswith("fsq"):
        result = _fsq(cell, problem, config, stream, evaluate=gap, trace_rounds=marks)
    else:
        result = _baseline(cell, problem, baselines.Run(
            stream, rounds, cell.rng("game"), config.c_w, config.c_q, gap, marks
        ))  # fmt: skip
    metrics = _quality(cell, problem, result.average if config.output == "average" else result.last)
    metrics |= {"samples": float(result.samples), "clipped": float(result.clipped)}
    if cell.arm == "fsq_theory":
        bound = gdro_error_bound(problem.m, stream, D=problem.radius, G=problem.lipschitz("max"), delta=config.delta)
        metrics["bound_ratio"] = metrics["gap"] / bound
    return Measured(metrics, rounds, {"gap": (result.trace["round"], result.trace["value"])})


def rounds_of(cell: CellInput) -> int:
    """Return how many rounds the profile plays on the cell's task."""
    return networks.length(cell, "rounds")


def _config(cell: CellInput) -> Config:
    """Return the arm's settings: what makes the arm, over what the user wished, over the defaults."""
    wished = {name: cell.options[name] for name in Config.model_fields if cell.options.get(name) is not None}
    if cell.arm == "fsq_theory":  # the bound holds at c = 1 in mode ix and nowhere else
        wished = {"delta": wished["delta"]} if "delta" in wished else {}
    return Config(**{**wished, **cell.config})


def _fsq(
    cell: CellInput, problem: GroupProblem, config: Config, stream: Schedule, name: str = "game", **more: Any
) -> FSQResult:
    with networks.clips_are_counted():
        return fsq_minimize(
            problem.loss_grad,
            problem,
            problem.w0,
            problem.radius,
            problem.lipschitz(config.lipschitz),
            stream,
            rng=cell.rng(name),
            loss_range=problem.loss_range,
            c_w=config.c_w,
            c_q=config.c_q,
            mode=config.mode,
            query=config.query,
            gradient=config.gradient,
            round_weight=config.round_weight,
            **more,
        )


BASELINES: Mapping[str, Callable[[baselines.Game, baselines.Run], FSQResult]] = {
    "one_per_round": baselines.one_per_round,
    "soma_exp3": functools.partial(baselines.one_per_round, bandit=baselines.Exp3P),
    "soma_tinf": functools.partial(baselines.one_per_round, bandit=baselines.TsallisINF),
    "smd_wait": baselines.smd,
    "all_m": baselines.smd,
    "sagawa": baselines.sagawa,
    "erm": baselines.average_risk,
    "reweighted": functools.partial(baselines.average_risk, balanced=True),
}


def _baseline(cell: CellInput, problem: GroupProblem, run: baselines.Run) -> FSQResult:
    if cell.arm == "all_m":
        run = dataclasses.replace(run, r_schedule=problem.m)
    game = baselines.Game(
        problem.loss_grad, problem, problem.w0, problem.radius, problem.lipschitz(_config(cell).lipschitz),
        problem.loss_range,
    )  # fmt: skip
    return BASELINES[cell.arm](game, run)


def _quality(cell: CellInput, problem: GroupProblem, w: Floats) -> dict[str, float]:
    risks, accuracies = problem.risks(w), problem.accuracies(w)
    share = problem.sizes / problem.sizes.sum()
    return {
        "gap": float(risks.max()) - float(cell.data["optimum_low"]),
        "worst_risk": float(risks.max()),
        "average_risk": float(share @ risks),
        "worst_accuracy": float(accuracies.min()),
        "accuracy": float(share @ accuracies),
    }


def _gap(cell: CellInput, problem: GroupProblem, w: Floats) -> float:
    return float(problem.risks(w).max()) - float(cell.data["optimum_low"])


def _sweep(cell: CellInput, problem: GroupProblem) -> Measured:
    """Run fixed r at equal rounds and at equal samples, and time r = 1 against r = m side by side."""
    config, rounds = _config(cell), rounds_of(cell)
    counts = sorted({r for r in FIXED_R if r < problem.m} | {problem.m})
    samples = int(cell.params["sweep_samples"])
    chosen = "average" if config.output == "average" else "last"

    def gap(r: int, length: int, name: str) -> float:
        result = _fsq(cell, problem, config, r, name, rounds=length)
        return _gap(cell, problem, getattr(result, chosen))

    by_rounds = [gap(r, rounds, "equal rounds") for r in counts]
    if cell.root == "tuning":
        return Measured({"gap": statistics.fmean(by_rounds)}, steps=rounds * len(counts))
    by_samples = [gap(r, max(1, samples // r), "equal samples") for r in counts]
    seconds = interleaved(
        {
            str(r): functools.partial(_fsq, cell, problem, config, r, "timing", rounds=max(1, TIMING_SAMPLES // r))
            for r in (1, problem.m)
        },
        repeats=3,
        warmup=1,
    )
    ratio = statistics.median(a / b for a, b in zip(seconds["1"], seconds[str(problem.m)], strict=True))
    timed = 4 * (TIMING_SAMPLES + max(1, TIMING_SAMPLES // problem.m))
    return Measured(
        metrics={
            "gap": by_rounds[-1],
            "spearman": _spearman(counts, by_rounds),
            "gap_spread": max(by_samples) / min(by_samples),
            "time_ratio": ratio,
            "samples": float(rounds * problem.m),
        },
        steps=rounds * len(counts) + sum(max(1, samples // r) for r in counts) + timed,
        traces={
            "gap_by_r": ([float(r) for r in counts], by_rounds),
            "gap_by_r_samples": ([float(r) for r in counts], by_samples),
        },
    )


def _spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two sequences without ties."""
    a, b = (np.argsort(np.argsort(values)).astype(np.float64) for values in (x, y))
    return float(np.corrcoef(a, b)[0, 1])


def _tuned_here(cell: CellInput) -> Mapping[str, Any]:
    """Return the grid point with the lowest mean gap over the tuning seeds."""

    def score(point: Mapping[str, Any]) -> float:
        runs = (
            dataclasses.replace(cell, config={**cell.config, **point}, root="tuning", seed=seed)
            for seed in TUNING_SEEDS
        )
        return statistics.fmean(run(one).metrics["gap"] for one in runs)

    return min(grid_of(cell.arm), key=score)


def grid_of(arm: str) -> Sequence[Mapping[str, Any]]:
    """Return the settings that a tuning run tries for ``arm``."""
    return GRID_W if arm in ONE_FACTOR else GRID


def _tuned() -> dict[str, dict[str, dict[str, Any]]]:
    """Read task -> arm -> config from the tuned settings that are kept beside this file."""
    text = resources.files(__package__).joinpath("tuned.json").read_text(encoding="utf-8")
    tasks = json.loads(text)
    return {task: {arm: entry["config"] for arm, entry in arms.items()} for task, arms in tasks.items()}


def _task(
    name: str, label: str, load: Callable[[], Arrays], source: str = "embedded", dataset: str | None = None
) -> Task:
    return Task(name, label, load, source, optimum.prepare, dataset)


def _trace(name: str, label: str, x_label: str) -> Trace:
    return Trace(name=name, label=label, x_label=x_label, y_label="gap", log_x=True, log_y=True)


ADULT = "Adult (UCI), CC BY 4.0"
MNIST = "MNIST test images, CC BY-SA 3.0"
DIGITS = "scikit-learn's digits"
TASKS = (
    _task("digits", "Digits, class = group (m = 10)", problems.digits_by_class, DIGITS),
    _task("synthetic", "Synthetic (m = 20)", lambda: problems.synthetic(0.5, 0.15, 2.0), "generator"),
    _task("synthetic_hard", "Synthetic, wide spread (m = 20)", lambda: problems.synthetic(1.0, 0.2, 4.0), "generator"),
    _task("adult", "Adult, race x sex x age (m = 18)", problems.adult_by_race_sex_age, ADULT, "adult"),
    _task("mnist", "MNIST, class = group (m = 10)", problems.mnist_by_class, MNIST, "mnist_t10k"),
    Task("digits_mlp", "Digits by class, network", problems.digits_by_class, DIGITS),
    Task("adult_mlp", "Adult by race x sex x age, network", problems.adult_by_race_sex_age, ADULT, dataset="adult"),
    Task("mnist_mlp", "MNIST by class, network", problems.mnist_by_class, MNIST, dataset="mnist_t10k"),
)

TORCH_ARMS = tuple(arm.name for arm in TORCH)
TUNED_ARMS = tuple(arm.name for arm in (*CONVEX, *TORCH) if arm.name not in UNTUNED)
QUICK = {"rounds": 1000, "sweep_samples": 5000, "steps": 300}
FULL = {"rounds": 4000, "sweep_samples": 20000, "steps": 1500}

BENCH = BenchSpec(
    method="gdro_fsq",
    tasks=TASKS,
    arms=CONVEX + TORCH,
    metrics=METRICS,
    primary="gap",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("digits", "synthetic"), arms=QUICK_ARMS),
                Block(tasks=("digits_mlp",), arms=TORCH_ARMS),
            ),
            seeds=6,
            work=380_000,
            params=QUICK,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("adult", "mnist", "synthetic", "synthetic_hard"), arms=tuple(arm.name for arm in CONVEX)),
                Block(tasks=("adult_mlp", "mnist_mlp"), arms=TORCH_ARMS),
            ),
            seeds=10,
            work=5_500_000,
            params=FULL,
            cell_seconds=120.0,
        ),
        "gpu": Profile(
            name="gpu",
            blocks=(),
            seeds=10,
            work=0,
            recipe="fine-tune a ResNet-50 or a LoRA adapter with one loader per group: give FlexGroupBatchSampler the "
            "groups, FlexGroupDRO the per-sample losses and the same player; every other part stays as it is",
        ),
    },
    run=run,
    easy_task="digits",
    traces=(
        _trace("gap", "Gap of the average iterate", "round"),
        _trace("gap_by_r", "Gap at equal rounds", "queries per round"),
        _trace("gap_by_r_samples", "Gap at equal samples", "queries per round"),
    ),
    user_task=user_task,
    options=Options,
    tuned=_tuned(),
    grid={arm: grid_of(arm) for arm in TUNED_ARMS},
    tuning_tasks=tuple(task.name for task in TASKS),
    tuning_params={
        **FULL,
        "rounds_by_task": {"digits": QUICK["rounds"]},
        "steps_by_task": {"digits_mlp": QUICK["steps"]},
    },
    true_ceiling="optimum",
)
