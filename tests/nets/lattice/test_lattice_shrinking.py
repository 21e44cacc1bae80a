import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lattice_toys import images, stirred

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.resources import BoxWarning, box_check, used_resources
from steelyard.nets.lattice.shrinking import shrink
from steelyard.nets.lattice.torch_nn import LatticeRCNN


def close(small, model, x, atol=1e-10):
    a, b = small(x), model(x)
    steps = small.max_steps
    return torch.allclose(a.logits, b.logits, atol=atol) and torch.allclose(a.p_time, b.p_time[:, :steps], atol=atol)


def kill(net, layer, channel, bias=-0.3):
    """Zero a channel's incoming weights."""
    with torch.no_grad():
        net.weights[layer][channel] = 0
        net.biases[layer][channel] = bias


def net_of(widths=(4, 5, 3), steps=5, seed=0, **kwargs):
    return stirred(1, 4, list(widths), len(widths), steps, seed=seed, **kwargs).double()


X = images(7, dtype=torch.float64)


@pytest.mark.parametrize("time", ["adaptive", "fixed"])
@pytest.mark.parametrize("stride", [None, [1, 2, 1]])
def test_dead_channels_go_and_the_answers_stay(time, stride):
    net = net_of(time=time, stride=stride)
    kill(net, 0, 1)
    kill(net, 1, 0)
    kill(net, 1, 4)
    small = shrink(net)
    assert small.widths == (3, 3, 3)
    assert close(small, net, X)
    per_step = [core.total_macs(n.macs_per_step(8, 8), torch.tensor(5)) for n in (small, net)]
    assert per_step[0] < per_step[1]
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(-1, 1)), max_size=8), st.booleans())
@settings(max_examples=40)
def test_whatever_dies_shrinking_at_zero_changes_no_answer(deaths, state_term):
    """Channels with a positive bias are constants, not silence: they stay, or move into the readout's bias."""
    net = net_of((3, 3, 3), state_term=state_term)
    for layer, channel, bias in deaths:
        if layer or channel:
            kill(net, layer, channel, bias)
    assert close(shrink(net), net, X)


def test_a_lonely_constant_moves_into_the_biases():
    net = net_of(state_term=True)
    kill(net, 2, 1, bias=0.7)
    with torch.no_grad():
        net.weights[2][:, 5 + 1] = 0  # lateral from it
        net.weights[1][:, 4 + 5 + 1] = 0  # top-down from it
    small = shrink(net)
    assert small.widths == (4, 5, 2)
    assert close(small, net, X)


def test_a_channel_that_nobody_reads_goes():
    net = net_of()
    with torch.no_grad():
        net.readout_by_channel()[2][0] = 0
        net.weights[2][1:, 5 + 0] = 0
        net.weights[1][:, 4 + 5 + 0] = 0
    small = shrink(net)
    assert small.widths == (4, 5, 2), "its own lateral weight does not save it"
    assert close(small, net, X)


def test_dead_top_layers_go():
    net = net_of()
    for channel in range(3):
        kill(net, 2, channel)
    small = shrink(net)
    assert small.widths == (4, 5)
    assert close(small, net, X)


def test_a_dead_layer_takes_the_silent_layers_above_with_it():
    net = net_of()
    for channel in range(5):
        kill(net, 1, channel)
    with torch.no_grad():
        net.biases[2].fill_(-0.1)
    small = shrink(net)
    assert small.widths == (4,)
    assert close(small, net, X)


def test_a_dead_layer_below_one_that_lives_on_its_biases_keeps_one_silent_channel():
    net = net_of()
    for channel in range(5):
        kill(net, 1, channel)
    with torch.no_grad():
        net.biases[2].fill_(0.5)
    small = shrink(net)
    assert small.widths == (4, 1, 3)
    assert close(small, net, X)


def test_steps_without_mass_go():
    fixed = net_of(time="fixed")
    with torch.no_grad():
        fixed.theta[3:] = -torch.inf
    small = shrink(fixed)
    assert small.max_steps == 3
    assert close(small, fixed, X)
    certain = net_of(halting_bound=None, kappa=0.0)
    with torch.no_grad():
        certain.halting_bias[3] = 1e4
    small = shrink(certain)
    assert small.max_steps == 4
    assert close(small, certain, X)
    assert shrink(certain, images=X).max_steps == 4


def test_at_least_one_step_per_layer_stays():
    net = net_of(time="fixed")
    with torch.no_grad():
        net.theta[1:] = -torch.inf
    assert shrink(net).max_steps == 3
    assert close(shrink(net), net, X)


def test_a_bound_for_every_image_is_no_smaller_than_the_measured_mass():
    net = net_of(steps=8, halting_start=1.0)
    for threshold in (0.3, 0.1, 0.03):
        measured, bound = shrink(net, threshold, X).max_steps, shrink(net, threshold).max_steps
        assert measured <= bound
    assert shrink(net_of(steps=8, halting_start=1.0, state_term=True), 0.1).max_steps == 8, "its bound is sigmoid(-6)"


