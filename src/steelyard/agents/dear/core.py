"""Group evidence, Dempster-Shafer combination, conformity, reward and cost of a debate, on plain arrays.

The paper's abstract names the idea (consensus and divergence of the group as evidence) and no formula. Every equation
here is a reconstruction from first principles and subjective logic, unless a line names another source.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError

Floats = NDArray[np.float64]
OnConflict = Literal["error", "average"]
MassFunction = Mapping[frozenset[Hashable], float]

NO_ANSWER_TEXT = "∅"
_SAME_NUMBER = 1e-6  # answers this close, relative to their size, are one answer
_SUM_ERROR = 1e-9
_TOTAL = 1e-15  # less agreement than this is rounding, not agreement


class TotalConflictError(InputError):
    """Sources contradict each other with certainty: Dempster's rule would divide by zero."""


class Opinion(NamedTuple):
    """Subjective-logic opinion: ``belief`` (..., K) and ``vacuity`` (...), which sum to 1."""

    belief: Floats
    vacuity: Floats


class Dempster(NamedTuple):
    """A combined mass function and the ``conflict`` of its sources, from 0 to 1."""

    masses: dict[frozenset[Hashable], float]
    conflict: float


class Votes(NamedTuple):
    """Dempster's combination of votes: mass per answer, ``unknown`` on all answers at once, and the ``conflict``."""

    masses: dict[Hashable, float]
    unknown: float
    conflict: float


class Conformity(NamedTuple):
    """Changes of the agents' answers over a debate.

    ``harmful`` and ``beneficial`` are joint fractions over all agents (correct to wrong, wrong to correct);
    ``harmful_rate`` is among the initially correct (blind conformity), ``beneficial_rate`` among the initially wrong;
    a rate over nobody is NaN.
    """

    harmful: float
    beneficial: float
    harmful_rate: float
    beneficial_rate: float


class DebateCost(NamedTuple):
    """``units``: 1 for a call and 1/2 for each peer's message in it; ``calls``: how many, first answers included."""

    units: float
    calls: int


@dataclass(frozen=True)
class GroupEvidence:
    """What the answers of a group say, without anybody's confidence.

    Attributes:
        labels: The answers found, normalised, in sorted order; entry k of the arrays belongs to ``labels[k]`` (options
            that nobody gave follow at the end, or lie at their own index where answers are option indices).
        shares: p, float64 (K,).
        consensus: C, the largest share.
        divergence: H, entropy of the shares over ln K; 0 for K = 1.
        margin: Largest minus second largest share.
        clusters: How many different answers there are now.
        flip_rate: Share of agents that changed their answer in the last round (0 without history).
        belief: b, float64 (K,); ``belief.sum() + vacuity == 1``.
        vacuity: u, the lack of evidence.
        dissonance: Contradiction within the belief, 0 to 1 - u.
        drift: d, change of the shares in the last round, float64 (K,).
        unparsable: Agents without a usable answer; they have no vote.
        agreement_within: Mean cosine of rationales of agents with one answer (None without embeddings or pairs).
        agreement_across: The same over agents with different answers.
        new_argument_rate: Among those who just adopted a leading answer, the share whose rationale is new.
        conformity_alarm: C rises and no adopter brings a new argument; None where it cannot be judged.
    """

    labels: tuple[Hashable, ...]
    shares: Floats
    consensus: float
    divergence: float
    margin: float
    clusters: int
    flip_rate: float
    belief: Floats
    vacuity: float
    dissonance: float
    drift: Floats
    unparsable: int
    agreement_within: float | None = None
    agreement_across: float | None = None
    new_argument_rate: float | None = None
    conformity_alarm: bool | None = None


