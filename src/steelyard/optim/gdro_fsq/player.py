"""The q-player: prediction with limited advice for any number of queries per round (paper; details reconstructed)."""

from __future__ import annotations

import math
import operator
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.errors import InputError, did_you_mean

Mode: TypeAlias = Literal["ix", "auto", "observed"]
Query: TypeAlias = Literal["anchor", "uniform"]
Gradient: TypeAlias = Literal["rb", "single", "iw"]
RoundWeight: TypeAlias = Literal["uniform", "samples"]
Schedule: TypeAlias = "int | Iterable[int] | Callable[[int], int]"
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_BOOLS = (bool, np.bool_)
PERMUTATION_LIMIT = 10_000  # a permutation costs O(m); above this, Floyd's sampling costs O(r)


class Proposal(NamedTuple):
    """One round that waits for its losses; ``indices[0]`` is the anchor."""

    indices: Ints  # [r]
    probs: Floats  # [r] inclusion probabilities of the indices
    q: Floats  # [m] mixed strategy of the round
    eta: float
    gamma: float
    omega: float  # weight of the round


class PLAPlayer:
    """Chooses which groups to query and keeps the mixed strategy q over them.

    In a round ``propose`` draws an anchor from q and the other r - 1 groups uniformly without replacement; ``update``
    takes the losses and moves q towards groups with a high loss: q = softmax(-eta_t S), with S the importance-weighted
    sums of 1 - loss, eta_t = c_q sqrt(ln m / V_t) and V_t = sum_j m/r_j. S is kept in float64 with its minimum at 0.

    Args:
        m: Number of groups.
        mode: ``"ix"`` explores implicitly in every round (gamma_t = eta_t/2); ``"auto"`` only when r = 1, which makes
            r = m exactly Hedge; ``"observed"`` is for batches that the player did not choose (see ``observe``).
        c_q: Factor of the learning rate.
        query: ``"anchor"`` as above, or ``"uniform"``: all r groups uniformly, whatever q is.
        round_weight: ``"uniform"`` (paper), or ``"samples"``: round t counts r_t/m.

    Raises:
        InputError: An argument is out of its range.

    Source: paper (limited advice, adaptive exploration); rates, query set and estimators are a reconstruction.
    """

    def __init__(
        self,
        m: int,
        mode: Mode = "ix",
        c_q: float = 1.0,
        *,
        query: Query = "anchor",
        round_weight: RoundWeight = "uniform",
    ) -> None:
        self.m = check_count(m, "m", 1)
        self.mode = check_choice(mode, "mode", Mode)
        self.c_q = check_positive(c_q, "c_q")
        self.query = check_choice(query, "query", Query)
        self.round_weight = check_choice(round_weight, "round_weight", RoundWeight)
        self._S: Floats = np.zeros(self.m)
        self._V = 0.0
        self._log_m = math.log(self.m)
        self._open: deque[Proposal] = deque()
        self._warned = False
        self.rounds = 0

    @property
    def weights(self) -> Floats:
        """The current mixed strategy q, shape [m]."""
        return self._strategy(self._rate())

    @property
    def open_proposals(self) -> tuple[Proposal, ...]:
        """Rounds that wait for their losses, oldest first."""
        return tuple(self._open)

    def propose(self, r: int, rng: np.random.Generator) -> tuple[int, Ints, Floats]:
        """Choose the r groups of the next round.

        Args:
            r: Number of distinct groups, 1..m. It may depend on the past, not on the anchor to be drawn.
            rng: Source of the two draws (anchor, other groups).

        Returns:
            (anchor, indices [r] with the anchor first, inclusion probabilities [r] of these indices).

        Raises:
            InputError: ``r`` is not an integer in 1..m, or the mode is ``"observed"``.
        """
        if self.mode == "observed":
            raise InputError("mode 'observed' does not choose groups: call observe(indices, inclusion_probs) instead.")
        r = check_count(r, "r", 1, self.m)
        omega = r / self.m if self.round_weight == "samples" else 1.0
        q, eta, gamma = self._open_round(omega, omega * omega * self.m / r, r > 1)
        indices = self._query_set(q, r, rng)
        probs = self._inclusion(q, indices, r)
        self._open.append(Proposal(indices, probs, q, eta, gamma, omega))
        return int(indices[0]), indices, probs

    def observe(self, indices: ArrayLike, inclusion_probs: ArrayLike) -> None:
        """Open a round whose groups somebody else chose (mode ``"observed"``).

        Args:
            indices: The distinct groups in the batch, shape [r].
            inclusion_probs: For every one of the m groups the probability of being in such a batch, in (0, 1].

        Raises:
            InputError: The mode is another one, a group repeats or is out of range, or a probability is not in (0, 1].
        """
        if self.mode != "observed":
            raise InputError(
                f"observe needs mode='observed', this player has mode='{self.mode}': it chooses by itself."
            )
        groups = check_groups(indices, self.m)
        probs = np.asarray(inclusion_probs, dtype=np.float64)
        if probs.shape != (self.m,) or not (probs.min() > 0 and probs.max() <= 1):
            raise InputError(f"inclusion_probs must hold {self.m} numbers in (0, 1], one for every group.")
        omega = len(groups) / self.m if self.round_weight == "samples" else 1.0
        # sum_i q_i/P_i <= 1/min P whatever q is, as m/r is for the player's own draws
        q, eta, gamma = self._open_round(omega, omega * omega / float(probs.min()), False)
        self._open.append(Proposal(groups, probs[groups], q, eta, gamma, omega))

    def update(self, losses: ArrayLike) -> None:
        """Close the oldest open round with its losses.

        Args:
            losses: Shape [r], in the order of that round's indices, each in [0, 1].

        Raises:
            RuntimeError: No round is open.
            InputError: Wrong length, NaN, or a loss outside [0, 1]; the round stays open.
        """
        if not self._open:
            raise RuntimeError("update() was called without an open proposal: call propose() first.")
        indices = self._open[0].indices
        values = np.asarray(losses, dtype=np.float64)
        if values.shape != indices.shape:
            raise InputError(f"losses has shape {values.shape}, the open proposal asks for {len(indices)} values.")
        if not (np.minimum.reduce(values) >= 0 and np.maximum.reduce(values) <= 1):  # false for NaN too
            bad = int(np.flatnonzero(~((values >= 0) & (values <= 1)))[0])
            raise InputError(
                f"losses: group {indices[bad]} has {values[bad]}, outside [0, 1]; divide by the range of the loss."
            )
        self.settle(values)

    def settle(self, losses: Floats) -> None:
        """Do what ``update`` does, for a caller that has checked the losses."""
        indices, probs, _, _, gamma, omega = self._open.popleft()
        self._S[indices] += omega * (1.0 - losses) / (probs + gamma)
        self._S -= np.minimum.reduce(self._S)

    def discard_open(self) -> int:
        """Forget the rounds that still wait for losses (an epoch was left early); return how many there were."""
        count = len(self._open)
        self._open.clear()
        return count

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain numbers, strings and lists."""
        return {
            "m": self.m,
            "mode": self.mode,
            "c_q": self.c_q,
            "query": self.query,
            "round_weight": self.round_weight,
            "S": self._S.tolist(),
            "V": self._V,
            "rounds": self.rounds,
            "warned": self._warned,
            "open": [
                {
                    name: value.tolist() if isinstance(value, np.ndarray) else value
                    for name, value in p._asdict().items()
                }
                for p in self._open
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict()``; raises InputError when it belongs to a player with other settings."""
        for name in ("m", "mode", "c_q", "query", "round_weight"):
            if state.get(name) != getattr(self, name):
                raise InputError(f"state_dict has {name} = {state.get(name)!r}, this player {getattr(self, name)!r}.")
        self._S = np.array(state["S"], dtype=np.float64)
        self._V, self.rounds, self._warned = float(state["V"]), int(state["rounds"]), bool(state["warned"])
        self._open = deque(
            Proposal(
                np.array(p["indices"], dtype=np.int64), np.array(p["probs"]), np.array(p["q"]),
                p["eta"], p["gamma"], p["omega"],
            )
            for p in state["open"]
        )  # fmt: skip

    def _rate(self) -> float:
        return self.c_q * math.sqrt(self._log_m / self._V) if self._V else 0.0

    def _strategy(self, eta: float) -> Floats:
        q: Floats = np.exp(-eta * self._S)  # min(S) = 0, so the largest exponent is 0
        q /= np.add.reduce(q)
        return q

    def _open_round(self, omega: float, load: float, several: bool) -> tuple[Floats, float, float]:
        """Count a round in V and return its strategy, learning rate and exploration."""
        if self._open and not self._warned:
            self._warned = True
            warnings.warn(
                f"{len(self._open) + 1} proposals are open at once, so the weights are stale: use num_workers=0 (the "
                "error bound holds for nothing else).",
                stacklevel=3,
            )
        self.rounds += 1
        self._V += load
        eta = self._rate()
        gamma = 0.0 if self.mode == "auto" and several else omega * eta / 2
        return self._strategy(eta), eta, gamma

    def _query_set(self, q: Floats, r: int, rng: np.random.Generator) -> Ints:
        if self.query == "uniform":
            return _without_replacement(self.m, r, rng)
        cumulative = q.cumsum()
        anchor = int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
        if r == self.m:
            everyone = np.arange(r)
            everyone[0], everyone[anchor] = anchor, 0
            return everyone
        indices = np.empty(r, dtype=np.int64)
        indices[0] = anchor
        if r > 1:
            others = _without_replacement(self.m - 1, r - 1, rng)
            others += others >= anchor  # skip the anchor
            indices[1:] = others
        return indices

    def _inclusion(self, q: Floats, indices: Ints, r: int) -> Floats:
        if r == self.m:
            return np.ones(r)
        if self.query == "uniform":
            return np.full(r, r / self.m)
        chosen: Floats = q[indices]
        return chosen if r == 1 else chosen + (1.0 - chosen) * ((r - 1) / (self.m - 1))


