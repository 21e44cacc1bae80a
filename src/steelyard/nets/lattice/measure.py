"""One trained network as numbers: accuracy, resources, multiply-adds executed, and time against occlusion."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.nets.lattice import core
from steelyard.nets.lattice.baselines import ACT, ACT_EPS, BLT, FeedForward, FixedStepsRCNN
from steelyard.nets.lattice.card import Config
from steelyard.nets.lattice.inference import EntropyThreshold, StopResult, stop_early
from steelyard.nets.lattice.resources import BoxWarning, box_check, used_resources
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.tasks import Split
from steelyard.nets.lattice.torch_nn import LatticeOutput, LatticeRCNN, ResourceCost
from steelyard.nets.lattice.training import HaltingWarning, train_lattice

Curve = tuple[list[float], list[float]]
OCCLUDERS = (3 / 14, 5 / 14, 7 / 14, 8 / 14)  # of the side; 3, 5, 7 and 8 of 14 pixels
HALF = 7 / 14
EVALUATION_BATCH = 250
OCCLUDED_IMAGES = 1000
MATCHING_IMAGES = 1000
DRAWS = 10


def network(config: Config, kind: str, channels: int, classes: int, generator: torch.Generator, **more: Any
            ) -> LatticeRCNN:  # fmt: skip
    """Return an untrained network of ``kind``: lattice, fixed_steps, blt, feed_forward or act."""
    common: dict[str, Any] = {"pool": config.pool, "stride": config.stride, "readout_scale": config.readout_scale}
    common |= {"seed": generator, **more}
    if kind == "feed_forward":
        return FeedForward(channels, classes, config.channels, config.layers, **common)
    common["max_steps"] = config.steps
    if kind in ("fixed_steps", "blt"):
        fixed = FixedStepsRCNN if kind == "fixed_steps" else BLT
        return fixed(channels, classes, config.channels, config.layers, **common)
    common |= {"halting_bound": config.halting_bound, "halting_start": config.halting_start}
    if kind == "act":
        return ACT(channels, classes, config.channels, config.layers, **common)
    common |= {"time": config.time_selection, "state_term": config.state_term}
    return LatticeRCNN(channels, classes, config.channels, config.layers, **common)


def feed_forward_width(config: Config, steps: float, size: int, channels: int, classes: int) -> int:
    """Return the width of the feed-forward network whose multiply-adds are nearest to ``steps`` of the lattice's.

    Args:
        config: Of the lattice.
        steps: How many the lattice takes.
        size: Height and width of the images.
        channels: Channels of the images.
        classes: Number of classes.
    """
    lattice, generator = network(config, "lattice", channels, classes, torch.Generator()), torch.Generator()
    wanted = float(core.total_macs(lattice.macs_per_step(size, size), torch.tensor(steps)))

    def distance(width: int) -> float:
        rival = network(config.model_copy(update={"channels": width}), "feed_forward", channels, classes, generator)
        return abs(sum(rival.macs_per_step(size, size)) - wanted)

    return min(range(1, 129), key=distance)


def prices(config: Config) -> ResourceCost:
    """Return the costs that ``config`` describes."""
    names = ("breadth", "depth", "time", "q", "ramp", "breadth_weight", "depth_weight", "time_prior",
             "readout_in_norms", "readout_decay")  # fmt: skip
    return ResourceCost(**{name: getattr(config, name) for name in names})


def train(
    model: LatticeRCNN,
    parts: Split,
    config: Config,
    updates: int,
    generator: torch.Generator,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> str:
    """Train in place; return why training broke off ("" when it did not)."""
    occlusion = None if augment is not None else (0, pixels(parts, config.occlusion_share))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HaltingWarning)  # E[t] is reported, and at T it is what fixed steps are
            train_lattice(
                model,
                (parts.train_x, parts.train_y),
                prices(config),
                lr=config.lr,
                halting_lr=config.halting_lr,
                batch_size=config.batch_size,
                grad_clip=config.grad_clip,
                deep_supervision=config.deep_supervision,
                occlusion=occlusion,
                seed=generator,
                updates=updates,
                occlusion_fill=config.fill,
                task_loss=config.task_loss,
                augment=augment,
            )
    except InputError as error:  # the loss is not finite any more, or the first layer died
        return str(error)
    return "" if all(bool(torch.isfinite(p).all()) for p in model.parameters()) else "weights are not finite"


def pixels(parts: Split, share: float) -> int:
    """Return ``share`` of an image's shorter side in whole pixels."""
    return round(share * min(parts.test_x.shape[2:]))


