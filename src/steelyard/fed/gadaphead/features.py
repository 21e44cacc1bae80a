"""A small network as a federated client sees it: a shared trunk of ReLU layers and a linear head on its features.

The network is plain numpy with its gradients written out: for nets of some 10^4 parameters and batches of 64 this
takes half of the time of an autograd library, and an observation that is a list of active one-hot inputs costs one
gather. All parameters lie in one float32 vector, so that an optimiser step is a handful of vector operations.

The head has shape (d, k): d features of which the last is the constant 1 (the bias), k outputs. The variance of a head
is the sandwich of an LSTD refit on a replay minibatch (the refit proxy; formula reconstructed, checked by Monte Carlo).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from steelyard.errors import InputError

Array = npt.NDArray[Any]
Part = Literal["all", "trunk", "head"]


def weight_name(layer: int) -> str:
    """Return the name of a trunk layer's weight (inputs, outputs)."""
    return f"layers.{layer}.weight"


def bias_name(layer: int) -> str:
    """Return the name of a trunk layer's bias (outputs,)."""
    return f"layers.{layer}.bias"


class Network:
    """ReLU trunk and linear head on one float32 vector.

    Args:
        inputs: number of inputs (for index observations: of one-hot inputs).
        hidden: widths of the trunk's layers, at least one.
        outputs: number k of the head's outputs.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], outputs: int) -> None:
        if inputs < 1 or outputs < 1 or not hidden or min(hidden) < 1:
            raise InputError(
                f"a network needs positive widths, got inputs={inputs}, hidden={tuple(hidden)}, outputs={outputs}"
            )
        self.inputs, self.hidden, self.outputs = int(inputs), tuple(int(h) for h in hidden), int(outputs)
        self.shapes: dict[str, tuple[int, ...]] = {}
        width = self.inputs
        for layer, size in enumerate(self.hidden):
            self.shapes[weight_name(layer)] = (width, size)
            self.shapes[bias_name(layer)] = (size,)
            width = size
        self.head_shape = (width + 1, self.outputs)
        self.trunk_size = sum(int(np.prod(shape)) for shape in self.shapes.values())
        self.flat: Array = np.zeros(self.trunk_size + (width + 1) * self.outputs, np.float32)
        self.weights, self.biases, self.head = self.views(self.flat)

    def views(self, flat: Array) -> tuple[list[Array], list[Array], Array]:
        """Return weights, biases and head as views of a vector of the parameters' layout."""
        parts, start = [], 0
        for shape in (*self.shapes.values(), self.head_shape):
            size = int(np.prod(shape))
            parts.append(flat[start : start + size].reshape(shape))
            start += size
        return parts[0:-1:2], parts[1:-1:2], parts[-1]

    def part(self, part: Part) -> slice:
        """Return the slice of the parameter vector that a part takes."""
        if part == "all":
            return slice(0, self.flat.size)
        return slice(0, self.trunk_size) if part == "trunk" else slice(self.trunk_size, self.flat.size)

    def initialise(self, generator: np.random.Generator, active: int | None = None) -> Network:
        """Draw He-scaled weights (fan-in ``active`` in the first layer) and a small head; biases zero."""
        for layer, weight in enumerate(self.weights):
            fan_in = active if layer == 0 and active is not None else weight.shape[0]
            weight[:] = generator.standard_normal(weight.shape) * np.sqrt(2.0 / fan_in)
            self.biases[layer][:] = 0.0
        self.head[:] = generator.standard_normal(self.head_shape) * (0.1 / np.sqrt(self.head_shape[0]))
        self.head[-1] = 0.0
        return self

    def load(self, trunk: Mapping[str, Array], head: Array) -> None:
        """Copy a trunk and a head in.

        Raises:
            InputError: other names or shapes than this network's, or a value that is not finite.
        """
        check_parameters(trunk, head, self.shapes, self.head_shape)
        for layer, weight in enumerate(self.weights):
            weight[:] = trunk[weight_name(layer)]
            self.biases[layer][:] = trunk[bias_name(layer)]
        self.head[:] = head

    def trunk(self) -> dict[str, Array]:
        """Return copies of the trunk's arrays by name."""
        arrays: dict[str, Array] = {}
        for layer, weight in enumerate(self.weights):
            arrays[weight_name(layer)] = weight.copy()
            arrays[bias_name(layer)] = self.biases[layer].copy()
        return arrays

    def activations(self, inputs: Array) -> list[Array]:
        """Return the dense input (n, inputs) and every layer's activations, the last without the constant."""
        layers = [inputs]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = layers[-1] @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
            layers.append(hidden)
        return layers

    def outputs_of(self, hidden: Array) -> Array:
        """Return the head's outputs (n, k) for last-layer activations (n, d - 1)."""
        out: Array = hidden @ self.head[:-1]
        out += self.head[-1]
        return out

    def features(self, observations: Array) -> Array:
        """Return the features (n, d) of a batch of observations, the constant last."""
        hidden = self.activations(dense_inputs(observations, self.inputs))[-1]
        return np.concatenate([hidden, np.ones((len(hidden), 1), np.float32)], axis=1)

    def values(self, observations: Array) -> Array:
        """Return the head's outputs (n, k) of a batch of observations."""
        return self.outputs_of(self.activations(dense_inputs(observations, self.inputs))[-1])

    def value(self, observation: Array) -> Array:
        """Return the head's outputs (k,) of one observation: the fast path of acting."""
        if observation.dtype.kind in "iu":
            hidden: Array = np.add.reduce(self.weights[0].take(observation, axis=0), 0)
        else:
            hidden = observation @ self.weights[0]
        hidden += self.biases[0]
        for weight, bias in zip(self.weights[1:], self.biases[1:], strict=True):
            hidden = np.maximum(hidden, 0.0) @ weight
            hidden += bias
        out: Array = np.maximum(hidden, 0.0) @ self.head[:-1]
        out += self.head[-1]
        return out

    def backward(self, layers: list[Array], output_gradient: Array, gradient: Array) -> None:
        """Write the gradient of a loss into ``gradient`` (the parameters' layout).

        Args:
            layers: what ``activations`` returned.
            output_gradient: (n, k) derivative of the loss by the outputs.
            gradient: float32 vector of the parameters' size, overwritten.
        """
        weights, biases, head = self.views(gradient)
        np.matmul(layers[-1].T, output_gradient, out=head[:-1])
        np.add.reduce(output_gradient, 0, out=head[-1])
        flow: Array = output_gradient @ self.head[:-1].T
        for layer in range(len(weights) - 1, -1, -1):
            flow *= layers[layer + 1] > 0.0
            np.matmul(layers[layer].T, flow, out=weights[layer])
            np.add.reduce(flow, 0, out=biases[layer])
            if layer:
                flow = flow @ self.weights[layer].T


