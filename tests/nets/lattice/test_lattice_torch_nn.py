import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lattice_toys import images, naive_readouts, naive_states, stirred
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from steelyard.errors import InputError
from steelyard.nets.lattice import core, kernels
from steelyard.nets.lattice.torch_nn import LatticeRCNN, ResourceCost

BOXES = [
    {"max_channels": 4, "max_layers": 3, "max_steps": 5},
    {"max_channels": [3, 5], "max_layers": 2, "max_steps": 4},
    {"max_channels": 4, "max_layers": 1, "max_steps": 3},
    {"max_channels": [20, 21, 22], "max_layers": 3, "max_steps": 4},  # one convolution per layer
    {"max_channels": 4, "max_layers": 3, "max_steps": 5, "stride": [1, 2, 1]},
    {"max_channels": [4, 3], "max_layers": 2, "max_steps": 4, "stride": 2, "pool": 1},
]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("size", [8, 9])
def test_fused_steps_equal_the_formula(box, size):
    net = stirred(2, 5, time="fixed", **box).double()
    x = images(3, size, 2, dtype=torch.float64)
    output = net(x)
    assert torch.allclose(output.step_logits, naive_readouts(net, x), atol=1e-10)


@pytest.mark.parametrize("box", BOXES)
def test_gradients_equal_those_of_the_formula(box):
    net = stirred(1, 4, time="fixed", **box).double()
    x = images(3, 8, dtype=torch.float64)
    weight = torch.randn(3, box["max_steps"], 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    parameters = [p for name, p in net.named_parameters() if name != "theta"]
    ours = torch.autograd.grad((net(x).step_logits * weight).sum(), parameters)
    wanted = torch.autograd.grad((naive_readouts(net, x) * weight).sum(), parameters)
    assert all(torch.allclose(a, b, atol=1e-9) for a, b in zip(ours, wanted, strict=True))


def test_a_layer_sees_the_image_from_its_own_number_on():
    net = stirred(1, 3, 4, 3, 5)
    first, second = naive_states(net, images(2, seed=1)), naive_states(net, images(2, seed=2))
    for step in range(5):
        for layer in range(3):
            same = torch.equal(first[step][layer], second[step][layer])
            assert same == (step < layer), f"layer {layer + 1} at step {step + 1}"


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.sampled_from(["adaptive", "fixed"]), st.integers(0, 9)
)
@settings(max_examples=25)
def test_output_is_a_distribution_over_steps_and_classes(channels, layers, extra, time, seed):
    net = stirred(1, 3, channels, layers, layers + extra, time=time, seed=seed, state_term=time == "adaptive")
    output = net(images(2, 6, seed=seed))
    assert torch.allclose(output.p_time.sum(1), torch.ones(2), atol=1e-6)
    assert torch.allclose(output.logits.exp().sum(1), torch.ones(2), atol=1e-5)
    assert bool((output.expected_time >= 1 - 1e-5).all())
    assert bool((output.expected_time <= layers + extra + 1e-4).all())
    assert torch.allclose(output.log_p_time.exp(), output.p_time)


def test_adaptive_time_differs_between_inputs_and_fixed_does_not():
    x = images(6)
    adaptive, fixed = (stirred(1, 5, 4, 2, 5, time=time)(x).expected_time for time in ("adaptive", "fixed"))
    assert float(adaptive.detach().std()) > 1e-3
    assert torch.equal(fixed, fixed[:1].expand(6))


def test_hazards_by_the_formula():
    net = stirred(1, 5, 4, 2, 4, state_term=True).double()
    x = images(3, dtype=torch.float64)
    output = net(x)
    stay, wanted = torch.ones(3, dtype=torch.float64), []
    for t, state in enumerate(naive_states(net, x)[:-1]):
        pooled = torch.cat([nn.functional.adaptive_avg_pool2d(h, 2).flatten(1) for h in state], 1)
        z = net.halting_bias[t] + net.kappa * (1 - core.entropy(output.step_logits[:, t])) + pooled @ net.halting_state
        hazard = torch.sigmoid(6 * torch.tanh(z / 6))
        wanted.append(stay * hazard)
        stay = stay * (1 - hazard)
    assert torch.allclose(output.p_time, torch.stack([*wanted, stay], 1), atol=1e-10)


