"""Theory of the vote: against exact fractions, enumeration, mpmath and the real kernels."""

from __future__ import annotations

import itertools
import math
import warnings
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing import core, theory
from steelyard.guard.dr_smoothing.counting import hypergeometric

EDGES = (0.0, 1e-300, 1e-12, 0.01, 0.3, 0.5, 0.7, 0.99, 1 - 1e-12, 1.0)
# kind, m, m_suffix, k, q, alphabet, where the suffix begins (None: at the end)
CELLS = (
    ("swap", 40, 10, 1, 0.05, "xy", None),
    ("swap", 40, 10, 2, 0.1, "xyz", None),
    ("swap", 60, 20, 3, 0.1, "safe", None),
    ("swap", 60, 20, 8, 0.5, "printable", 7),
    ("swap", 30, 30, 6, 0.29, "safe", None),
    ("swap", 25, 5, 2, 1.0, "xy", None),
    ("patch", 40, 10, 1, 0.05, "xy", None),
    ("patch", 40, 10, 2, 0.2, "xyz", 0),
    ("patch", 60, 20, 3, 0.1, "safe", 15),
    ("patch", 60, 8, 4, 0.5, "printable", 30),
    ("patch", 30, 30, 6, 0.29, "safe", None),
    ("patch", 25, 5, 2, 1.0, "xy", 11),
)
DRAWS = 4000


def exact_success(p: Fraction, n: int, t: int) -> float:
    """P[Bin(n, p) <= t] in integers."""
    ones, zeros = p.numerator, p.denominator - p.numerator
    term = total = zeros**n
    for i in range(t):
        term = term * (n - i) * ones // ((i + 1) * zeros)
        total += term
    return total / p.denominator**n if n < 300 else float(Fraction(total, p.denominator**n))


def threshold(n: int, gamma: Fraction) -> int:
    return math.floor(gamma * n)


# ---- T1


@pytest.mark.parametrize("n", [1, 2, 9, 10, 99, 1000, 9_999, 10_000])
@pytest.mark.parametrize("gamma", [Fraction(0), Fraction(3, 10), Fraction(1, 2), Fraction(19, 20)])
def test_success_is_the_binomial_tail_to_1e_10(n, gamma):
    near = [gamma, gamma + Fraction(1, 100)] if gamma else [Fraction(1, 10_000)]
    for p in (*near, Fraction(3, 10), Fraction(49, 100), Fraction(97, 100)):
        if n >= 9_999 and p.denominator > 100:
            p = Fraction(1, 8192)  # short integers
        ours = theory.defense_success_probability(float(p), n, float(gamma))
        assert abs(ours - exact_success(p, n, threshold(n, gamma))) < 1e-10, p


@given(st.integers(1, 60), st.integers(1, 96), st.integers(0, 19))
def test_success_is_the_exact_fraction(n, p, gamma):
    ours = theory.defense_success_probability(p / 97, n, gamma / 20)
    assert ours == pytest.approx(exact_success(Fraction(p, 97), n, threshold(n, Fraction(gamma, 20))), abs=1e-13)


def test_success_by_listing_all_votes():
    p, n = 0.37, 7
    for gamma in (0.0, 0.2, 0.5, 0.75):
        total = math.fsum(
            math.prod(p if vote else 1 - p for vote in votes)
            for votes in itertools.product([0, 1], repeat=n)
            if not core.majority(votes, gamma)
        )
        assert theory.defense_success_probability(p, n, gamma) == pytest.approx(total, abs=1e-14)
        assert theory.vote_answer_probability(p, n, gamma) == pytest.approx(1 - total, abs=1e-14)


