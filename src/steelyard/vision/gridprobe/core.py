"""GridProbe's rule: from the confidence of row and column probes to a map, its shape, a budget and frames.

Every formula is the authors' released code's, whose facts are told again here; what is ours is marked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rule = Literal["shape", "participation", "mean", "otsu"]
Merge = Literal["mean", "confidence", "entropy", "top_third", "vote", "centred", "centred_confidence"]
RULES = ("shape", "participation", "mean", "otsu")
MERGES = ("mean", "confidence", "entropy", "top_third", "vote", "centred", "centred_confidence")
ALPHA, MIN_FRAMES = 3.0, 2
FLAT, STRICTLY_FLAT = 1e-6, 1e-10
"""A map whose spread is below this part of its mean tells nothing (ours); the released code's is absolute."""
_GAMMA, _COVERED, _BINS = 3.0, 0.9, 64
_TIE = 0.1  # weight of the mean log-probability in a vote


class ShapeStatistic(NamedTuple):
    """Shape of a map's cells by population moments.

    Attributes:
        skew: Third standardised moment.
        excess_kurtosis: Fourth, less 3.
        sigma: ``|skew| + max(0, excess_kurtosis) / 2``; 0 for a map that is flat.
    """

    skew: float
    excess_kurtosis: float
    sigma: float


def uniform_frames(total: int, count: int) -> Ints:
    """Return ``count`` frames of ``total``, evenly apart, the first and last among them: round(linspace).

    A video of fewer frames repeats some.
    """
    return np.round(np.linspace(0, total - 1, count)).astype(np.int64)


def probe_frames(k: int) -> Ints:
    """Return the cells of the 2K probes of a K x K grid in time order, (2K, K): rows first, then columns."""
    cells = np.arange(k * k).reshape(k, k)
    return np.concatenate([cells, cells.T])


def importance_map(row_conf: ArrayLike, col_conf: ArrayLike, *, combine: str = "product") -> Floats:
    """Return the importance of every cell, (K, K): ``R[r] * C[c]``, or their sum.

    Args:
        row_conf: Confidence of the row probes, (K,), in (0, 1].
        col_conf: Of the column probes, (K,).
        combine: ``"product"`` (the paper's) or ``"sum"``.

    Raises:
        InputError: Lengths differ, a confidence is not a number in (0, 1], or ``combine`` is unknown.
    """
    rows, columns = _confidences("row_conf", row_conf), _confidences("col_conf", col_conf)
    if len(rows) != len(columns):
        raise InputError(f"col_conf: it has {len(columns)} entries, row_conf {len(rows)}")
    if combine not in ("product", "sum"):
        raise InputError(f"combine must be product or sum, got {combine!r}")
    return np.multiply.outer(rows, columns) if combine == "product" else np.add.outer(rows, columns)


def _confidences(name: str, values: ArrayLike) -> Floats:
    found = _numbers(name, values)
    if found.ndim != 1 or len(found) < 2:
        raise InputError(f"{name}: it must hold one confidence a probe, at least two, got shape {found.shape}")
    bad = np.flatnonzero(~((found > 0) & (found <= 1)))
    if len(bad):
        raise InputError(f"{name}: probe {int(bad[0])} has the confidence {found[bad[0]]}, which is not in (0, 1]")
    return found


def _numbers(name: str, values: ArrayLike) -> Floats:
    try:
        return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: it must hold numbers") from None


def shape_statistic(
    importance: ArrayLike | None = None, *, row_conf: ArrayLike | None = None, col_conf: ArrayLike | None = None
) -> ShapeStatistic:
    """Return the shape of a map's cells; from the confidences of a product map in O(K) instead of O(K^2).

    The fast path sums central moments: with means mr, mc and deviations dr, dc a cell's deviation is
    ``mr dc + mc dr + dr dc``, so that its powers factor (ours; raw moments lose all digits on flat maps).

    Args:
        importance: The map, (K, K).
        row_conf: In its place: confidences of rows, (K,).
        col_conf: And of columns, (K,).

    Raises:
        InputError: Neither or both are given, or a value is not finite.
    """
    if (importance is None) == (row_conf is None or col_conf is None):
        raise InputError("importance: give the map, or row_conf and col_conf in its place")
    if importance is not None:
        cells = _map(importance)
        return _shape(*_moments(cells.ravel())[1][2:])
    rows, columns = _confidences("row_conf", row_conf), _confidences("col_conf", col_conf)  # type: ignore[arg-type]
    return _shape(*_central(_moments(rows), _moments(columns)))


