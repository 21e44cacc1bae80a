"""What a vote over ``n`` independent copies guarantees, and how strong a disruption has to be for it.

``p`` is the probability, over disruption, rectifier and model, that one copy is judged jailbroken; ``t`` is
``floor(gamma * n)``. The functions take arrays of ``p``, ``alpha`` or ``q`` and return arrays of their shape, or a
float for a number. All are exact but the bounds, which say so, and the model of a rectifier.

Sources: the paper's abstract names a guarantee, a tight bound and requirements on the strength of the disruption; their
forms here are reconstructions, derived and checked anew. Break probabilities go back to SmoothLLM's paper.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv, rel_entr

from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing.arguments import (
    check_count,
    check_fraction,
    check_gamma,
    check_one_of,
    check_open_fraction,
    fractions,
    share_of,
    shares_of,
)
from steelyard.guard.dr_smoothing.core import vote_threshold
from steelyard.guard.dr_smoothing.counting import break_at

Floats: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = ArrayLike | Callable[[float], float]
_BLOCK = 64  # numbers of copies tried at first; doubled until one is enough


def defense_success_probability(p: ArrayLike, n: int, gamma: float = 0.5) -> float | Floats:
    """Return the probability that at most ``t`` of ``n`` copies are jailbroken: ``I_{1-p}(n - t, t + 1)``, exactly.

    Args:
        p: Probability in [0, 1] that a copy is jailbroken; any shape.
        n: Number of independent copies, at least 1.
        gamma: Vote threshold in [0, 1).

    Returns:
        Probabilities of the shape of ``p``.

    Raises:
        InputError: An argument is out of range.
    """
    t = vote_threshold(n, gamma)
    return _plain(betainc(n - t, t + 1, 1 - fractions("p", p)))


def success_probability_bounds(p: ArrayLike, n: int, gamma: float = 0.5) -> tuple[float, float] | tuple[Floats, Floats]:
    """Return bounds on the probability of defence success whose exponential rate in ``n`` is the same.

    With ``a = (t + 1) / n``: below Chernoff's ``1 - exp(-n KL(a || p))`` where ``a > p``, else 0; above
    ``1 - exp(-n KL(a || p)) / sqrt(8 n a (1 - a))``, or the exact ``1 - p^n`` where ``a = 1``.

    Args:
        p: Probability in [0, 1] that a copy is jailbroken; any shape.
        n: Number of independent copies, at least 1.
        gamma: Vote threshold in [0, 1).

    Returns:
        (lower, upper), each of the shape of ``p`` and in [0, 1].

    Raises:
        InputError: An argument is out of range.
    """
    t = vote_threshold(n, gamma)
    rates = fractions("p", p)
    a = (t + 1) / n
    exponent = n * np.asarray(bernoulli_kl(a, rates))
    lower = np.where(a > rates, -np.expm1(-exponent), 0.0)
    if t + 1 == n:
        return _plain(lower), _plain(-np.expm1(-exponent))  # type: ignore[return-value]
    upper = 1 - np.exp(-exponent) / math.sqrt(8 * n * a * (1 - a))
    return _plain(lower), _plain(np.clip(upper, 0.0, 1.0))  # type: ignore[return-value]


def bernoulli_kl(a: ArrayLike, p: ArrayLike) -> float | Floats:
    """Return ``KL(a || p) = a ln(a/p) + (1-a) ln((1-a)/(1-p))`` in nats; infinite where ``p`` excludes ``a``.

    Args:
        a: Probability in [0, 1]; broadcast against ``p``.
        p: Probability in [0, 1].

    Raises:
        InputError: An argument is out of range.
    """
    first, second = fractions("a", a), fractions("p", p)
    return _plain(rel_entr(first, second) + rel_entr(1 - first, 1 - second))


def required_copy_probability(
    n: int, delta: ArrayLike, gamma: float = 0.5, side: Literal["attack", "benign"] = "attack"
) -> float | Floats:
    """Return the largest per-copy probability that ``n`` copies can bear.

    On the attack side the largest ``p`` with a success probability of at least ``1 - delta``, the ``delta`` quantile of
    Beta(t + 1, n - t). On the benign side the largest per-copy refusal rate with which the vote refuses with
    probability at most ``delta``, the ``delta`` quantile of Beta(n - t, t + 1): stricter for even ``n``, where a tie
    refuses benign prompts too.

    Args:
        n: Number of independent copies, at least 1.
        delta: Admissible probability of failure in [0, 1]; any shape.
        gamma: Vote threshold in [0, 1).
        side: ``"attack"`` or ``"benign"``.

    Raises:
        InputError: An argument is out of range.
    """
    check_one_of("side", side, ("attack", "benign"))
    t = vote_threshold(n, gamma)
    shape = (t + 1, n - t) if side == "attack" else (n - t, t + 1)
    return _plain(betaincinv(*shape, fractions("delta", delta)))


def copies_needed(
    p: float,
    delta: float,
    gamma: float = 0.5,
    parity: Literal["odd", "even", "any"] = "odd",
    n_max: int = 10_001,
) -> int | None:
    """Return the smallest number of copies of the given parity that succeeds with probability at least ``1 - delta``.

    At ``gamma = 1/2`` the success probability rises along the odd numbers and, from higher values because ties are
    safe, along the even ones. For another ``gamma`` the floor makes it go up and down: the answer is the first number
    of that parity which is enough, and a larger one need not be.

    Args:
        p: Probability in [0, 1] that a copy is jailbroken.
        delta: Admissible probability of failure, strictly between 0 and 1.
        gamma: Vote threshold in [0, 1).
        parity: Which numbers are tried: ``"odd"``, ``"even"`` or ``"any"``.
        n_max: Largest number tried.

    Returns:
        The number, or None, with a NoEffectWarning that says why, when ``p >= gamma`` (more copies then do not help) or
        none up to ``n_max`` is enough.

    Raises:
        InputError: An argument is out of range.
    """
    check_fraction("p", p)
    check_open_fraction("delta", delta)
    check_gamma(gamma)
    check_one_of("parity", parity, ("odd", "even", "any"))
    check_count("n_max", n_max, least=2)
    if reason := voting_harms(p, gamma):
        _say_why_none(reason)
        return None
    step, start, block = (1 if parity == "any" else 2), (2 if parity == "even" else 1), _BLOCK
    while start <= n_max:
        n = np.arange(start, min(n_max + 1, start + step * block), step)
        t = np.minimum(n - 1, shares_of(n, gamma))
        enough = np.flatnonzero(betainc(n - t, t + 1, 1 - p) >= 1 - delta)
        if enough.size:
            return int(n[enough[0]])
        start, block = int(n[-1]) + step, 2 * block
    _say_why_none(f"n_max={n_max} copies are not enough at p={p:g}: raise n_max, or delta={delta:g}, or disrupt more")
    return None


def voting_harms(p: float, gamma: float = 0.5) -> str | None:
    """Return a sentence if a per-copy probability ``p > 0`` is at or above ``gamma``, else None.

    From there on more copies do not raise the probability of success; above ``gamma`` they lower it towards 0.
    """
    if p == 0 or p < gamma:
        return None
    return f"a copy is jailbroken with probability {p:g}, not below gamma={gamma:g}: more copies make the vote no safer"


def break_probability(
    m: int,
    m_suffix: int,
    k: int,
    q: ArrayLike,
    v: int,
    kind: Literal["swap", "patch"] = "swap",
    suffix_start: int | None = None,
    floor: bool = True,
) -> float | Floats:
    """Return the probability that a disruption changes at least ``k`` characters of an attack's suffix.

    Exact for :func:`disrupt_swap` in mode ``"fixed"`` and :func:`disrupt_patch`, if the suffix consists of
    characters of the alphabet (another one changes with certainty, so that the value is then a lower bound).

    Args:
        m: Characters of the prompt, suffix included, at least 1.
        m_suffix: Characters of the suffix, in [0, m].
        k: Changed suffix characters that break the attack, at least 1.
        q: Share of the characters that are redrawn, in [0, 1]; any shape.
        v: Characters of the alphabet, at least 1; one is redrawn as itself with probability ``1/v``.
        kind: ``"swap"`` or ``"patch"``.
        suffix_start: Where the suffix begins; at the end of the prompt by default. Matters to ``"patch"`` only.
        floor: Redraw ``floor(q m)`` characters; otherwise ``max(1, round(q m))``, 0 at ``q = 0``, which is what the
            alphabet ``"letters"`` does with a prompt of letters.

    Returns:
        Probabilities of the shape of ``q``.

    Raises:
        InputError: An argument is out of range.
    """
    _check_attack(m, m_suffix, k, v, kind)
    start = m - m_suffix if suffix_start is None else suffix_start
    check_count("suffix_start", start, least=0)
    if start > m - m_suffix:
        raise InputError(f"suffix_start={start} leaves no room for m_suffix={m_suffix} of m={m} characters")
    shares = fractions("q", q)
    counts = [share_of(m, share) if floor else _rounded(m, share) for share in shares.ravel().tolist()]
    of_count = {count: break_at(m, m_suffix, k, count, v, kind, start) for count in set(counts)}
    return _plain(np.array([of_count[count] for count in counts]).reshape(shares.shape))


def q_min(
    m: int,
    m_suffix: int,
    k: int,
    v: int,
    n: int,
    delta: float,
    gamma: float = 0.5,
    *,
    kind: Literal["swap", "patch"] = "swap",
    suffix_start: int | None = None,
    epsilon: float = 0.0,
) -> float | None:
    """Return the smallest share of characters with which the vote succeeds with probability at least ``1 - delta``.

    The attack is (k, epsilon)-unstable: unbroken it works, broken it works with probability at most ``epsilon``; so
    ``p <= 1 - alpha + alpha * epsilon``, which must not exceed :func:`required_copy_probability`.

    Args:
        m: As in :func:`break_probability`, like ``m_suffix``, ``k``, ``v``, ``kind`` and ``suffix_start``.
        m_suffix: See there.
        k: See there.
        v: See there.
        n: Number of independent copies, at least 1.
        delta: Admissible probability of failure, strictly between 0 and 1.
        gamma: Vote threshold in [0, 1).
        kind: See there.
        suffix_start: See there.
        epsilon: Probability in [0, 1] that a broken attack works all the same.

    Returns:
        The share, a multiple of ``1/m``, or None with a NoEffectWarning that says why there is none.

    Raises:
        InputError: An argument is out of range.
    """
    check_open_fraction("delta", delta)
    check_fraction("epsilon", epsilon)
    bearable = float(required_copy_probability(n, delta, gamma))
    if epsilon >= bearable:
        _say_why_none(f"epsilon={epsilon:g} is not below {bearable:g}, all that n={n} copies bear: no q is enough")
        return None
    for count in range(m + 1):
        alpha = float(break_probability(m, m_suffix, k, count / m, v, kind, suffix_start))
        if dr_copy_probability(alpha, e=epsilon) <= bearable:
            return count / m
    _say_why_none(f"even q=1 leaves a copy jailbroken more often than the {bearable:g} that n={n} copies bear")
    return None


def dr_copy_probability(
    alpha: ArrayLike, kappa: ArrayLike = 1.0, rho: ArrayLike = 0.0, e: ArrayLike = 0.0
) -> float | Floats:
    """Return the per-copy probability with a rectifier, ``(1-alpha) kappa + alpha (rho + (1-rho) e)``; a model.

    A rectifier that restores every attack (``kappa = rho = 1``) leaves 1, whatever the disruption does.

    Args:
        alpha: Probability that the disruption breaks the attack; all are broadcast against each other.
        kappa: Probability that an attack which was not broken survives the rectifier.
        rho: Probability that the rectifier brings a broken attack back.
        e: Probability that the model complies with a broken attack.

    Raises:
        InputError: An argument is not in [0, 1].
    """
    broken, survives = fractions("alpha", alpha), fractions("kappa", kappa)
    back, complies = fractions("rho", rho), fractions("e", e)
    return _plain((1 - broken) * survives + broken * (back + (1 - back) * complies))


def dr_answer_probability(damaged: ArrayLike, rho: ArrayLike = 0.0, u: ArrayLike = 0.0) -> float | Floats:
    """Return the probability of a useful answer to a copy of a benign prompt, ``1 - (1-u)(1-rho) damaged``; a model.

    Args:
        damaged: Probability that the disruption damages the meaning; all are broadcast against each other.
        rho: Probability that the rectifier recovers a damaged meaning.
        u: Probability that the answer is useful although the meaning was not recovered.

    Raises:
        InputError: An argument is not in [0, 1].
    """
    return _plain(1 - (1 - fractions("u", u)) * (1 - fractions("rho", rho)) * fractions("damaged", damaged))


def vote_answer_probability(h: ArrayLike, n: int, gamma: float = 0.5) -> float | Floats:
    """Return the probability that the vote returns an answer: that more than ``t`` of ``n`` copies comply.

    Args:
        h: Probability in [0, 1] that a copy complies; any shape.
        n: Number of independent copies, at least 1.
        gamma: Vote threshold in [0, 1).

    Raises:
        InputError: An argument is out of range.
    """
    t = vote_threshold(n, gamma)
    return _plain(betainc(t + 1, n - t, fractions("h", h)))


@dataclass(frozen=True)
class FeasibleWindow:
    """Which disruption strengths satisfy both sides.

    Attributes:
        q: The strengths tried, ascending.
        feasible: Which of them satisfy both sides.
        p_star: Largest admissible per-copy probability of a jailbreak.
        r_star: Largest admissible per-copy refusal rate on benign prompts.
        message: One sentence: the window, or why it is empty.
    """

    q: Floats
    feasible: NDArray[np.bool_]
    p_star: float
    r_star: float
    message: str

    @property
    def empty(self) -> bool:
        """Whether no strength satisfies both sides."""
        return not self.feasible.any()

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Smallest and largest feasible strength tried, or None."""
        return None if self.empty else (float(self.q[self.feasible][0]), float(self.q[self.feasible][-1]))


