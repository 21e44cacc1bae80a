import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.optim import PLAPlayer, fsq_minimize, gdro_error_bound

CENTRES = np.array([[1.0, 0.0], [-0.5, math.sqrt(0.75)], [-0.5, -math.sqrt(0.75)]])


def squared(w, z):
    return float((w - z) @ (w - z)), 2 * (w - z)


def noisy(rng, i):
    return CENTRES[i] + 0.1 * rng.standard_normal(2)


SAMPLERS = [lambda rng, i=i: noisy(rng, i) for i in range(3)]


class Batched:
    """The same groups, drawn at once."""

    m = 3

    def draw(self, groups, rng):
        return np.stack([noisy(rng, i) for i in groups])


def solve(loss_grad=squared, samplers=SAMPLERS, w0=None, r=lambda t: 1 + t % 3, **more):
    settings = {"rng": np.random.default_rng(0), "rounds": 400, "loss_range": 6.0} | more
    return fsq_minimize(loss_grad, samplers, np.array([0.6, 0.6]) if w0 is None else w0, 1.5, 1.0, r, **settings)


@pytest.mark.parametrize("gradient", ["rb", "single", "iw"])
@pytest.mark.parametrize("round_weight", ["uniform", "samples"])
@pytest.mark.parametrize("mode", ["ix", "auto"])
def test_finds_the_centre_of_three_corners(gradient, round_weight, mode):
    found = solve(gradient=gradient, round_weight=round_weight, mode=mode, rounds=3000, c_w=2.0)
    assert np.linalg.norm(found.average) < 0.12
    assert np.abs(found.q_average - 1 / 3).max() < 0.1
    assert found.q_average.sum() == pytest.approx(1)
    assert found.clipped == 0


def test_uniform_queries_find_it_too():
    assert np.linalg.norm(solve(query="uniform", gradient="iw", rounds=3000).average) < 0.15


def test_follows_the_recipe_step_by_step():
    """The solver against a plain transcription of the algorithm, bit for bit in the draws."""
    found = solve(rounds=50)
    rng, player = np.random.default_rng(0), PLAPlayer(3)
    w0, theta, iterates, samples = np.array([0.6, 0.6]), np.zeros(2), [], 0
    for t in range(1, 51):
        w = w0 - 1.5 / math.sqrt(t) * theta
        shift = w - w0
        w = w0 + shift * min(1.0, 1.5 / max(np.linalg.norm(shift), 1e-300))
        iterates.append(w)
        _, groups, _ = player.propose(1 + t % 3, rng)
        q = player.open_proposals[0].q[groups]
        pairs = [squared(w, SAMPLERS[i](rng)) for i in groups]
        player.update([min(1.0, loss / 6) for loss, _ in pairs])
        theta = theta + sum(weight / q.sum() * g / 6 for weight, (_, g) in zip(q, pairs, strict=True))
        samples += len(groups)
    assert np.allclose(found.average, np.mean(iterates, axis=0), atol=1e-12)
    assert (found.rounds, found.samples) == (50, samples)


def test_sample_weights_follow_the_recipe():
    found = solve(rounds=30, round_weight="samples")
    rng, player = np.random.default_rng(0), PLAPlayer(3, round_weight="samples")
    w0, theta, squares, total, weights = np.array([0.6, 0.6]), np.zeros(2), 0.0, np.zeros(2), 0.0
    for t in range(1, 31):
        omega = (1 + t % 3) / 3
        squares += omega**2
        shift = -1.5 / math.sqrt(squares) * theta
        w = w0 + shift * min(1.0, 1.5 / max(np.linalg.norm(shift), 1e-300))
        total, weights = total + omega * w, weights + omega
        _, groups, _ = player.propose(1 + t % 3, rng)
        q = player.open_proposals[0].q[groups]
        pairs = [squared(w, SAMPLERS[i](rng)) for i in groups]
        player.update([loss / 6 for loss, _ in pairs])
        theta = theta + omega * sum(weight / q.sum() * g / 6 for weight, (_, g) in zip(q, pairs, strict=True))
    assert np.allclose(found.average, total / weights, atol=1e-12)