def test_success_keeps_relative_accuracy_far_out():
    for p, n in ((Fraction(9, 10), 1000), (Fraction(3, 5), 9_999), (Fraction(51, 100), 10_000)):
        wanted = exact_success(p, n, n // 2)
        assert wanted < 0.03
        assert theory.defense_success_probability(float(p), n) == pytest.approx(wanted, rel=1e-9, abs=0)


def test_success_edges_and_shapes():
    assert theory.defense_success_probability(0.0, 5) == 1.0
    assert theory.defense_success_probability(1.0, 5) == 0.0
    assert theory.defense_success_probability(1, 1) == 0.0
    assert isinstance(theory.defense_success_probability(0.2, 5), float)
    table = theory.defense_success_probability(np.full((2, 3), 0.2), 5)
    assert table.shape == (2, 3)
    assert np.allclose(table, 0.94208, atol=1e-12)
    assert theory.defense_success_probability(0.2, 4) == pytest.approx(0.9728, abs=1e-12)
    assert theory.defense_success_probability([], 4).shape == (0,)


def test_more_copies_help_below_the_threshold_and_harm_above():
    odd = range(1, 400, 2)
    for p, sign in ((0.4, 1), (0.6, -1)):
        values = [theory.defense_success_probability(p, n) for n in odd]
        assert all(sign * (b - a) > 0 for a, b in itertools.pairwise(values))
    assert {theory.defense_success_probability(0.5, n) for n in (1, 3, 5)} == {0.5}


# ---- T2


@pytest.mark.parametrize("n", [*range(1, 41), 100, 999, 1000, 10_000])
def test_bounds_sandwich_the_exact_value(n):
    p = np.array([*EDGES, *np.linspace(0.001, 0.999, 200)])
    for gamma in (0.0, 0.1, 0.29, 0.5, 0.75, 0.95, 0.9999):
        lower, upper = theory.success_probability_bounds(p, n, gamma)
        exact = theory.defense_success_probability(p, n, gamma)
        assert (lower <= exact + 1e-12).all()
        assert (exact <= upper + 1e-12).all()
        assert ((lower >= 0) & (upper <= 1)).all()


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0, 0.999))
def test_bounds_sandwich_anywhere(n, p, gamma):
    lower, upper = theory.success_probability_bounds(p, n, gamma)
    assert 0 <= lower <= theory.defense_success_probability(p, n, gamma) + 1e-12
    assert theory.defense_success_probability(p, n, gamma) <= upper + 1e-12 <= 1 + 1e-12


def test_bounds_are_the_closed_forms():
    p, n, a = 0.2, 10, 0.6
    decay = ((p / a) ** a * ((1 - p) / (1 - a)) ** (1 - a)) ** n
    lower, upper = theory.success_probability_bounds(p, n)
    assert lower == pytest.approx(1 - decay, abs=1e-14)
    assert upper == pytest.approx(1 - decay / math.sqrt(8 * n * a * (1 - a)), abs=1e-14)
    lower, upper = theory.success_probability_bounds(0.3, 5, 0.9)  # a = 1
    assert lower == pytest.approx(1 - 0.3**5)
    assert upper == pytest.approx(1 - 0.3**5)
    assert theory.success_probability_bounds(0.6, 10)[0] == 0  # a = p
    assert theory.success_probability_bounds(0.61, 10)[0] == 0  # a < p
    assert theory.success_probability_bounds(0.0, 10) == (1, 1)
    assert theory.success_probability_bounds(1.0, 10) == (0, 1)
    assert theory.success_probability_bounds(1.0, 1) == (0, 0)


def test_bounds_have_the_same_rate():
    p = 0.3
    for n in (101, 1001, 10_001):
        with mpmath.workdps(30):
            t = n // 2
            tail = mpmath.betainc(t + 1, n - t, 0, mpmath.mpf(p), regularized=True)
            rate = float(-mpmath.log(tail) / n)
        assert rate == pytest.approx(theory.bernoulli_kl((t + 1) / n, p), abs=math.log(8 * n) / n)


