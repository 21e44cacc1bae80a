import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.optim import alignment_curve, optimal_momentum_ar1, optimal_momentum_signal_noise
from steelyard.optim.greedy_momentum import core

momenta = st.floats(0, 0.999)


@given(st.floats(0, 0.999999))
def test_ar1_optimum_is_the_correlation_itself(a):
    assert optimal_momentum_ar1(a) == a


def test_ar1_of_an_oscillating_gradient_is_no_momentum():
    assert optimal_momentum_ar1(-0.4) == 0.0


@pytest.mark.parametrize("a", [1.0, -1.0, 2.0, math.nan])
def test_ar1_refuses_a_correlation_outside_its_range(a):
    with pytest.raises(InputError, match="a must be"):
        optimal_momentum_ar1(a)


@pytest.mark.parametrize("a", [0.3, 0.8, 0.97])
def test_ar1_curve_peaks_at_a_with_the_matched_filter_value(a):
    grid = np.linspace(0, 0.999, 4000)
    curve = alignment_curve(a ** np.arange(4000), grid)
    assert grid[curve.argmax()] == pytest.approx(a, abs=3e-4)
    assert alignment_curve(a ** np.arange(4000), [a])[0] == pytest.approx(1 / math.sqrt(1 - a * a), rel=1e-12)


WORKED = [
    ((2, 1, 0.8), 0.738109, None),
    ((0.2, 1, 0.8), 0.168732, None),
    ((1, 5, 0.99), 0.987536, 7.8325),
    ((1, 6, 0.98), 0.201445, 7.0974),
]


@pytest.mark.parametrize(("arguments", "momentum", "value"), WORKED)
def test_signal_and_noise_worked_values(arguments, momentum, value):
    found = optimal_momentum_signal_noise(*arguments)
    assert found == pytest.approx(momentum, abs=1e-6)
    if value is not None:
        assert core.signal_noise_alignment(found, *arguments) == pytest.approx(value, abs=1e-4)


def test_the_other_maximum_of_the_bimodal_cases_is_lower():
    assert core.signal_noise_alignment(0.267275, 1, 5, 0.99) == pytest.approx(6.1284, abs=1e-4)
    assert core.signal_noise_alignment(0.959467, 1, 6, 0.98) == pytest.approx(6.4098, abs=1e-4)


powers = st.floats(1e-3, 1e3)


@given(powers, powers, st.floats(0, 0.99999))
def test_signal_and_noise_optimum_is_global(S, N, a):
    grid = np.concatenate([np.linspace(0, 0.99999, 400), 1 - np.logspace(-7, -1, 200)])
    best = core.signal_noise_alignment(optimal_momentum_signal_noise(S, N, a), S, N, a)
    assert best >= core.signal_noise_alignment(grid, S, N, a).max() * (1 - 1e-9)


@given(powers, powers, st.floats(0.01, 0.999))
def test_signal_and_noise_optimum_is_stationary_and_below_a(S, N, a):
    m = optimal_momentum_signal_noise(S, N, a)
    assert 0 <= m <= a + 1e-9
    left, right = a * S * (1 - m * m), m * (1 - a * m) * (N * (1 - a * m) + S)
    assert left == pytest.approx(right, rel=1e-6, abs=1e-9 * (S + N))


def test_signal_and_noise_limits():
    assert optimal_momentum_signal_noise(1, 0, 0.7) == 0.7
    assert optimal_momentum_signal_noise(0, 1, 0.7) == 0.0
    assert optimal_momentum_signal_noise(1, 1, 0.0) == 0.0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 1, 0.5), "S"), ((1, math.inf, 0.5), "N"), ((0, 0, 0.5), "S + N"), ((1, 1, 1.0), "a must"),
        ((1, 1, -0.1), "a must"),
    ],
)  # fmt: skip
def test_signal_and_noise_refuses(arguments, name):
    with pytest.raises(InputError, match=name.replace("+", r"\+")):
        optimal_momentum_signal_noise(*arguments)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), momenta, st.floats(0.1, 10))
def test_curve_is_linear_in_the_autocorrelation(rho, m, scale):
    once = alignment_curve(rho, [m])
    assert alignment_curve(np.multiply(rho, scale), [m]) == pytest.approx(once * scale, rel=1e-9, abs=1e-9)


