import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from steelyard.errors import InputError
from steelyard.nets.lattice.reaction_time import pearson, reaction_time_correlation, spearman

CONDITIONS = ["c100", "c50", "c30", "c15", "c10", "c05"]
MODEL = [4.29, 4.55, 4.73, 4.94, 5.06, 5.34]
MEDIANS = [0.8122, 0.8181, 0.8176, 0.8338, 0.8497, 0.8592]
TIMES = dict(zip(CONDITIONS, MODEL, strict=True))


def trials(medians=MEDIANS, each=5):
    """Trials whose medians are these: (reaction times, conditions)."""
    spread = np.linspace(-0.2, 0.3, each)
    spread[each // 2] = 0.0
    spread.sort()
    spread -= np.median(spread)
    return np.concatenate([m + spread for m in medians]), np.repeat(CONDITIONS, each)


def test_six_contrasts_by_peers():
    """Condition medians and model times as printed for the contrast experiment: .94 and .95."""
    rt, groups = trials()
    result = reaction_time_correlation(TIMES, rt, groups)
    assert result.conditions == tuple(CONDITIONS)
    assert result.human_times == pytest.approx(tuple(MEDIANS))
    assert result.spearman == pytest.approx(spearmanr(MODEL, MEDIANS).statistic)
    assert result.pearson == pytest.approx(pearsonr(MODEL, MEDIANS).statistic)
    assert round(result.spearman, 2) == 0.94
    assert round(result.pearson, 2) == 0.95
    low, high = result.pearson_interval
    assert -1 <= low < result.pearson <= high <= 1
    assert 900 < result.resamples <= 1000
    assert not result.dropped


def test_rounding_to_the_millisecond_ties_two_conditions():
    rt, groups = trials(np.round(MEDIANS, 3))
    assert round(reaction_time_correlation(TIMES, rt, groups).spearman, 2) == 0.99, (
        "the 0.99 that unrounded medians undo"
    )


series = st.lists(st.integers(-5, 5).map(float), min_size=3, max_size=12)


@given(series, st.randoms(use_true_random=False))
def test_ties_get_average_ranks(values, random):
    other = list(values)
    random.shuffle(other)
    a, b = np.array(values), np.array(other)
    if np.ptp(a) > 0:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
        assert pearson(a, b) == pytest.approx(pearsonr(a, b).statistic, abs=1e-12)


@given(series, st.floats(0.1, 10), st.floats(-5, 5))
def test_correlations_ignore_scale_and_shift(values, scale, shift):
    a = np.array(values)
    b = a[::-1].copy()
    if np.ptp(a) > 0:
        assert pearson(a * scale + shift, b) == pytest.approx(pearson(a, b), abs=1e-9)
        assert spearman(a, a) == pytest.approx(1)
        assert spearman(a, -a) == pytest.approx(-1)


@given(st.integers(0, 1000))
def test_the_order_of_trials_does_not_matter(seed):
    rt, groups = trials()
    order = np.random.default_rng(seed).permutation(len(rt))
    result = reaction_time_correlation(TIMES, rt[order], groups[order], bootstrap=5)
    assert dict(zip(result.conditions, result.human_times, strict=True)) == pytest.approx(
        dict(zip(CONDITIONS, MEDIANS, strict=True))
    )
    assert round(result.spearman, 2) == 0.94


def test_unusable_trials_are_ignored_and_counted():
    rt, groups = trials()
    rt = np.concatenate([rt, [np.nan, 0.0, -1.0, np.inf]])
    groups = np.concatenate([groups, ["c100", "c50", "c30", "c15"]])
    result = reaction_time_correlation(TIMES, rt, groups)
    assert result.ignored_trials == 4
    assert result.human_times == pytest.approx(tuple(MEDIANS))


def test_conditions_near_chance_and_without_model_time_are_listed():
    rt, groups = trials()
    extra = ["c03"] * 4 + ["c01"] * 2 + ["gone"]
    rt, groups = np.concatenate([rt, [0.7] * 6, [np.nan]]), np.concatenate([groups, extra])
    correct = np.ones(len(rt), dtype=bool)
    correct[groups == "c03"] = [True, False, False, False]
    result = reaction_time_correlation({**TIMES, "c03": 6.0, "gone": 7.0}, rt, groups, correct=correct)
    assert result.conditions == tuple(CONDITIONS)
    assert result.dropped == {
        "c03": "accuracy 0.250 is not above 0.45",
        "c01": "no model time",
        "gone": "no trial with a usable reaction time",
    }
    kept = reaction_time_correlation({**TIMES, "c03": 6.0}, rt, groups, correct=correct, min_accuracy=0.0)
    assert "c03" in kept.conditions


def test_medians_over_correct_trials_only():
    rt, groups = trials()
    slow = np.full(6, 5.0)
    correct = np.concatenate([np.ones(len(rt)), np.zeros(6)])
    result = reaction_time_correlation(
        TIMES, np.concatenate([rt, slow]), np.concatenate([groups, CONDITIONS]), correct=correct, correct_only=True
    )
    assert result.human_times == pytest.approx(tuple(MEDIANS))


def test_model_times_per_trial_or_several_per_condition_are_averaged():
    rt, groups = trials()
    per_trial = np.array([TIMES[group] for group in groups]) + np.tile([-1.0, 1.0, 0.0, 0.5, -0.5], 6)
    assert reaction_time_correlation(per_trial, rt, groups).model_times == pytest.approx(tuple(MODEL))
    several = {name: [value - 1, value + 1] for name, value in TIMES.items()}
    assert reaction_time_correlation(several, rt, groups).model_times == pytest.approx(tuple(MODEL))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, object])