def look(model: LatticeRCNN, x: Tensor) -> LatticeOutput:
    """Return the outputs for all of ``x``, without gradients."""
    model.eval()
    with torch.no_grad():
        outputs = [model(batch) for batch in torch.split(x, EVALUATION_BATCH)]
    return LatticeOutput(*(torch.cat(part) for part in zip(*outputs, strict=True)))


def percent(logits: Tensor, y: Tensor) -> float:
    """Return the accuracy in percent."""
    return 100.0 * float((logits.argmax(1) == y).double().mean())


def mean(values: Tensor) -> float:
    """Return the mean in float64."""
    return float(values.double().mean())


def measure(
    model: LatticeRCNN, parts: Split, config: Config, cell: CellInput, entropy_steps: float | None = None
) -> tuple[dict[str, float], dict[str, Curve]]:
    """Return the metrics and curves of a trained network on the test images.

    Args:
        model: The network.
        parts: Its images.
        config: How results are read.
        cell: Source of random streams.
        entropy_steps: Stop at the entropy threshold that takes this many steps on training images, instead of by the
            network's own halting.
    """
    output = look(model, parts.test_x)
    metrics = {
        "accuracy_all_steps": percent(output.logits, parts.test_y),
        "accuracy_best_step": max(percent(logits, parts.test_y) for logits in output.step_logits.unbind(1)),
        "time": mean(output.expected_time),
        "entropy_rank": rank_correlation(output.expected_time, core.entropy(output.logits)),
        **resources(model, config, parts.test_x[:EVALUATION_BATCH]),
        **sampled(model, output, parts, cell),
        **(deployed(model, parts, config) if entropy_steps is None else by_entropy(model, parts, entropy_steps)),
    }
    curves = _shape_curves(model, output, parts, config)
    occluded, occluded_curves = under_occlusion(model, parts, config, cell)
    return {**metrics, **occluded}, {**curves, **occluded_curves}


def resources(model: LatticeRCNN, config: Config, x: Tensor) -> dict[str, float]:
    """Return what the weights take: channels, layers, both cost terms, and what is left at the edge of the box."""
    used = used_resources(model, config.used_threshold, readout=config.readout_in_norms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoxWarning)  # the shares are reported
        edge = box_check(model, x, config.readout_in_norms)
    powers = core.norm_powers([square.detach() for square in model.channel_squares(config.readout_in_norms)], config.q)
    return {
        "breadth": float(sum(used.breadth)),
        "participation": float(sum(used.participation)),
        "depth": float(used.depth_centre),
        "layers": float(used.depth),
        "breadth_cost": float(core.breadth_of_norms(powers)),
        "depth_cost": float(core.depth_of_norms(powers)),
        "edge_channel": max(edge.channel),
        "edge_layer": edge.layer,
        "edge_step": float(edge.step or 0.0),
    }


def deployed(model: LatticeRCNN, parts: Split, config: Config) -> dict[str, float]:
    """Return accuracy, steps and executed multiply-adds of what a user would run: shrunken, stopping early."""
    model.eval()
    if isinstance(model, ACT | FeedForward):  # they stop where their halting mass is complete
        output = look(model, parts.test_x)
        steps = core.stopping_steps(output.p_time, "threshold", 1 - ACT_EPS)
        return {"accuracy": percent(output.logits, parts.test_y), **_executed(model, steps, parts)}
    small = shrink(model, config.used_threshold, readout=config.readout_in_norms)
    return _run(lambda x: stop_early(small, x, "threshold", config.stop_threshold), parts)


def by_entropy(model: LatticeRCNN, parts: Split, steps: float) -> dict[str, float]:
    """Return the same for stopping at the entropy threshold that takes ``steps`` steps on training images."""
    entropies = core.entropy(look(model, parts.train_x[:MATCHING_IMAGES]).step_logits)
    return _run(EntropyThreshold(model, match_entropy_threshold(entropies, steps)), parts)


def _run(stop: Callable[[Tensor], StopResult], parts: Split) -> dict[str, float]:
    runs = [stop(x) for x in torch.split(parts.test_x, EVALUATION_BATCH)]
    logits, steps, macs = (torch.cat(part) for part in zip(*runs, strict=True))
    return {"accuracy": percent(logits, parts.test_y), "steps": mean(steps), "macs": mean(macs) / 1e6}