def test_bounds_in_log_space_where_the_tail_underflows():
    """The tail itself, in 40 digits, lies between exp(-n KL) / sqrt(8 n a (1-a)) and exp(-n KL)."""
    for p, n in ((0.3, 10_000), (0.1, 1001), (1e-6, 60)):
        with mpmath.workdps(40):
            t, exact_p = n // 2, mpmath.mpf(p)
            a = mpmath.mpf(t + 1) / n
            tail = mpmath.log(mpmath.betainc(t + 1, n - t, 0, exact_p, regularized=True))
            exponent = n * (a * mpmath.log(a / exact_p) + (1 - a) * mpmath.log((1 - a) / (1 - exact_p)))
            assert -exponent - mpmath.log(8 * n * a * (1 - a)) / 2 <= tail <= -exponent
        assert n * theory.bernoulli_kl(float(a), p) == pytest.approx(float(exponent), rel=1e-12)


@given(st.floats(0, 1), st.floats(0, 1))
def test_kl_is_a_divergence(a, p):
    kl = theory.bernoulli_kl(a, p)
    assert kl >= -1e-15
    assert (kl == 0) or a != p
    if 0 < p < 1:
        assert kl >= 2 * (a - p) ** 2 - 1e-12  # Pinsker


def test_kl_edges():
    assert theory.bernoulli_kl(0.5, 0.0) == math.inf
    assert theory.bernoulli_kl(0.5, 1.0) == math.inf
    assert theory.bernoulli_kl(0.0, 0.3) == pytest.approx(-math.log(0.7))
    assert theory.bernoulli_kl(1.0, 0.3) == pytest.approx(-math.log(0.3))
    assert theory.bernoulli_kl([0.5, 0.5], [0.5, 0.25]) == pytest.approx([0, 0.5 * math.log(4 / 3)])


# ---- T3, T4


@given(st.integers(1, 200), st.floats(1e-6, 1 - 1e-6), st.floats(0, 0.95))
def test_required_probability_inverts_the_success_probability(n, delta, gamma):
    p = theory.required_copy_probability(n, delta, gamma)
    assert theory.defense_success_probability(p, n, gamma) == pytest.approx(1 - delta, abs=1e-9)
    r = theory.required_copy_probability(n, delta, gamma, side="benign")
    refused = 1 - theory.vote_answer_probability(1 - r, n, gamma)
    assert refused == pytest.approx(delta, abs=1e-9)


def test_benign_side_is_stricter_for_even_and_equal_for_odd_numbers():
    assert theory.required_copy_probability(10, 0.05, side="benign") == pytest.approx(0.2224, abs=5e-5)
    wrong_side = theory.required_copy_probability(10, 0.05)
    assert wrong_side == pytest.approx(1 - 0.6965, abs=5e-5)
    assert 1 - theory.vote_answer_probability(1 - wrong_side, 10) == pytest.approx(0.156, abs=5e-4)
    for n in (1, 3, 9, 101):
        assert theory.required_copy_probability(n, 0.05) == pytest.approx(
            theory.required_copy_probability(n, 0.05, side="benign"), rel=1e-12
        )
    assert theory.required_copy_probability(5, [0.0, 0.5, 1.0]) == pytest.approx([0, 0.5, 1])


@given(st.floats(0.0, 0.47), st.floats(0.001, 0.5), st.sampled_from(["odd", "even", "any"]), st.integers(10, 19))
def test_copies_needed_is_the_first_that_is_enough(p, delta, parity, twentieths):
    gamma = twentieths / 20
    n = theory.copies_needed(p, delta, gamma, parity)
    numbers = {"odd": range(1, n + 1, 2), "even": range(2, n + 1, 2), "any": range(1, n + 1)}[parity]
    assert n in numbers
    enough = [theory.defense_success_probability(p, i, gamma) >= 1 - delta for i in numbers[-60:]]
    assert enough[-1]
    assert not any(enough[:-1])


