"""Certificates against enumeration of every outcome, the real kernels, and simulated coverage."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import guard
from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing import certificates, core, theory

# ---- words kept


def ablations(words: tuple[str, ...], keep: int) -> dict[tuple[str, ...], Fraction]:
    law: dict[tuple[str, ...], Fraction] = defaultdict(Fraction)
    choices = list(itertools.combinations(range(len(words)), keep))
    for kept in choices:
        law[tuple(w if i in kept else "_" for i, w in enumerate(words))] += Fraction(1, len(choices))
    return law


@pytest.mark.parametrize("m", [1, 2, 4, 6])
def test_ablation_is_the_largest_change_that_any_function_can_show(m):
    clean = tuple("abcdef"[:m])
    for keep, d in itertools.product(range(m + 1), range(m + 1)):
        attacked = tuple("z" if i < d else w for i, w in enumerate(clean))
        first, second = ablations(clean, keep), ablations(attacked, keep)
        outcomes = set(first) | set(second)
        distance = sum(max(Fraction(0), second.get(o, Fraction(0)) - first.get(o, Fraction(0))) for o in outcomes)
        assert certificates.ablation_certificate(m, keep, d) == pytest.approx(float(distance), abs=1e-14)


@given(st.integers(1, 400), st.data())
def test_ablation_is_the_ratio_of_binomials(m, data):
    keep, d = data.draw(st.integers(0, m)), data.draw(st.integers(0, m))
    exact = 1 - Fraction(math.comb(m - d, keep), math.comb(m, keep))
    assert certificates.ablation_certificate(m, keep, d) == pytest.approx(float(exact), rel=1e-11, abs=1e-14)


def test_ablation_takes_many_distances_and_large_prompts():
    change = certificates.ablation_certificate(10_000, 500, np.array([[0, 1], [10, 10_000]]))
    assert change.shape == (2, 2)
    assert change[0].tolist() == [0.0, pytest.approx(0.05)]
    assert change[1, 1] == 1
    assert isinstance(certificates.ablation_certificate(5, 2, 1), float)


def test_ablation_with_the_real_kernel():
    """A judge that looks for the changed word flips as often as the certificate allows, and no more."""
    kernel = core.disrupt_mask_words(keep=3)
    generator, draws = np.random.default_rng(4), 4000
    seen = np.mean(["z" in kernel("a b z z e f g h", generator) for _ in range(draws)])
    change = certificates.ablation_certificate(8, 3, 2, kernel=kernel)
    assert abs(seen - change) <= 4 * math.sqrt(change * (1 - change) / draws)
    share = core.disrupt_mask_words(keep=0.4)
    assert certificates.ablation_certificate(8, 3, 2, kernel=share) == change  # floor(3.2)


# ---- tokens swapped


def replaced(tokens: tuple[int, ...], beta: Fraction, vocab: int) -> dict[tuple[int, ...], Fraction]:
    other = beta / (vocab - 1)
    return {
        outcome: math.prod(
            (1 - beta if a == b else other for a, b in zip(tokens, outcome, strict=True)), start=Fraction(1)
        )
        for outcome in itertools.product(range(vocab), repeat=len(tokens))
    }


def least_safe(p_safe: Fraction, mine: dict, theirs: dict) -> Fraction:
    """Smallest probability under ``theirs`` of a set (one outcome fractionally) that has p_safe under ``mine``."""
    left, collected = p_safe, Fraction(0)
    never = [o for o in mine if mine[o] == 0]
    for outcome in sorted(set(mine) - set(never), key=lambda o: theirs[o] / mine[o]):
        share = min(Fraction(1), left / mine[outcome])
        left -= share * mine[outcome]
        collected += share * theirs[outcome]
    return collected


@pytest.mark.parametrize("vocab", [2, 3, 5])
@pytest.mark.parametrize("d", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "beta", [Fraction(0), Fraction(1, 10), Fraction(1, 2), Fraction(2, 3), Fraction(9, 10), Fraction(1)]
)
def test_swap_is_the_worst_case_over_all_functions(vocab, d, beta):
    length = max(1, d)  # places where both prompts agree add nothing
    mine = replaced((0,) * length, beta, vocab)
    theirs = replaced(tuple(1 if i < d else 0 for i in range(length)), beta, vocab)
    p_safe = [Fraction(k, 20) for k in range(21)] + [Fraction(999, 1000)]
    wanted = [float(least_safe(p, mine, theirs)) for p in p_safe]
    ours = certificates.swap_certificate([float(p) for p in p_safe], d, float(beta), vocab)
    assert ours == pytest.approx(wanted, abs=1e-10)


def test_a_place_where_the_prompts_agree_changes_nothing():
    beta, vocab = Fraction(7, 10), 3
    mine, theirs = replaced((0, 0, 2), beta, vocab), replaced((1, 1, 2), beta, vocab)
    for k in range(11):
        wanted = float(least_safe(Fraction(k, 10), mine, theirs))
        assert certificates.swap_certificate(k / 10, 2, 0.7, vocab) == pytest.approx(wanted, abs=1e-12)


def test_swap_values_of_large_vocabularies():
    assert certificates.swap_certificate(0.99, 1, 0.1, 100) == pytest.approx(0.091, abs=5e-4)
    assert certificates.swap_certificate(0.99, 2, 0.1, 100) == pytest.approx(0.002, abs=5e-4)
    for d, value in ((2, 0.800), (3, 0.719), (5, 0.581), (10, 0.339)):
        assert certificates.swap_certificate(0.99, d, 0.9, 32_000) == pytest.approx(value, abs=5e-4)


def test_swap_special_cases():
    p = np.linspace(0, 1, 11)
    assert certificates.swap_certificate(p, 4, 0.75, 4) == pytest.approx(p)  # every token equally likely: noise only
    assert certificates.swap_certificate(p, 0, 0.3, 9) == pytest.approx(p)
    assert certificates.swap_certificate(p, 1, 0.0, 9) == pytest.approx(np.zeros(11))  # nothing disrupted
    assert certificates.swap_certificate(p, 1, 1.0, 2) == pytest.approx(np.zeros(11))  # the other token for sure
    assert certificates.swap_certificate(1.0, 1, 0.0, 9) == 0.0
    assert certificates.swap_certificate(1.0, 3, 0.4, 9) == pytest.approx(1.0, abs=1e-15)
    assert certificates.swap_certificate(0.9, 500, 0.99, 32_000) >= 0
    assert isinstance(certificates.swap_certificate(0.9, 1, 0.5, 10), float)
    assert certificates.swap_certificate([[0.9], [0.8]], 1, 0.5, 10).shape == (2, 1)


def test_swap_is_exact_close_to_one():
    """With d = 1 the bound is piecewise linear: its last piece has the slope (1-beta)(V-1)/beta."""
    gap, beta, vocab = 1e-13, 0.5, 1001
    p = 1 - gap
    slope = (1 - beta) * (vocab - 1) / beta
    assert 1 - certificates.swap_certificate(p, 1, beta, vocab) == pytest.approx(slope * (1 - p), rel=1e-3)


@given(st.floats(0, 1), st.integers(0, 12), st.floats(0, 1), st.integers(2, 50_000))
def test_swap_never_promises_more_than_it_was_given_and_falls_with_distance(p, d, beta, vocab):
    bound = certificates.swap_certificate(p, d, beta, vocab)
    assert 0 <= bound <= p
    assert certificates.swap_certificate(p, d + 1, beta, vocab) <= bound + 1e-12


@given(st.integers(1, 4), st.integers(2, 9), st.floats(0.05, 0.95), st.integers(0, 2**32))
@settings(max_examples=60)
def test_swap_holds_for_random_functions(d, vocab, beta, seed):
    """Any function of the outcome has at least the certified probability; enumerated for d places."""
    outcomes = list(itertools.product(range(min(vocab, 3)), repeat=d)) if vocab > 3 else None
    if outcomes is not None:
        vocab = 3
    mine = replaced((0,) * d, Fraction(beta), vocab)
    theirs = replaced((1,) * d, Fraction(beta), vocab)
    safe = np.random.default_rng(seed).random(len(mine)) < 0.5
    p = float(sum(prob for prob, keep in zip(mine.values(), safe, strict=True) if keep))
    attacked = float(sum(prob for prob, keep in zip(theirs.values(), safe, strict=True) if keep))
    assert certificates.swap_certificate(min(1.0, p), d, beta, vocab) <= attacked + 1e-12


@pytest.mark.parametrize("unit", ["char", "token"])
def test_swap_with_the_real_kernel(unit):
    """The worst function for d = 1, beta = 0.6, V = 3 is safe where the first token is the clean one."""
    kernel = core.disrupt_swap(0.6, ("a", "b", "c") if unit == "token" else "abc", mode="bernoulli", unit=unit)
    generator, draws = np.random.default_rng(9), 6000
    clean, attacked = ("a c", "b c") if unit == "token" else ("ac", "bc")
    safe = {text: np.mean([kernel(text, generator)[0] == "a" for _ in range(draws)]) for text in (clean, attacked)}
    wanted = certificates.swap_certificate(0.4, 1, kernel=kernel)
    assert wanted == pytest.approx(0.3)
    assert abs(safe[clean] - 0.4) < 4 * math.sqrt(0.24 / draws)
    assert abs(safe[attacked] - wanted) < 4 * math.sqrt(0.21 / draws)


# ---- the kernel has to match


def test_swap_certificate_refuses_other_kernels():
    fixed = core.disrupt_swap(0.5)
    for kernel in (fixed, core.disrupt_patch(), core.disrupt_random(), core.disrupt_mask_words(keep=3), lambda t, r: t):
        with pytest.raises(InputError, match=r"kernel .* not covered.*bernoulli"):
            certificates.swap_certificate(0.9, 1, 0.5, 94, kernel=kernel)
    fitting = core.disrupt_swap(0.5, mode="bernoulli")
    assert certificates.swap_certificate(0.9, 1, kernel=fitting) == certificates.swap_certificate(0.9, 1, 0.5, 94)
    assert certificates.swap_certificate(0.9, 1, 0.5, 94, kernel=fitting) > 0
    for beta, vocab in ((0.4, 94), (0.5, 95), (0.4, None), (None, 95)):
        with pytest.raises(InputError, match=r"kernel replaces at beta=0\.5 among vocab=94"):
            certificates.swap_certificate(0.9, 1, beta, vocab, kernel=fitting)


def test_ablation_certificate_refuses_other_kernels():
    for kernel in (core.disrupt_mask_words(0.3), core.disrupt_delete_words(), lambda t, r: t):
        with pytest.raises(InputError, match=r"kernel .* not covered.*disrupt_mask_words"):
            certificates.ablation_certificate(8, 3, 2, kernel=kernel)
    with pytest.raises(InputError, match="kernel keeps 4 of m=8 words, not keep=3"):
        certificates.ablation_certificate(8, 3, 2, kernel=core.disrupt_mask_words(keep=4))


# ---- samples


@pytest.mark.parametrize("p", [0.005, 0.05, 0.2, 0.35, 0.5])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_coverage_is_not_below_nominal(p, confidence):
    """Simulated, within 4 sigma, and exactly, from the binomial weights of every count."""
    n_samples, n, draws = 60, 9, 4000
    truth = theory.defense_success_probability(p, n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        made = [certificates.certify_from_samples(c, n, n_samples, confidence) for c in range(n_samples + 1)]
    holds = np.array([c.success <= truth + 1e-12 for c in made])
    weights = [math.comb(n_samples, c) * p**c * (1 - p) ** (n_samples - c) for c in range(n_samples + 1)]
    assert holds @ weights >= confidence
    simulated = holds[np.random.default_rng(5).binomial(n_samples, p, size=draws)].mean()
    assert simulated >= confidence - 4 * math.sqrt(confidence * (1 - confidence) / draws)


@given(st.integers(1, 200), st.data(), st.floats(0.5, 0.999))
@settings(max_examples=60)
def test_upper_limit_solves_the_binomial_equation(n_samples, data, confidence):
    jailbroken = data.draw(st.integers(0, n_samples))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        made = certificates.certify_from_samples(jailbroken, 11, n_samples, confidence)
    assert made.p_hat == jailbroken / n_samples <= made.p_upper
    if jailbroken == n_samples:
        assert made.p_upper == 1
        assert made.success == 0
    else:
        p = made.p_upper
        tail = math.fsum(math.comb(n_samples, i) * p**i * (1 - p) ** (n_samples - i) for i in range(jailbroken + 1))
        assert tail == pytest.approx(1 - confidence, abs=1e-9)
    assert made.success == theory.defense_success_probability(made.p_upper, 11)


def test_votes_and_counts_say_the_same():
    votes = [0, 1, 0, 0, False, True, 0, 0]
    made = certificates.certify_from_samples(votes, 5, gamma=0.6, confidence=0.95)
    assert made == certificates.certify_from_samples(2, 5, 8, gamma=0.6, confidence=0.95)
    assert made == certificates.certify_from_samples(np.array(votes), 5, 8, gamma=0.6, confidence=0.95)
    assert made == certificates.certify_from_samples(np.int64(2), 5, 8, gamma=0.6, confidence=0.95)
    assert json.dumps(certificates.certify_from_samples(2, np.int64(5), np.int64(8)).to_dict())
    assert (made.jailbroken, made.n_samples, made.n, made.gamma, made.confidence) == (2, 8, 5, 0.6, 0.95)
    assert json.loads(json.dumps(made.to_dict()))["success"] == made.success
    assert made.warning is None
    assert guard.certify_from_samples is certificates.certify_from_samples


def test_no_jailbreak_in_n_samples_has_a_closed_form():
    made = certificates.certify_from_samples(0, 1, 100)
    assert made.p_upper == pytest.approx(1 - 0.01 ** (1 / 100))
    assert made.success == pytest.approx(0.01 ** (1 / 100))  # n = 1: one copy, t = 0
    assert certificates.certify_from_samples([0], 1).success == pytest.approx(0.01)


def test_voting_that_harms_is_said():
    with pytest.warns(NoEffectWarning, match=r"probability 0\.5, not below gamma=0\.5"):
        made = certificates.certify_from_samples(5, 9, 10)
    assert "more copies" in made.warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert certificates.certify_from_samples(4, 9, 10).warning is None
        assert certificates.certify_from_samples(0, 9, 10, gamma=0.0).warning is None


def test_copies_that_chose_a_setting_do_not_certify():
    with pytest.raises(InputError, match="tuned_on_these copies cannot certify"):
        certificates.certify_from_samples(1, 9, 100, tuned_on_these=True)
    with pytest.warns(UserWarning, match="confidence does not hold"):
        made = certificates.certify_from_samples(1, 9, 100, tuned_on_these=True, allow_tuned=True)
    assert made == certificates.certify_from_samples(1, 9, 100, allow_tuned=True)


def test_from_samples_through_an_attack_to_a_vote():
    """The way of the guide: samples of a clean prompt, worst case over d words, exact vote."""
    made = certificates.certify_from_samples(0, 25, 500)
    worst = 1 - certificates.swap_certificate(1 - made.p_upper, 3, 0.9, 32_000)
    assert made.p_upper < worst < 0.5
    assert theory.defense_success_probability(worst, 25) > 0.95


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: certificates.ablation_certificate(0, 0, 0), "m is an integer"),
        (lambda: certificates.ablation_certificate(5, -1, 0), "keep is an integer"),
        (lambda: certificates.ablation_certificate(5, 6, 0), "keep=6 is more"),
        (lambda: certificates.ablation_certificate(5, 2, 6), "d holds integers from 0 to 5"),
        (lambda: certificates.ablation_certificate(5, 2, [1, -1]), "d holds integers"),
        (lambda: certificates.ablation_certificate(5, 2, 1.0), "d holds integers"),
        (lambda: certificates.swap_certificate(1.2, 1, 0.5, 9), "p_safe is a fraction"),
        (lambda: certificates.swap_certificate(0.9, -1, 0.5, 9), "d is an integer"),
        (lambda: certificates.swap_certificate(0.9, 1, 50, 9), "beta is a fraction.*50 percent"),
        (lambda: certificates.swap_certificate(0.9, 1, 0.5, 1), "vocab is an integer of at least 2"),
        (lambda: certificates.swap_certificate(0.9, 1), "beta and vocab are missing"),
        (lambda: certificates.swap_certificate(0.9, 1, 0.5), "beta and vocab are missing"),
        (lambda: certificates.swap_certificate(0.9, 1, vocab=5), "beta and vocab are missing"),
        (lambda: certificates.certify_from_samples(1, 9), "n_samples is missing"),
        (lambda: certificates.certify_from_samples(1, 9, 0), "n_samples is an integer"),
        (lambda: certificates.certify_from_samples(-1, 9, 5), "votes_or_count is an integer"),
        (lambda: certificates.certify_from_samples(6, 9, 5), "votes_or_count=6 jailbroken copies are more"),
        (lambda: certificates.certify_from_samples([], 9), "votes_or_count is empty"),
        (lambda: certificates.certify_from_samples([0, 2], 9), "votes_or_count holds something else"),
        (lambda: certificates.certify_from_samples([0, 1], 9, 3), "n_samples=3 contradicts the 2 votes"),
        (lambda: certificates.certify_from_samples("01", 9), "votes_or_count holds something else"),
        (lambda: certificates.certify_from_samples(b"01", 9), "votes_or_count is neither"),
        (lambda: certificates.certify_from_samples(None, 9), "votes_or_count is no list"),
        (lambda: certificates.certify_from_samples(True, 9), "votes_or_count is neither"),
        (lambda: certificates.certify_from_samples(1.0, 9, 5), "votes_or_count is neither"),
        (lambda: certificates.certify_from_samples(1, 0, 5), "n is an integer"),
        (lambda: certificates.certify_from_samples(1, 9, 5, 99), "confidence is a fraction.*99 percent say 0.99"),
        (lambda: certificates.certify_from_samples(1, 9, 5, 1.0), "confidence is a fraction strictly"),
        (lambda: certificates.certify_from_samples(1, 9, 5, gamma=1.0), "gamma"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value)