def group_evidence(
    answers: Sequence[Any],
    *,
    history: Sequence[Sequence[Any]] | None = None,
    embeddings: ArrayLike | None = None,
    gamma: float = 1.0,
    n_options: int | None = None,
    alarm_cosine: float = 0.9,
) -> GroupEvidence:
    """Return the group evidence of one debate (reconstruction).

    Args:
        answers: One answer an agent: option indices (with ``n_options``), texts or numbers. None and "∅" are no answer.
        history: The answers of earlier rounds, oldest first, each as long as ``answers``.
        embeddings: (N, d) embeddings of the agents' present rationales, for semantic agreement and the alarm.
        gamma: Memory of the evidence, 0..1: r = sum over rounds of gamma^age times the counts.
        n_options: K; None takes the number of different answers seen, numbers apart by no more than 1e-6 being one.
        alarm_cosine: An adopter's rationale closer than this to those it joined is no new argument.

    Raises:
        InputError: No answers, rounds of different length, more answers than ``n_options``, an index outside them.
    """
    rounds = [*([] if history is None else history), answers]
    if not len(answers) or any(len(each) != len(answers) for each in rounds):
        raise InputError("answers must hold one answer an agent, and every round of history equally many.")
    if not 0.0 <= gamma <= 1.0:
        raise InputError(f"gamma must be between 0 and 1, not {gamma}.")
    index, labels, size = _clusters(rounds, n_options)
    counts = (index[..., None] == np.arange(size)).sum(axis=1).astype(float)
    ages = np.arange(len(rounds))[::-1]
    opinion = dirichlet_opinion((gamma**ages) @ counts)
    shares = option_shares(counts)
    now, before = shares[-1], shares[-2] if len(rounds) > 1 else shares[-1]
    top = np.sort(now)[::-1]
    moved = index[-1] != index[-2] if len(rounds) > 1 else np.zeros(len(answers), dtype=bool)
    within, across, fresh = _semantic(embeddings, index[-1], moved, now, alarm_cosine)
    return GroupEvidence(
        labels=labels,
        shares=now,
        consensus=float(top[0]),
        divergence=float(divergence(now)),
        margin=float(top[0] - top[1]) if size > 1 else float(top[0]),
        clusters=int((counts[-1] > 0).sum()),
        flip_rate=float(moved.mean()),
        belief=opinion.belief,
        vacuity=float(opinion.vacuity),
        dissonance=float(dissonance(opinion.belief)),
        drift=now - before,
        unparsable=int((index[-1] < 0).sum()),
        agreement_within=within,
        agreement_across=across,
        new_argument_rate=fresh,
        conformity_alarm=None if fresh is None else bool(now.max() > before.max() and fresh == 0.0),
    )


def option_shares(counts: ArrayLike) -> Floats:
    """Return p = n / N along the last axis; all zero where nobody voted."""
    n = np.asarray(counts, dtype=float)
    shares: Floats = n / np.maximum(n.sum(axis=-1, keepdims=True), 1.0)
    return shares


def divergence(shares: ArrayLike) -> Floats:
    """Return H = -sum p ln p / ln K along the last axis of ``shares`` (..., K), 0 for K = 1."""
    p = np.asarray(shares, dtype=float)
    if p.shape[-1] < 2:
        return np.zeros(p.shape[:-1])
    logs = np.log(np.where(p > 0, p, 1.0))
    entropy: Floats = np.clip(-(p * logs).sum(axis=-1) / math.log(p.shape[-1]), 0.0, 1.0)
    return entropy


def dirichlet_opinion(r: ArrayLike, K: int | None = None) -> Opinion:
    """Return belief b = r / S and vacuity u = K / S with S = sum r + K (subjective logic).

    Args:
        r: Evidence (..., K), nonnegative.
        K: Number of options; must be the length of the last axis, which is the default.

    Raises:
        InputError: Negative or non-finite evidence, or another K.
    """
    evidence = np.asarray(r, dtype=float)
    if evidence.ndim == 0 or not evidence.shape[-1] or not np.isfinite(evidence).all() or (evidence < 0).any():
        raise InputError("r must hold finite evidence of at least 0, one number an option along its last axis.")
    if K is not None and evidence.shape[-1] != K:
        raise InputError(f"r has {evidence.shape[-1]} options along its last axis, but K = {K}.")
    size = evidence.shape[-1]
    total = evidence.sum(axis=-1) + size
    return Opinion(evidence / total[..., None], size / total)