def test_nearly_dead_channels_go_at_a_threshold_and_the_answers_stay_close():
    net = net_of()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer, channel, bias in ((0, 1, -0.2), (1, 2, 0.02), (2, 0, 0.01)):
            weight = net.weights[layer][channel]
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 1e-4)
            net.biases[layer][channel] = bias
            net.readout_by_channel()[layer][channel] *= 1e-3
    assert shrink(net).widths == (4, 5, 3)
    small = shrink(net, 0.01)
    assert small.widths == (3, 4, 2)
    assert float((small(X).logits.exp() - net(X).logits.exp()).abs().max()) < 0.02
    alone = shrink(net, 0.01, readout=False)
    assert alone.widths == (3, 4, 2)


def test_the_model_is_not_changed_and_keeps_its_mode():
    net = net_of().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    small = shrink(net, 0.3)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not small.training
    assert small.readout.dtype == torch.float64
    assert all(p.requires_grad for p in small.parameters())


# ----------------------------------------------------------------------------------------------- used resources


def sized(*norms, **kwargs):
    """A network whose channels have these norms, all in the weights."""
    net = LatticeRCNN(1, 4, [len(layer) for layer in norms], len(norms), 4, **kwargs)
    with torch.no_grad():
        net.readout.zero_()
        for weight, layer in zip(net.weights, norms, strict=True):
            weight.zero_()
            weight[:, 0, 1, 1] = torch.tensor(layer)
    return net


def test_used_resources_by_hand():
    net = sized([4.0, 3.0, 0.1], [2.0, 0.2], [0.15], time="fixed")
    used = used_resources(net)
    assert used.breadth == (2, 1, 0)
    assert used.depth == 2
    assert used.norms == pytest.approx((7.1, 2.2, 0.15))
    assert used.participation == pytest.approx((7.1**2 / 25.01, 2.2**2 / 4.04, 1.0))
    assert used.depth_centre == pytest.approx((7.1 + 2 * 2.2 + 3 * 0.15) / 9.45)
    assert used.expected_time == pytest.approx(2.5)
    assert used.macs is None
    assert used_resources(net, threshold=0.0).breadth == (3, 2, 1)
    measured = used_resources(net, images=images(3))
    assert measured.seconds > 0
    image, recurrent, readout = net.macs_per_step(8, 8, (2, 1, 0))
    assert measured.macs == pytest.approx(image + 1.5 * recurrent + 2.5 * readout)


def test_adaptive_time_is_measured_on_images_only():
    net = sized([4.0], [2.0])
    assert used_resources(net).expected_time is None
    assert used_resources(net, images=images(2)).expected_time == pytest.approx(
        float(net(images(2)).expected_time.detach().mean())
    )


def test_a_dead_layer_has_no_participation():
    used = used_resources(sized([4.0], [0.0]))
    assert used.participation == (1.0, 0.0)
    assert used.breadth == (1, 0)


def test_a_box_that_binds_warns():
    net = sized([4.0, 3.0], [2.0, 0.1], time="fixed")
    with pytest.warns(BoxWarning, match=r"channel carries 75%, the last layer carries 30%, the last step carries 25%"):
        check = box_check(net)
    assert check.channel == pytest.approx((0.75, 0.05))
    assert check.binding == ("channel", "layer", "step")


def test_a_box_with_room_is_quiet(recwarn):
    net = sized([4.0, 0.1], [0.1, 0.0], [0.0], time="fixed")
    with torch.no_grad():
        net.theta[-1] = -9.0
    check = box_check(net)
    assert check.binding == ()
    assert check.channel == pytest.approx((0.025, 0.0, 0.0))
    assert box_check(sized([4.0, 0.1], [0.1, 0.0])).step is None
    assert not recwarn.list


def dead():
    net = net_of()
    for channel in range(4):
        kill(net, 0, channel)
    return net


def hidden():
    """Layer 1 sees the image, but less than the threshold."""
    net = net_of()
    with torch.no_grad():
        net.weights[0] *= 1e-6
        for columns in net.readout_by_channel()[:1]:
            columns.zero_()
    return net


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: shrink(dead()), "layer 1 is dead"),
        (lambda: shrink(hidden(), 0.01), "layer 1 is dead"),
        (lambda: used_resources(dead()), "layer 1 is dead"),
        (lambda: box_check(dead()), "layer 1 is dead"),
        (lambda: shrink(net_of(), -0.1), "threshold"),
        (lambda: shrink(net_of(), 1.0), "threshold"),
        (lambda: shrink(net_of(), math.nan), "threshold"),
        (lambda: shrink(net_of(), None), "threshold"),
        (lambda: used_resources(net_of(), 1.0), "threshold"),
        (lambda: used_resources(net_of(), images=X * 3), "input_range"),
    ],
)
def test_bad_input_is_one_sentence(call, names):
    with pytest.raises(InputError) as caught:
        call()
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