def gradient_weights(proposal: Proposal, gradient: Gradient) -> Floats:
    """Return the factors [r] with which the gradients of the queried groups add up to an estimate of sum_i q_i g_i.

    ``"rb"`` is q_i/q(C), the mean of ``"single"`` (the anchor's gradient alone) given the query set, so its norm never
    exceeds the largest gradient's; ``"iw"`` is q_i/P_i. Source: reconstruction ("rb" is an addition of this library).
    """
    if gradient == "single":
        factors = np.zeros(len(proposal.indices))
        factors[0] = 1.0
        return factors
    chosen: Floats = proposal.q[proposal.indices]
    return chosen / np.add.reduce(chosen) if gradient == "rb" else chosen / proposal.probs


def check_gradient(gradient: str, mode: str, query: str) -> Gradient:
    """Return ``gradient``, refusing the two choices that are biased when no anchor is drawn from q."""
    checked: Gradient = check_choice(gradient, "gradient", Gradient)
    if checked != "iw" and (query == "uniform" or mode == "observed"):
        reason = "mode='observed'" if mode == "observed" else "query='uniform'"
        raise InputError(f"gradient='{gradient}' needs an anchor drawn from q: with {reason} use gradient='iw'.")
    return checked


def schedule(r_schedule: Schedule) -> Iterator[int]:
    """Return the stream r_1, r_2, ... from an integer (for ever), an iterable (until it ends) or a callable of t."""
    if callable(r_schedule):
        return map(r_schedule, _count_from_one())
    if isinstance(r_schedule, Iterable):
        return iter(r_schedule)
    fixed = check_count(r_schedule, "r_schedule", 1)
    return (fixed for _ in _count_from_one())