def _executed(model: LatticeRCNN, steps: Tensor, parts: Split) -> dict[str, float]:
    """Return mean steps and mean multiply-adds (millions) of runs that stop at ``steps``."""
    per_step = model.macs_per_step(*parts.test_x.shape[2:])
    return {"steps": mean(steps), "macs": mean(core.total_macs(per_step, steps.double())) / 1e6}


def sampled(model: LatticeRCNN, output: LatticeOutput, parts: Split, cell: CellInput) -> dict[str, float]:
    """Return accuracy, steps and multiply-adds when the step is drawn from p, over ten draws an image."""
    generator = cell.torch_rng("stopping")
    count = len(parts.test_y)
    draws = [torch.rand(count, generator=generator) for _ in range(DRAWS)]
    steps = [core.stopping_steps(output.p_time, "sample", draws=one) for one in draws]
    answers = [core.stopped_logits(output.step_logits, output.log_p_time, one, "sample") for one in steps]
    executed = _executed(model, torch.cat(steps), parts)
    return {
        "accuracy_sampled": float(np.mean([percent(answer, parts.test_y) for answer in answers])),
        "steps_sampled": executed["steps"],
        "macs_sampled": executed["macs"],
    }


def under_occlusion(
    model: LatticeRCNN, parts: Split, config: Config, cell: CellInput
) -> tuple[dict[str, float], dict[str, Curve]]:
    """Return how time and accuracy change with the size of a square in the image; all arms see equal squares."""
    x, y = parts.test_x[:OCCLUDED_IMAGES], parts.test_y[:OCCLUDED_IMAGES]
    sizes = [0, *(pixels(parts, share) for share in OCCLUDERS)]
    times, accuracies = [], []
    for size in sizes:
        output = look(model, core.occlude(x, size, config.fill, generator=cell.torch_rng(f"occluder/{size}")))
        times.append(mean(output.expected_time))
        accuracies.append(percent(output.logits, y))
    half = sizes.index(pixels(parts, HALF))
    metrics = {
        "rise": times[half] - times[0],
        "rise_largest": times[-1] - times[0],
        "least_rise": float(np.diff(times).min()),
        "slope": float(np.polyfit(np.array(sizes) / min(x.shape[2:]), times, 1)[0]),
        "accuracy_occluded": accuracies[half],
    }
    pixel = [float(size) for size in sizes]
    return metrics, {"time_by_occluder": (pixel, times), "accuracy_by_occluder": (pixel, accuracies)}


def _shape_curves(model: LatticeRCNN, output: LatticeOutput, parts: Split, config: Config) -> dict[str, Curve]:
    layers = [float(layer) for layer in range(1, model.n_layers + 1)]
    used = used_resources(model, config.used_threshold, readout=config.readout_in_norms)
    classes = list(range(parts.classes))
    times = [mean(output.expected_time[parts.test_y == one]) for one in classes]
    steps = [float(step) for step in range(1, output.p_time.shape[1] + 1)]
    return {
        "breadth_by_layer": (layers, [float(count) for count in used.breadth]),
        "depth_profile": (layers, list(used.norms)),
        "time_by_class": ([float(one) for one in classes], times),
        "halting": (steps, output.p_time.double().mean(0).tolist()),
    }


def rank_correlation(a: Tensor | NDArray[np.float64], b: Tensor | NDArray[np.float64]) -> float:
    """Return Spearman's correlation with mean ranks for ties; 0 when one of the two is constant."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(require("scipy.stats", "nets").spearmanr(first, second).statistic)


def match_entropy_threshold(entropies: Tensor, steps: float) -> float:
    """Return the entropy below which a run must stop so that it takes ``steps`` steps on average.

    Args:
        entropies: Of the readouts, (B, T), on training images.
        steps: Wanted mean number of steps.
    """

    def taken(threshold: float) -> float:
        return mean(core.first_stop(entropies[:, :-1] >= threshold))

    low, high = 0.0, math.log(2) + float(entropies.max())
    for _ in range(40):  # taken() falls as the threshold rises
        middle = (low + high) / 2
        low, high = (middle, high) if taken(middle) > steps else (low, middle)
    return high
