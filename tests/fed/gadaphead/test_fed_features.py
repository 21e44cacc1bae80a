"""The small network against torch's gradients and optimiser; the head's variance against Monte Carlo and the core."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.fed.gadaphead.core import head_variance_refit
from steelyard.fed.gadaphead.features import Adam, Network, bias_name, dense_inputs, refit_head, weight_name


def _net(seed: int = 0, inputs: int = 6, hidden: tuple[int, ...] = (5, 4), outputs: int = 3) -> Network:
    return Network(inputs, hidden, outputs).initialise(np.random.default_rng(seed))


def _torch(net: Network) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    pairs = [*zip(net.weights, net.biases, strict=True), (net.head[:-1], net.head[-1])]
    for place, (weight, bias) in enumerate(pairs):
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data = torch.tensor(weight.T.copy())
        layer.bias.data = torch.tensor(bias.copy())
        layers += [layer] if place == len(pairs) - 1 else [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def _flat(model: torch.nn.Sequential, grad: bool = False) -> np.ndarray:
    parts = []
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            weight, bias = (layer.weight.grad, layer.bias.grad) if grad else (layer.weight.data, layer.bias.data)
            parts += [weight.T.reshape(-1).numpy(), bias.numpy()]
    return np.concatenate(parts)


@given(st.integers(0, 10_000), st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_gradients_are_those_of_torch(seed: int, hidden: list[int]) -> None:
    net = _net(seed, hidden=tuple(hidden))
    x = np.random.default_rng(seed + 1).standard_normal((7, 6)).astype(np.float32)
    model = _torch(net)
    out = model(torch.tensor(x))
    (out**2).sum().backward()
    layers = net.activations(x)
    values = net.outputs_of(layers[-1])
    gradient = np.empty_like(net.flat)
    net.backward(layers, 2.0 * values, gradient)
    np.testing.assert_allclose(values, out.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, _flat(model, grad=True), rtol=1e-3, atol=1e-4)


def test_adam_is_that_of_torch() -> None:
    net = _net()
    model = _torch(net)
    theirs, ours = torch.optim.Adam(model.parameters(), lr=0.01), Adam(net, 0.01)
    for step in range(5):
        gradient = np.random.default_rng(step).standard_normal(net.flat.size).astype(np.float32)
        weights, biases, head = net.views(gradient)
        linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
        for layer, (weight, bias) in zip(
            linear, [*zip(weights, biases, strict=True), (head[:-1], head[-1])], strict=True
        ):
            layer.weight.grad, layer.bias.grad = torch.tensor(weight.T.copy()), torch.tensor(bias.copy())
        theirs.step()
        ours.step(gradient)
    np.testing.assert_allclose(net.flat, _flat(model), rtol=1e-4, atol=1e-5)


def test_a_reset_head_starts_anew_and_leaves_the_trunk_its_moments() -> None:
    net, gradient = _net(), np.ones_like(_net().flat)
    adam = Adam(net, 0.01)
    adam.step(gradient)
    trunk_moments = adam.first[net.part("trunk")].copy()
    adam.reset("head")
    assert adam.steps == {"trunk": 1, "head": 0}
    assert not adam.first[net.part("head")].any()
    assert not adam.second[net.part("head")].any()
    np.testing.assert_array_equal(adam.first[net.part("trunk")], trunk_moments)
    before = net.flat.copy()
    adam.step(gradient)  # step counts differ: each part has its own bias correction
    np.testing.assert_allclose(before - net.flat, 0.01, rtol=1e-4)
    adam.reset("all")
    assert adam.steps == {"trunk": 0, "head": 0}
    assert not adam.first.any()


@pytest.mark.parametrize(("part", "other"), [("head", "trunk"), ("trunk", "head")])
def test_a_step_of_one_part_leaves_the_other(part: str, other: str) -> None:
    net = _net()
    before = net.flat.copy()
    Adam(net, 0.01).step(np.ones_like(net.flat), part)  # type: ignore[arg-type]
    assert (net.flat[net.part(part)] != before[net.part(part)]).all()  # type: ignore[arg-type]
    np.testing.assert_array_equal(net.flat[net.part(other)], before[net.part(other)])  # type: ignore[arg-type]


@given(st.lists(st.sets(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=4))
def test_indices_are_one_hot_inputs(active: list[set[int]]) -> None:
    net, rows = _net(), np.array([sorted(row) for row in active])
    dense = dense_inputs(rows, 6)
    assert dense.sum() == 2 * len(rows)
    np.testing.assert_allclose(net.values(rows), net.values(dense), atol=1e-6)
    for row, values in zip(rows, net.values(dense), strict=True):
        np.testing.assert_allclose(net.value(row), values, atol=1e-5)
        np.testing.assert_allclose(net.value(dense_inputs(row[None], 6)[0]), values, atol=1e-5)
    features = net.features(rows)
    assert features.shape == (len(rows), 5)
    assert (features[:, -1] == 1).all()
    np.testing.assert_allclose(features @ net.head, net.values(rows), atol=1e-5)


@given(st.integers(0, 10_000))
def test_what_is_taken_out_can_be_put_in(seed: int) -> None:
    net, other = _net(seed), Network(6, (5, 4), 3)
    other.load(net.trunk(), net.head.copy())
    np.testing.assert_array_equal(net.flat, other.flat)


def test_bad_networks_and_parameters_are_named() -> None:
    net = _net()
    for inputs, hidden, outputs in ((0, (4,), 2), (3, (), 2), (3, (0,), 2), (3, (4,), 0)):
        with pytest.raises(InputError, match="positive widths"):
            Network(inputs, hidden, outputs)
    with pytest.raises(InputError, match="learning_rate"):
        Adam(net, 0.0)
    with pytest.raises(InputError, match=r"head must have shape \(5, 3\), got \(5, 2\)"):
        net.load(net.trunk(), net.head[:, :2])
    broken = net.trunk()
    broken[weight_name(1)][0, 0] = np.nan
    with pytest.raises(InputError, match=r"layers\.1\.weight.*not finite"):
        net.load(broken, net.head)
    with pytest.raises(InputError, match="head has a value that is not finite"):
        net.load(net.trunk(), np.full((5, 3), np.inf))
    missing = net.trunk()
    del missing[bias_name(0)]
    with pytest.raises(InputError, match="the trunk's arrays must be"):
        net.load(missing, net.head)


def _world(count: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Transitions whose values are linear in known features, with noisy rewards; two actions."""
    features, after = generator.standard_normal((2, count, 3))
    actions, next_actions = generator.integers(0, 2, (2, count))
    head = np.array([[1.0, -1.0], [0.5, 0.0], [0.0, 2.0]])
    rows = np.arange(count)
    rewards = (features @ head)[rows, actions] - 0.8 * (after @ head)[rows, next_actions]
    return features, actions, rewards + 0.5 * generator.standard_normal(count), after, next_actions, np.full(count, 0.8)