def dissonance(b: ArrayLike) -> Floats:
    """Return sum_k b_k [sum_{j != k} b_j Bal(b_j, b_k)] / sum_{j != k} b_j with Bal(x, y) = 1 - |x - y| / (x + y).

    Terms whose denominator is 0 contribute 0. The result lies between 0 and sum b.

    Args:
        b: Belief masses (..., K), at least 0.
    """
    belief = np.asarray(b, dtype=float)
    mine, other = belief[..., :, None], belief[..., None, :]
    both = mine + other
    balance = np.where(both > 0, 1.0 - np.abs(mine - other) / np.where(both > 0, both, 1.0), 0.0)
    rest = other * ~np.eye(belief.shape[-1], dtype=bool)
    weight = rest.sum(axis=-1)
    shared = (rest * balance).sum(axis=-1)
    total: Floats = (belief * np.where(weight > 0, shared / np.where(weight > 0, weight, 1.0), 0.0)).sum(axis=-1)
    return total


def dempster_combine(m1: MassFunction, m2: MassFunction, *, on_conflict: OnConflict = "error") -> Dempster:
    """Combine two mass functions by Dempster's rule: (1 - conflict)^-1 sum over A and B that meet in X of m1(A) m2(B).

    Args:
        m1: Mass of each set of answers (a frozenset); nonnegative, sums to 1, nothing on the empty set.
        m2: The same; sets of both are subsets of one frame, which itself stands for "unknown".
        on_conflict: At total conflict raise, or return the average of the two.

    Raises:
        InputError: Not a mass function.
        TotalConflictError: No set of ``m1`` meets any of ``m2``.
    """
    for name, masses in (("m1", m1), ("m2", m2)):
        _check_masses(name, masses)
    _check_on_conflict(on_conflict)
    met: dict[frozenset[Hashable], float] = {}
    conflict = 0.0
    for left, x in m1.items():
        for right, y in m2.items():
            common = left & right
            if common:
                met[common] = met.get(common, 0.0) + x * y
            else:
                conflict += x * y
    agreement = sum(met.values())
    if agreement > _TOTAL:
        return Dempster({each: mass / agreement for each, mass in met.items()}, min(conflict, 1.0))
    if on_conflict == "error":
        raise TotalConflictError("m1 and m2 contradict each other with certainty; weaken them, or average them.")
    return Dempster({each: (m1.get(each, 0.0) + m2.get(each, 0.0)) / 2 for each in {*m1, *m2}}, 1.0)


def dempster_votes(answers: Sequence[Hashable], w: ArrayLike, *, on_conflict: OnConflict = "error") -> Votes:
    """Combine N votes by Dempster's rule in closed form; vote i puts ``w[i]`` on its answer and the rest on "unknown".

    mass(A) is proportional to [1 - prod over A's voters of (1 - w)] times the product of (1 - w) over the others, the
    unknown to the product over all, and the conflict is 1 minus the sum of these (for two or more possible answers).

    Args:
        answers: One answer a vote.
        w: Reliabilities (N,), 0..1.
        on_conflict: When two answers each have a vote of reliability 1: raise, or average the votes' masses.

    Raises:
        InputError: Wrong length or a reliability outside 0..1.
        TotalConflictError: Total conflict and ``on_conflict="error"``.
    """
    weights = np.asarray(w, dtype=float)
    if weights.shape != (len(answers),) or not len(answers):
        raise InputError(f"w has shape {weights.shape}, but there are {len(answers)} answers (at least 1 is needed).")
    if not ((weights >= 0) & (weights <= 1)).all():
        raise InputError("w must hold reliabilities between 0 and 1.")
    _check_on_conflict(on_conflict)
    held: dict[Hashable, list[float]] = {}
    for answer, weight in zip(answers, weights, strict=True):
        held.setdefault(answer, []).append(1.0 - float(weight))
    doubts = {answer: math.prod(sorted(each)) for answer, each in held.items()}
    raw = {a: (1.0 - d) * math.prod(sorted(o for b, o in doubts.items() if b != a)) for a, d in doubts.items()}
    unknown = math.prod(sorted(doubts.values()))
    agreement = math.fsum([*raw.values(), unknown])
    if agreement > _TOTAL:
        masses = {answer: mass / agreement for answer, mass in raw.items()}
        return Votes(masses, unknown / agreement, min(max(1.0 - agreement, 0.0), 1.0))
    if on_conflict == "error":
        raise TotalConflictError("answers hold two certain votes for different answers; weaken w, or average them.")
    sums = {answer: math.fsum(1.0 - doubt for doubt in each) / len(answers) for answer, each in held.items()}
    return Votes(sums, 1.0 - math.fsum(sums.values()), 1.0)


