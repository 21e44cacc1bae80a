"""How the lattice is weighed: digits and MNIST under occlusion, prices in three levels, fixed networks, people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from steelyard.contracts import Arm, BenchSpec, Block, CellInput, Measured, Metric, Profile, Role, Task, Trace
from steelyard.errors import InputError
from steelyard.nets.lattice import measure, people, tasks
from steelyard.nets.lattice.baselines import prune
from steelyard.nets.lattice.card import Config

MAX_STEPS = 8.0


def _arm(name: str, label: str, role: Role, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config)


def _level(resource: str, level: str, price: float, role: Role) -> Arm:
    name = f"{resource}_{level}".rstrip("_")
    others = {} if resource == "time" else {"time": 0.03}
    return _arm(name, f"Price of {resource} {price:g}", role, **{resource: price}, **others)


TIMES = (
    _level("time", "low", 0.01, "ablation"),
    _level("time", "", 0.03, "method"),
    _level("time", "high", 0.1, "method"),
)
BREADTHS = (
    _level("breadth", "low", 0.003, "ablation"),
    _level("breadth", "", 0.01, "method"),
    _level("breadth", "high", 0.03, "ablation"),
)
DEPTHS = (
    _level("depth", "low", 0.003, "ablation"),
    _level("depth", "", 0.01, "method"),
    _level("depth", "high", 0.03, "ablation"),
)
ABLATIONS = (
    _arm("fixed_time", "Time the same for all images", "ablation", time=0.03, time_selection="fixed"),
    # The mean of r / C over 8 ranks is 9/16: at equal norms both decays cost the same.
    _arm("uniform", "Uniform decay, equal mean price", "ablation", time=0.03, breadth=0.03 * 9 / 16,
         breadth_weight="uniform"),
)  # fmt: skip
EQUAL = (
    _arm("fixed_steps", "Recurrent, fixed steps, equal compute", "baseline", kind="fixed_steps", equal=True),
    _arm("feed_forward", "Feed-forward, equal compute", "baseline", kind="feed_forward", equal=True),
    _arm("entropy", "No costs, entropy threshold, equal compute", "baseline", stop="entropy", equal=True),
    _arm("blt", "BLT, entropy threshold, equal compute", "baseline", kind="blt", stop="entropy", equal=True),
    _arm("act", "Adaptive computation time", "baseline", kind="act", time=0.1),
    _arm("ponder", "PonderNet's geometric prior", "baseline", time=0.2, time_prior=0.2),
)
PRUNED = _arm("pruned", "Pruned by norm, trained on", "baseline", time=0.03, prune_to=18)
GRID = tuple(
    _arm(f"fixed_{c}_{d}_{t}", f"Fixed: {c} channels, {d} layers, {t} steps", "baseline", kind="fixed_steps",
         channels=c, layers=d, steps=t)
    for c, d, t in ((4, 2, 3), (8, 2, 3), (8, 3, 6), (8, 3, 8), (12, 3, 4))
)  # fmt: skip
CLASSES = tuple(
    _arm(f"classes_{n}", f"{n} of ten classes", "method", classes=n, time=0.03, breadth=0.01, depth=0.01)
    for n in (2, 5, 10)
)
PEOPLE = (
    _arm("contrast", "Trained at six contrasts, price of time .03", "method", time=0.03),
    _arm("contrast_entropy", "No costs, entropy threshold", "baseline", entropy_steps=4.5),
    _arm("contrast_blt", "BLT, entropy threshold", "baseline", kind="blt", entropy_steps=4.5),
    _arm("shuffled", "Times in random order", "floor"),
    _arm("halves", "People against people (split halves)", "ceiling"),
)
CHANCE = _arm("chance", "Most frequent class", "floor")
FULL_BOX = Arm(name="full_box", label="No costs, all steps, best step (hindsight)", role="ceiling", derived=True)

METRICS = (
    Metric(name="accuracy", label="Accuracy as deployed (shrunken, stops early)", better="higher", unit="%", worst=0.0),
    Metric(name="rt_spearman", label="Rank correlation with people's reaction times", better="higher", worst=-1.0),
    Metric(name="rt_pearson", label="Correlation with people's reaction times", better="higher", worst=-1.0),
    Metric(name="macs", label="Multiply-adds executed", better="lower", unit="million / image", worst=1e3),
    Metric(name="steps", label="Steps executed", better="lower", worst=MAX_STEPS),
    Metric(name="time", label="Expected time E[t]", better="lower", unit="steps", worst=MAX_STEPS),
    Metric(name="breadth", label="Channels used", better="lower", worst=1e3),
    Metric(name="participation", label="Channels, participation ratio", better="lower", worst=1e3),
    Metric(name="depth", label="Depth, centre of mass", better="lower", unit="layers", worst=1e3),
    Metric(name="layers", label="Layers used", better="lower", worst=1e3),
    Metric(name="breadth_cost", label="Breadth term, unweighted", better="lower", worst=1e6),
    Metric(name="depth_cost", label="Depth term, unweighted", better="lower", worst=1e6),
    Metric(name="rise", label="E[t] at a square of half the side minus clean", better="higher", worst=-MAX_STEPS),
    Metric(name="rise_largest", label="E[t] at the largest square minus clean", better="higher", worst=-MAX_STEPS),
    Metric(name="least_rise", label="Smallest rise from square to square", better="higher", worst=-MAX_STEPS),
    Metric(name="slope", label="Rise of E[t] per side covered", better="higher", worst=-1e3),
    Metric(name="accuracy_all_steps", label="Accuracy, all steps mixed", better="higher", unit="%", worst=0.0),
    Metric(name="accuracy_best_step", label="Accuracy, best step", better="higher", unit="%", worst=0.0),
    Metric(
        name="accuracy_occluded", label="Accuracy at half the side, all steps", better="higher", unit="%", worst=0.0
    ),
    Metric(name="accuracy_sampled", label="Accuracy, steps drawn from p", better="higher", unit="%", worst=0.0),
    Metric(name="steps_sampled", label="Steps drawn from p", better="lower", worst=MAX_STEPS),
    Metric(name="macs_sampled", label="Multiply-adds, steps drawn", better="lower", unit="million / image", worst=1e3),
    Metric(name="entropy_rank", label="Rank correlation of E[t] and entropy", better="higher", worst=-1.0),
    Metric(name="edge_channel", label="Smallest over largest channel of a layer", better="lower", worst=1.0),
    Metric(name="edge_layer", label="Last over heaviest layer", better="lower", worst=1.0),
    Metric(name="edge_step", label="Halting mass of the last step", better="lower", worst=1.0),
    Metric(name="grown", label="Dimensions that do not fall from 2 to 5 to 10 classes", better="higher", worst=0.0),
    Metric(name="accuracy_contrasts", label="Accuracy over six contrasts", better="higher", unit="%", worst=0.0),
)
TRACES = (
    Trace(name="time_by_occluder", label="Time against occlusion", x_label="square, pixels", y_label="E[t]"),
    Trace(name="accuracy_by_occluder", label="Accuracy against occlusion", x_label="square, pixels", y_label="%"),
    Trace(name="breadth_by_layer", label="Channels used by layer", x_label="layer", y_label="channels"),
    Trace(name="depth_profile", label="Norms by layer", x_label="layer", y_label="sum of channel norms"),
    Trace(name="time_by_class", label="Time by class", x_label="class", y_label="E[t]"),
    Trace(name="halting", label="When it halts", x_label="step", y_label="mean probability"),
    Trace(name="time_by_contrast", label="Time against contrast", x_label="contrast", y_label="steps", log_x=True),
    Trace(
        name="slowness",
        label="Slowness against contrast, beside people's medians",
        x_label="contrast",
        y_label="0 = fastest, 1 = slowest",
        log_x=True,
    ),
)
RECIPE = (
    "One GPU: CIFAR-10/100 or (mini-)ecoset, LatticeRCNN with 64 to 256 channels, 6 to 10 layers and 10 to 16 steps, "
    "stride 2 at every second layer, the three prices in three levels each, 10 seeds, against fixed networks of equal "
    "measured multiply-adds; for the image-level claim, reaction times per image of a set whose images you have."
)


def run(cell: CellInput) -> Measured:
    """Train one arm on one seed and return its metrics and curves."""
    if cell.task == "mnist_contrast":
        return people.run(cell)
    parts = tasks.split(cell)
    if cell.arm == "chance":
        return Measured({"accuracy": parts.chance, "accuracy_all_steps": parts.chance, "macs": 0.0}, steps=1)
    extra, config = settings(cell)
    if "classes" in extra:
        images = int(cell.params["class_images"])
        parts = tasks.some_classes(parts, int(extra["classes"]), images, cell.rng("classes"))
    kind = str(extra.get("kind", "lattice"))
    model = measure.network(config, kind, parts.train_x.shape[1], parts.classes, cell.torch_rng("weights"))
    updates, batches = updates_of(cell), cell.torch_rng("batches")
    before = updates * 7 // 10 if "prune_to" in extra else updates
    broken = measure.train(model, parts, config, before, batches)
    if not broken and "prune_to" in extra:
        model = prune(model, int(extra["prune_to"]))
        broken = measure.train(model, parts, replace_ramp(config), updates - before, batches)
    if broken:
        return diverged(updates, parts.chance, broken)
    try:
        metrics, curves = measure.measure(model, parts, config, cell, extra.get("entropy_steps"))
    except InputError as error:  # nothing of the image is left once unused channels are gone
        return diverged(updates, parts.chance, str(error))
    notes: dict[str, str | float | int] = {"kappa": float(model.kappa.detach())} if model.time == "adaptive" else {}
    return Measured(metrics, updates, curves, notes)


def settings(cell: CellInput) -> tuple[dict[str, Any], Config]:
    """Split the arm's settings into what the bench reads and the network's configuration."""
    chosen = dict(cell.config)
    digits = cell.task.startswith("digits")
    box = {"steps": int(cell.params["digits_steps"])} if digits else {}
    if chosen.pop("equal", False):
        steps = float(cell.params["equal_steps_digits" if digits else "equal_steps"])
        kind, stop = str(chosen.get("kind", "lattice")), str(chosen.pop("stop", ""))
        _, channels, size, _ = cell.data["images"].shape
        classes = int(cell.data["labels"].max()) + 1
        chosen.update(equal_compute(kind, stop, steps, size, channels, classes))
    chosen = {**box, **chosen}
    known = {name: value for name, value in chosen.items() if name in Config.model_fields}
    return {name: value for name, value in chosen.items() if name not in known}, Config(**known)


def equal_compute(kind: str, stop: str, steps: float, size: int, channels: int, classes: int) -> dict[str, Any]:
    """Return the settings with which a rival executes about as many multiply-adds as a lattice that takes ``steps``.

    Args:
        kind: Of the rival's network.
        stop: "entropy" for one that stops by entropy.
        steps: Mean number of steps that the lattice takes once deployed, measured on tuning seeds.
        size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of classes.
    """
    if stop == "entropy":
        return {"entropy_steps": steps}
    if kind == "fixed_steps":
        return {"steps": max(Config().layers, round(steps))}
    return {"channels": measure.feed_forward_width(Config(), steps, size, channels, classes)}


def replace_ramp(config: Config) -> Config:
    """Return ``config`` with prices at their full height from the start, for training on."""
    return config.model_copy(update={"ramp": 0.0})


def updates_of(cell: CellInput) -> int:
    """Return how many updates an arm makes on the cell's task."""
    own = {"digits": "digits_updates", "mnist_classes": "class_updates"}
    return int(cell.params[own.get(cell.task, "updates")])


