"""How the method is weighed: small networks on digits and MNIST over a grid of learning rates inside each cell."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.contracts import Arm, Arrays, BenchSpec, Block, CellInput, Measured, Metric, Profile, Task, Trace
from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import baselines, core, training, user
from steelyard.optim.greedy_momentum.autocorrelation import GradAutocorrelation
from steelyard.optim.greedy_momentum.card import Config
from steelyard.optim.greedy_momentum.torch_optim import GreedyAdamW, GreedySGD

CANDIDATES = (0.5, 0.9, 0.99)
SIX = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
RATE_SLOTS = 4
WEIGHT_DECAY = {"sgd": 0.0, "adamw": 1e-2}  # torch's defaults
CURVE_GRID = tuple(np.round(np.linspace(0, 0.99, 34), 4))
AR1 = 0.8


def _fixed(momentum: float) -> Arm:
    name = f"fixed_{str(momentum).replace('.', '')}"
    return Arm(name=name, label=f"Momentum {momentum:g}", role="baseline", config={"momentum": momentum})


GAP = tuple(
    Arm(
        name=f"{preset}_{selection}",
        label=f"GAP {preset}, {'one for all' if selection == 'global' else 'per tensor'}",
        role="method" if selection == "global" else "ablation",
        config={"preset": preset, "selection": selection},
    )
    for preset in ("robust", "paper")
    for selection in ("global", "per_param")
)
THREE = tuple(_fixed(m) for m in CANDIDATES)
OTHERS = tuple(_fixed(m) for m in SIX if m not in CANDIDATES)
RIVALS = (
    Arm(name="one_cycle", label="OneCycleLR", role="baseline", config={"rival": "one_cycle"}),
    Arm(name="demon", label="Demon", role="baseline", config={"rival": "demon"}),
    Arm(name="yellowfin", label="YellowFin (momentum only)", role="baseline", config={"rival": "yellowfin"}),
    Arm(name="hypergradient", label="Hypergradient", role="baseline", config={"rival": "hypergradient"}),
    Arm(name="cautious", label="Cautious", role="baseline", config={"rival": "cautious"}),
    Arm(name="sgdf", label="SGDF", role="baseline", config={"rival": "sgdf"}),
    Arm(name="adaptive_memory", label="Adaptive memory", role="baseline", config={"rival": "adaptive_memory"}),
)
RANDOM = Arm(name="random", label="Random candidate each step", role="floor", config={"random": True})
BEST_SINGLE = Arm(
    name="best_single", label="Best single value of six (tuning seeds)", role="baseline", config={"momentum": 0.9}
)
DERIVED = (
    Arm(name="oracle", label="Best of three per rate (hindsight)", role="ceiling", derived=True),
    Arm(name="oracle_of_six", label="Best of six per rate (hindsight)", role="ceiling", derived=True),
    Arm(name="mean_fixed", label="Mean of the three fixed values", role="baseline", derived=True),
    Arm(name="steadiest_fixed", label="Fixed value of least regret (hindsight)", role="baseline", derived=True),
    Arm(name="worst_fixed", label="Worst of three per rate", role="floor", derived=True),
)
SLOT_METRICS = tuple(
    Metric(
        name=f"accuracy_lr{slot}",
        label=f"Test accuracy at learning rate {slot} of the grid",
        better="higher",
        unit="%",
        worst=0.0,
    )
    for slot in range(1, RATE_SLOTS + 1)
)
METRICS = (
    Metric(
        name="accuracy",
        label="Test accuracy, mean over learning rates",
        better="higher",
        unit="%",
        worst=0.0,
        chance=10.0,
    ),
    Metric(name="regret", label="Largest loss against the best fixed value", better="lower", unit="pt", worst=100.0),
    *SLOT_METRICS,
)
TRACES = (
    Trace(name="momentum_low", label="Momentum at the smallest rate", x_label="step", y_label="momentum"),
    Trace(name="momentum_high", label="Momentum at the largest rate", x_label="step", y_label="momentum"),
    Trace(name="alignment", label="Alignment curve of recorded gradients", x_label="momentum", y_label="J / largest J"),
    Trace(
        name="alignment_ar1",
        label=f"Alignment curve of an AR(1) stream, a = {AR1}",
        x_label="momentum",
        y_label="J / largest J",
    ),
)
RECIPE = (
    "README configurations, one GPU: LoRA on ViT-B/16 with Adam, selection='per_param', beta1=(0.5, 0.99), lr 1e-3, "
    "beta2 0.999, AdamW weight decay 0.01; LoRA on a language model with AdamW, per_param, (0.8, 0.99), lr 2e-4; each "
    "against every fixed candidate on the same data order, at least 5 seeds; weigh your own loop with --model and "
    "--data."
)


def _digits() -> Arrays:
    from steelyard import data

    pixels, labels = data.digits()
    return {"images": _standardised(pixels / 16.0).reshape(-1, 1, 8, 8), "labels": labels}


def _mnist() -> Arrays:
    from steelyard import data

    images, labels = data.mnist_t10k()
    return {"images": _standardised(images / 255.0)[:, None], "labels": labels.astype(np.int64)}


def _standardised(images: core.Floats) -> np.ndarray:
    return np.asarray((images - images.mean()) / images.std(), dtype=np.float32)


def run(cell: CellInput) -> Measured:
    """Train at every learning rate of the grid; every arm gets equal weights, batches and steps."""
    one_rate: Callable[[int, float], tuple[float, training.Trained | None]]
    recorder = GradAutocorrelation(lags=30) if cell.arm == "fixed_09" and cell.seed == 0 else None
    if cell.task == "own":
        options = user.UserOptions(**cell.options)
        rates, steps = options.rates, options.steps
        one_rate = functools.partial(_own, cell, options)
    else:
        kind = cell.task.rpartition("_")[2]
        rates, steps = cell.params[f"{kind}_lrs"], int(cell.params["steps"])
        one_rate = functools.partial(_embedded, cell, kind, steps, recorder)
    runs = [one_rate(slot, float(lr)) for slot, lr in enumerate(rates)]
    scores = [score for score, _ in runs]
    metrics = {"accuracy": float(np.mean(scores))}
    metrics.update({f"accuracy_lr{slot}": score for slot, score in enumerate(scores, start=1)})
    traces, notes = _looks(runs, [float(lr) for lr in rates])
    if recorder is not None and recorder.steps:
        traces.update(_curves(recorder, cell))
        notes["AR(1) fit of the recorded gradients"] = float(recorder.rho[1] / recorder.rho[0])
    return Measured(metrics, steps=len(runs) * steps, traces=traces, notes=notes)


def _embedded(
    cell: CellInput, kind: str, steps: int, recorder: GradAutocorrelation | None, slot: int, lr: float
) -> tuple[float, training.Trained | None]:
    digits = cell.task.startswith("digits")
    parts = training.split(cell.data, int(cell.params["digits_test" if digits else "mnist_test"]), cell.rng("split"))
    make_network = training.small_cnn if digits else training.mlp
    network = make_network(cell.torch_rng("weights"))
    stream = training.batches(parts, steps, int(cell.params["batch"]), cell.rng("batches"))
    record = recorder if slot == 1 else None
    trained = training.train(
        network, stream, _optimizer(cell, kind, steps), lr, steps, recorder=record, record_steps=60
    )
    score = None if trained is None else training.accuracy(network, [(parts.test_x, parts.test_y)])
    return (parts.chance if score is None else score), trained


def _own(cell: CellInput, options: user.UserOptions, slot: int, lr: float) -> tuple[float, training.Trained | None]:
    data, model = str(cell.data["data"]), str(cell.data["model"])
    with user.own_randomness(cell.torch_rng("own")):
        network, (train_loader, test_loader) = user.make(model, data, cell.seed)
        stream = user.endless(train_loader, options.steps, data)
        trained = training.train(network, stream, _optimizer(cell, options.optimizer, options.steps), lr, options.steps)
        test = [user.check_batch(batch, data) for batch in test_loader]
        if not test:
            raise InputError(f"data: the test loader of {data} yields no batch.")
        score = None if trained is None else training.accuracy(network, test)
    labels = torch.cat([labels for _, labels in test])
    return (100.0 / int(labels.max() + 1) if score is None else score), trained


def _optimizer(cell: CellInput, kind: str, steps: int) -> training.MakeOptimizer:
    """Return the arm's optimizer as a function of parameters and rate."""
    config = dict(cell.config)
    decay = WEIGHT_DECAY[kind]
    if config.get("random"):
        generator = cell.rng("random candidate")
        chance = baselines.RandomSGD if kind == "sgd" else baselines.RandomAdamW
        return lambda params, lr: chance(params, lr, generator, weight_decay=decay)
    if "rival" in config:
        return lambda params, lr: baselines.RIVALS[config["rival"]](params, lr, steps)
    if "momentum" in config:
        momentum = float(config["momentum"])
        if kind == "sgd":
            return lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=decay)
        return lambda params, lr: torch.optim.AdamW(params, lr=lr, betas=(momentum, 0.999), weight_decay=decay)
    return lambda params, lr: greedy(kind, params, lr, Config(**config), decay)


