"""Thresholds against scikit-learn's mixture and ROC curve, brute-force Otsu, and closed forms."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve
from sklearn.mixture import GaussianMixture

from steelyard.errors import InputError
from steelyard.guard.discrepancy.scorer import Scorer
from steelyard.guard.discrepancy.thresholds import find_threshold, gmm, otsu, youden

SCORES = st.lists(st.integers(-50, 50).map(lambda x: x / 8), min_size=2, max_size=25)


def between_variance(s, cut):
    low, high = s[s <= cut], s[s > cut]
    return len(low) * len(high) * (low.mean() - high.mean()) ** 2


@given(SCORES)
def test_otsu_is_the_best_of_all_cuts(scores):
    s = np.array(scores)
    assume(np.ptp(s) > 0)
    best = max(between_variance(s, cut) for cut in np.unique(s)[:-1])
    assert between_variance(s, otsu(s)) == pytest.approx(best)


@given(SCORES, st.data())
def test_youden_is_the_highest_point_of_the_roc_curve(scores, data):
    s = np.array(scores)
    y = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(s), max_size=len(s))))
    assume(0 < y.sum() < len(y))
    assume(np.ptp(s) > 0)
    false, true, cuts = roc_curve(y, s, drop_intermediate=False)
    inside = cuts > s.min()  # a cut between scores; above the highest nothing is flagged
    inside[0] = False
    cut = youden(s, y)
    assert s.min() <= cut < s.max()
    predicted = s > cut
    index = predicted[y == 1].mean() - predicted[y == 0].mean()
    assert index == pytest.approx((true - false)[inside].max())


@given(SCORES, st.floats(0.1, 10), st.floats(-5, 5))
def test_cuts_move_with_the_scores(scores, scale, shift):
    s = np.array(scores)
    assume(np.ptp(s) > 0)
    moved = scale * s + shift
    assert find_threshold(moved, "quantile", quantile=0.7) == pytest.approx(
        scale * find_threshold(s, "quantile", quantile=0.7) + shift, abs=1e-9
    )
    assert between_variance(moved, otsu(moved)) == pytest.approx(scale**2 * between_variance(s, otsu(s)), rel=1e-6)


def test_the_mixture_agrees_with_scikit_learn():
    g = np.random.default_rng(0)
    s = np.concatenate([g.normal(-2, 0.5, 300), g.normal(1, 0.8, 150)])
    peer = GaussianMixture(2, tol=1e-10, max_iter=2000, reg_covar=0, random_state=0).fit(s[:, None])
    grid = np.linspace(-2, 1, 200_001)
    odds = peer.predict_proba(grid[:, None])[:, np.argmin(peer.means_)]
    assert gmm(s) == pytest.approx(grid[np.argmin(np.abs(odds - 0.5))], abs=1e-3)


def test_two_far_heaps_are_cut_between():
    s = np.array([0.0, 0.1, 0.2, 10.0, 10.1, 10.2])
    assert otsu(s) == pytest.approx(5.1)
    assert gmm(s) == pytest.approx(5.1, abs=0.2)
    assert youden(s, [0, 0, 0, 1, 1, 1]) == pytest.approx(5.1)
    assert 0 < gmm(np.array([0.0, 1.0])) < 1


def test_a_wide_heap_around_a_narrow_one_falls_back_to_the_middle_of_the_means():
    g = np.random.default_rng(1)
    s = np.concatenate([g.normal(0, 0.01, 500), g.normal(0, 5, 20)])
    assert s.min() < gmm(s) < s.max()


def test_neighbours_in_floating_point_are_cut():
    s = np.array([1.0, np.nextafter(1.0, 2)])
    assert (s > otsu(s)).tolist() == [False, True]


def test_quantile():
    assert find_threshold(np.arange(11.0), "quantile", quantile=0.9) == pytest.approx(9.0)
    for method in ("otsu", "gmm"):
        assert 0 < find_threshold([0, 0.1, 1], method) < 1
    assert find_threshold([0, 1], "youden", labels=[0, 1]) == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": [1.0]}, "at least 2 finite"),
        ({"scores": [1.0, np.nan]}, "at least 2 finite"),
        ({"scores": [[1.0, 2.0]]}, "at least 2 finite"),
        ({"scores": [1, 2], "method": "best"}, "method must be one of"),
        ({"scores": [1, 2], "method": "youden"}, "labels go with"),
        ({"scores": [1, 2], "labels": [0, 1]}, "labels go with"),
        ({"scores": [1, 2], "quantile": 1.0}, "quantile must lie"),
        ({"scores": [1, 1], "method": "otsu"}, "all equal"),
        ({"scores": [1, 2], "method": "youden", "labels": [1, 1]}, "hold both"),
        ({"scores": [1, 2], "method": "youden", "labels": [0, 1, 1]}, "one 0 or 1 per score"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        find_threshold(**arguments)


class Known(Scorer):
    """The length of an answer is its score."""

    def score(self, questions, responses, contexts=None):
        return np.array([float(len(response)) for response in responses])


@pytest.mark.parametrize("method", ["predict", "fit_threshold"])
@pytest.mark.parametrize("texts", [
    (["Who?", "When?"], ["Ada", "1843"]), (["Ada", "1843"],), ([("Who?", "Ada")],), ("Ada",),
    ([{"question": "Who?", "response": "Ada"}],), ([], []),
])  # fmt: skip
def test_texts_in_the_place_of_scores(method, texts):
    detector = Known()
    detector.fit_threshold([0.0, 1.0], "youden", labels=[0, 1])
    with pytest.raises(InputError, match=rf"{method} takes scores, not texts; write {method}\(detector.score\("):
        getattr(detector, method)(*texts)
    assert detector.predict(detector.score(["a", "b"], ["", "x"])).tolist() == [0, 1]
    assert detector.predict([]).tolist() == []
