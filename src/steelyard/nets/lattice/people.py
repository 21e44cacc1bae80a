"""The reaction-time proxy: networks that see digits at six contrasts, beside people who saw objects at those."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from steelyard.contracts import CellInput, Measured
from steelyard.nets.lattice import core, measure, tasks
from steelyard.nets.lattice.card import Config
from steelyard.nets.lattice.inference import EntropyThreshold
from steelyard.nets.lattice.reaction_time import ReactionTimeCorrelation, reaction_time_correlation
from steelyard.nets.lattice.torch_nn import LatticeRCNN

RANGE = (-1.0, 1.0)  # of images at a contrast around mid-grey


def run(cell: CellInput) -> Measured:
    """Return how the cell's times rank the contrasts, compared with people's medians."""
    config = Config(**{name: value for name, value in cell.config.items() if name in Config.model_fields})
    if cell.arm == "shuffled":
        order = cell.rng("order").permutation(len(tasks.SHOWN)).tolist()
        times = dict(zip(tasks.SHOWN, map(float, order), strict=True))
        return _compared(cell, config, times, 1, {})
    if cell.arm == "halves":
        return _halves(cell, config)
    parts = tasks.split(cell)
    kind = str(cell.config.get("kind", "lattice"))
    model = measure.network(config, kind, 1, parts.classes, cell.torch_rng("weights"), input_range=RANGE)
    updates = int(cell.params["updates"])
    broken = measure.train(model, parts, config, updates, cell.torch_rng("batches"), augment=random_contrast)
    if broken:
        worst = {"rt_spearman": -1.0, "rt_pearson": -1.0, "accuracy_contrasts": parts.chance}
        return Measured(worst, updates, notes={"stopped": broken})
    times, accuracy = model_times(model, parts, cell)
    return _compared(cell, config, times, updates, {"accuracy_contrasts": accuracy})


def random_contrast(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return each image at one of the six contrasts."""
    levels = torch.tensor(tasks.CONTRASTS, dtype=x.dtype)
    return tasks.at_contrast(x, levels[torch.randint(len(levels), (len(x),), generator=generator)])


def model_times(model: LatticeRCNN, parts: tasks.Split, cell: CellInput) -> tuple[dict[float, float], float]:
    """Return the mean time at each contrast people saw, and the accuracy in percent over those trained at.

    The time is E[t]; with ``entropy_steps`` among the arm's settings it is the first step whose entropy lies below a
    threshold, set on training images at random contrasts and without a look at people.
    """
    stop = None
    if "entropy_steps" in cell.config:
        seen = random_contrast(parts.train_x[: measure.MATCHING_IMAGES], cell.torch_rng("matching"))
        entropies = core.entropy(measure.look(model, seen).step_logits)
        threshold = measure.match_entropy_threshold(entropies, float(cell.config["entropy_steps"]))
        stop = EntropyThreshold(model, threshold)
    times, accuracies = {}, []
    for contrast in tasks.SHOWN:
        x = tasks.at_contrast(parts.test_x, contrast)
        if stop is None:
            output = measure.look(model, x)
            logits, spent = output.logits, output.expected_time
        else:
            runs = [stop(piece) for piece in torch.split(x, measure.EVALUATION_BATCH)]
            logits, spent = torch.cat([one.logits for one in runs]), torch.cat([one.steps for one in runs])
        times[contrast] = measure.mean(spent)
        accuracies.append(measure.percent(logits, parts.test_y))
    return times, float(np.mean(accuracies[: len(tasks.CONTRASTS)]))


def _compared(
    cell: CellInput, config: Config, times: Mapping[float, float], updates: int, metrics: Mapping[str, float]
) -> Measured:
    if len({times[level] for level in tasks.CONTRASTS}) < 2:  # a time that does not depend on contrast ranks nothing
        return Measured({**metrics, "rt_spearman": 0.0, "rt_pearson": 0.0}, updates, notes={"times": "all equal"})
    found = correlate(cell, config, times)
    kept = [float(name) for name in found.conditions]
    return Measured(
        {**metrics, "rt_spearman": found.spearman, "rt_pearson": found.pearson},
        updates,
        {
            "time_by_contrast": ([float(level) for level in times], list(times.values())),
            "slowness": (kept, slowness(list(found.model_times))),
        },
        {"left out": "; ".join(f"contrast {name}: {why}" for name, why in found.dropped.items())},
    )


def correlate(
    cell: CellInput, config: Config, times: Mapping[float, float], subjects: tuple[int, ...] | None = None
) -> ReactionTimeCorrelation:
    """Compare times by contrast with people's medians (of ``subjects``; everybody's when None)."""
    rows = np.ones(len(cell.data["human_time"]), dtype=bool)
    if subjects is not None:
        rows = np.isin(cell.data["human_subject"], subjects)
    return reaction_time_correlation(
        times,
        cell.data["human_time"][rows],
        cell.data["human_contrast"][rows],
        bootstrap=1,
        correct=cell.data["human_correct"][rows],
        # The few trials of half the people must not decide which contrasts count: that is settled over all of them.
        min_accuracy=config.rt_least_accuracy if subjects is None else 0.0,
        correct_only=config.rt_trials == "correct",
    )


def _halves(cell: CellInput, config: Config) -> Measured:
    """Return how the medians of three of the five people rank the contrasts, compared with those of the other two."""
    everybody = dict.fromkeys(tasks.SHOWN, 0.0) | {tasks.SHOWN[0]: 1.0}
    kept = correlate(cell, config, everybody).conditions
    mixed = cell.rng("halves").permutation(np.unique(cell.data["human_subject"])).tolist()
    some, others = tuple(mixed[: len(mixed) // 2]), tuple(mixed[len(mixed) // 2 :])
    first = correlate(cell, config, {float(name): index for index, name in enumerate(kept)}, some)
    times = {float(name): value for name, value in zip(first.conditions, first.human_times, strict=True)}
    found = correlate(cell, config, times, others)
    curve = ([float(name) for name in found.conditions], slowness(list(found.human_times)))
    return Measured({"rt_spearman": found.spearman, "rt_pearson": found.pearson}, 1, {"slowness": curve})


def slowness(times: list[float]) -> list[float]:
    """Return times from 0 (the fastest) to 1 (the slowest), so that steps and seconds share an axis."""
    low, high = min(times), max(times)
    return [(time - low) / (high - low) for time in times]