def _count_from_one() -> Iterator[int]:
    t = 0
    while True:
        t += 1
        yield t


def _without_replacement(n: int, size: int, rng: np.random.Generator) -> Ints:
    """Draw ``size`` of 0..n-1; above the limit numpy's ``choice`` is Floyd's algorithm."""
    if n > PERMUTATION_LIMIT:
        return rng.choice(n, size, replace=False, shuffle=False)
    return rng.permutation(n)[:size]


def check_count(value: object, name: str, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int in low..high; bools, floats and values out of range raise InputError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = low - 1
    if isinstance(value, _BOOLS) or number < low or (high is not None and number > high):
        span = f"{low}..{high}" if high is not None else f"at least {low}"
        raise InputError(f"{name} must be an integer ({span}), got {value!r}.")
    return number


def check_positive(value: float, name: str) -> float:
    """Return ``value`` as a finite float above 0, or raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def check_choice(value: str, name: str, choices: Any) -> Any:
    """Return ``value`` if it is one of the literal type ``choices``, or raise InputError with the closest one."""
    known = get_args(choices)
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}.{did_you_mean(str(value), known)}")
    return value


def check_groups(indices: ArrayLike, m: int) -> Ints:
    """Return distinct group indices in 0..m-1 as int64 [r], or raise InputError that names the group at fault."""
    groups = np.asarray(indices)
    if groups.ndim != 1 or groups.size == 0 or not np.issubdtype(groups.dtype, np.integer):
        raise InputError("indices must be a non-empty one-dimensional array of integer groups.")
    if groups.min() < 0 or groups.max() >= m:
        bad = groups[(groups < 0) | (groups >= m)][0]
        raise InputError(f"indices: group {bad} is outside 0..{m - 1}.")
    values, counts = np.unique(groups, return_counts=True)
    if counts.max() > 1:
        raise InputError(
            f"indices: group {values[counts.argmax()]} appears {counts.max()} times, groups must be distinct."
        )
    return groups.astype(np.int64)