def greedy(kind: str, params: Iterable[Tensor], lr: float, config: Config, decay: float) -> torch.optim.Optimizer:
    """Return the greedy optimizer that ``config`` describes."""
    knobs = config.model_dump()
    candidates = knobs.pop("candidates")
    if kind == "adamw":
        return GreedyAdamW(params, lr, beta1=candidates, weight_decay=decay, **knobs)
    for name in ("w_exponent", "w_scope", "bias_corrected_score"):  # of Adam's score only
        knobs.pop(name)
    return GreedySGD(params, lr, momentum=candidates, weight_decay=decay, **knobs)


def _looks(
    runs: list[tuple[float, training.Trained | None]], rates: list[float]
) -> tuple[dict[str, tuple[list[float], list[float]]], dict[str, str | float | int]]:
    """Return the chosen momentum over time at the extreme rates, and the share of each candidate as notes."""
    traces = {}
    notes: dict[str, str | float | int] = {}
    for lr, (_, trained) in zip(rates, runs, strict=True):
        if trained is None:
            notes[f"lr {lr:g}"] = "diverged: counted as chance"
        elif trained.shares:
            notes[f"share of each candidate, lr {lr:g}"] = ", ".join(
                f"{value:g}: {share:.2f}" for value, share in trained.shares.items()
            )
    for name, (_, trained) in (("momentum_low", runs[0]), ("momentum_high", runs[-1])):
        if trained is not None and trained.momentum:
            traces[name] = training.smooth(trained.momentum)
    return traces, notes