def _moments(values: Floats) -> tuple[float, list[float]]:
    """Return the mean, and the means of the deviations' powers from 0 to 4."""
    mean = float(values.sum() / len(values))
    away = values - mean
    square = away * away
    powers = (square.sum(), (square * away).sum(), (square * square).sum())
    return mean, [1.0, 0.0, *(float(power) / len(values) for power in powers)]


def _central(rows: tuple[float, list[float]], columns: tuple[float, list[float]]) -> Iterator[float]:
    """Yield the second, third and fourth central moment of the cells ``rows x columns``."""
    (mr, of_rows), (mc, of_columns) = rows, columns
    for power in (2, 3, 4):
        total = 0.0
        for i, j in product(range(power + 1), repeat=2):
            if (both := power - i - j) >= 0:
                ways = math.comb(power, i) * math.comb(power - i, j)
                total += ways * mr**i * mc**j * of_rows[j + both] * of_columns[i + both]
        yield total


def _shape(second: float, third: float, fourth: float) -> ShapeStatistic:
    if second <= 0:
        return ShapeStatistic(0.0, 0.0, 0.0)
    skew, excess = third / second**1.5, fourth / second**2 - 3
    return ShapeStatistic(float(skew), float(excess), float(abs(skew) + 0.5 * max(0.0, excess)))


def _map(importance: ArrayLike) -> Floats:
    cells = _numbers("importance", importance)
    if cells.ndim != 2 or cells.shape[0] != cells.shape[1] or len(cells) < 2:
        raise InputError(f"importance: it must be a square map of at least 2 x 2 cells, got shape {cells.shape}")
    if not np.isfinite(cells).all():
        raise InputError("importance: every cell must be finite")
    return cells


def effective_budget(
    importance_or_sigma: ArrayLike | float,
    k: int | None = None,
    *,
    alpha: float = ALPHA,
    min_frames: int = MIN_FRAMES,
    max_frames: int | None = None,
    rule: Rule = "shape",
    strict: bool = False,
) -> int:
    """Return how many frames a question needs: ``ceil(K^2 / (1 + alpha * sigma))`` within its bounds.

    Args:
        importance_or_sigma: The map, (K, K), or sigma of `ShapeStatistic` with ``k``.
        k: Side of the grid, where sigma is given.
        alpha: How strongly shape shortens, at least 0.
        min_frames: Lower bound (the command line's 2; the released function's own default is 1).
        max_frames: Upper bound; None: K^2.
        rule: ``"shape"`` (the paper's), or of the released code: ``"participation"`` ratio of cubed rises over the
            lowest cell, cells above the ``"mean"``, cells above ``"otsu"``'s threshold.
        strict: Call a map flat by the released code's absolute bound of 1e-10. Else by 1e-6 of the mean (ours): below
            it the shape is that of rounding.

    Raises:
        InputError: An argument is out of its range.
    """
    if rule not in RULES:
        raise InputError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if not (isinstance(alpha, int | float) and math.isfinite(alpha) and alpha >= 0):
        raise InputError(f"alpha must be a finite number of at least 0, got {alpha!r}")
    if np.ndim(importance_or_sigma) == 0:
        cells, side = None, _side(k)
        if rule != "shape":
            raise InputError(f"importance_or_sigma: the rule {rule!r} needs the map, not sigma")
    else:
        cells = _map(importance_or_sigma)
        side = len(cells)
    most = side * side if max_frames is None else min(max_frames, side * side)
    if not 1 <= min_frames <= most:
        raise InputError(f"min_frames must be from 1 to {most}, the most frames, got {min_frames}")
    if cells is None:
        wanted = _by_sigma(float(importance_or_sigma), side, alpha)  # type: ignore[arg-type]
    elif rule == "shape":
        wanted = side * side if is_flat(cells, strict=strict) else _by_sigma(shape_statistic(cells).sigma, side, alpha)
    else:
        wanted = {"participation": _participation, "mean": _above_mean, "otsu": _above_otsu}[rule](cells)
    return int(min(max(wanted, min_frames), most))


def _side(k: int | None) -> int:
    if not isinstance(k, int) or isinstance(k, bool) or k < 2:
        raise InputError(f"k must be a whole number of at least 2, got {k!r}")
    return k


def _by_sigma(sigma: float, side: int, alpha: float) -> int:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InputError(f"importance_or_sigma: sigma must be a finite number of at least 0, got {sigma}")
    return math.ceil(side * side / (1 + alpha * sigma))


