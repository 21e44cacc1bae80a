"""What a trained network is reduced to, against counts and correlations worked out by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.contracts import CellInput
from steelyard.nets.lattice import core, measure, tasks
from steelyard.nets.lattice.baselines import ACT, BLT, FeedForward, FixedStepsRCNN
from steelyard.nets.lattice.card import Config
from steelyard.nets.lattice.torch_nn import LatticeOutput, LatticeRCNN

CONFIG = Config(channels=3, layers=2, steps=4)


def parts(count: int = 40, size: int = 14) -> tasks.Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((2 * count, 1, size, size), generator=generator)
    y = torch.arange(2 * count) % 4
    return tasks.Split(x[:count], y[:count], x[count:], y[count:])


def cell(seed: int = 0) -> CellInput:
    return CellInput("digits", "time", {}, {}, {}, seed, {})


def made(kind: str = "lattice", config: Config = CONFIG) -> LatticeRCNN:
    return measure.network(config, kind, 1, 4, torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("lattice", LatticeRCNN),
        ("fixed_steps", FixedStepsRCNN),
        ("blt", BLT),
        ("act", ACT),
        ("feed_forward", FeedForward),
    ],
)
def test_networks_by_name_give_every_metric(kind, wanted):
    model = made(kind)
    assert type(model) is wanted
    metrics, curves = measure.measure(model, parts(), CONFIG, cell())
    assert all(math.isfinite(value) for value in metrics.values())
    assert {"accuracy", "macs", "steps", "time", "rise", "breadth_cost", "edge_step"} <= set(metrics)
    assert curves["breadth_by_layer"][0] == [1.0, 2.0]
    assert all(len(x) == len(y) for x, y in curves.values())


def test_equal_weights_whatever_the_kind():
    first, *others = (made(kind) for kind in ("lattice", "fixed_steps", "blt", "act"))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first.weights, other.weights, strict=True))
        assert torch.equal(first.readout, other.readout)


def test_every_field_of_the_config_reaches_network_or_costs():
    config = Config(
        channels=3, layers=2, steps=4, stride=2, pool=1, readout_scale=2.0, time_selection="fixed", halting_bound=None,
        halting_start=-2.0, breadth=0.1, depth=0.2, time=0.3, breadth_weight="uniform", q=2, depth_weight="uniform",
        time_prior=0.2, ramp=0.1, readout_in_norms=False, readout_decay=0.01,
    )  # fmt: skip
    model = made(config=config)
    assert (model.strides, model.pool, model.readout_scale, model.time) == ((2, 2), 1, 2.0, "fixed")
    adaptive = made(config=config.model_copy(update={"time_selection": "adaptive", "state_term": True}))
    assert (adaptive.halting_bound, adaptive.state_term) == (None, True)
    assert adaptive.halting_bias.tolist() == [-2.0] * 3
    cost = measure.prices(config)
    for name in ("breadth", "depth", "time", "q", "ramp", "breadth_weight", "depth_weight", "time_prior",
                 "readout_in_norms", "readout_decay"):  # fmt: skip
        assert getattr(cost, name) == getattr(config, name)


def test_feed_forward_multiply_adds_by_hand():
    split = parts()
    found = measure.deployed(made("feed_forward"), split, CONFIG)
    assert found["steps"] == 1.0
    assert found["macs"] == pytest.approx((9 * 196 * (3 + 9) + 4 * 6 * 4) / 1e6)


def test_fixed_steps_multiply_adds_by_hand():
    found = measure.deployed(made("fixed_steps"), parts(), CONFIG)
    recurrent = 9 * 196 * (3 * (3 + 3) + 3 * (3 + 3))
    assert found["steps"] == 4.0
    assert found["macs"] == pytest.approx((9 * 196 * 3 + 3 * recurrent + 4 * 4 * 6 * 4) / 1e6)


def test_deployment_executes_what_the_full_run_would_stop_at():
    split, model = parts(), made()
    found = measure.deployed(model, split, Config(channels=3, layers=2, steps=4, used_threshold=0.0))
    output = measure.look(model, split.test_x)
    steps = core.stopping_steps(output.p_time)
    answers = core.stopped_logits(output.step_logits, output.log_p_time, steps)
    assert found["steps"] == measure.mean(steps)
    assert found["accuracy"] == measure.percent(answers, split.test_y)


def test_sampling_takes_the_expected_time():
    split, model = parts(400), made()
    output = measure.look(model, split.test_x)
    found = measure.sampled(model, output, split, cell())
    assert found["steps_sampled"] == pytest.approx(measure.mean(output.expected_time), rel=0.02)
    image, recurrent, readout = model.macs_per_step(14, 14)
    steps = found["steps_sampled"]
    assert found["macs_sampled"] == pytest.approx((image + (steps - 1) * recurrent + steps * readout) / 1e6)


def test_occluders_grow_and_are_the_same_for_all_arms():
    metrics, curves = measure.under_occlusion(made(), parts(), CONFIG, cell())
    sizes, times = curves["time_by_occluder"]
    assert sizes == [0, 3, 5, 7, 8]
    assert metrics["rise"] == times[3] - times[0]
    assert metrics["rise_largest"] == times[4] - times[0]
    assert metrics["least_rise"] == pytest.approx(min(b - a for a, b in itertools.pairwise(times)))
    slope = scipy.stats.linregress([size / 14 for size in sizes], times).slope
    assert metrics["slope"] == pytest.approx(slope)
    again, _ = measure.under_occlusion(made(), parts(), CONFIG, cell())
    assert again == metrics


def test_digits_are_small_but_their_occluders_still_grow():
    sizes = [measure.pixels(parts(size=8), share) for share in measure.OCCLUDERS]
    assert sizes == [2, 3, 4, 5]


def test_a_fixed_time_does_not_rise():
    metrics, _ = measure.under_occlusion(made("fixed_steps"), parts(), CONFIG, cell())
    assert metrics["rise"] == metrics["least_rise"] == 0.0


def test_cost_terms_are_those_of_the_core_whatever_the_arm_pays():
    model = made()
    norms = [square.detach().sqrt() for square in model.channel_squares()]
    for config in (CONFIG, CONFIG.model_copy(update={"breadth_weight": "uniform"})):
        found = measure.resources(model, config, parts().test_x)
        assert found["breadth_cost"] == pytest.approx(float(core.breadth_of_norms(norms)))
        assert found["depth_cost"] == pytest.approx(float(core.depth_of_norms(norms)))
    assert found["breadth"] == 6
    assert found["layers"] == 2


def test_norms_without_the_readout_are_read_without_it_everywhere():
    """One channel has a bias and readout columns alone: with them it is used, without them it is not."""
    model, macs = made(), []
    with torch.no_grad():
        model.weights[1][0] = 0
        model.biases[1][0] = 0.5
        model.readout_by_channel()[1][0] = 9.0
    for readout, count in ((True, 6), (False, 5)):
        config = CONFIG.model_copy(update={"used_threshold": 0.01, "readout_in_norms": readout})
        metrics, curves = measure.measure(model, parts(), config, cell())
        sums = [float(square.detach().sqrt().sum()) for square in model.channel_squares(readout)]
        assert metrics["breadth"] == sum(curves["breadth_by_layer"][1]) == count
        assert curves["depth_profile"][1] == pytest.approx(sums)
        assert metrics["edge_layer"] == pytest.approx(sums[1] / max(sums))
        macs.append(metrics["macs"] / metrics["steps"])
    assert macs[1] < macs[0], "it is deleted before the deployed network runs"


def test_training_that_breaks_says_why():
    model = made()
    with torch.no_grad():
        model.readout_bias[0] = torch.nan
    assert "not finite" in measure.train(model, parts(), CONFIG, 2, torch.Generator().manual_seed(0))
    assert measure.train(made(), parts(), CONFIG, 2, torch.Generator().manual_seed(0)) == ""


def test_weights_that_break_in_the_last_update_are_found(monkeypatch):
    def spoil(model, *args, **kwargs):
        with torch.no_grad():
            model.readout_bias[0] = torch.inf

    monkeypatch.setattr(measure, "train_lattice", spoil)
    assert measure.train(made(), parts(), CONFIG, 1, torch.Generator()) == "weights are not finite"


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=3, max_size=12), st.integers(0, 100))
def test_rank_correlation_agrees_with_scipy(values, seed):
    first = np.array(values, dtype=float)
    second = np.random.default_rng(seed).integers(0, 4, len(first)).astype(float)
    found = measure.rank_correlation(first, second)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        assert found == 0.0
    else:
        ranks = [scipy.stats.rankdata(series) for series in (first, second)]
        assert found == pytest.approx(np.corrcoef(*ranks)[0, 1])


@settings(max_examples=30)
@given(st.floats(1.2, 5.8), st.integers(0, 20))
def test_the_entropy_threshold_takes_the_steps_it_is_asked_for(steps, seed):
    generator = torch.Generator().manual_seed(seed)
    entropies = torch.rand((600, 6), generator=generator).sort(1, descending=True).values
    threshold = measure.match_entropy_threshold(entropies, steps)
    entropies[:, -1] = -1.0  # the last step is the end in any case
    taken = (entropies < threshold).int().argmax(1) + 1
    assert measure.mean(taken) == pytest.approx(steps, abs=0.05)


def test_stopping_by_entropy_is_measured_as_executed():
    split, model = parts(), made("blt")
    found = measure.by_entropy(model, split, 2.5)
    image, recurrent, readout = model.macs_per_step(14, 14)
    steps = found["steps"]
    assert found["macs"] == pytest.approx((image + (steps - 1) * recurrent + steps * readout) / 1e6)
    metrics, _ = measure.measure(model, split, CONFIG, cell(), entropy_steps=2.5)
    assert metrics["steps"] == steps


@pytest.mark.parametrize(
    ("steps", "size", "channels", "classes"), [(3.0, 14, 1, 10), (5.5, 14, 1, 10), (4.2, 8, 1, 10), (4.0, 14, 3, 40)]
)
def test_the_feed_forward_rival_has_the_nearest_width(steps, size, channels, classes):
    width = measure.feed_forward_width(Config(), steps, size, channels, classes)
    area = 9 * size * size
    wanted = area * 8 * channels + (steps - 1) * area * 8 * 8 * 7 + steps * classes * 24 * 4

    def macs(c: int) -> float:
        return area * (c * channels + 2 * c * c) + classes * 3 * c * 4

    assert abs(macs(width) - wanted) <= min(abs(macs(width - 1) - wanted), abs(macs(width + 1) - wanted))
    assert macs(width) == pytest.approx(wanted, rel=0.05)


def test_look_leaves_the_order_of_the_images():
    x = parts(300).test_x
    model = made()
    output = measure.look(model, x)
    assert isinstance(output, LatticeOutput)
    torch.testing.assert_close(output.logits[257:259], model(x[257:259]).logits)
    assert not output.logits.requires_grad