def _curves(recorder: GradAutocorrelation, cell: CellInput) -> dict[str, tuple[list[float], list[float]]]:
    """Return the alignment curves of the recorded gradients and of a synthetic AR(1) stream, as a check."""
    rng = cell.rng("ar1")
    noise = rng.normal(size=(400, 500))
    stream = [noise[0]]
    for shock in noise[1:]:
        stream.append(AR1 * stream[-1] + math.sqrt(1 - AR1**2) * shock)
    check = core.alignment_curve(core.autocorrelation(np.stack(stream), 30), CURVE_GRID, normalization="truncated")
    grid = [float(m) for m in CURVE_GRID]
    found = recorder.curve(CURVE_GRID)
    return {
        "alignment": (grid, (found / found.max()).tolist()),
        "alignment_ar1": (grid, (check / check.max()).tolist()),
    }


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Add the oracles with hindsight, the mean and the worst of the sweep, and every arm's regret."""
    names = [arm.name for arm in THREE]
    if not all(name in arms for name in names):
        return {}
    slots = [metric.name for metric in SLOT_METRICS if metric.name in arms[names[0]]]
    sweep = np.array([[arms[name][slot] for slot in slots] for name in names])
    best = sweep.max(axis=0)

    def regret(scores: core.Floats) -> float:
        return float((best - scores).max())

    def whole(scores: core.Floats) -> dict[str, float]:
        values = {slot: float(score) for slot, score in zip(slots, scores, strict=True)}
        return {"accuracy": float(scores.mean()), "regret": regret(scores), **values}

    found = {
        name: {"regret": regret(np.array([scores[slot] for slot in slots]))}
        for name, scores in arms.items()
        if all(slot in scores for slot in slots)
    }
    found["oracle"] = whole(best)
    found["mean_fixed"] = whole(sweep.mean(axis=0))
    found["worst_fixed"] = whole(sweep.min(axis=0))
    found["steadiest_fixed"] = whole(min(sweep, key=regret))
    more = [arm.name for arm in OTHERS]
    if all(name in arms for name in more):
        six = np.vstack([sweep, [[arms[name][slot] for slot in slots] for name in more]])
        found["oracle_of_six"] = whole(six.max(axis=0))
    return found