def is_flat(importance: ArrayLike, *, strict: bool = False) -> bool:
    """Return whether a map tells no cell from another; see :func:`effective_budget`."""
    cells = _map(importance)
    spread = float(cells.std())
    return spread < (STRICTLY_FLAT if strict else FLAT * abs(float(cells.mean())))


def _participation(cells: Floats) -> int:
    weights = np.sort(((cells - cells.min()) ** _GAMMA).ravel())[::-1]
    if not weights.sum():
        return 0  # the lower bound: the opposite of the shape rule
    shares = weights / weights.sum()
    covered = int(np.searchsorted(np.cumsum(shares), _COVERED) + 1)
    return min(math.ceil(1 / float((shares**2).sum())), covered)


def _above_mean(cells: Floats) -> int:
    return int((cells > cells.mean()).sum())


def _above_otsu(cells: Floats) -> int:
    if np.ptp(cells) == 0:
        return cells.size
    return int((cells > otsu_threshold(cells)).sum())


def otsu_threshold(values: ArrayLike) -> float:
    """Return the edge of 64 bins that leaves the largest variance between the values below and above it."""
    cells = np.ravel(np.asarray(values, np.float64))
    counts, edges = np.histogram(cells, _BINS)
    middles = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1]
    above = cells.size - below
    sums = np.cumsum(counts * middles)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / above
    between = np.where((below > 0) & (above > 0), below * above * gap**2, -1.0)
    return float(edges[1 + int(between.argmax())])


def select_frames(importance: ArrayLike, budget: int, *, order: Literal["time", "importance"] = "time") -> Ints:
    """Return the cells of the highest importance, sorted by time; of equal ones the earlier (ours).

    Args:
        importance: The map, (K, K), or any array of scores.
        budget: How many, from 1 to all.
        order: ``"importance"`` leaves the best first, for a look; a model must be given frames in time order.
    """
    scores = np.ravel(_numbers("importance", importance))
    if not np.isfinite(scores).all():
        raise InputError("importance: every cell must be finite")
    if not 1 <= budget <= len(scores):
        raise InputError(f"budget must be from 1 to {len(scores)}, got {budget}")
    if order not in ("time", "importance"):
        raise InputError(f"order must be time or importance, got {order!r}")
    best = np.argsort(-scores, kind="stable")[:budget]
    return np.sort(best) if order == "time" else best


def letter_posterior(logits: ArrayLike, variants: Sequence[Sequence[int]]) -> Floats:
    """Return the probability of each option's letter, renormalised over the options, (options,).

    The logits' log-softmax over the whole vocabulary is taken in float32 or finer; of each letter's surface forms the
    distinct first tokens are summed.

    Args:
        logits: Of the next token, (vocabulary,).
        variants: For each option the first tokens of its forms; none: the letter cannot be said.

    Raises:
        InputError: Logits are not finite, a token is not one of the vocabulary, or no letter can be said.
    """
    values = _numbers("logits", logits)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise InputError(f"logits: they must be finite numbers, one a token, got shape {values.shape}")
    if len(variants) < 2:
        raise InputError(f"variants: there must be at least two options, got {len(variants)}")
    whole = _log_sum(values)
    logs = np.full(len(variants), -np.inf)
    for option, tokens in enumerate(variants):
        chosen = sorted(set(tokens))
        if chosen and not (chosen[0] >= 0 and chosen[-1] < len(values)):
            raise InputError(f"variants: option {option} names a token outside the vocabulary of {len(values)}")
        if chosen:
            logs[option] = _log_sum(values[chosen]) - whole
    return normalised(logs)


def _log_sum(values: Floats) -> float:
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))


