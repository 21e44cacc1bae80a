"""Fixed steps, feed-forward, ACT and pruning: what each computes, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.baselines import ACT, ACT_EPS, FeedForward, FixedStepsRCNN, prune
from steelyard.nets.lattice.inference import EntropyThreshold, stop_early
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.torch_nn import LatticeRCNN


def images(count: int = 5, size: int = 8) -> torch.Tensor:
    return torch.rand((count, 1, size, size), generator=torch.Generator().manual_seed(0))


def test_fixed_steps_answer_after_the_last_step():
    model = FixedStepsRCNN(1, 4, 3, 2, 5, seed=0)
    x = images()
    output = model(x)
    torch.testing.assert_close(output.logits, functional.log_softmax(output.step_logits[:, -1], dim=-1))
    assert output.expected_time.tolist() == [5.0] * 5
    assert not any(parameter.requires_grad for parameter in model.halting_parameters())
    run = stop_early(model, x)
    assert run.steps.tolist() == [5] * 5
    torch.testing.assert_close(run.logits, output.logits, rtol=1e-4, atol=1e-5)


def test_fixed_steps_start_from_the_weights_of_the_lattice():
    ours, theirs = (kind(1, 4, 3, 2, 5, seed=7) for kind in (FixedStepsRCNN, LatticeRCNN))
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(ours(images()).step_logits, theirs(images()).step_logits)


def test_feed_forward_by_hand():
    model = FeedForward(1, 4, 3, 2, seed=0)
    x = images()
    first = torch.relu(functional.conv2d(x, model.weights[0], model.biases[0], padding=1))
    second = torch.relu(functional.conv2d(first, model.weights[1], model.biases[1], padding=1))
    pooled = torch.cat([functional.adaptive_avg_pool2d(h, 2).flatten(1) for h in (first, second)], 1)
    wanted = 3.0 * pooled @ model.readout.t() + model.readout_bias
    output = model(x)
    torch.testing.assert_close(output.step_logits[:, 0], wanted)
    assert output.expected_time.tolist() == [1.0] * 5
    torch.testing.assert_close(output.p_time, torch.ones(5, 1))
    image, recurrent, readout = model.macs_per_step(8, 8)
    assert image == 9 * 64 * (1 * 3 + 3 * 3)
    assert recurrent == 0
    assert readout == 4 * 2 * 3 * 4
    assert model.macs_per_step(8, 8, active=(2, 1))[0] == 9 * 64 * (1 * 2 + 2 * 1)
    with pytest.raises(InputError, match="NaN"):
        model(x * torch.nan)


def test_act_by_hand():
    model = ACT(1, 4, 3, 2, 4, seed=0)
    with torch.no_grad():  # hazards .6, .3, .5: the sum passes .99 at the third step, which takes the rest
        model.halting_bias.copy_(torch.logit(torch.tensor([0.6, 0.3, 0.5])))
        model.halting_bound = None
    output = model(images(2))
    torch.testing.assert_close(output.p_time[0], torch.tensor([0.6, 0.3, 0.1, 0.0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(output.expected_time, torch.full((2,), 3 - 1 + 0.1))


def test_acts_price_moves_the_hazards_through_the_remainder():
    model = ACT(1, 4, 3, 2, 4, seed=0)
    model(images()).expected_time.sum().backward()
    assert bool((model.halting_bias.grad[:2] < 0).all())  # a larger hazard leaves less


@settings(max_examples=30)
@given(st.lists(st.floats(-6, 6), min_size=5, max_size=5), st.floats(0, 5))
def test_act_is_a_distribution_that_ends_where_the_sum_is_reached(biases, kappa):
    model = ACT(1, 4, 2, 1, 6, seed=0)
    with torch.no_grad():
        model.halting_bias.copy_(torch.tensor(biases))
        model.kappa.fill_(kappa)
    output = model(images(3))
    torch.testing.assert_close(output.p_time.sum(1), torch.ones(3))
    assert bool((output.p_time >= 0).all())
    steps = core.stopping_steps(output.p_time, "threshold", 1 - ACT_EPS)
    later = torch.arange(1, 7) > model._halting(output.step_logits)[1].unsqueeze(1)
    assert bool((output.p_time[later] < 1e-12).all())
    assert bool((steps <= model._halting(output.step_logits)[1]).all())


@pytest.mark.parametrize("call", [stop_early, lambda model, x: shrink(model)])
@pytest.mark.parametrize("model", [ACT(1, 4, 2, 2, 3), FeedForward(1, 4, 2, 2)])
def test_early_exit_and_removal_refuse_what_they_would_compute_otherwise(call, model):
    with pytest.raises(InputError, match=f"model is a {type(model).__name__}, which has its own"):
        call(model, images())


def test_an_entropy_threshold_needs_the_lattices_connections():
    x = images()
    act = ACT(1, 4, 2, 2, 3)
    assert EntropyThreshold(act, 0.0)(x).steps.tolist() == [3] * 5
    with pytest.raises(InputError, match="FeedForward, which has its own fan_in"):
        EntropyThreshold(FeedForward(1, 4, 2, 2), 0.5)
    with pytest.raises(InputError, match="must be a LatticeRCNN, not Linear"):
        stop_early(torch.nn.Linear(1, 1), x)


def trained(channels: int = 4) -> LatticeRCNN:
    return LatticeRCNN(1, 4, channels, 2, 4, seed=3)


@pytest.mark.parametrize("keep", [3, 5, 8])
def test_pruning_keeps_the_largest_and_answers_as_if_the_others_were_silent(keep):
    model, x = trained(), images()
    small = prune(model, keep)
    assert sum(small.widths) == keep
    norms = torch.cat(model.channel_squares()).detach()
    silent = norms.argsort(descending=True)[keep:]
    with torch.no_grad():
        for index in silent.tolist():
            layer, channel = divmod(index, 4)
            model.weights[layer][channel] = 0
            model.biases[layer][channel] = 0
    torch.testing.assert_close(small(x).step_logits, model(x).step_logits, rtol=1e-4, atol=1e-5)


def test_pruning_leaves_the_network_alone_and_refuses_the_impossible():
    model = trained()
    before = [weight.detach().clone() for weight in model.weights]
    prune(model, 4)
    assert all(torch.equal(a, b) for a, b in zip(before, model.weights, strict=True))
    for channels in (0, 9):
        with pytest.raises(InputError, match="channels must be between 1 and 8"):
            prune(model, channels)