def feasible_window(
    q: ArrayLike,
    p_curve: Curve,
    r_curve: Curve,
    n: int,
    delta: float,
    delta_benign: float | None = None,
    gamma: float = 0.5,
) -> FeasibleWindow:
    """Return the strengths at which attacks fail and benign prompts are answered, both with the wanted probability.

    Args:
        q: Strengths in [0, 1], ascending; shape (K,).
        p_curve: Per-copy probability of a jailbreak at each strength, shape (K,), or a function of ``q``.
        r_curve: Per-copy refusal rate on benign prompts at each strength, shape (K,), or a function of ``q``.
        n: Number of independent copies, at least 1.
        delta: Admissible probability that an attack succeeds, strictly between 0 and 1.
        delta_benign: Admissible probability that a benign prompt is refused; ``delta`` by default.
        gamma: Vote threshold in [0, 1).

    Returns:
        The window; an empty one has a message that says which side fails, and is no error.

    Raises:
        InputError: An argument is out of range, or a curve has another length than ``q``.
    """
    strengths = np.atleast_1d(fractions("q", q))
    if strengths.ndim != 1 or not strengths.size or (np.diff(strengths) <= 0).any():
        raise InputError("q is not a list of ascending strengths")
    check_open_fraction("delta", delta)
    benign = delta if delta_benign is None else delta_benign
    check_open_fraction("delta_benign", benign)
    p_star = float(required_copy_probability(n, delta, gamma))
    r_star = float(required_copy_probability(n, benign, gamma, side="benign"))
    safe = _at("p_curve", p_curve, strengths) <= p_star
    helpful = _at("r_curve", r_curve, strengths) <= r_star
    return FeasibleWindow(strengths, safe & helpful, p_star, r_star, _describe(strengths, safe, helpful))


