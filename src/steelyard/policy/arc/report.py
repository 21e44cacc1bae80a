"""How often an agent's statements contradict what it observed, and whether that stays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from steelyard.errors import InputError
from steelyard.policy.advantages import check_number
from steelyard.policy.groups import Floats
from steelyard.policy.rollouts import Episode

RATES = ("inconsistency_rate", "failed_with_inconsistency", "persistence_markov", "persistence_after_onset")
_DRAWS = 2000
_HELD = 2**22
"""Counts of the bootstrap that are held at a time."""


@dataclass(frozen=True)
class InconsistencyReport:
    """Rates of inconsistent turns; NaN where nothing could be counted.

    Attributes:
        inconsistency_rate: Of scored turns, those that contradict an observation.
        failed_with_inconsistency: Of failed episodes, those with such a turn.
        persistence_markov: Of turns that follow an inconsistent one, those that are inconsistent.
        persistence_after_onset: Of all turns after an episode's first inconsistent one, those that are inconsistent.
        success: Of episodes, those that succeeded: rates can fall while it collapses. NaN where none says whether it
            did, and then no episode counts as failed either.
        episodes: Number of episodes.
        turns: Number of scored turns.
        intervals: Rate -> 95 % interval by bootstrap over episodes.
    """

    inconsistency_rate: float
    failed_with_inconsistency: float
    persistence_markov: float
    persistence_after_onset: float
    success: float
    episodes: int
    turns: int
    intervals: dict[str, tuple[float, float]]

    def lines(self) -> list[str]:
        """Return the report as lines."""
        words = {
            "inconsistency_rate": "turns that contradict an observation",
            "failed_with_inconsistency": "failed episodes with such a turn",
            "persistence_markov": "inconsistent after an inconsistent turn",
            "persistence_after_onset": "turns after the first that are inconsistent",
        }
        won = "success not known" if math.isnan(self.success) else f"{self.success:.0%} won"
        shown = [f"{self.episodes:,} episodes, {self.turns:,} scored turns, {won}"]
        for name, text in words.items():
            rate, (low, high) = getattr(self, name), self.intervals[name]
            shown.append(f"{text}: " + ("none" if math.isnan(rate) else f"{rate:.1%} [{low:.1%}, {high:.1%}]"))
        return shown

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary of plain values; what could not be counted is None."""

        def plain(value: Any) -> Any:
            return None if isinstance(value, float) and not math.isfinite(value) else value

        whole = {name: plain(value) for name, value in asdict(self).items()}
        whole["intervals"] = {name: [plain(end) for end in ends] for name, ends in self.intervals.items()}
        return whole


def inconsistency_report(
    episodes: Sequence[Episode],
    *,
    signal: str = "progress",
    threshold: float = 1.0,
    generator: np.random.Generator | None = None,
) -> InconsistencyReport:
    """Return how often statements contradict observations (the paper names the rates; definitions are ours).

    Args:
        episodes: Lists of steps with ``process`` and ``success``; an episode succeeded if any of its steps says so.
        signal: Which score says so.
        threshold: A turn whose score is below it is inconsistent; one that is not scored is left out.
        generator: Of the bootstrap; None: a fixed one.

    Raises:
        InputError: No episode, one that is no list of steps, a score that is no number, or no turn that is scored.
    """
    _check(episodes)
    check_number("threshold", threshold)
    said = [[step["success"] for step in episode if step.get("success") is not None] for episode in episodes]
    told = any(map(len, said))
    won = [any(values) for values in said]
    counts = np.array(
        [
            _counts(_scores(episode, number, signal), told and not won[number], threshold)
            for number, episode in enumerate(episodes)
        ],
        dtype=np.float64,
    )
    if not counts[:, 1].sum():
        raise InputError(f"episodes: no turn is scored for '{signal}'")
    rates = _rates(counts.sum(axis=0))
    drawn = _rates(_resampled(counts, generator or np.random.default_rng(0)).T)
    intervals = {name: _interval(drawn[name]) for name in RATES}
    whole = {name: float(rates[name]) for name in RATES}
    return InconsistencyReport(
        **whole, success=float(np.mean(won)) if told else math.nan, episodes=len(episodes),
        turns=int(counts[:, 1].sum()), intervals=intervals,
    )  # fmt: skip


def _check(episodes: Any) -> None:
    if not isinstance(episodes, Sequence) or not all(
        isinstance(episode, Sequence) and all(isinstance(step, Mapping) for step in episode) for episode in episodes
    ):
        raise InputError("episodes must be a list of lists of steps, each a mapping with 'process'")
    if not episodes or not all(map(len, episodes)):
        raise InputError("episodes: there is none" if not episodes else "episodes: one has no steps")


def _scores(episode: Episode, number: int, signal: str) -> list[float | None]:
    """Return the score of each step, None where it has none."""
    scores: list[float | None] = []
    for place, step in enumerate(episode):
        process = step.get("process") or {}
        try:
            score = process.get(signal)
            scores.append(None if score is None or math.isnan(score) else float(score))
        except (AttributeError, TypeError):
            raise InputError(
                f"episodes: episode {number}, step {place}: 'process' must map '{signal}' to a number"
            ) from None
    return scores


def _resampled(counts: Floats, generator: np.random.Generator) -> Floats:
    """Return the summed counts of episodes drawn with replacement, (draws, counts), in blocks that fit the memory."""
    share = np.full(len(counts), 1 / len(counts))
    block = max(_HELD // len(counts), 1)
    sizes = (min(block, _DRAWS - start) for start in range(0, _DRAWS, block))
    return np.concatenate([generator.multinomial(len(counts), share, size) @ counts for size in sizes])


def _counts(scores: list[float | None], failed: bool, threshold: float) -> tuple[int, ...]:
    """Return pairs (of which, out of) for each rate, in the order of `RATES`."""
    known = [None if score is None else score < threshold for score in scores]
    bad = [one for one in known if one is not None]
    first = bad.index(True) if True in bad else len(bad)
    later = bad[first + 1 :]
    after = [now for before, now in pairwise(known) if before and now is not None]
    return (sum(bad), len(bad), int(failed and any(bad)), int(failed), sum(after), len(after), sum(later), len(later))


def _rates(totals: Any) -> dict[str, Any]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return {name: totals[2 * place] / totals[2 * place + 1] for place, name in enumerate(RATES)}


def _interval(values: Floats) -> tuple[float, float]:
    kept = values[np.isfinite(values)]
    if not len(kept):
        return math.nan, math.nan
    low, high = np.quantile(kept, (0.025, 0.975))
    return float(low), float(high)
