"""Compare a model's time with human reaction times, condition by condition (reconstruction)."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from steelyard import rng
from steelyard.errors import InputError

Floats = npt.NDArray[np.float64]
_FEWEST = 3  # conditions, for a correlation that is not +-1 by construction


@dataclass(frozen=True)
class ReactionTimeCorrelation:
    """How model times follow human reaction times over conditions.

    Attributes:
        conditions: Conditions compared, in the order in which they first appear.
        model_times: Mean model time of each.
        human_times: Median reaction time of each, in the unit of ``rt``, unrounded.
        spearman: Rank correlation, with average ranks for ties.
        pearson: Linear correlation.
        spearman_interval: 95 % percentile interval over resampled conditions.
        pearson_interval: 95 % percentile interval over resampled conditions.
        resamples: Bootstrap resamples used; those in which a series is constant have no correlation.
        dropped: Condition -> why it was left out.
        ignored_trials: Trials whose reaction time is missing, not a number or not positive.
    """

    conditions: tuple[str, ...]
    model_times: tuple[float, ...]
    human_times: tuple[float, ...]
    spearman: float
    pearson: float
    spearman_interval: tuple[float, float]
    pearson_interval: tuple[float, float]
    resamples: int
    dropped: dict[str, str] = field(default_factory=dict)
    ignored_trials: int = 0


def reaction_time_correlation(
    times: Mapping[Any, Any] | npt.ArrayLike,
    rt: npt.ArrayLike,
    groupby: npt.ArrayLike,
    bootstrap: int = 1000,
    *,
    correct: npt.ArrayLike | None = None,
    min_accuracy: float = 0.45,
    correct_only: bool = False,
    seed: int = 0,
) -> ReactionTimeCorrelation:
    """Correlate model times with the medians of human reaction times over conditions.

    Args:
        times: Condition -> model time (a number, or several that are averaged); or one model time per trial. A
            condition is found by its text, else by its number: 1 is 1.0.
        rt: Reaction time of each trial, shape (N,), in seconds; NaN and values <= 0 are ignored and counted.
        groupby: Condition of each trial, shape (N,).
        bootstrap: Number of resamples of the conditions.
        correct: Whether each trial was answered correctly, shape (N,). Conditions whose accuracy is not above
            ``min_accuracy`` are then dropped: near chance, fast guesses pull the median down.
        min_accuracy: See ``correct``.
        correct_only: Take medians over correct trials only (needs ``correct``).
        seed: Of the resampling.

    Raises:
        InputError: Lengths that differ, no condition in common, fewer than three usable conditions, a constant series,
            an impossible setting.
    """
    rts = _column("rt", rt)
    given = np.asarray(groupby)
    labels = given.astype(str)
    if labels.shape != rts.shape:
        raise InputError(f"groupby must hold one condition per trial ({len(rts)}), not {labels.shape}.")
    _check_settings(bootstrap, min_accuracy, seed)
    right = _correct(correct, rts, correct_only)
    per_condition = _model_times(times, given, labels)
    usable = np.isfinite(rts) & (rts > 0)
    humans, models, dropped = {}, {}, {}
    for condition in dict.fromkeys(labels.tolist()):
        here = labels == condition
        reason = _unfit(condition, here & usable, right, min_accuracy, per_condition)
        counted = here & usable & (right if correct_only and right is not None else usable)
        if reason is None and not counted.any():
            reason = "no trial with a usable reaction time"
        if reason is not None:
            dropped[condition] = reason
            continue
        humans[condition], models[condition] = float(np.median(rts[counted])), per_condition[condition]
    a, b = np.array(list(models.values())), np.array(list(humans.values()))
    _check_series(a, b, dropped)
    ranks, lines = _bootstrap(a, b, bootstrap, rng.generator("lattice", "reaction times", seed))
    return ReactionTimeCorrelation(
        tuple(humans),
        tuple(models.values()),
        tuple(humans.values()),
        spearman(a, b),
        pearson(a, b),
        _interval(ranks),
        _interval(lines),
        len(ranks),
        dropped,
        int((~usable).sum()),
    )


def pearson(a: Floats, b: Floats) -> float:
    """Return the linear correlation of two series that are not constant."""
    x, y = a - a.mean(), b - b.mean()
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def spearman(a: Floats, b: Floats) -> float:
    """Return the rank correlation of two series that are not constant; ties get their average rank."""
    return pearson(rankdata(a), rankdata(b))


def _bootstrap(a: Floats, b: Floats, count: int, generator: np.random.Generator) -> tuple[list[float], list[float]]:
    ranks, lines = [], []
    for picked in generator.integers(0, len(a), size=(count, len(a))):
        x, y = a[picked], b[picked]
        if np.ptp(x) > 0 and np.ptp(y) > 0:
            ranks.append(spearman(x, y))
            lines.append(pearson(x, y))
    return ranks, lines


def _interval(values: list[float]) -> tuple[float, float]:
    if not values:
        return float("nan"), float("nan")
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _column(name: str, values: npt.ArrayLike) -> Floats:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers.") from None
    if column.ndim != 1 or len(column) == 0:
        raise InputError(f"{name} must be one-dimensional and not empty, not {column.shape}.")
    return column


def _correct(correct: npt.ArrayLike | None, rts: Floats, correct_only: bool) -> npt.NDArray[np.bool_] | None:
    if correct is None:
        if correct_only:
            raise InputError("correct_only=True needs correct, whether each trial was answered correctly.")
        return None
    values = np.asarray(correct)
    if values.shape != rts.shape or not np.isin(values, (0, 1)).all():
        raise InputError(f"correct must hold True or False for each of the {len(rts)} trials.")
    return values.astype(bool)


def _check_settings(bootstrap: Any, min_accuracy: Any, seed: Any) -> None:
    if not isinstance(bootstrap, numbers.Integral) or bootstrap < 1:
        raise InputError(f"bootstrap must be a whole number of at least 1, not {bootstrap!r}.")
    if not isinstance(min_accuracy, numbers.Real) or not 0 <= float(min_accuracy) < 1:
        raise InputError(f"min_accuracy must be in [0, 1), not {min_accuracy!r}.")
    if not isinstance(seed, numbers.Integral):
        raise InputError(f"seed must be a whole number, not {seed!r}.")


def _model_times(
    times: Mapping[Any, Any] | npt.ArrayLike, given: npt.NDArray[Any], labels: npt.NDArray[np.str_]
) -> dict[str, float]:
    """Return the mean model time of each condition, by the text of its label."""
    if isinstance(times, Mapping):
        groups = {str(name): _column(f"times[{str(name)!r}]", np.atleast_1d(value)) for name, value in times.items()}
        for label, value in zip(labels.tolist(), given.tolist(), strict=True):
            if label not in groups and isinstance(value, numbers.Real) and value in times:  # 1 and 1.0 are one key
                groups[label] = groups[str(next(name for name in times if name == value))]
        if groups.keys().isdisjoint(labels.tolist()):
            raise InputError(
                f"times and groupby have no condition in common: times has {_some(groups)}, groupby {_some(labels)}."
            )
    else:
        column = _column("times", times)
        if column.shape != labels.shape:
            raise InputError(f"times must map conditions to times, or hold one per trial ({len(labels)}).")
        groups = {name: column[labels == name] for name in dict.fromkeys(labels.tolist())}
    for name, values in groups.items():
        if not np.isfinite(values).all():
            raise InputError(f"times of condition {name!r} hold NaN or infinite values.")
    return {name: float(values.mean()) for name, values in groups.items()}


def _some(names: Iterable[str]) -> str:
    """Return the first few names for a message."""
    seen = list(dict.fromkeys(map(str, names)))
    return ", ".join(map(repr, seen[:3])) + (", ..." if len(seen) > 3 else "")


def _unfit(
    condition: str,
    here: npt.NDArray[np.bool_],
    right: npt.NDArray[np.bool_] | None,
    min_accuracy: float,
    times: Mapping[str, float],
) -> str | None:
    """Return why a condition is left out, or None."""
    if condition not in times:
        return "no model time"
    if right is not None and here.any():
        accuracy = float(right[here].mean())
        if accuracy <= min_accuracy:
            return f"accuracy {accuracy:.3f} is not above {min_accuracy:g}"
    return None


def _check_series(a: Floats, b: Floats, dropped: Mapping[str, str]) -> None:
    if len(a) < _FEWEST:
        raise InputError(
            f"groupby leaves {len(a)} usable conditions, at least {_FEWEST} are needed; left out: {dropped}."
        )
    for name, series in (("times", a), ("rt", b)):
        if np.ptp(series) == 0:
            raise InputError(f"{name} are equal in all conditions, so there is no correlation.")
