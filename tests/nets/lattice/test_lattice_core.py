import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from steelyard.errors import InputError
from steelyard.nets.lattice import core


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaf(seed, *shape):
    return normal(seed, *shape).requires_grad_()


# ------------------------------------------------------------------------------------------------------ halting

hazards = st.lists(st.floats(-30, 30), min_size=0, max_size=9)


@given(hazards)
def test_halting_probabilities_sum_to_one(z):
    p = core.adaptive_log_p(torch.tensor(z, dtype=torch.float64)).exp()
    assert p.shape == (len(z) + 1,)
    assert bool((p >= 0).all())
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert 1 <= float(core.expected_steps(p)) <= len(p) + 1e-9


@given(hazards, st.integers(0, 8), st.floats(-30, 30))
def test_halting_is_causal(z, when, other):
    """A hazard changes no probability of an earlier step."""
    if not z:
        return
    when %= len(z)
    changed = [*z[:when], other, *z[when + 1 :]]
    before = core.adaptive_log_p(torch.tensor(z, dtype=torch.float64))
    after = core.adaptive_log_p(torch.tensor(changed, dtype=torch.float64))
    assert torch.equal(before[:when], after[:when])


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_equal_hazards_give_a_truncated_geometric(rate, steps):
    z = torch.full((steps - 1,), math.log(rate / (1 - rate)), dtype=torch.float64)
    p = core.adaptive_log_p(z).exp()
    wanted = [rate * (1 - rate) ** t for t in range(steps - 1)] + [(1 - rate) ** (steps - 1)]
    assert p.numpy() == pytest.approx(np.array(wanted), abs=1e-12)
    assert float(core.expected_steps(p)) == pytest.approx((1 - (1 - rate) ** steps) / rate, rel=1e-9)


def test_fixed_halting_is_the_softmax_for_every_input():
    theta = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64)
    p = core.fixed_log_p(theta, 3).exp()
    assert p.numpy() == pytest.approx(np.array([[0.25, 0.75]] * 3))


def test_the_soft_clip_is_the_tanh_of_the_spec_and_none_is_the_identity():
    z = torch.tensor([-100.0, 0.0, 1.0, 100.0])
    assert core.bounded(z, 6.0).tolist() == pytest.approx([-6, 0, 6 * math.tanh(1 / 6), 6])
    assert core.bounded(z, None) is z


def test_hazard_logits_by_hand():
    """Uniform logits over 4 classes have entropy log 4, a certain readout has entropy 0."""
    logits = torch.zeros(1, 2, 4, dtype=torch.float64)
    logits[0, 1, 2] = 1e3
    bias = torch.tensor([0.5, -0.5], dtype=torch.float64)
    z = core.halting_logits(bias, torch.tensor(2.0, dtype=torch.float64), logits, bound=None)
    assert z.tolist()[0] == pytest.approx([0.5 + 2 * (1 - math.log(4)), -0.5 + 2.0])
    more = core.halting_logits(bias, torch.tensor(0.0), logits, torch.full((1, 2), 3.0), None)
    assert more.tolist()[0] == pytest.approx([3.5, 2.5])


def test_the_entropy_is_detached():
    logits = leaf(0, 2, 3, 5)
    kappa = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    core.halting_logits(torch.zeros(3, dtype=torch.float64), kappa, logits).sum().backward()
    assert logits.grad is None
    assert kappa.grad is not None