def test_copies_needed_values():
    assert theory.copies_needed(0.2, 0.05) == 7
    assert theory.copies_needed(0.2, 0.05, parity="even") == 2
    assert theory.copies_needed(0.2, 0.03, parity="even") == 4
    assert theory.copies_needed(0.0, 0.01) == 1
    assert theory.copies_needed(0.0, 0.01, parity="even") == 2
    assert theory.copies_needed(0.0, 0.01, gamma=0.0) == 1
    large = theory.copies_needed(0.47, 0.01)
    assert 500 < large <= math.log(100) / theory.bernoulli_kl(0.5, 0.47) + 2  # the sufficient number
    assert theory.defense_success_probability(0.47, large - 2) < 0.99 <= theory.defense_success_probability(0.47, large)
    assert theory.copies_needed(0.47, 0.01, n_max=large) == large


def test_copies_needed_says_why_there_are_none():
    for p in (0.5, 0.8, 1.0):
        with pytest.warns(NoEffectWarning, match="not below gamma=0.5"):
            assert theory.copies_needed(p, 0.05) is None
    with pytest.warns(NoEffectWarning, match="n_max=641 copies are not enough"):
        assert theory.copies_needed(0.499, 0.01, n_max=641) is None
    with pytest.warns(NoEffectWarning, match="gamma=0"):
        assert theory.copies_needed(0.1, 0.2, gamma=0.0) is None
    assert theory.voting_harms(0.5, 0.5)
    assert theory.voting_harms(0.49, 0.5) is None
    assert theory.voting_harms(0.0, 0.0) is None


# ---- T5


def listed_break(m, m_suffix, k, count, v, kind, start) -> Fraction:
    """Break probability by listing every choice of places and of which redrawn characters changed."""
    if kind == "swap":
        choices = list(itertools.combinations(range(m), count))
    else:
        choices = [range(s, s + count) for s in range(m - count + 1)]
    total = Fraction(0)
    for places in choices:
        hit = sum(start <= place < start + m_suffix for place in places)
        for changes in itertools.product([0, 1], repeat=hit):
            if sum(changes) >= k:
                total += math.prod((Fraction(v - 1, v) if c else Fraction(1, v) for c in changes), start=Fraction(1))
    return total / len(choices)


@given(st.data())
def test_break_probability_by_enumeration(data):
    m = data.draw(st.integers(1, 7))
    m_suffix = data.draw(st.integers(0, m))
    start = data.draw(st.integers(0, m - m_suffix))
    k, v, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), data.draw(st.integers(0, m))
    for kind in ("swap", "patch"):
        ours = theory.break_probability(m, m_suffix, k, count / m, v, kind, start)
        assert ours == pytest.approx(float(listed_break(m, m_suffix, k, count, v, kind, start)), abs=1e-13)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}-{cell[1]}-{cell[3]}-{cell[4]}")
def test_break_probability_and_vote_with_the_real_kernels(cell):
    """A planted k-unstable victim: the kernel breaks it, and the vote decides, as often as the formulas say."""
    kind, m, m_suffix, k, q, alphabet, start = cell
    make = core.disrupt_swap if kind == "swap" else core.disrupt_patch
    kernel = make(q, alphabet)
    begin = m - m_suffix if start is None else start
    generator = np.random.default_rng(11)
    text = "".join(generator.choice(list(kernel.symbols), size=m))
    suffix = slice(begin, begin + m_suffix)
    broken = np.empty(DRAWS, dtype=bool)
    for i in range(DRAWS):
        new = kernel(text, generator)
        broken[i] = sum(a != b for a, b in zip(text[suffix], new[suffix], strict=True)) >= k
    alpha = theory.break_probability(m, m_suffix, k, q, kernel.vocab, kind, start)
    assert_within_4_sigma(broken, alpha)
    n = 5
    safe = [not core.majority((~votes).tolist()) for votes in broken.reshape(-1, n)]
    assert_within_4_sigma(safe, theory.defense_success_probability(1 - alpha, n))


def assert_within_4_sigma(hits, p: float) -> None:
    sigma = math.sqrt(p * (1 - p) / len(hits))
    assert abs(np.mean(hits) - p) <= 4 * sigma + 1e-12


