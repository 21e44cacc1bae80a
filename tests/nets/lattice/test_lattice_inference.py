import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lattice_toys import images, stirred
from torch.utils.flop_counter import FlopCounterMode

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.inference import EntropyThreshold, stop_early
from steelyard.nets.lattice.torch_nn import LatticeRCNN

KINDS = [
    {"time": "adaptive"},
    {"time": "adaptive", "state_term": True, "halting_bound": None},
    {"time": "fixed"},
    {"time": "adaptive", "stride": [1, 2, 1]},
]


def stopping(seed=0, steps=6, **kwargs):
    """A network that stops at all kinds of steps."""
    return stirred(1, 5, 4, 3, steps, seed=seed, halting_start=-0.5, **kwargs)


def draws(count, seed):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9, 1.0])
def test_early_exit_answers_as_the_full_run_stopped_there(kind, threshold):
    net = stopping(**kind)
    x = images(40)
    with torch.no_grad():
        full = net(x)
    steps = core.stopping_steps(full.p_time, threshold=threshold)
    result = stop_early(net, x, threshold=threshold)
    assert torch.equal(result.steps, steps)
    assert torch.allclose(result.logits, core.stopped_logits(full.step_logits, full.log_p_time, steps), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_exit_answers_with_the_readout_of_its_step(kind):
    net = stopping(**kind)
    x = images(40)
    with torch.no_grad():
        full = net(x)
    steps = core.stopping_steps(full.p_time, "sample", draws=draws(40, 3))
    result = stop_early(net, x, "sample", generator=torch.Generator().manual_seed(3))
    assert len(steps.unique()) > 2
    assert torch.equal(result.steps, steps)
    wanted = core.stopped_logits(full.step_logits, full.log_p_time, steps, "sample")
    assert torch.allclose(result.logits, wanted, atol=1e-5)


@pytest.mark.parametrize("time", ["adaptive", "fixed"])
def test_executed_steps_equal_expected_time_under_sampling(time):
    """Ten draws over 2,000 images: within 2 %."""
    net = stopping(time=time, steps=8)
    x = images(2000, 6)
    with torch.no_grad():
        expected = float(net(x).expected_time.mean())
    means = [
        float(stop_early(net, x, "sample", generator=torch.Generator().manual_seed(draw)).steps.double().mean())
        for draw in range(10)
    ]
    assert sum(means) / 10 == pytest.approx(expected, rel=0.02)


@given(st.integers(1, 9), st.floats(0.05, 1.0), st.integers(0, 50))
@settings(max_examples=25)
def test_more_mass_never_stops_earlier(count, threshold, seed):
    net, x = stopping(seed=seed), images(count, seed=seed)
    less, more = stop_early(net, x, threshold=threshold / 2), stop_early(net, x, threshold=threshold)
    assert bool((less.steps <= more.steps).all())
    assert bool((less.macs <= more.macs).all())
    assert torch.allclose(more.logits.exp().sum(1), torch.ones(count), atol=1e-5)


@pytest.mark.parametrize("rule", ["threshold", "sample"])
def test_reported_macs_are_those_that_torch_counts(rule):
    """Rows that have stopped are really gone: torch's own counter sees the convolutions of the others only."""
    net = stirred(1, 5, [20, 21, 22], 3, 6, halting_start=-0.5, scale=0.05)
    x = images(30)
    with FlopCounterMode(display=False) as counter:
        result = stop_early(net, x, rule)
    assert len(result.steps.unique()) > 1
    assert int(result.macs.sum()) == counter.get_total_flops() / 2
    full = core.total_macs(net.macs_per_step(8, 8), torch.tensor(6))
    assert int(result.macs.sum()) < 30 * int(full)
    assert torch.equal(result.macs, core.total_macs(net.macs_per_step(8, 8), result.steps))


def test_a_batch_of_one_stops_where_it_stops_in_a_batch():
    net, x = stopping(), images(6)
    batch = stop_early(net, x)
    for row in range(6):
        one = stop_early(net, x[row : row + 1])
        assert one.steps.tolist() == batch.steps[row : row + 1].tolist()
        assert torch.allclose(one.logits[0], batch.logits[row], atol=1e-5)


def test_equal_generators_give_equal_draws_and_none_is_seed_zero():
    net, x = stopping(), images(30)
    first, second = (stop_early(net, x, "sample", generator=torch.Generator().manual_seed(s)).steps for s in (0, 5))
    assert torch.equal(first, stop_early(net, x, "sample").steps)
    assert not torch.equal(first, second)


def test_results_can_be_used_in_training_later():
    """They are ordinary tensors, though the run is in inference mode."""
    result = stop_early(stopping(), images(2))
    scale = torch.ones(1, requires_grad=True)
    (result.logits * scale).sum().backward()
    assert scale.grad is not None


@pytest.mark.parametrize("time", ["adaptive", "fixed"])
def test_the_entropy_threshold_stops_at_the_first_certain_step(time):
    net, x = stopping(time=time), images(40)
    with torch.no_grad():
        full = net(x)
    limit = float(core.entropy(full.step_logits).median())
    below = core.entropy(full.step_logits) < limit
    below[:, -1] = True
    steps = below.int().argmax(1) + 1
    result = EntropyThreshold(net, limit)(x)
    assert torch.equal(result.steps, steps)
    assert torch.allclose(
        result.logits, core.stopped_logits(full.step_logits, full.log_p_time, steps, "sample"), atol=1e-5
    )
    assert EntropyThreshold(net, 0.0)(x).steps.tolist() == [6] * 40
    assert EntropyThreshold(net, 9.0)(x).steps.tolist() == [1] * 40


def test_one_step_needs_no_hazard():
    net = LatticeRCNN(1, 3, 2, 1, 1)
    result = stop_early(net, images(3))
    assert result.steps.tolist() == [1, 1, 1]
    assert torch.allclose(result.logits, net(images(3)).logits, atol=1e-6)


NET = LatticeRCNN(1, 3, 2, 2, 3)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: stop_early(NET, images(1), "median"), "rule"),
        (lambda: stop_early(NET, images(1), threshold=0.0), "threshold"),
        (lambda: stop_early(NET, images(1), threshold=1.01), "threshold"),
        (lambda: stop_early(NET, images(1) * math.nan), "NaN"),
        (lambda: stop_early(NET, images(0)), "x"),
        (lambda: stop_early(NET, torch.tensor(1.0), "sample"), "x"),
        (lambda: stop_early(NET, None), "x"),
        (lambda: stop_early(NET, images(1), threshold=None), "threshold"),
        (lambda: stop_early(NET, images(1), "sample", generator=5), "generator"),
        (lambda: stop_early(NET, images(1), generator=5), "generator"),
        (lambda: EntropyThreshold(NET, -0.1), "threshold"),
        (lambda: EntropyThreshold(NET, None), "threshold"),
        (lambda: EntropyThreshold(NET, math.nan), "threshold"),
    ],
)
def test_bad_input_is_one_sentence(call, names):
    with pytest.raises(InputError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