def test_the_mixture_by_hand():
    step_logits = torch.log(torch.tensor([[[0.2, 0.8], [0.6, 0.4]]], dtype=torch.float64)) + 7
    log_p = torch.log(torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    assert core.mixture_log_probs(step_logits, log_p).exp().tolist()[0] == pytest.approx([0.5, 0.5])


def test_gradients_of_the_halting_distribution():
    assert gradcheck(core.adaptive_log_p, (leaf(0, 3, 5),))
    assert gradcheck(lambda z: core.time_cost(core.adaptive_log_p(z).exp()), (leaf(1, 3, 5),))
    assert gradcheck(lambda theta: core.fixed_log_p(theta, 2), (leaf(2, 4),))
    assert gradcheck(lambda z: core.bounded(z, 6.0), (leaf(3, 4),))
    logits = normal(4, 2, 3, 5)
    assert gradcheck(lambda b, k: core.halting_logits(b, k, logits), (leaf(5, 3), leaf(6)))
    assert gradcheck(core.mixture_log_probs, (leaf(7, 2, 3, 4), leaf(8, 2, 3)))


# -------------------------------------------------------------------------------------------------------- costs


def layer_with_norms(norms):
    weight = torch.zeros(len(norms), 2, 3, 3, dtype=torch.float64)
    weight[:, 1, 1, 2] = torch.tensor(norms, dtype=torch.float64)
    return weight


def test_costs_by_hand():
    weights = [layer_with_norms([1.0, 3.0, 2.0]), layer_with_norms([5.0, 4.0])]
    assert float(core.breadth_cost(weights)) == pytest.approx((1 * 3 + 2 * 2 + 3 * 1) / 3 + (5 + 2 * 4) / 2)
    assert float(core.breadth_cost(weights, q=2)) == pytest.approx((1 * 9 + 2 * 4 + 3 * 1) / 3 + (25 + 2 * 16) / 2)
    assert float(core.depth_cost(weights)) == pytest.approx(0.5 * 6 + 1.0 * 9)
    assert float(core.depth_cost(weights, q=2)) == pytest.approx(0.5 * 14 + 1.0 * 41)
    assert float(core.breadth_cost(weights, weight="uniform")) == pytest.approx(15)
    assert float(core.depth_cost(weights, weight=lambda layer, n: (layer / n) ** 2)) == pytest.approx(0.25 * 6 + 9)
    assert float(core.breadth_cost(weights, weight=lambda r, n: r)) == pytest.approx(3 + 4 + 3 + 5 + 8)


norm_lists = st.lists(st.floats(0, 10).map(lambda v: round(v, 1)), min_size=1, max_size=8)


@given(norm_lists, st.randoms(use_true_random=False), st.sampled_from([1, 2]))
def test_permuting_channels_changes_neither_cost_and_permutes_the_gradient(norms, random, q):
    order = list(range(len(norms)))
    random.shuffle(order)
    weight = layer_with_norms(norms) + 0.01
    first, second = weight.clone().requires_grad_(), weight[order].clone().requires_grad_()
    for cost in (core.breadth_cost, core.depth_cost):
        a, b = cost([first], q), cost([second], q)
        assert a.item() == pytest.approx(b.item(), rel=1e-12)
        (grad_a,) = torch.autograd.grad(a, first)
        (grad_b,) = torch.autograd.grad(b, second)
        assert torch.allclose(grad_a[order], grad_b, atol=1e-12)


@given(norm_lists, st.floats(0.1, 5))
def test_costs_scale_with_the_norms(norms, factor):
    weight = layer_with_norms(norms)
    for q in (1, 2):
        one, scaled = core.breadth_cost([weight], q), core.breadth_cost([weight * factor], q)
        assert float(scaled) == pytest.approx(float(one) * factor**q, rel=1e-6, abs=1e-4)


@given(norm_lists)
def test_breadth_costs_at_most_its_uniform_and_at_least_its_mean_price(norms):
    """The small channels get the high prices, so sorting makes the sum the smallest of all orders."""
    weights = [layer_with_norms(norms)]
    ranked, uniform = float(core.breadth_cost(weights)), float(core.breadth_cost(weights, weight="uniform"))
    n = len(norms)
    assert ranked <= uniform * (n + 1) / (2 * n) + 1e-9


def test_tied_channels_pay_the_same():
    weight = layer_with_norms([2.0, 2.0]).requires_grad_()
    cost = core.breadth_cost([weight])
    cost.backward()
    assert float(cost) == pytest.approx((2 + 2 * 2) / 2)
    assert torch.equal(weight.grad[0], weight.grad[1])


def test_a_zero_norm_has_a_zero_gradient():
    weight = torch.zeros(3, 2, 3, 3, requires_grad=True)
    (core.breadth_cost([weight]) + core.depth_cost([weight])).backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


@pytest.mark.parametrize("q", [1, 2])
def test_gradients_of_the_costs_away_from_ties(q):
    weights = (leaf(0, 4, 2, 3, 3), leaf(1, 3, 7, 3, 3))
    assert gradcheck(lambda *w: core.breadth_cost(w, q), weights)
    assert gradcheck(lambda *w: core.depth_cost(w, q), weights)


def test_the_time_cost_by_hand():
    p = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]], dtype=torch.float64)
    assert float(core.time_cost(p)) == pytest.approx((1.75 + 3) / 2)
    assert float(core.time_cost(p[0])) == pytest.approx(1.75)


def test_the_divergence_from_a_geometric_prior():
    prior = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64) / 0.875
    assert float(core.geometric_divergence(prior.unsqueeze(0), 0.5)) == pytest.approx(0, abs=1e-12)
    certain = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    assert float(core.geometric_divergence(certain, 0.5)) == pytest.approx(-math.log(0.25 / 0.875))
    assert gradcheck(lambda z: core.geometric_divergence(core.adaptive_log_p(z).exp(), 0.3), (leaf(2, 3, 4),))