def test_first_round_plays_the_start():
    seen = []

    def spy(w, z):
        seen.append(np.array(w))
        return squared(w, z)

    found = solve(spy, rounds=1, r=1)
    assert seen[0].tolist() == [0.6, 0.6]
    assert found.average.tolist() == [0.6, 0.6]
    assert found.last.tolist() != [0.6, 0.6]


def test_batches_functions_and_tensors_agree():
    def arrays(w, z):
        return ((w - z) ** 2).sum(1), 2 * (w - z)

    def functions(w, z):
        return ((w - z) ** 2).sum(1), lambda weights: 2 * weights @ (w - z)

    def tensors(w, z):
        losses, gradients = arrays(w, torch.from_numpy(z))
        return losses, gradients

    plain = solve()
    for loss_grad, w0 in ((arrays, None), (functions, None), (tensors, torch.tensor([0.6, 0.6], dtype=torch.float64))):
        found = solve(loss_grad, Batched(), w0)
        assert np.allclose(np.asarray(found.average), plain.average, atol=1e-12)
        assert np.allclose(found.q_average, plain.q_average, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_tensors_keep_their_type(dtype):
    def loss_grad(w, z):
        shift = w - torch.from_numpy(z).to(dtype)
        return (shift * shift).sum(), 2 * shift

    found = solve(loss_grad, w0=torch.zeros(2, dtype=dtype), rounds=20)
    assert found.average.dtype == dtype
    assert found.last.dtype == dtype


def test_single_precision_arrays_stay_so():
    found = solve(lambda w, z: squared(w, z.astype(np.float32)), w0=np.zeros(2, dtype=np.float32), rounds=20)
    assert found.average.dtype == np.float32


@given(st.integers(0, 10**6), st.floats(0.05, 3.0), st.floats(0.1, 30.0))
def test_never_leaves_the_ball(seed, radius, c_w):
    seen = []

    def spy(w, z):
        seen.append(float(np.linalg.norm(w)))
        return squared(w, z)

    found = fsq_minimize(
        spy, SAMPLERS, np.zeros(2), radius, 1.0, 2, rng=np.random.default_rng(seed), rounds=15, loss_range=60.0, c_w=c_w
    )
    assert max([*seen, np.linalg.norm(found.last), np.linalg.norm(found.average)]) <= radius * (1 + 1e-12)


@given(st.integers(0, 10**6))
def test_equal_seeds_give_equal_results(seed):
    one, two, other = (solve(rounds=12, rng=np.random.default_rng(s)) for s in (seed, seed, seed + 1))
    assert np.array_equal(one.average, two.average)
    assert not np.array_equal(one.average, other.average)


def test_trace_holds_the_asked_rounds():
    found = solve(rounds=40, r=2, trace_rounds=(1, 10, 40), evaluate=lambda w: float(np.linalg.norm(w)))
    assert found.trace["round"] == [1, 10, 40]
    assert found.trace["samples"] == [2, 20, 80]
    assert found.trace["value"][-1] == pytest.approx(np.linalg.norm(found.average))
    assert "value" not in solve(rounds=3, trace_rounds=[2]).trace


def test_stream_of_sizes_ends_the_run():
    assert solve(r=[1, 3, 2], rounds=None).rounds == 3
    assert solve(r=[1, 3, 2], rounds=2).rounds == 2
    assert solve(r=iter([1, 3]), rounds=9).samples == 4


def test_sizes_may_depend_on_the_past():
    drawn = []

    def size(t):
        return 1 + len(drawn) % 3

    def spy(w, z):
        drawn.append(1)
        return squared(w, z)

    assert solve(spy, r=size, rounds=10).samples == len(drawn)


def test_clipped_losses_are_counted_and_told():
    with pytest.warns(UserWarning, match=r"losses above loss_range = 1 were clipped, \d+ in all"):
        found = solve(loss_range=1.0, rounds=20)
    assert found.clipped > 0


def test_nothing_is_said_when_nothing_is_clipped():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve(rounds=5)


def linear_problem(seed, rounds=20_000):
    """Losses 1/2 + .3 a_i w + noise in [0, 1] for w in [-.5, 1.5].

    The worst risk of a = (1, -1, .5) is least at w = 0, where it is 1/2.
    """
    slopes = np.array([1.0, -1.0, 0.5])

    class Noise:
        m = 3

        def draw(self, groups, rng):
            return slopes[groups], rng.uniform(-0.05, 0.05, len(groups))

    def loss_grad(w, batch):
        a, noise = batch
        return 0.5 + 0.3 * a * w[0] + noise, lambda weights: np.array([0.3 * weights @ a])

    stream = np.random.default_rng([seed, 1]).integers(1, 4, rounds).tolist()
    found = fsq_minimize(loss_grad, Noise(), np.array([0.5]), 1.0, 0.3, stream, rng=np.random.default_rng(seed))
    gap = float((0.5 + 0.3 * slopes * found.average[0]).max()) - 0.5
    return gap, gdro_error_bound(3, stream, D=1.0, G=0.3, delta=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_gap_stays_below_a_bound_that_says_something(seed):
    gap, bound = linear_problem(seed)
    assert bound < 0.3  # well below the trivial 1
    assert 0 <= gap <= bound


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"mode": "observed"}, "observed"),
        ({"mode": "hedge"}, "mode"),
        ({"gradient": "full"}, "gradient"),
        ({"query": "uniform"}, "gradient='iw'"),
        ({"round_weight": "none"}, "round_weight"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": None}, "rounds is needed"),
        ({"rounds": None, "r": 2}, "rounds is needed"),
        ({"r": 4}, "r must"),
        ({"r": lambda t: 0}, "r must"),
        ({"r": []}, "empty"),
        ({"r": 0}, "r_schedule"),
        ({"c_w": 0.0}, "c_w"),
        ({"c_q": -1.0}, "c_q"),
        ({"loss_range": 0.0}, "loss_range"),
        ({"samplers": []}, "m must"),
        ({"w0": np.zeros(2, dtype=int)}, "w0"),
        ({"w0": [0.0, 0.0]}, "w0"),
        ({"loss_grad": lambda w, z: (-0.1, w)}, "group . in round 1"),
        ({"loss_grad": lambda w, z: (math.nan, w)}, "nan for group"),
        ({"loss_grad": lambda w, z: (math.inf, w)}, "inf for group"),
        ({"loss_grad": lambda w, z: (np.zeros((2, 2)), z), "samplers": Batched()}, "shape"),
    ],
)
def test_bad_arguments(more, word):
    with pytest.raises(InputError, match=word):
        solve(**more)


@pytest.mark.parametrize(
    ("radius", "G", "word"), [(0.0, 1.0, "radius"), (1.0, math.nan, "G must"), (-1.0, 1.0, "radius")]
)
def test_bad_geometry(radius, G, word):
    with pytest.raises(InputError, match=word):
        fsq_minimize(squared, SAMPLERS, np.zeros(2), radius, G, 1, rng=np.random.default_rng(0), rounds=1)


def test_one_group_is_gradient_descent():
    found = fsq_minimize(
        lambda w, z: (float(w @ w), 2 * w), [lambda rng: None], np.array([0.5]), 1.0, 1.0, 1,
        rng=np.random.default_rng(0), rounds=3,
    )  # fmt: skip
    first = 0.5
    second = 0.5 - 1 / math.sqrt(2)
    third = 0.5 - (1.0 + 2 * second) / math.sqrt(3)
    assert found.average[0] == pytest.approx((first + second + third) / 3)