def reconcile_weight(c: ArrayLike) -> Floats:
    """Return ReConcile's weight of a stated confidence: 1 -> 1, [.9, 1) -> .8, [.8, .9) -> .5, (.6, .8) -> .3, else .1.

    Source: the released code of ReConcile (prior work).

    Raises:
        InputError: A confidence outside 0..1.
    """
    stated = np.asarray(c, dtype=float)
    if not ((stated >= 0) & (stated <= 1)).all():
        raise InputError("c must hold confidences between 0 and 1.")
    steps = [stated == 1.0, stated >= 0.9, stated >= 0.8, stated > 0.6]
    return np.select(steps, [1.0, 0.8, 0.5, 0.3], 0.1)


def conformity(initial: ArrayLike, final: ArrayLike, truth: ArrayLike) -> Conformity:
    """Return how often agents left the truth and how often they came to it.

    Final individual accuracy = initial - ``harmful`` + ``beneficial``.

    Args:
        initial: First answers (..., N).
        final: Last answers, same shape.
        truth: Right answers (...,).

    Raises:
        InputError: Shapes that do not fit, or nobody.
    """
    first, last, right = np.asarray(initial), np.asarray(final), np.asarray(truth)
    if first.shape != last.shape or first.ndim == 0 or first.shape[:-1] != right.shape or not first.size:
        raise InputError(
            f"initial {first.shape}, final {last.shape} and truth {right.shape} do not fit: (..., N) twice and (...,)."
        )
    was, now = first == right[..., None], last == right[..., None]
    lost, won = int((was & ~now).sum()), int((~was & now).sum())
    correct, wrong = int(was.sum()), int((~was).sum())
    nan = float("nan")
    return Conformity(
        lost / was.size, won / was.size, lost / correct if correct else nan, won / wrong if wrong else nan
    )


def shaping_reward(before: ArrayLike, after: ArrayLike, weight: float = 0.5) -> Floats:
    """Return weight * (1[correct after] - 1[correct before]) per agent: wrong to correct is +weight."""
    change: Floats = weight * (np.asarray(after, dtype=float) - np.asarray(before, dtype=float))
    return change


def shaping_sum(correct: ArrayLike, weight: float = 0.5, discount: float = 1.0) -> Floats:
    """Return the discounted sum over rounds of `shaping_reward`.

    With discount 1 it telescopes to weight * (1[correct at the end] - 1[correct at first]): a bonus on being right in
    the end, no penalty on conformity of its own.

    Args:
        correct: (T + 1, ...) of 0/1, the rounds first.
        weight: Size of one change.
        discount: 0..1.

    Raises:
        InputError: Fewer than one round of answers, or a discount outside 0..1.
    """
    values = np.asarray(correct, dtype=float)
    if values.ndim == 0 or not len(values):
        raise InputError("correct must hold the rounds along its first axis, at least the first answers.")
    if not 0.0 <= discount <= 1.0:
        raise InputError(f"discount must be between 0 and 1, not {discount}.")
    powers = discount ** np.arange(len(values) - 1)
    return np.tensordot(powers, shaping_reward(values[:-1], values[1:], weight), axes=1)


def debate_cost(G: ArrayLike, behaviours: ArrayLike) -> DebateCost:
    """Return cost and calls of one debate, first answers included; an agent that keeps costs nothing.

    Args:
        G: (T, N, N) or (N, N) of 0/1, entry (i, j): i reads j. The diagonal does not count.
        behaviours: (T, N) or (N,), behaviour names or indices with 0 = "keep".

    Raises:
        InputError: Shapes that do not fit, or values of ``G`` other than 0 and 1.
    """
    reads, acts = np.asarray(G), np.asarray(behaviours)
    if reads.ndim == 2:
        reads, acts = reads[None], acts[None]
    if reads.ndim != 3 or reads.shape[1] != reads.shape[2] or acts.shape != reads.shape[:2]:
        raise InputError(f"G {reads.shape} and behaviours {acts.shape} do not fit: (T, N, N) and (T, N).")
    if not np.isin(reads, (0, 1)).all():
        raise InputError("G may hold only 0 and 1.")
    spoke = acts != "keep" if acts.dtype.kind in "US" else acts != 0
    agents = reads.shape[1]
    messages = (reads * ~np.eye(agents, dtype=bool) * spoke[:, :, None]).sum()
    calls = agents + int(spoke.sum())
    return DebateCost(calls + 0.5 * float(messages), calls)