def test_the_variance_is_that_of_refits() -> None:
    generator, told, heads = np.random.default_rng(0), [], []
    for _ in range(400):
        features, actions, rewards, after, next_actions, discounts = _world(200, generator)
        told.append(
            refit_head(features, actions, rewards, after, next_actions, discounts, 2, ridge=0, pseudo_reward=0).variance
        )
        x, y = np.zeros((200, 2, 3)), np.zeros((200, 2, 3))
        x[np.arange(200), actions], y[np.arange(200), next_actions] = features, 0.8 * after
        x, y = x.reshape(200, 6), y.reshape(200, 6)
        heads.append(np.linalg.solve(x.T @ (x - y), x.T @ rewards))
    true = np.square(np.array(heads) - np.mean(heads, axis=0)).sum(axis=1).mean()  # the second moment is the identity
    assert np.median(told) == pytest.approx(true, rel=0.15)


def test_with_one_action_it_is_the_core_s_variance() -> None:
    features, _, rewards, after, _, _ = _world(50, np.random.default_rng(1))
    zero = np.zeros(50, np.int64)
    ours = refit_head(features, zero, rewards, after, zero, np.full(50, 0.8), 1, ridge=0.1, pseudo_reward=0.0)
    ridge = 0.1 * np.trace(features.T @ features) / 3
    theirs = head_variance_refit(features, rewards, after, gamma=0.8, ridge=ridge, sigma=ours.second_moment)
    assert ours.variance == pytest.approx(theirs)


def test_no_reward_leaves_a_variance_and_an_end_has_no_future() -> None:
    features, actions, rewards, after, next_actions, discounts = _world(50, np.random.default_rng(2))
    nothing = (features, actions, np.zeros(50), after, next_actions, discounts, 2)
    assert refit_head(*nothing, pseudo_reward=0.0).variance == 0.0
    assert refit_head(*nothing).variance > 0.0
    ends = np.zeros(50)
    assert refit_head(features, actions, rewards, after, next_actions, ends, 2).variance == pytest.approx(
        refit_head(features, actions, rewards, 7 * after, next_actions, ends, 2).variance
    )
    with pytest.raises(InputError, match="at least one transition"):
        refit_head(features[:0], actions[:0], rewards[:0], after[:0], next_actions[:0], ends[:0], 2)