def _tuned() -> dict[str, dict[str, dict[str, Any]]]:
    """Read task -> arm -> config from the settings kept beside this file."""
    text = resources.files(__package__).joinpath("tuned.json").read_text(encoding="utf-8")
    return {task: {arm: point["config"] for arm, point in arms.items()} for task, arms in json.loads(text).items()}


MAIN = (*(arm.name for arm in (*GAP, *THREE)), "random")
QUICK = tuple(name for name in MAIN if not name.endswith("per_param"))  # what a minute pays for
TASKS = (
    Task("digits_sgd", "Digits, small CNN, SGD", _digits),
    Task("digits_adamw", "Digits, small CNN, AdamW", _digits),
    Task("mnist_sgd", "MNIST 10k, MLP, SGD", _mnist, source="mnist_t10k", dataset="mnist_t10k"),
    Task("mnist_adamw", "MNIST 10k, MLP, AdamW", _mnist, source="mnist_t10k", dataset="mnist_t10k"),
)
PARAMS = {
    "steps": 200,
    "batch": 64,
    "digits_test": 597,
    "mnist_test": 4000,
    "sgd_lrs": user.RATES["sgd"],
    "adamw_lrs": user.RATES["adamw"],
}

BENCH = BenchSpec(
    method="greedy_momentum",
    tasks=TASKS,
    arms=(*GAP, *THREE, *OTHERS, BEST_SINGLE, *RIVALS, RANDOM, *DERIVED),
    metrics=METRICS,
    primary="accuracy",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("digits_sgd",), arms=(*QUICK, *(arm.name for arm in DERIVED))),
                Block(tasks=("digits_sgd",), arms=("best_single",)),
            ),
            seeds=6,
            work=7 * 6 * 4 * 200,
            params=PARAMS,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("digits_sgd", "mnist_sgd"), arms=(*MAIN, "best_single", *(arm.name for arm in DERIVED))),
                Block(tasks=("digits_adamw", "mnist_adamw"), arms=MAIN),
                Block(tasks=("digits_sgd", "mnist_sgd"), arms=tuple(arm.name for arm in OTHERS)),
                Block(tasks=("digits_sgd",), arms=tuple(arm.name for arm in RIVALS)),
            ),
            seeds=10,
            work=10 * (2 * 9 * 4 + 2 * 8 * 2 + 2 * 3 * 4 + 7 * 4) * 200,
            params=PARAMS,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=5, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="digits_sgd",
    traces=TRACES,
    derive=derive,
    user_task=user.user_task,
    options=user.UserOptions,
    tuned=_tuned(),
    grid={"best_single": tuple({"momentum": momentum} for momentum in SIX)},
    tuning_tasks=("digits_sgd", "mnist_sgd"),
)
