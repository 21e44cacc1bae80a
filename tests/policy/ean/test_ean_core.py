"""Gain, ranking, ablation and the bounded term against hand computation, bounds and gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from steelyard.errors import InputError
from steelyard.policy.ean.core import (
    ablate_evidence,
    bounded_negative_loss,
    image_information_gain,
    mixed_ranking,
    percentile_ranks,
    salient_patches,
)

logs = arrays(np.float64, (4, 3), elements=st.floats(-20, 0))


def test_gain_by_hand():
    seen, blind = [[-0.1, -0.3], [-1.0, -9.0]], [[-2.0, -1.0], [-1.0, -9.0]]
    found = image_information_gain(seen, blind, [[1, 1], [1, 0]])
    assert found.raw == pytest.approx([1.3, 0.0])
    assert found.blind_nll == pytest.approx([1.5, 1.0])
    assert found.scaled == pytest.approx([1.3 / 1.6, 0.0])


@given(logs, logs)
def test_the_scaled_gain_is_below_one(seen, blind):
    found = image_information_gain(seen, blind)
    assert (found.scaled < 1).all()
    assert found.raw == pytest.approx((seen - blind).mean(1))
    assert image_information_gain(seen, blind, scale="none").scaled == pytest.approx(found.raw)


@given(logs, logs)
def test_standard_scores_within_groups(seen, blind):
    groups = ["a", "b", "a", "b"]
    scaled = image_information_gain(seen, blind, scale="std", groups=groups).scaled
    for rows in ([0, 2], [1, 3]):
        assert scaled[rows].sum() == pytest.approx(0, abs=1e-6)


@given(arrays(np.float64, st.integers(1, 20), elements=st.floats(-5, 5)), st.floats(0, 1), st.floats(0.05, 1))
def test_ranking_keeps_the_share_that_it_is_told(scores, mix, keep):
    groups = [number % 3 for number in range(len(scores))]
    found = mixed_ranking(scores, groups, mix=mix, keep=keep)
    positive = int((scores > 0).sum())
    assert len(found.kept) == min(math.ceil(keep * len(scores)), positive)
    assert (scores[found.kept] > 0).all()
    assert (np.diff(found.score[found.kept]) <= 0).all()
    for group, share in found.group_share.items():
        rows = [row for row, own in enumerate(groups) if own == group]
        assert share == pytest.approx(np.isin(rows, found.kept).mean())


def test_ranks_by_hand():
    values = np.array([3.0, 1.0, 2.0, 7.0, 5.0])
    assert percentile_ranks(values, np.zeros(5, int)).tolist() == [0.5, 0.0, 0.25, 1.0, 0.75]
    assert percentile_ranks(values, np.array([0, 0, 0, 1, 2])).tolist() == [1.0, 0.0, 0.5, 1.0, 1.0]
    assert percentile_ranks(np.array([2.0, 2.0]), np.zeros(2, int)).tolist() == [0.0, 1.0], "ties by row"
    mixed = mixed_ranking(values, "xxxyz", mix=0.5, keep=0.6)
    assert mixed.score == pytest.approx([0.75, 0.0, 0.375, 1.0, 0.875])
    assert mixed.kept.tolist() == [3, 4, 0]


def test_mixing_decides_between_groups():
    scores = np.array([10.0, 9.0, 8.0, 7.0, 2.0, 1.0])
    groups = "aaaabb"
    assert mixed_ranking(scores, groups, mix=1.0).group_share == {"a": 0.75, "b": 0.0}
    assert mixed_ranking(scores, groups, mix=0.0).group_share == {"a": 0.5, "b": 0.5}


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_the_most_salient_patches_are_filled(kind):
    image = np.arange(4 * 6 * 3, dtype=np.float32).reshape(4, 6, 3)
    given_image = image if kind == "array" else torch.from_numpy(image.copy())
    found, masked = ablate_evidence(given_image, [0, 5, 1, 0, 9, 0], ratio=0.34, patch=2)
    assert masked.tolist() == [1, 4]
    found = np.asarray(found)
    mean = image.reshape(-1, 3).mean(0)
    assert np.allclose(found[:2, 2:4], mean)
    assert np.allclose(found[2:, 2:4], mean)
    assert np.array_equal(found[:, :2], image[:, :2])
    assert found.shape == image.shape
    assert np.array_equal(np.asarray(given_image), image), "the image itself stays"


def test_grey_images_and_given_fills():
    grey, _ = ablate_evidence(np.ones((4, 4)), [1, 0, 0, 0], patch=2, fill=7.0)
    assert grey[:2, :2].tolist() == [[7, 7], [7, 7]]
    colour, _ = ablate_evidence(np.ones((4, 4, 3)), [1, 0, 0, 0], patch=2, fill=[1.0, 2.0, 3.0])
    assert colour[0, 0].tolist() == [1, 2, 3]
    mean, _ = ablate_evidence(np.arange(16.0).reshape(4, 4), [0, 0, 0, 1], patch=2)
    assert mean[3, 3] == 7.5


def rows(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def test_the_probability_form_by_hand():
    logp = rows([[-1.0, -3.0], [-0.5, -9.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    loss = bounded_negative_loss(logp, mask)
    assert loss.item() == pytest.approx((math.exp(-2) + math.exp(-0.5)) / 2)
    loss.backward()
    p = math.exp(-2) / 2
    assert logp.grad[0].tolist() == pytest.approx([p / 2, p / 2]), "p times the gradient of the mean log p"
    assert logp.grad[1].tolist() == pytest.approx([math.exp(-0.5) / 2, 0.0])
    drawn = bounded_negative_loss(rows([[-1.0], [-2.0]]), torch.ones(2, 1), weights=torch.tensor([1.0, 0.0]),
                                  normalizer="drawn")  # fmt: skip
    assert drawn.item() == pytest.approx(math.exp(-1) / 2)


@given(st.lists(st.floats(-40, 0), min_size=1, max_size=6))
def test_bounds_of_the_forms(values):
    logp, mask = rows([[value] for value in values]), torch.ones(len(values), 1)
    assert 0 <= bounded_negative_loss(logp, mask).item() <= 1
    clip = bounded_negative_loss(logp, mask, form="clip", logp_old=torch.full_like(logp, -2.0)).item()
    assert 0.4 - 1e-9 <= clip <= 1.5 + 1e-9
    hinge = bounded_negative_loss(logp, mask, form="hinge", logp_ablated=torch.zeros_like(logp), cap=2.0, margin=1.0)
    assert 0 <= hinge.item() <= 2


@pytest.mark.parametrize(
    ("ratio", "value", "slope"), [(0.5, 0.4, 0.0), (1.0, 0.5, 0.5), (2.0, 1.0, 1.0), (9.0, 1.5, 0.0)]
)
def test_the_clipped_form_is_flat_outside(ratio, value, slope):
    logp = rows([[math.log(ratio) - 5.0]])
    loss = bounded_negative_loss(logp, torch.ones(1, 1), form="clip", logp_old=torch.tensor([[-5.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(value)
    assert logp.grad.item() == pytest.approx(slope)


def test_the_unbounded_form_grows_without_end():
    values = [bounded_negative_loss(rows([[-x]]), torch.ones(1, 1), form="unbounded").item() for x in (1.0, 1e-2, 1e-5)]
    assert values == sorted(values)
    assert values[-1] > 10


def test_no_negative_is_exactly_nothing():
    logp = rows([[-math.inf, -1.0]])
    loss = bounded_negative_loss(logp, torch.ones(1, 2), weights=torch.zeros(1))
    assert loss.item() == 0.0
    loss.backward()
    assert not logp.grad.nan_to_num().any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: image_information_gain([[0.5]], [[-1.0]]), "logp_image: answer 0"),
        (lambda: image_information_gain([[-1.0]], [[-1.0, -2.0]]), "logp_blank"),
        (lambda: image_information_gain([[-1.0]], [[-1.0]], [[0]]), "mask: answer 0 has no token"),
        (lambda: image_information_gain([[np.nan]], [[-1.0]]), "finite"),
        (lambda: image_information_gain([[-1.0]], [[-1.0]], scale="log"), "scale"),
        (lambda: image_information_gain([[-1.0]], [[-1.0]], c0=0.0), "c0"),
        (lambda: image_information_gain([[-1.0]], [[-1.0]], scale="std", groups=[[1]]), "hashable"),
        (lambda: mixed_ranking([1.0, np.inf], "ab"), "scores"),
        (lambda: mixed_ranking([1.0], "ab"), "groups"),
        (lambda: mixed_ranking([1.0], "a", keep=0.0), "keep"),
        (lambda: mixed_ranking([1.0], "a", mix=2.0), "mix"),
        (lambda: ablate_evidence(np.ones((5, 4)), [1.0], patch=2), "multiples"),
        (lambda: ablate_evidence(np.ones((4, 4)), [1.0] * 4, patch=2, fill="black"), "fill"),
        (lambda: salient_patches([0.0] * 4, 0.5, 4), "does not influence"),
        (lambda: salient_patches([1.0] * 4, 0.1, 4), "less than one"),
        (lambda: salient_patches([1.0] * 3, 0.5, 4), "3 values"),
        (lambda: salient_patches([np.nan] * 4, 0.5, 4), "finite"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.ones(1, 2)), "mask"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.zeros(1, 1)), "no token"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.ones(1, 1), form="log"), "form"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.ones(1, 1), form="clip"), "logp_old"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.ones(1, 1), form="hinge",
                                       logp_ablated=torch.zeros(1, 1)), "cap and margin"),
        (lambda: bounded_negative_loss(torch.zeros(1, 1), torch.ones(1, 1), weights=torch.tensor([2.0])), "weights"),
        (lambda: bounded_negative_loss(torch.full((1, 1), torch.nan), torch.ones(1, 1)), "logp_clean"),
    ],
)  # fmt: skip
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