def hoeffding_bound(alpha: ArrayLike, n: int, gamma: float = 0.5) -> float | Floats:
    """Return the paper's kind of bound, ``1 - exp(-2 n (alpha - (1 - gamma))^2)``, on the probability of success.

    Second hand, from the referee reports on an earlier version, for ``gamma = 1/2``. It holds where it is positive, but
    is looser than the exact :func:`defense_success_probability` at ``p = 1 - alpha``.

    Args:
        alpha: Probability in [0, 1] that a copy is safe; any shape.
        n: Number of independent copies, at least 1.
        gamma: Vote threshold in [0, 1).

    Returns:
        Lower bounds of the shape of ``alpha``; 0 where ``alpha <= 1 - gamma``.

    Raises:
        InputError: An argument is out of range.
    """
    check_count("n", n, least=1)
    check_gamma(gamma)
    lead = np.maximum(0.0, fractions("alpha", alpha) - (1 - gamma))
    return _plain(-np.expm1(-2 * n * lead**2))


def required_strength_hoeffding(lipschitz: float, n: int, epsilon: float) -> float | None:
    """Return the strength ``q >= (1 + sqrt(2 log(1/epsilon) / n)) / (2 L)`` that the paper's Hoeffding bound asks for.

    It assumes ``alpha(q) >= L q``; with ``L = 1`` the value is the ``alpha`` asked for. Second hand; the report prints
    the root ambiguously, and this reading is the one that follows from Hoeffding's inequality.

    Args:
        lipschitz: ``L > 0``.
        n: Number of independent copies, at least 1.
        epsilon: Admissible probability of failure, strictly between 0 and 1.

    Returns:
        The strength, or None with a NoEffectWarning that says why: when ``n < 2 log(1/epsilon)`` the bound asks for a
        probability above 1, and a small ``L`` for a strength above 1.

    Raises:
        InputError: An argument is out of range.
    """
    check_count("n", n, least=1)
    check_open_fraction("epsilon", epsilon)
    if not (isinstance(lipschitz, int | float) and math.isfinite(lipschitz) and lipschitz > 0):
        raise InputError(f"lipschitz is a positive number, not {lipschitz!r}")
    if n < (least := 2 * math.log(1 / epsilon)):
        _say_why_none(f"n={n} is below 2 log(1/epsilon) = {least:.3g}: the Hoeffding bound certifies nothing")
        return None
    strength = (1 + math.sqrt(least / n)) / (2 * lipschitz)
    if strength > 1:
        _say_why_none(f"lipschitz={lipschitz:g} is too small: the Hoeffding bound asks for q={strength:.3g}, above 1")
        return None
    return strength