def test_break_probability_of_large_prompts_against_exact_integers():
    m, m_suffix, k, v = 4000, 300, 20, 100
    for q in (0.03, 0.1, 0.5):
        count = round(q * m)
        exact = mpmath.mpf(0)
        with mpmath.workdps(40):
            for i in range(k, min(count, m_suffix) + 1):
                weight = mpmath.mpf(math.comb(m_suffix, i) * math.comb(m - m_suffix, count - i)) / math.comb(m, count)
                few = mpmath.fsum(
                    math.comb(i, j) * mpmath.mpf(v - 1) ** j / mpmath.mpf(v) ** i for j in range(min(k, i + 1))
                )
                exact += weight * (1 - few)
        assert theory.break_probability(m, m_suffix, k, q, v) == pytest.approx(float(exact), abs=1e-12)


@given(st.integers(1, 2000), st.integers(0, 2000), st.integers(0, 2000))
@settings(max_examples=60)
def test_hypergeometric_weights(m, m_suffix, count):
    m_suffix, count = min(m, m_suffix), min(m, count)
    weights = hypergeometric(m, m_suffix, count)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert (np.arange(weights.size) * weights).sum() == pytest.approx(m_suffix * count / m, rel=1e-9)


def test_break_probability_counts_and_shapes():
    shaped = theory.break_probability(100, 20, 3, [[0.0, 0.29], [1.0, 0.1]], 100)
    assert shaped.shape == (2, 2)
    assert shaped[0, 0] == 0
    assert isinstance(theory.break_probability(100, 20, 3, 0.1, 100), float)
    full = theory.break_probability(100, 20, 3, [0.28, 0.285, 0.29], 100)
    assert full[0] == full[1] < full[2]  # floor(28.5) = 28; 0.29 * 100 is 29, not 28
    rounded = theory.break_probability(100, 20, 1, [0.0, 0.001, 0.01, 0.286], 100, floor=False)
    assert rounded[0] == 0
    assert rounded[1] == rounded[2] == pytest.approx(0.2 * 0.99)
    assert rounded[3] == theory.break_probability(100, 20, 1, 0.29, 100)
    assert theory.break_probability(10, 4, 5, 1.0, 100) == 0  # more changes than the suffix has characters
    assert theory.break_probability(10, 4, 1, 1.0, 1) == 0  # one symbol: nothing changes
    assert theory.break_probability(10, 4, 2, 0.1, 50) == 0


def test_rounded_counts_are_those_of_the_letters_alphabet():
    m, q = 15, 0.1  # round(1.5) = 2
    kernel, generator = core.disrupt_swap(q, "letters"), np.random.default_rng(3)
    broken = [kernel("a" * m, generator)[-5:] != "aaaaa" for _ in range(DRAWS)]
    assert_within_4_sigma(broken, theory.break_probability(m, 5, 1, q, 26, floor=False))