class Adam:
    """Adam (Kingma and Ba 2015) on a network's vector, with moments of the trunk and of the head apart.

    The two parts have step counts of their own: after mixing only the head's moments are reset.
    """

    def __init__(self, network: Network, learning_rate: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        if not learning_rate > 0.0:
            raise InputError(f"learning_rate must be positive, got {learning_rate}")
        self.network, self.learning_rate, self.betas = network, float(learning_rate), betas
        self.first, self.second = np.zeros_like(network.flat), np.zeros_like(network.flat)
        self.scratch = np.zeros_like(network.flat)
        self.steps = {"trunk": 0, "head": 0}

    def reset(self, part: Part) -> None:
        """Forget the moments of a part."""
        where = self.network.part(part)
        self.first[where] = 0.0
        self.second[where] = 0.0
        for name in ("trunk", "head") if part == "all" else (part,):
            self.steps[name] = 0

    def step(self, gradient: Array, part: Part = "all") -> None:
        """Move the parameters of a part (or of both) one step down the gradient."""
        for name in ("trunk", "head") if part == "all" else (part,):
            self.steps[name] += 1
        if part == "all" and self.steps["trunk"] != self.steps["head"]:
            self._step(gradient, self.network.part("trunk"), self.steps["trunk"])
            self._step(gradient, self.network.part("head"), self.steps["head"])
        else:
            self._step(gradient, self.network.part(part), self.steps["head" if part == "head" else "trunk"])

    def _step(self, gradient: Array, where: slice, count: int) -> None:
        grad, first, second = gradient[where], self.first[where], self.second[where]
        scratch, (beta1, beta2) = self.scratch[where], self.betas
        np.multiply(first, beta1, out=first)
        np.multiply(grad, 1.0 - beta1, out=scratch)
        np.add(first, scratch, out=first)
        np.multiply(second, beta2, out=second)
        np.multiply(grad, grad, out=scratch)
        np.multiply(scratch, 1.0 - beta2, out=scratch)
        np.add(second, scratch, out=second)
        np.sqrt(second, out=scratch)
        # The textbook's bias corrections, folded into epsilon and the step's length.
        correction = float(np.sqrt(1.0 - beta2**count))
        np.add(scratch, 1e-8 * correction, out=scratch)
        np.divide(first, scratch, out=scratch)
        np.multiply(scratch, self.learning_rate * correction / (1.0 - beta1**count), out=scratch)
        np.subtract(self.network.flat[where], scratch, out=self.network.flat[where])


def dense_inputs(observations: Array, inputs: int) -> Array:
    """Return a batch as a dense float32 matrix (n, inputs); integer observations are indices of active inputs."""
    if observations.dtype.kind not in "iu":
        return observations.astype(np.float32, copy=False)
    dense = np.zeros((len(observations), inputs), np.float32)
    dense[np.arange(len(observations))[:, None], observations] = 1.0
    return dense


def check_parameters(
    trunk: Mapping[str, Array], head: Array, shapes: Mapping[str, tuple[int, ...]], head_shape: tuple[int, int]
) -> None:
    """Refuse a trunk or head of other names or shapes, or with values that are not finite.

    Raises:
        InputError: naming the array.
    """
    if set(trunk) != set(shapes):
        raise InputError(f"the trunk's arrays must be {sorted(shapes)}, got {sorted(trunk)}")
    named: Iterable[tuple[str, Array, tuple[int, ...]]] = [
        *((f"trunk[{name!r}]", np.asarray(trunk[name]), shape) for name, shape in shapes.items()),
        ("head", np.asarray(head), head_shape),
    ]
    for name, array, shape in named:
        if array.shape != shape:
            raise InputError(f"{name} must have shape {shape}, got {array.shape}")
        if not np.isfinite(array).all():
            raise InputError(f"{name} has a value that is not finite")


class HeadRefit(NamedTuple):
    """What a client uploads beside its head: V (squared distance in value space) and the second moment (d, d)."""

    variance: float
    second_moment: Array


def refit_head(
    features: Array,
    actions: Array,
    rewards: Array,
    next_features: Array,
    next_actions: Array,
    discounts: Array,
    outputs: int,
    *,
    ridge: float = 1e-2,
    pseudo_reward: float = 1.0,
) -> HeadRefit:
    """Return the sandwich variance of an LSTD refit of a Q head, and the features' second moment.

    With x_t = feature placed in the block of its action, A = sum x_t (x_t - c_t x'_t)^T + rho I, w = A^-1 sum x_t r_t,
    delta_t the residual and S = sum delta_t^2 x_t x_t^T, the variance is tr((I (x) Sigma) A^-1 S A^-T); c_t is the
    discount, 0 at the end of an episode (reconstruction; ``ridge`` is relative to the mean diagonal of sum x x^T).

    Args:
        features: (n, d) features of the states, the constant among them.
        actions: (n,) columns of the head that were acted on.
        rewards: (n,) rewards (of n steps where the discounts are of n steps).
        next_features: (n, d) features of the states after.
        next_actions: (n,) greedy columns there.
        discounts: (n,) discounts of the state after.
        outputs: number k of columns.
        ridge: share of the mean diagonal that is added to it.
        pseudo_reward: size of one residual that is added to the batch as though seen once, spread over its rows. A
            client that never met a reward fits it exactly, so that its plain sandwich variance is 0: it would be sure
            of a head that knows nothing. With n rows a reward rarer than about 1 / n goes unseen (rule of
            succession); 0 gives the plain sandwich.
    """
    phi, after = features.astype(np.float64), next_features.astype(np.float64)
    count, width = phi.shape
    if count == 0:
        raise InputError("features: a refit needs at least one transition")
    rows = np.arange(count)
    here = np.zeros((count, outputs, width))
    here[rows, actions] = phi
    there = np.zeros((count, outputs, width))
    there[rows, next_actions] = after * discounts[:, None]
    x, x_next = here.reshape(count, -1), there.reshape(count, -1)
    gram = x.T @ x
    matrix = gram - x.T @ x_next
    matrix[np.diag_indices_from(matrix)] += ridge * max(float(np.trace(gram)) / len(gram), 1e-12)
    solved = np.linalg.solve(matrix, np.concatenate([(x.T @ rewards)[:, None], x.T], axis=1))
    residual = rewards + x_next @ solved[:, 0] - x @ solved[:, 0]
    second_moment = phi.T @ phi / count
    influence = solved[:, 1:].reshape(outputs, width, count)
    spread = np.einsum("kdn,kdn->n", influence, second_moment @ influence)
    return HeadRefit(float((residual**2 + pseudo_reward**2 / count) @ spread), second_moment)