def test_the_task_losses_by_hand():
    probs = torch.tensor([[[0.2, 0.8], [0.6, 0.4]]], dtype=torch.float64)
    log_p = torch.log(torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    target = torch.tensor([1])
    steps = -(0.25 * math.log(0.8) + 0.75 * math.log(0.4))
    deep = -0.1 * (math.log(0.8) + math.log(0.4)) / 2
    assert float(core.task_loss(probs.log(), log_p, target)) == pytest.approx(steps + deep)
    assert float(core.task_loss(probs.log(), log_p, target, deep_supervision=0)) == pytest.approx(steps)
    mixture = core.task_loss(probs.log(), log_p, target, "mixture", 0.0)
    assert float(mixture) == pytest.approx(-math.log(0.25 * 0.8 + 0.75 * 0.4))
    for kind in ("steps", "mixture"):
        assert gradcheck(lambda y, p, kind=kind: core.task_loss(y, p, target, kind), (leaf(3, 1, 2, 2), leaf(4, 1, 2)))


# ----------------------------------------------------------------------------------------------------- stopping


def test_stopping_by_threshold():
    p = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    assert core.stopping_steps(p).tolist() == [2, 1, 3]
    assert core.stopping_steps(p, threshold=1.0).tolist() == [3, 3, 3]
    assert core.stopping_steps(torch.full((1, 6), 1 / 6)).tolist() == [3], "the median of a uniform distribution"


def test_the_first_step_that_is_not_gone_on_after():
    going = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])
    assert core.first_stop(going).tolist() == [2, 1, 4]


def test_stopping_by_draw_inverts_the_distribution():
    p = torch.tensor([[0.25, 0.25, 0.5]]).expand(5, 3)
    draws = torch.tensor([0.0, 0.24, 0.25, 0.49, 0.99])
    assert core.stopping_steps(p, "sample", draws=draws).tolist() == [1, 1, 2, 2, 3]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 100))
@settings(max_examples=30)
def test_drawn_steps_have_mean_expected_time(raw, seed):
    p = torch.tensor(raw, dtype=torch.float64)
    p = (p / p.sum()).expand(20_000, -1)
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean = float(core.stopping_steps(p, "sample", draws=draws).double().mean())
    assert mean == pytest.approx(float(core.expected_steps(p[0])), abs=6 * len(raw) / 2 / math.sqrt(20_000))


def test_stopped_answers():
    probs = torch.tensor([[[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]]], dtype=torch.float64)
    log_p = torch.log(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64))
    two = torch.tensor([2])
    sampled = core.stopped_logits(probs.log(), log_p, two, "sample").exp()
    mixed = core.stopped_logits(probs.log(), log_p, two).exp()
    assert sampled.tolist()[0] == pytest.approx([0.6, 0.4])
    assert mixed.tolist()[0] == pytest.approx([(0.2 * 0.2 + 0.3 * 0.6) / 0.5, (0.2 * 0.8 + 0.3 * 0.4) / 0.5])
    whole = core.stopped_logits(probs.log(), log_p, torch.tensor([3]))
    assert torch.allclose(whole, core.mixture_log_probs(probs.log(), log_p))


# ------------------------------------------------------------------------------------------------ multiply-adds


def test_multiply_adds_by_hand():
    sizes = core.layer_sizes(5, 7, (1, 2, 2))
    assert sizes == [(5, 7), (3, 4), (2, 2)]
    image, recurrent, readout = core.macs_per_step((2, 3, 4), sizes, 1, 60)
    assert image == 9 * 35 * 2
    assert recurrent == 9 * (35 * 2 * (2 + 3) + 12 * 3 * (2 + 3 + 4) + 4 * 4 * (3 + 4))
    assert core.total_macs((image, recurrent, readout), torch.tensor([1, 3])).tolist() == [
        image + 60,
        image + 2 * recurrent + 180,
    ]