def test_a_batch_of_one_equals_the_row_of_a_batch():
    net = stirred(1, 5, 4, 3, 5)
    x = images(4)
    whole = net(x)
    one = net(x[2:3])
    assert torch.allclose(one.logits, whole.logits[2:3], atol=1e-5)
    assert torch.allclose(one.expected_time, whole.expected_time[2:3], atol=1e-5)


def test_the_start_is_the_recipe():
    net = LatticeRCNN(1, 10, 64, 2, 6, halting_start=-2.0)
    assert net.halting_bias.tolist() == [-2.0] * 5
    assert net.kappa.item() == 0
    assert {len(net.halting_parameters())} == {2}
    below, own, above = torch.split(net.weights[0], list(net.fan_in(0)), 1)
    ratio = float(own.std() * math.sqrt(own.shape[1]) / (below.std() * math.sqrt(below.shape[1])))
    assert ratio == pytest.approx(0.5, abs=0.05), "lateral weights start at half"
    assert float(above.std() / own.std()) == pytest.approx(1.0, abs=0.1)
    assert len(LatticeRCNN(1, 10, 4, 2, 6, "fixed").halting_parameters()) == 1
    assert len(LatticeRCNN(1, 10, 4, 2, 6, state_term=True).halting_parameters()) == 3


