"""Metrics against closed forms and scikit-learn, the spatial readings against loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import roc_auc_score

from steelyard.errors import InputError
from steelyard.vision.videoafford.core import (
    affordance_metrics,
    area_under_roc,
    average_iou,
    knn_weights,
    mask_loss,
    normalize_cloud,
    soft_labels,
    spatial_loss,
)

LABEL = np.array([1.0] * 3 + [0.0] * 7)
BETA = 0.3


@pytest.mark.parametrize(
    ("pred", "auc", "aiou", "sim", "mae"),
    [
        (LABEL, 1.0, (19 + BETA) / 20, 1.0, 0.0),
        (1 - LABEL, 0.0, BETA / 20, 0.0, 1.0),
        *(
            (np.full(10, c), 0.5, BETA * (math.floor(19 * c) + 1) / 20, BETA if c else 0.0, c * 0.7 + (1 - c) * 0.3)
            for c in (0.0, 0.11, 0.5, 0.9, 1.0)
        ),
    ],
)
def test_closed_forms(pred, auc, aiou, sim, mae):
    assert affordance_metrics(pred, LABEL)[:4] == pytest.approx((auc, aiou, sim, mae))


@given(
    arrays(np.float64, (3, 30), elements=st.floats(0, 1, width=16)),
    arrays(np.float64, (3, 30), elements=st.floats(0, 1)),
)
def test_metrics_as_loops(scores, labels):
    positive = labels >= 0.5
    auc, aiou = area_under_roc(scores, positive), average_iou(scores, positive)
    for row in range(3):
        yes = positive[row]
        if yes.all() or not yes.any():
            assert math.isnan(auc[row])
        else:
            assert auc[row] == pytest.approx(roc_auc_score(yes, scores[row]))
        ious = []
        for t in np.linspace(0, 1, 20):
            marked = scores[row] >= t
            union = (marked | yes).sum()
            ious.append((marked & yes).sum() / union if union else 0.0)
        assert (math.isnan(aiou[row]) and not yes.any()) or aiou[row] == pytest.approx(np.mean(ious))


def test_samples_without_a_positive_are_skipped_and_counted():
    found = affordance_metrics(np.full((3, 4), 0.5), np.array([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]))
    assert found.skipped == {"auc": 2, "aiou": 1, "sim": 0, "mae": 0}
    assert found.auc == 0.5
    assert math.isnan(affordance_metrics([0.2, 0.3], [0.0, 0.0]).aiou)


@given(st.integers(0, 10**6), st.integers(1, 5))
def test_neighbours_are_the_nearest(seed, k):
    cloud = np.random.default_rng(seed).normal(size=(20, 3))
    found = knn_weights(cloud, k)
    away = np.linalg.norm(cloud[:, None] - cloud[None], axis=-1)
    np.fill_diagonal(away, np.inf)
    expected = np.sort(away, 1)[:, :k]
    assert np.take_along_axis(away, found.nearest, 1) == pytest.approx(expected)
    assert found.sigma == pytest.approx(expected.mean())
    assert found.weight == pytest.approx(np.exp(-(expected**2) / (2 * found.sigma**2)))


@pytest.mark.parametrize("size", [600, 5000])
def test_large_clouds_agree_with_small_steps(size):
    cloud = np.random.default_rng(0).normal(size=(size, 3))
    found = knn_weights(cloud, 4)
    for row in (0, 17, size - 1):
        away = np.linalg.norm(cloud - cloud[row], axis=1)
        away[row] = np.inf
        assert np.sort(found.nearest[row]).tolist() == np.sort(np.argsort(away)[:4]).tolist()


@pytest.mark.parametrize("size", [40, 5000])
def test_points_at_one_place(size):
    cloud = np.zeros((size, 3))
    found = knn_weights(cloud, 3)
    assert np.isfinite(found.weight).all()
    assert (found.nearest != np.arange(size)[:, None]).all()


def neighbours(cloud, k=4):
    found = knn_weights(cloud, k)
    return torch.from_numpy(found.nearest)[None], torch.from_numpy(found.weight)[None]


def test_readings_as_loops():
    draws = np.random.default_rng(0)
    cloud, scores, target = draws.normal(size=(12, 3)), draws.random(12), draws.random(12)
    index, weight = neighbours(cloud)
    p, y = torch.from_numpy(scores)[None], torch.from_numpy(target)[None]
    smooth, residual, sparse = [], [], []
    for i in range(12):
        near, w = index[0, i].numpy(), weight[0, i].numpy()
        smooth.append((w * (scores[i] - scores[near]) ** 2).sum() / w.sum())
        error = scores - target
        residual.append(((error[i] + (w * error[near]).sum()) / (1 + w.sum())) ** 2)
        sparse.append(1 / (w.sum() + 0.5))
    entropy = -(target * np.log(scores) + (1 - target) * np.log(1 - scores))
    assert spatial_loss(p, index, weight).item() == pytest.approx(np.mean(smooth))
    assert spatial_loss(p, index, weight, y, mode="residual").item() == pytest.approx(np.mean(residual))
    density = (np.array(sparse) / np.mean(sparse) * entropy).mean()
    assert spatial_loss(p, index, weight, y, mode="density").item() == pytest.approx(density)


def test_readings_at_their_limits():
    index, weight = neighbours(np.random.default_rng(0).normal(size=(12, 3)))
    constant = torch.full((1, 12), 0.4, dtype=torch.float64)
    target = torch.from_numpy(np.random.default_rng(1).random((1, 12)))
    assert spatial_loss(constant, index, weight).item() == 0
    assert spatial_loss(target, index, weight, target, mode="residual").item() == 0
    outlier = np.random.default_rng(0).normal(size=(40, 3)) * 0.01
    outlier[0] = 1e3
    index, weight = neighbours(outlier)
    score = torch.full((1, 40), 0.5, dtype=torch.float64, requires_grad=True)
    loss = spatial_loss(score, index, weight, torch.ones(1, 40, dtype=torch.float64), mode="density")
    loss.backward()
    assert torch.isfinite(score.grad).all()


@given(st.integers(0, 10**6))
def test_losses_do_not_depend_on_the_order_of_points(seed):
    draws = np.random.default_rng(seed)
    cloud, scores, target = draws.normal(size=(15, 3)), draws.random(15), draws.random(15)
    order = draws.permutation(15)
    for mode in ("smooth", "residual", "density"):
        values = [
            spatial_loss(torch.from_numpy(s)[None], *neighbours(c), torch.from_numpy(y)[None], mode=mode).item()
            for c, s, y in ((cloud, scores, target), (cloud[order], scores[order], target[order]))
        ]
        assert values[0] == pytest.approx(values[1])


def test_a_perfect_mask_costs_a_half():
    target = torch.from_numpy(LABEL)[None]
    assert mask_loss(target, target).item() == pytest.approx(0.5, abs=1e-4)
    assert mask_loss(1 - target, target).item() > 1.5


def test_clouds_are_normalised():
    cloud = np.random.default_rng(0).normal(size=(50, 3)) * 7 + 3
    ball, cube = normalize_cloud(cloud), normalize_cloud(cloud, "unit_cube")
    assert np.linalg.norm(ball.points, axis=1).max() == pytest.approx(1)
    assert np.abs(cube.points).max() == pytest.approx(1)
    assert ball.points * ball.scale + ball.centre == pytest.approx(cloud)
    assert normalize_cloud(np.ones((4, 3))).scale == 1


def test_soft_labels_fall_off():
    line = np.column_stack([np.linspace(0, 1, 11), np.zeros(11), np.zeros(11)])
    found = soft_labels(line, np.arange(11) < 4, sigma=0.1)
    assert (np.diff(found) < 0).all()
    assert found[0] > 0.9
    assert found[-1] < 0.01


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: affordance_metrics([2.0], [1.0]), "pred: sample 0"),
        (lambda: affordance_metrics([0.5], [0.5, 0.5]), "target: its shape"),
        (lambda: affordance_metrics("ab", [1.0]), "pred: it must hold numbers"),
        (lambda: affordance_metrics([0.5], [0.5], threshold=0.0), "threshold"),
        (lambda: knn_weights(np.zeros((4, 3)), 4), "k must be"),
        (lambda: knn_weights(np.zeros((4, 2)), 1), "shape"),
        (lambda: knn_weights([[0, 0, np.nan]], 1), "point 0"),
        (lambda: knn_weights(np.zeros((4, 3)), 1, sigma=0.0), "sigma"),
        (lambda: normalize_cloud(np.zeros((4, 3)), "box"), "mode"),
        (lambda: soft_labels(np.zeros((4, 3)), [2, 0, 0, 0]), "part"),
        (lambda: spatial_loss(torch.zeros(1, 4), torch.zeros(1, 3, 2).long(), torch.zeros(1, 3, 2)), "index"),
        (lambda: spatial_loss(torch.zeros(1, 4), torch.zeros(1, 4, 2).long(), torch.zeros(1, 4, 2), mode="residual"),
         "target"),
        (lambda: spatial_loss(torch.zeros(1, 4), torch.zeros(1, 4, 2).long(), torch.zeros(1, 4, 2), mode="rough"),
         "mode"),
    ],
)  # fmt: skip
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