def normalised(logs: ArrayLike) -> Floats:
    """Return probabilities from log-probabilities, (..., options), whose last axis then sums to 1.

    Raises:
        InputError: A value is NaN or plus infinity, or an entry has no option that is possible; probes are named.
    """
    values = _numbers("logs", logs)
    rows = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    if rows.shape[1] < 2:
        raise InputError(f"options: there must be at least two, got {rows.shape[1]}")
    bad = np.flatnonzero(np.isnan(rows).any(1) | (rows == np.inf).any(1) | (rows == -np.inf).all(1))
    if len(bad):
        raise InputError(f"logits: those of probe {int(bad[0])} hold no possible option, NaN or infinity")
    powers = np.exp(values - values.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def confidence(posterior: ArrayLike) -> Floats:
    """Return how sure each pass is, (...,): the probability of its likeliest option. The right one plays no part."""
    return np.asarray(_numbers("posterior", posterior).max(-1))


def merge_posteriors(posteriors: ArrayLike, rule: Merge = "mean") -> Floats:
    """Return one posterior from those of several passes, (options,): the probe ensemble.

    Args:
        posteriors: (passes, options), each row a posterior.
        rule: ``"mean"`` of log-posteriors (the released default); weighted by ``"confidence"`` or by ``"entropy"``; of
            the ``"top_third"`` most confident passes; a ``"vote"`` with the mean as a tie-breaker; ``"centred"``, each
            pass less its own mean, and ``"centred_confidence"``.

    Raises:
        InputError: Another shape, or an unknown rule.
    """
    rows = _numbers("posteriors", posteriors)
    if rows.ndim != 2 or rows.shape[1] < 2 or not len(rows):
        raise InputError(f"posteriors: they must be (passes, options), got shape {rows.shape}")
    if rule not in MERGES:
        raise InputError(f"rule must be one of {', '.join(MERGES)}, got {rule!r}")
    logs = np.log(np.clip(rows, 1e-30, 1.0))
    if rule.startswith("centred"):
        logs = logs - logs.mean(1, keepdims=True)
    weights = np.full(len(rows), 1 / len(rows))
    if rule in ("confidence", "centred_confidence"):
        weights = normalised(np.append(np.log(rows.max(1)), -np.inf))[:-1]
    elif rule == "entropy":
        weights = normalised(np.append((rows * np.log(np.clip(rows, 1e-30, 1.0))).sum(1), -np.inf))[:-1]
    elif rule == "top_third":
        kept = np.argsort(-rows.max(1), kind="stable")[: max(1, len(rows) // 3)]
        weights = np.isin(np.arange(len(rows)), kept) / len(kept)
    merged = weights @ logs
    if rule == "vote":
        votes = np.bincount(rows.argmax(1), minlength=rows.shape[1])
        merged = np.log(np.maximum(votes, 1e-9)) + _TIE * merged
    return normalised(merged)


def evidence_hit_rate(selected: ArrayLike, evidence: ArrayLike) -> float:
    """Return the share of the evidence frames that were selected; NaN without evidence."""
    wanted = np.unique(np.asarray(evidence, np.int64))
    return float(np.isin(wanted, np.asarray(selected)).mean()) if len(wanted) else math.nan


class GhostCells(NamedTuple):
    """What a product of rows and columns lights up beside the evidence (ours).

    Attributes:
        bright: Cells of the evidence; those of bright rows and columns where it is read off a map.
        closure: All cells in a row and in a column of evidence.
        ghosts: The closure without the evidence; a map alone cannot tell them from it, so that there are none.
        needed: Frames that a budget must cover to be safe: the size of the closure.
    """

    bright: Ints
    closure: Ints
    ghosts: Ints
    needed: int


def ghost_cells(k: int, *, evidence: ArrayLike | None = None, importance: ArrayLike | None = None) -> GhostCells:
    """Return which cells light up when evidence lies at some of them: m in rows and columns of their own light m^2.

    Args:
        k: Side of the grid.
        evidence: Cells that carry evidence; or
        importance: the map, (K, K), whose rows and columns with a mean above Otsu's threshold are taken for it.

    Raises:
        InputError: Neither or both are given, or a cell is not on the grid.
    """
    side = _side(k)
    if (evidence is None) == (importance is None):
        raise InputError("evidence: give the cells that carry it, or the map as importance")
    if evidence is not None:
        bright: Any = np.unique(np.asarray(evidence, np.int64))
    else:
        cells = _map(importance)  # type: ignore[arg-type]
        if len(cells) != side:
            raise InputError(f"importance: it has {len(cells)} rows, k is {side}")
        of_rows, of_columns = (_bright(cells.mean(axis)) for axis in (1, 0))
        bright = np.add.outer(of_rows * side, of_columns).ravel()
    if len(bright) and not (bright[0] >= 0 and bright[-1] < side * side):
        raise InputError(f"evidence: cells go from 0 to {side * side - 1}, got {int(bright[0])} to {int(bright[-1])}")
    rows, columns = np.unique(bright // side), np.unique(bright % side)
    closure = np.add.outer(rows * side, columns).ravel()
    return GhostCells(bright, closure, np.setdiff1d(closure, bright), len(closure))


def _bright(means: Floats) -> Ints:
    """Return the rows or columns whose mean stands out; all where none does."""
    return np.flatnonzero(means > otsu_threshold(means)) if np.ptp(means) else np.arange(len(means))