@given(st.integers(1, 30), momenta)
def test_curve_is_the_inner_product_of_the_filter_with_the_lags(lags, m):
    rho = np.cos(np.arange(lags))
    plain = sum(m**n * rho[n] for n in range(lags))
    norm = math.sqrt(sum(m ** (2 * n) for n in range(lags)))
    assert alignment_curve(rho, m, normalization="none")[0] == pytest.approx(plain, abs=1e-9)
    assert alignment_curve(rho, m, normalization="truncated")[0] == pytest.approx(plain / norm, abs=1e-9)
    assert alignment_curve(rho, m)[0] == pytest.approx(plain * math.sqrt(1 - m * m), abs=1e-9)


def test_truncated_curve_finds_a_with_few_lags():
    grid = np.linspace(0.9, 0.999, 100)
    assert grid[alignment_curve(0.99 ** np.arange(20), grid, "truncated").argmax()] == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("rho", "candidates", "normalization", "name"),
    [
        ([], [0.5], "none", "rho"),
        ([[1.0]], [0.5], "none", "rho"),
        ([1.0, math.nan], [0.5], "none", "rho"),
        ([1.0], [1.0], "none", "candidates"),
        ([1.0], [], "none", "candidates"),
        ([1.0], [0.5], "unit", "normalization"),
    ],
)
def test_curve_refuses(rho, candidates, normalization, name):
    with pytest.raises(InputError, match=name):
        alignment_curve(rho, candidates, normalization)


def test_autocorrelation_of_an_ar1_stream():
    rng = np.random.default_rng(0)
    g = [rng.normal(size=3000)]
    for _ in range(300):
        g.append(0.7 * g[-1] + math.sqrt(1 - 0.49) * rng.normal(size=3000))
    rho = core.autocorrelation(np.stack(g), 4)
    assert rho / rho[0] == pytest.approx(0.7 ** np.arange(5), abs=0.02)


@pytest.mark.parametrize(("gradients", "lags", "name"), [
    (np.zeros(3), 1, "gradients"), (np.full((3, 2), np.nan), 1, "gradients"), (np.zeros((3, 2)), 3, "lags"),
    (np.zeros((3, 2)), -1, "lags"),
])  # fmt: skip
def test_autocorrelation_refuses(gradients, lags, name):
    with pytest.raises(InputError, match=name):
        core.autocorrelation(gradients, lags)


@pytest.mark.parametrize(
    "candidates", [(), (0.5, 1.0), (-0.1, 0.5), (0.9, 0.5), (0.5, 0.5), (math.nan,), "half", [[0.5]]]
)
def test_candidates_must_be_sorted_unique_and_in_range(candidates):
    with pytest.raises(InputError, match="momentum"):
        core.check_candidates(candidates, "momentum")


def test_one_number_is_a_set_of_one():
    assert core.check_candidates(0.9) == (0.9,)


def test_presets_and_knobs_that_win_over_them():
    assert core.make_rule("robust") == core.Rule(score="next", normalization="none", j_ema=0.9)
    assert core.make_rule("paper").normalization == "literal"
    assert core.make_rule("robust", j_ema=0.5, score=None).j_ema == 0.5
    assert core.make_rule() == core.Rule()


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("preset", "best"), ("selection", "each"), ("score", "last"), ("normalization", "unit"), ("w_scope", "none"),
        ("j_ema", 1.0), ("j_ema", -0.1), ("j_ema", math.nan), ("hysteresis", -1), ("hysteresis", 1.5),
        ("hysteresis", True), ("w_exponent", -1.0), ("w_exponent", math.inf),
    ],
)  # fmt: skip
def test_rule_refuses(knob, value):
    with pytest.raises(InputError, match=knob):
        core.make_rule(**{knob: value})


def test_norm_factors():
    m = (0.0, 0.5, 0.9)
    assert core.norm_factors(m, "none", False) == pytest.approx([1, 1, 1])
    assert core.norm_factors(m, "accumulator", False) == pytest.approx([1, math.sqrt(0.75), math.sqrt(0.19)])
    assert core.norm_factors(m, "literal", True) == pytest.approx([1, math.sqrt(0.75), math.sqrt(0.19)])
    assert core.norm_factors(m, "accumulator", True) == pytest.approx([1, math.sqrt(3), math.sqrt(19)])