def _plain(values: NDArray[np.float64]) -> float | Floats:
    """Return a float instead of an array without dimensions."""
    return values if np.ndim(values) else float(values)


def _say_why_none(reason: str) -> None:
    warnings.warn(reason, NoEffectWarning, stacklevel=3)


def _check_attack(m: int, m_suffix: int, k: int, v: int, kind: str) -> None:
    check_count("m", m, least=1)
    check_count("m_suffix", m_suffix, least=0)
    if m_suffix > m:
        raise InputError(f"m_suffix={m_suffix} is more than the m={m} characters of the prompt")
    check_count("k", k, least=1)
    check_count("v", v, least=1)
    check_one_of("kind", kind, ("swap", "patch"))


def _rounded(m: int, share: float) -> int:
    return max(1, round(m * share)) if share else 0


def _at(name: str, curve: Curve, q: Floats) -> Floats:
    values = fractions(name, [curve(float(strength)) for strength in q] if callable(curve) else curve)
    if values.shape != q.shape:
        raise InputError(f"{name} has shape {values.shape}, not one value for each of the {q.size} strengths q")
    return values


def _describe(q: Floats, safe: NDArray[np.bool_], helpful: NDArray[np.bool_]) -> str:
    both = safe & helpful
    if both.any():
        inside = q[both]
        gaps = "" if both[both.argmax() : len(both) - both[::-1].argmax()].all() else ", with gaps"
        return f"{inside.size} of {q.size} strengths satisfy both sides, from q={inside[0]:g} to q={inside[-1]:g}{gaps}"
    if not safe.any():
        why = "the attack succeeds too often at every strength tried"
    elif not helpful.any():
        why = "benign prompts are refused too often at every strength tried"
    else:
        why = "where the attack fails, benign prompts are refused too often"
    return f"no disruption strength satisfies both sides: {why}"