@given(st.integers(20, 60), st.integers(5, 20), st.integers(1, 4), st.sampled_from(["swap", "patch"]))
@settings(max_examples=40)
def test_q_min_is_the_smallest(m, m_suffix, k, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        q = theory.q_min(m, m_suffix, k, 100, 9, 0.05, kind=kind)
    bearable = theory.required_copy_probability(9, 0.05)
    p = 1 - theory.break_probability(m, m_suffix, k, np.arange(m + 1) / m, 100, kind)
    first = np.flatnonzero(p <= bearable)
    assert q == (first[0] / m if first.size else None)


def test_q_min_of_an_attack_that_half_works_when_broken():
    bearable = theory.required_copy_probability(10, 0.05)
    q = theory.q_min(100, 20, 2, 100, 10, 0.05, epsilon=0.2)
    alpha = theory.break_probability(100, 20, 2, [q - 0.01, q], 100)
    needed = (1 - bearable) / (1 - 0.2)
    assert alpha[0] < needed <= alpha[1]
    assert theory.q_min(100, 20, 2, 100, 10, 0.05, suffix_start=0, kind="patch") == theory.q_min(
        100, 20, 2, 100, 10, 0.05, kind="patch"
    )
    with pytest.warns(NoEffectWarning, match=r"epsilon=0\.4 is not below 0\.30"):
        assert theory.q_min(100, 20, 2, 100, 10, 0.05, epsilon=0.4) is None
    with pytest.warns(NoEffectWarning, match="even q=1"):
        assert theory.q_min(10, 2, 3, 100, 10, 0.05) is None


# ---- T6


def test_a_rectifier_that_restores_every_attack_is_no_defence():
    alpha = np.linspace(0, 1, 11)
    assert np.array_equal(theory.dr_copy_probability(alpha, kappa=1.0, rho=1.0, e=0.3), np.ones(11))
    falling = theory.dr_copy_probability(alpha, kappa=0.7, rho=1.0)
    assert np.allclose(falling, 0.7 + 0.3 * alpha)  # disruption even helps the attack
    assert theory.defense_success_probability(theory.dr_copy_probability(0.9, rho=1.0), 11) == 0


def test_without_a_rectifier_it_is_the_break_probability():
    assert theory.dr_copy_probability(0.3) == pytest.approx(0.7)
    assert theory.dr_copy_probability(0.3, e=0.1) == pytest.approx(0.7 + 0.03)
    assert theory.dr_copy_probability(0.3, 0.5, 0.2, 0.1) == pytest.approx(0.7 * 0.5 + 0.3 * (0.2 + 0.8 * 0.1))
    assert theory.dr_answer_probability(0.4) == pytest.approx(0.6)
    assert theory.dr_answer_probability(0.4, rho=0.5, u=0.25) == pytest.approx(1 - 0.75 * 0.5 * 0.4)
    assert theory.dr_answer_probability(0.4, rho=1.0) == 1


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_copy_probability_is_one_and_moves_as_it_should(alpha, kappa, rho, e):
    p = theory.dr_copy_probability(alpha, kappa, rho, e)
    assert -1e-15 <= p <= 1 + 1e-15
    assert p <= theory.dr_copy_probability(alpha, 1.0, rho, e) + 1e-15
    assert p <= theory.dr_copy_probability(alpha, kappa, 1.0, e) + 1e-15
    assert p >= theory.dr_copy_probability(alpha, kappa, rho, 0.0) - 1e-15


def test_a_simulated_rectifier_follows_the_model():
    generator, draws = np.random.default_rng(2), 20_000
    broken, back, complies, lives = (generator.random(draws) < x for x in (0.6, 0.3, 0.2, 0.8))
    jailbroken = np.where(broken, back | complies, lives)
    assert_within_4_sigma(jailbroken, theory.dr_copy_probability(0.6, 0.8, 0.3, 0.2))


def test_feasible_window():
    q = np.linspace(0, 1, 21)
    window = theory.feasible_window(q, lambda x: 1 - x, lambda x: x**3, n=11, delta=0.1, delta_benign=0.2)
    assert window.p_star == theory.required_copy_probability(11, 0.1)
    assert window.r_star == theory.required_copy_probability(11, 0.2, side="benign")
    wanted = (1 - q <= window.p_star) & (q**3 <= window.r_star)
    assert wanted.any()
    assert np.array_equal(window.feasible, wanted)
    assert window.bounds == (q[wanted][0], q[wanted][-1])
    assert not window.empty
    assert window.message.startswith(f"{wanted.sum()} of 21 strengths satisfy both sides")
    assert f"from q={q[wanted][0]:g} to q={q[wanted][-1]:g}" in window.message
    same = theory.feasible_window(q, 1 - q, q**3, 11, 0.1)
    assert same.r_star == theory.required_copy_probability(11, 0.1, side="benign")
    even = theory.feasible_window([0.1], [0.3], [0.3], n=10, delta=0.05)
    assert even.empty  # ties refuse benign prompts too
    assert theory.feasible_window(0.1, [0.1], [0.1], 5, 0.1).bounds == (0.1, 0.1)


def test_a_window_with_gaps_says_so():
    message = theory.feasible_window([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], [0, 0, 0, 0], 9, 0.1).message
    assert message.endswith("from q=0.1 to q=0.3, with gaps")
    assert "gaps" not in theory.feasible_window([0.1, 0.2, 0.3], [1, 0, 0], [0, 0, 0], 9, 0.1).message


@pytest.mark.parametrize(
    ("p", "r", "why"),
    [
        ([1, 1], [0, 0], "the attack succeeds too often"),
        ([0, 0], [1, 1], "benign prompts are refused too often at every"),
        ([1, 0], [0, 1], "where the attack fails, benign prompts"),
        ([1, 1], [1, 1], "the attack succeeds too often"),
    ],
)
def test_an_empty_window_has_a_message(p, r, why):
    window = theory.feasible_window([0.1, 0.2], p, r, 9, 0.1)
    assert window.empty
    assert window.bounds is None
    assert window.message.startswith("no disruption strength satisfies both sides")
    assert why in window.message


# ---- Hoeffding


@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 0.95))
def test_hoeffding_is_never_above_the_exact_value(n, alpha, gamma):
    bound = theory.hoeffding_bound(alpha, n, gamma)
    assert 0 <= bound <= theory.defense_success_probability(1 - alpha, n, gamma) + 1e-12