# ---------------------------------------------------------------------------------------------------- occlusion


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 1000))
def test_an_occluder_is_one_square_of_its_size(sizes, seed):
    x = torch.full((len(sizes), 2, 6, 8), 0.1)
    before = x.clone()
    y = core.occlude(x, sizes, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(x, before)
    for image, size in zip(y, sizes, strict=True):
        covered = image == 0.5
        assert torch.equal(covered[0], covered[1])
        rows, columns = covered[0].any(1), covered[0].any(0)
        assert int(covered[0].sum()) == size**2
        assert int(rows.sum()) == int(columns.sum()) == size


def test_all_positions_of_an_occluder_are_equally_likely():
    y = core.occlude(torch.zeros(9_000, 1, 4, 4), 2, fill=1.0, generator=torch.Generator().manual_seed(0))
    corner = (y[:, 0] * torch.arange(16, 0, -1).view(4, 4)).flatten(1).argmax(1)
    counts = torch.bincount(corner, minlength=16)
    assert int((counts > 0).sum()) == 9
    assert counts[counts > 0].tolist() == pytest.approx([1000] * 9, abs=150)


def test_one_position_for_the_whole_batch():
    y = core.occlude(torch.zeros(5, 1, 6, 6), 3, per_sample=False)
    assert all(torch.equal(y[0], image) for image in y)
    assert int((y[0] == 0.5).sum()) == 9
    assert torch.equal(y, core.occlude(torch.zeros(5, 1, 6, 6), 3, per_sample=False)), "no generator means seed 0"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [4, 16])
def test_time_of_halting_distributions_in_half_precision(dtype, steps):
    z = torch.randn(200, steps - 1, generator=torch.Generator().manual_seed(0))
    p = core.adaptive_log_p(z.to(dtype)).exp()
    assert float(core.time_cost(p)) == pytest.approx(float(core.expected_steps(p.float()).mean()), rel=0.02)
    with pytest.raises(InputError, match="p must"):
        core.time_cost(p * 0.9)


IMAGES = torch.zeros(2, 1, 4, 6)
LAYER = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: core.occlude(IMAGES, 5), "size"),
        (lambda: core.occlude(IMAGES, -1), "size"),
        (lambda: core.occlude(IMAGES, [1, 2, 3]), "size"),
        (lambda: core.occlude(IMAGES, torch.tensor([0, 9])), "size"),
        (lambda: core.occlude(IMAGES, 1.5), "size"),
        (lambda: core.occlude(IMAGES, [1, 2], per_sample=False), "size"),
        (lambda: core.occlude(IMAGES, 1, fill=math.nan), "fill"),
        (lambda: core.occlude(IMAGES[0], 1), "x"),
        (lambda: core.time_cost(torch.tensor([0.5, 0.4])), "p"),
        (lambda: core.time_cost(torch.tensor([1.5, -0.5])), "p"),
        (lambda: core.time_cost(torch.tensor([math.nan, 1.0])), "p"),
        (lambda: core.time_cost(torch.tensor([1])), "p"),
        (lambda: core.breadth_cost([]), "weights"),
        (lambda: core.breadth_cost([LAYER, torch.ones(3)]), "weights[1]"),
        (lambda: core.depth_cost([torch.ones(2, 0)]), "weights[0]"),
        (lambda: core.breadth_cost([LAYER], q=3), "q"),
        (lambda: core.breadth_cost([LAYER], weight="steep"), "weight"),
        (lambda: core.breadth_cost([LAYER], weight=lambda r, n: 1.0), "weight"),
        (lambda: core.geometric_divergence(torch.ones(1, 1), 1.0), "rate"),
        (lambda: core.stopping_steps(torch.ones(1, 1), "median"), "rule"),
        (lambda: core.stopping_steps(torch.ones(1, 1), threshold=0.0), "threshold"),
        (lambda: core.stopping_steps(torch.ones(2, 1), "sample", draws=torch.ones(1)), "draws"),
        (lambda: core.task_loss(torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.tensor([0]), "hinge"), "task loss"),
        (lambda: core.occlude(IMAGES, None), "size"),
        (lambda: core.occlude(IMAGES, "2"), "size"),
        (lambda: core.occlude(IMAGES, 1 + 0j), "size"),
        (lambda: core.occlude(IMAGES, 1, fill=None), "fill"),
        (lambda: core.occlude(IMAGES, 1, generator=5), "generator"),
        (lambda: core.occlude(IMAGES.to_sparse(), 1), "x"),
        (lambda: core.occlude([[1.0]], 1), "x"),
        (lambda: core.time_cost([0.5, 0.5]), "p must be a floating tensor"),
        (lambda: core.breadth_cost(LAYER for _ in range(2)), "weights"),
        (lambda: core.depth_cost(None), "weights"),
        (lambda: core.geometric_divergence(torch.ones(1, 1), "a"), "rate"),
        (lambda: core.stopping_steps(torch.ones(1, 1), threshold=None), "threshold"),
    ],
)
def test_bad_input_is_one_sentence(call, names):
    with pytest.raises(InputError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