@given(momenta)
def test_the_accumulator_factor_undoes_the_gain_of_a_running_average(b):
    literal, accumulator = core.norm_factors((b,), "literal", True), core.norm_factors((b,), "accumulator", True)
    assert accumulator == pytest.approx(literal / (1 - b))


def test_scale_scores_divides_by_the_root_of_w():
    dots = np.array([[2.0, 4.0], [1.0, 1.0], [np.nan, 1.0]])
    scaled = core.scale_scores(dots, np.array([12.0, 5.0, 0.0]), np.array([3.0, 5.0, 0.0]), np.array([1.0, 0.5]), 1.0)
    assert scaled == pytest.approx(np.array([[1.0, 1.0], [1.0, 0.5], [0.0, 0.0]]))
    squared = core.scale_scores(dots[:1], np.array([12.0]), np.array([3.0]), np.array([1.0, 0.5]), 2.0)
    assert squared == pytest.approx(np.array([[0.5, 0.5]]))


scores = st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=5).map(np.array)


@given(scores)
def test_without_memory_the_largest_score_wins_even_if_all_are_negative(J):
    memory, finite = core.select(core.new_memory(len(J), 3), J)
    assert finite
    assert (memory.choice == J.argmax(axis=1)).all()
    assert (memory.alignment == J).all()


@given(scores, st.floats(0.01, 100))
def test_the_choice_does_not_depend_on_the_scale_of_the_loss(J, scale):
    J = np.round(J, 3)
    one, _ = core.select(core.new_memory(len(J), 3), J, 0.9)
    other, _ = core.select(core.new_memory(len(J), 3), J * 2.0 ** round(math.log2(scale)), 0.9)
    assert (one.choice == other.choice).all()


def test_smoothing():
    memory = core.new_memory(1, 2)
    for J in ([1.0, 0.0], [0.0, 3.0]):
        memory, _ = core.select(memory, np.array([J]), 0.5)
    assert memory.alignment.tolist() == [[0.25, 1.5]]
    assert memory.choice.tolist() == [1]


def test_a_score_that_is_not_finite_keeps_choice_and_memory():
    first, _ = core.select(core.new_memory(2, 2), np.array([[0.0, 1.0], [0.0, 1.0]]), 0.5)
    second, finite = core.select(first, np.array([[np.nan, 0.0], [9.0, 0.0]]), 0.5)
    assert not finite
    assert second.choice.tolist() == [1, 0]
    assert second.alignment[0].tolist() == first.alignment[0].tolist()
    assert second.streak.tolist() == [1, 1]


def test_hysteresis_waits_for_a_streak_of_the_raw_score():
    memory = core.new_memory(1, 2)
    chosen = []
    for favourite in (1, 1, 0, 1, 1, 1, 0, 0, 0):
        memory, _ = core.select(memory, np.eye(2)[[favourite]], hysteresis=3)
        chosen.append(int(memory.choice[0]))
    assert chosen == [0, 0, 0, 0, 0, 1, 1, 1, 0]


def test_select_leaves_its_inputs_alone():
    memory, J = core.new_memory(2, 2), np.ones((2, 2))
    core.select(memory, J, 0.9, 2)
    assert (J == 1).all()
    assert memory.alignment.tolist() == [[0, 0], [0, 0]]
    assert memory.leader.tolist() == [-1, -1]


def test_rows_of_a_memory():
    memory = core.Memory(np.arange(6.0).reshape(3, 2), np.arange(3), np.arange(3), np.arange(3))
    part = memory.rows([0, 2])
    assert part.choice.tolist() == [0, 2]
    back = memory.with_rows([0, 2], core.Memory(part.alignment + 1, part.choice, part.leader, part.streak + 5))
    assert back.alignment.tolist() == [[1, 2], [2, 3], [5, 6]]
    assert back.streak.tolist() == [5, 1, 7]
    assert memory.streak.tolist() == [0, 1, 2]