def _check_on_conflict(on_conflict: str) -> None:
    if on_conflict not in ("error", "average"):
        raise InputError(f"on_conflict must be 'error' or 'average', not {on_conflict!r}.")


def _check_masses(name: str, masses: MassFunction) -> None:
    if not all(isinstance(each, frozenset) and each for each in masses):
        raise InputError(f"{name} must map non-empty frozensets of answers to masses.")
    if not all(0.0 <= mass <= 1.0 + _SUM_ERROR for mass in masses.values()):
        raise InputError(f"{name} must hold masses between 0 and 1.")
    total = math.fsum(masses.values())
    if abs(total - 1.0) > _SUM_ERROR:
        raise InputError(f"{name} sums to {total}, but masses must sum to 1.")


def _clusters(rounds: Sequence[Sequence[Any]], n_options: int | None) -> tuple[NDArray[np.int64], tuple[Any, ...], int]:
    """Return answer indices (rounds, N) with -1 for no answer, the labels, and K."""
    flat = [_normal(answer) for each in rounds for answer in each]
    found = {value for value in flat if value is not None}
    shape = (len(rounds), len(rounds[0]))
    if n_options is not None and n_options < 1:
        raise InputError(f"n_options must be at least 1, not {n_options}.")
    if n_options is not None and all(isinstance(value, float) for value in found):
        if any(value != int(value) or not 0 <= value < n_options for value in found):
            raise InputError(f"answers given as numbers must be option indices 0..{n_options - 1} of n_options.")
        index = np.array([-1 if value is None else int(value) for value in flat]).reshape(shape)
        return index, tuple(range(n_options)), n_options
    place: dict[Any, int] = {}
    labels: list[Any] = []
    for value in sorted(found, key=lambda each: (isinstance(each, str), each)):
        if not (labels and isinstance(value, float) and value - labels[-1] <= _SAME_NUMBER * max(1.0, abs(value))):
            labels.append(value)
        place[value] = len(labels) - 1
    if n_options is not None and len(labels) > n_options:
        raise InputError(f"answers hold {len(labels)} different answers, but n_options is {n_options}.")
    index = np.array([-1 if value is None else place[value] for value in flat]).reshape(shape)
    return index, tuple(labels), n_options or max(len(labels), 1)


def _normal(answer: Any) -> float | str | None:
    """Return the answer as a number where it is one, else as text without case and spare blanks; None for no answer."""
    if answer is None or (isinstance(answer, str) and answer.strip() in ("", NO_ANSWER_TEXT)):
        return None
    try:
        number = float(answer)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    return number if math.isfinite(number) else " ".join(str(answer).casefold().split())


def _semantic(
    embeddings: ArrayLike | None, index: NDArray[np.int64], moved: NDArray[np.bool_], shares: Floats, cosine: float
) -> tuple[float | None, float | None, float | None]:
    """Return mean cosine within and across answers, and the share of adopters with a new argument."""
    if embeddings is None:
        return None, None, None
    rows = np.asarray(embeddings, dtype=float)
    if rows.ndim != 2 or len(rows) != len(index) or not np.isfinite(rows).all():
        raise InputError(f"embeddings must be finite with one row an agent, not of shape {rows.shape}.")
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    close = unit @ unit.T
    pair = np.triu(np.ones_like(close, dtype=bool), 1) & (index >= 0) & (index >= 0)[:, None]
    same = index[:, None] == index
    within, across = (close[pair & mask] for mask in (same, ~same))
    leading = (index >= 0) & (shares[np.maximum(index, 0)] == shares.max())
    new = []
    for agent in np.flatnonzero(moved & leading):
        joined = unit[(index == index[agent]) & ~moved]
        if len(joined):
            centre = joined.mean(axis=0)
            new.append(unit[agent] @ centre / max(float(np.linalg.norm(centre)), 1e-12) <= cosine)
    return (
        float(within.mean()) if within.size else None,
        float(across.mean()) if across.size else None,
        float(np.mean(new)) if new else None,
    )