def test_seeds_and_generators():
    first, again, other = (LatticeRCNN(1, 3, 4, 2, 3, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["readout"], other["readout"])
    drawn = LatticeRCNN(1, 3, 4, 2, 3, seed=torch.Generator().manual_seed(7)).state_dict()
    assert not torch.equal(first["readout"], drawn["readout"])


def test_state_dict_round_trip():
    net = stirred(1, 5, [3, 4], 2, 4)
    copied = LatticeRCNN(1, 5, [3, 4], 2, 4, seed=9)
    copied.load_state_dict(net.state_dict())
    assert torch.equal(copied(images(3)).logits, net(images(3)).logits)


@pytest.mark.parametrize("box", BOXES)
def test_channel_norms_are_those_of_incoming_weights_and_readout(box):
    net = stirred(2, 5, **box)
    for layer, (plain, full) in enumerate(zip(net.channel_squares(False), net.channel_squares(), strict=True)):
        for c in range(net.widths[layer]):
            start = (sum(net.widths[:layer]) + c) * net.pool**2
            columns = net.readout[:, start : start + net.pool**2]
            own = float(net.weights[layer][c].square().sum())
            assert float(plain[c]) == pytest.approx(own, rel=1e-5)
            assert float(full[c]) == pytest.approx(own + float(columns.square().sum()), rel=1e-5)


# ------------------------------------------------------------------------------------------------ multiply-adds


@pytest.mark.parametrize("box", BOXES[3:])
def test_the_counting_rule_equals_torchs_own_count(box):
    """torch's flop counter (2 flops a multiply-add) sees each convolution and matrix product of the forward pass."""
    net = stirred(2, 5, time="fixed", **box)
    x = images(3, 8, 2)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(x)
    counted = counter.get_total_flops() / 2 / len(x)
    assert int(core.total_macs(net.macs_per_step(8, 8), torch.tensor(net.max_steps))) == counted


def test_the_dense_kernel_multiplies_structural_zeros_that_the_rule_leaves_out():
    net = stirred(1, 5, 4, 3, 5, time="fixed")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(images(1))
    image, recurrent, readout = net.macs_per_step(8, 8)
    assert counter.get_total_flops() / 2 == image + 4 * recurrent * 9 / 7 + 5 * readout, "9 blocks instead of 7 edges"


def test_active_channels_count():
    net = LatticeRCNN(1, 5, 4, 2, 3)
    assert net.macs_per_step(8, 8, (2, 0)) == (9 * 64 * 2, 9 * 64 * 2 * 2, 5 * 2 * 4)


# --------------------------------------------------------------------------------------------------------- cost


def test_zero_prices_leave_loss_and_gradients_bit_for_bit():
    x, y = images(4), torch.tensor([0, 1, 2, 1])
    grads = []
    for priced in (False, True):
        net = stirred(1, 3, 4, 2, 4)
        output = net(x)
        loss = core.task_loss(output.step_logits, output.log_p_time, y)
        if priced:
            loss = loss + torch.stack(list(ResourceCost()(net, output, 0.7).values())).sum()
        loss.backward()
        grads.append([loss.detach(), *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_terms_are_the_weighted_costs():
    net = stirred(1, 3, [3, 4], 2, 4)
    output = net(images(4))
    terms = ResourceCost(0.1, 0.2, 0.3, readout_in_norms=False, readout_decay=0.4)(net, output)
    weights = list(net.weights)
    assert float(terms["breadth"]) == pytest.approx(0.1 * float(core.breadth_cost(weights)), rel=1e-5)
    assert float(terms["depth"]) == pytest.approx(0.2 * float(core.depth_cost(weights)), rel=1e-5)
    assert float(terms["time"]) == pytest.approx(0.3 * float(core.time_cost(output.p_time)), rel=1e-5)
    assert float(terms["readout"]) == pytest.approx(0.4 * float(net.readout.square().sum()), rel=1e-5)
    with_readout = ResourceCost(0.1)(net, output)
    assert float(with_readout["breadth"]) > float(terms["breadth"])
    powers = core.norm_powers(net.channel_squares(), 2)
    squared = ResourceCost(0.1, 0.1, q=2, breadth_weight="uniform", depth_weight=lambda layer, n: layer * 0 + 1)(
        net, output
    )
    assert float(squared["breadth"]) == pytest.approx(0.1 * sum(float(power.sum()) for power in powers), rel=1e-5)
    assert float(squared["depth"]) == pytest.approx(float(squared["breadth"]), rel=1e-5)
    prior = ResourceCost(time=0.5, time_prior=0.2)(net, output)
    assert float(prior["time"]) == pytest.approx(0.5 * float(core.geometric_divergence(output.p_time, 0.2)), rel=1e-5)


def test_the_ramp_is_linear_and_then_flat():
    net = stirred(1, 3, 4, 2, 4)
    output = net(images(2))
    time = [float(ResourceCost(time=1.0, ramp=0.4)(net, output, p)["time"]) for p in (0, 0.1, 0.2, 0.4, 1.0)]
    full = float(output.expected_time.mean())
    assert time == pytest.approx([0, full / 4, full / 2, full, full], rel=1e-6)
    assert float(ResourceCost(time=1.0, ramp=0)(net, output, 0.0)["time"]) == pytest.approx(full)


class Costed(nn.Module):
    def __init__(self, net, cost):
        super().__init__()
        self.net, self.cost = net, cost

    def forward(self, x):
        return torch.stack(list(self.cost(self.net, self.net(x)).values())).sum()


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("time", ["adaptive", "fixed"])
def test_the_cost_of_a_network_has_the_right_gradient(q, time):
    """kappa = 0: elsewhere the detached entropy makes the gradient differ from the slope, which is meant."""
    net = stirred(1, 3, 2, 2, 3, time=time, pool=1, kappa=0.0, state_term=time == "adaptive").double()
    costed = Costed(net, ResourceCost(0.1, 0.2, 0.3, q=q, readout_decay=0.1))
    x = images(2, 4, dtype=torch.float64)
    names = [name for name, _ in costed.named_parameters()]

    def total(*values):
        return torch.func.functional_call(costed, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(total, tuple(p.detach().clone().requires_grad_() for p in costed.parameters()))


# ------------------------------------------------------------------------------------------------------- errors


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))


NET = LatticeRCNN(1, 3, 2, 2, 3)


def cost_of(model, progress=1.0, **prices):
    return ResourceCost(**prices)(model, NET(images(1)), progress)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: LatticeRCNN(0, 3, 2, 2, 3), "in_channels"),
        (lambda: LatticeRCNN(1, 1, 2, 2, 3), "n_classes"),
        (lambda: LatticeRCNN(1, 3, 0, 2, 3), "max_channels"),
        (lambda: LatticeRCNN(1, 3, [2, 2, 2], 2, 3), "max_channels"),
        (lambda: LatticeRCNN(1, 3, [2, 2.5], 2, 3), "max_channels"),
        (lambda: LatticeRCNN(1, 3, 2.5, 2, 3), "max_channels"),
        (lambda: LatticeRCNN(1, 3, "22", 2, 3), "max_channels"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, stride=1.5), "stride"),
        (lambda: LatticeRCNN(1, 3, 2, 2, "3"), "max_steps"),
        (lambda: LatticeRCNN(1, 3, 2, 0, 3), "max_layers"),
        (lambda: LatticeRCNN(1, 3, 2, True, 3), "max_layers"),
        (lambda: LatticeRCNN(1, 3, 2, 4, 3), "max_steps"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, "random"), "time"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, pool=0), "pool"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, stride=0), "stride"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, stride=[1]), "stride"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, halting_bound=-1.0), "halting_bound"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, halting_start=math.nan), "halting_start"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, readout_scale=0.0), "readout_scale"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, input_range=(1.0, 0.0)), "input_range"),
        (lambda: NET(torch.zeros(0, 1, 8, 8)), "x"),
        (lambda: NET(torch.zeros(1, 8, 8)), "x"),
        (lambda: NET(torch.zeros(1, 1, 8, 8, dtype=torch.int64)), "x"),
        (lambda: NET([[1.0]]), "x"),
        (lambda: NET(torch.zeros(1, 2, 8, 8)), "in_channels"),
        (lambda: NET(torch.zeros(1, 1, 8, 8, dtype=torch.float64)), "x is torch.float64"),
        (lambda: NET(torch.zeros(1, 1, 1, 8)), "pool"),
        (lambda: NET(torch.zeros(1, 1, 0, 8)), "x"),
        (lambda: NET(torch.full((1, 1, 8, 8), math.nan)), "NaN"),
        (lambda: NET(torch.full((1, 1, 8, 8), math.inf)), "NaN or infinite"),
        (lambda: NET(torch.full((1, 1, 8, 8), 1.5)), "input_range"),
        (lambda: NET(torch.full((1, 1, 8, 8), -0.5)), "input_range"),
        (lambda: ResourceCost(breadth=-1.0), "breadth"),
        (lambda: ResourceCost(depth=math.nan), "depth"),
        (lambda: ResourceCost(time=math.inf), "time"),
        (lambda: ResourceCost(q=3), "q"),
        (lambda: ResourceCost(ramp=1.5), "ramp"),
        (lambda: ResourceCost(time_prior=1.0), "time_prior"),
        (lambda: ResourceCost(breadth_weight="steep"), "weight"),
        (lambda: cost_of(Normed(), breadth=0.1), "batch norm 'inner.1'"),
        (lambda: cost_of(nn.Linear(2, 2), breadth=0.1), "LatticeRCNN"),
        (lambda: cost_of(NET, progress=1.1), "progress"),
        (lambda: cost_of(NET, progress=None), "progress"),
        (lambda: NET(torch.zeros(1, 1, 8, 8).to_sparse()), "x must be a dense"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, input_range=5), "input_range"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, input_range=(0,)), "input_range"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, input_range=("a", "b")), "input_range"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, halting_bound="a"), "halting_bound"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, halting_start=None), "halting_start"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, readout_scale="a"), "readout_scale"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, seed=None), "seed"),
        (lambda: LatticeRCNN(1, 3, 2, 2, 3, seed=1.5), "seed"),
        (lambda: ResourceCost(breadth="a"), "breadth"),
        (lambda: ResourceCost(breadth=None), "breadth"),
        (lambda: ResourceCost(ramp=None), "ramp"),
        (lambda: ResourceCost(time_prior="a"), "time_prior"),
    ],
)
def test_bad_input_is_one_sentence(call, names):
    with pytest.raises(InputError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_numpys_whole_numbers_are_whole_numbers():
    one, two, three = np.arange(1, 4)
    net = LatticeRCNN(one, three, np.array([2, 3]), two, three, pool=two, stride=one)
    assert (net.widths, net.n_classes, net.max_steps) == ((2, 3), 3, 3)
    assert type(net.n_classes) is type(net.widths[0]) is int


def test_other_ranges_are_an_opt_in():
    x = images(1) * 2 - 1
    assert LatticeRCNN(1, 3, 2, 2, 3, input_range=(-1.0, 1.0))(x).logits.shape == (1, 3)
    assert LatticeRCNN(1, 3, 2, 2, 3, input_range=None)(x * 9).logits.shape == (1, 3)


def test_inside_data_parallel_the_cost_finds_the_network():
    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    assert float(cost_of(Wrapped(NET), breadth=0.1)["breadth"]) > 0


def test_the_faster_kernel_is_chosen():
    x = images(1)
    weights = [torch.zeros(4, 1 + 4 + 4, 3, 3), torch.zeros(4, 8, 3, 3)]
    biases = [torch.zeros(4), torch.zeros(4)]
    assert isinstance(kernels.make_kernel(x, weights, biases, (1, 1)), kernels.DenseKernel)
    assert isinstance(kernels.make_kernel(x, weights, biases, (1, 2)), kernels.LayerKernel)