def test_hoeffding_values():
    assert theory.hoeffding_bound(0.5, 10) == 0
    assert theory.hoeffding_bound(0.3, 10) == 0
    assert theory.hoeffding_bound([1.0, 0.75], 10) == pytest.approx([1 - math.exp(-5), 1 - math.exp(-1.25)])
    assert theory.hoeffding_bound(0.9, 10, gamma=0.3) == pytest.approx(1 - math.exp(-0.8))
    assert theory.required_strength_hoeffding(1.0, 10, 0.05) == pytest.approx(0.887, abs=5e-4)
    assert 1 - theory.required_copy_probability(10, 0.05) == pytest.approx(0.696, abs=5e-4)  # the exact rule
    alpha = theory.required_strength_hoeffding(1, 40, 0.01)
    assert theory.hoeffding_bound(alpha, 40) == pytest.approx(0.99)
    assert theory.required_strength_hoeffding(4.0, 10, 0.05) == pytest.approx(0.887022756 / 4)


def test_hoeffding_says_why_it_certifies_nothing():
    for n in range(1, 6):  # 2 log(20) is 5.99
        with pytest.warns(NoEffectWarning, match="certifies nothing"):
            assert theory.required_strength_hoeffding(1.0, n, 0.05) is None
    assert theory.required_strength_hoeffding(1.0, 6, 0.05) < 1
    with pytest.warns(NoEffectWarning, match="lipschitz=0.5 is too small"):
        assert theory.required_strength_hoeffding(0.5, 10, 0.05) is None
    assert theory.required_strength_hoeffding(1.0, 2, math.exp(-1)) == 1.0  # n = 2 log(1/epsilon)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: theory.defense_success_probability(1.2, 5), "p is a fraction"),
        (lambda: theory.defense_success_probability([0.1, -0.2], 5), "p is a fraction between 0 and 1, not -0.2"),
        (lambda: theory.defense_success_probability([0.1, math.nan], 5), "p is a fraction"),
        (lambda: theory.defense_success_probability("a lot", 5), "p is no number"),
        (lambda: theory.defense_success_probability(0.2, 0), "n is an integer"),
        (lambda: theory.success_probability_bounds(0.2, 5, 1.0), "gamma"),
        (lambda: theory.bernoulli_kl(2, 0.5), "a is a fraction"),
        (lambda: theory.bernoulli_kl(0.5, 2), "p is a fraction"),
        (lambda: theory.required_copy_probability(5, 5), "delta is a fraction.*5 percent"),
        (lambda: theory.required_copy_probability(5, 0.1, side="attacker"), "side is one of.*attack"),
        (lambda: theory.copies_needed(0.2, 0.0), "delta is a fraction strictly"),
        (lambda: theory.copies_needed(20, 0.1), "p is a fraction.*20 percent"),
        (lambda: theory.copies_needed(0.2, 0.1, parity="prime"), "parity is one of"),
        (lambda: theory.copies_needed(0.2, 0.1, n_max=1), "n_max is an integer of at least 2"),
        (lambda: theory.copies_needed(0.2, 0.1, gamma=1), "gamma"),
        (lambda: theory.break_probability(0, 0, 1, 0.1, 9), "m is an integer"),
        (lambda: theory.break_probability(5, -1, 1, 0.1, 9), "m_suffix is an integer"),
        (lambda: theory.break_probability(5, 6, 1, 0.1, 9), "m_suffix=6 is more"),
        (lambda: theory.break_probability(5, 5, 0, 0.1, 9), "k is an integer"),
        (lambda: theory.break_probability(5, 5, 1, 10, 9), "q is a fraction.*10 percent"),
        (lambda: theory.break_probability(5, 5, 1, 0.1, 0), "v is an integer"),
        (lambda: theory.break_probability(5, 5, 1, 0.1, 9, "insert"), "kind is one of swap, patch"),
        (lambda: theory.break_probability(5, 3, 1, 0.1, 9, "patch", 3), "suffix_start=3 leaves no room"),
        (lambda: theory.break_probability(5, 3, 1, 0.1, 9, "patch", -1), "suffix_start is an integer"),
        (lambda: theory.q_min(5, 3, 1, 9, 5, 0.0), "delta"),
        (lambda: theory.q_min(5, 3, 1, 9, 5, 0.1, epsilon=2), "epsilon"),
        (lambda: theory.dr_copy_probability(0.1, kappa=2), "kappa"),
        (lambda: theory.dr_copy_probability(0.1, rho=-1), "rho"),
        (lambda: theory.dr_copy_probability(2), "alpha"),
        (lambda: theory.dr_copy_probability(0.1, e=2), "e is a fraction"),
        (lambda: theory.dr_answer_probability(2), "damaged"),
        (lambda: theory.dr_answer_probability(0.1, rho=2), "rho"),
        (lambda: theory.dr_answer_probability(0.1, u=2), "u is a fraction"),
        (lambda: theory.vote_answer_probability(2, 3), "h is a fraction"),
        (lambda: theory.feasible_window([0.2, 0.1], [0, 0], [0, 0], 5, 0.1), "q is not a list of ascending"),
        (lambda: theory.feasible_window([0.1, 0.1], [0, 0], [0, 0], 5, 0.1), "q is not a list of ascending"),
        (lambda: theory.feasible_window([], [], [], 5, 0.1), "q is not a list of ascending"),
        (lambda: theory.feasible_window([[0.1]], [0], [0], 5, 0.1), "q is not a list of ascending"),
        (lambda: theory.feasible_window([0.1], [0, 0], [0], 5, 0.1), "p_curve has shape"),
        (lambda: theory.feasible_window([0.1], [0], [0, 0], 5, 0.1), "r_curve has shape"),
        (lambda: theory.feasible_window([0.1], lambda q: 2, [0], 5, 0.1), "p_curve is a fraction"),
        (lambda: theory.feasible_window([0.1], [0], [0], 5, 1.0), "delta is a fraction strictly"),
        (lambda: theory.feasible_window([0.1], [0], [0], 5, 0.1, 0.0), "delta_benign"),
        (lambda: theory.hoeffding_bound(2, 5), "alpha is a fraction"),
        (lambda: theory.hoeffding_bound(0.6, 0), "n is an integer"),
        (lambda: theory.hoeffding_bound(0.6, 5, 1.0), "gamma"),
        (lambda: theory.required_strength_hoeffding(0, 5, 0.1), "lipschitz"),
        (lambda: theory.required_strength_hoeffding(math.inf, 5, 0.1), "lipschitz"),
        (lambda: theory.required_strength_hoeffding("1", 5, 0.1), "lipschitz"),
        (lambda: theory.required_strength_hoeffding(1, 0, 0.1), "n is an integer"),
        (lambda: theory.required_strength_hoeffding(1, 5, 1), "epsilon is a fraction strictly"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value)