@pytest.mark.parametrize("key", [int, float, np.float32])
def test_equal_numbers_are_one_condition(kind, key):
    rt, _ = trials()
    times = {key(n): time for n, time in enumerate(MODEL)}
    result = reaction_time_correlation(times, rt, np.repeat(np.arange(6), 5).astype(kind), bootstrap=3)
    assert not result.dropped
    assert result.model_times == pytest.approx(tuple(MODEL))


def test_equal_seeds_give_equal_intervals():
    rt, groups = trials()
    first, again, other = (reaction_time_correlation(TIMES, rt, groups, seed=s).pearson_interval for s in (1, 1, 2))
    assert first == again != other


def test_a_bootstrap_without_a_usable_resample_has_no_interval():
    """Three conditions, one resample: it may be constant."""
    rt, groups = trials()
    three = {name: TIMES[name] for name in CONDITIONS[:3]}
    found = [reaction_time_correlation(three, rt, groups, bootstrap=1, seed=s) for s in range(40)]
    assert {result.resamples for result in found} == {0, 1}
    assert all(np.isnan(result.spearman_interval[0]) for result in found if result.resamples == 0)


RT, GROUPS = trials()


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({"rt": [[0.5]]}, "rt"),
        ({"rt": []}, "rt"),
        ({"rt": ["fast"] * 30}, "rt"),
        ({"groupby": GROUPS[:5]}, "groupby"),
        ({"times": [1.0, 2.0]}, "times"),
        ({"times": {**TIMES, "c50": np.nan}}, "times"),
        ({"times": {**TIMES, "c50": "slow"}}, "times"),
        ({"times": {"c50": 1.0, "c30": 2.0}}, "usable conditions"),
        ({"times": dict.fromkeys(CONDITIONS, 2.0)}, "times are equal"),
        ({"rt": np.full(30, 0.8)}, "rt are equal"),
        ({"bootstrap": 0}, "bootstrap"),
        ({"bootstrap": 1.5}, "bootstrap"),
        ({"bootstrap": np.nan}, "bootstrap"),
        ({"min_accuracy": None}, "min_accuracy"),
        ({"seed": None}, "seed"),
        ({"times": {1: 1.0, 2: 2.0, 3: 3.0}}, "no condition in common: times has '1', '2', '3', groupby 'c100'"),
        ({"times": {"new\nline": 1.0, 2: 2.0, 3: 3.0}}, "no condition in common"),
        ({"times": {}}, "no condition in common"),
        ({"min_accuracy": 1.0}, "min_accuracy"),
        ({"correct_only": True}, "correct"),
        ({"correct": np.ones(3)}, "correct"),
        ({"correct": np.full(30, 0.5)}, "correct"),
    ],
)
def test_bad_input_is_one_sentence(kwargs, names):
    with pytest.raises(InputError) as caught:
        reaction_time_correlation(**({"times": TIMES, "rt": RT, "groupby": GROUPS} | kwargs))
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