def diverged(updates: int, chance: float, why: str) -> Measured:
    """Return the worst value of every metric, chance for accuracies."""
    worst = {metric.name: metric.worst for metric in METRICS if metric.worst is not None}
    worst.update({name: chance for name in worst if name.startswith("accuracy")})
    return Measured(worst, updates, notes={"stopped": why})


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Add the full box read at its best step, and how many dimensions grow with the number of classes."""
    found: dict[str, dict[str, float]] = {}
    if "accuracy_best_step" in arms.get("entropy", {}):
        best = arms["entropy"]
        found["full_box"] = {
            "accuracy": best["accuracy_best_step"],
            "accuracy_occluded": best["accuracy_occluded"],
            "time": MAX_STEPS,
        }
    names = [f"classes_{n}" for n in (2, 5, 10)]
    if all("time" in arms.get(name, {}) for name in names):
        grown = [
            bool(np.all(np.diff([arms[name][metric] for name in names]) >= 0))
            for metric in ("participation", "depth", "time")
        ]
        found["classes_10"] = {"grown": float(sum(grown))}
    return found


def _names(*groups: tuple[Arm, ...]) -> tuple[str, ...]:
    return tuple(arm.name for group in groups for arm in group)


MNIST = "MNIST test images, CC BY-SA 3.0"
HUMANS = "MNIST test images, CC BY-SA 3.0; human responses of Geirhos et al. (2017), CC BY 4.0"
TASKS = (
    Task("digits", "Digits, 8x8", tasks.digits, "scikit-learn's digits"),
    Task("mnist", "MNIST, 14x14, squares as occluders", tasks.mnist, MNIST, dataset="mnist_t10k"),
    Task("mnist_classes", "MNIST, 2, 5 and 10 classes", tasks.mnist, MNIST, dataset="mnist_t10k"),
    Task("mnist_contrast", "MNIST at six contrasts, beside people", tasks.mnist_and_people, HUMANS,
         dataset="human_contrast"),
)  # fmt: skip
SWEEP = _names(TIMES, BREADTHS, DEPTHS)
PARAMS = {
    "updates": 280,
    "digits_updates": 190,
    "digits_steps": 6,
    "class_images": 1400,
    "class_updates": 400,
    "equal_steps": 4.41,  # of time_high, mean of twelve tuning seeds; digits likewise
    "equal_steps_digits": 4.37,
}

BENCH = BenchSpec(
    method="lattice",
    tasks=TASKS,
    arms=(*TIMES, *BREADTHS, *DEPTHS, *ABLATIONS, *EQUAL, PRUNED, *GRID, *CLASSES, *PEOPLE, CHANCE, FULL_BOX),
    metrics=METRICS,
    primary="accuracy",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("digits",), arms=("time", "time_high", "breadth", "fixed_steps", "chance")),
            ),
            seeds=6,
            work=6 * (4 * 190 + 1),
            params=PARAMS,
            cell_seconds=300,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("mnist",), arms=("time", "time_high", "breadth", "depth", "fixed_steps", "feed_forward",
                                              "chance")),
                Block(tasks=("digits",), arms=(*SWEEP, "fixed_steps", "chance")),
            ),
            seeds=10,
            work=10 * (6 * 280 + 10 * 190 + 2),
            params=PARAMS,
            cell_seconds=300,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("mnist",), arms=(*SWEEP, *_names(ABLATIONS, EQUAL), "pruned", "chance")),
                Block(tasks=("mnist",), arms=_names(GRID)),
                Block(tasks=("mnist_classes",), arms=_names(CLASSES)),
                Block(tasks=("mnist_contrast",), arms=_names(PEOPLE)),
            ),
            seeds=6,
            work=6 * (26 * 720 + 3 * 400 + 3),
            params={**PARAMS, "updates": 720, "equal_steps": 4.1},
            cell_seconds=600,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="digits",
    traces=TRACES,
    cost="macs",
    resources=("time", "participation", "depth"),
    derive=derive,
    user_task=tasks.user_task,
    options=tasks.Options,
)  # fmt: skip
