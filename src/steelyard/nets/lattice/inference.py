"""Real early exit: inputs that have stopped leave the batch, so stopping early saves multiply-adds and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.nets.lattice import core
from steelyard.nets.lattice.core import MASS_SLACK, StopRule
from steelyard.nets.lattice.torch_nn import LatticeRCNN, refuse_overridden

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_TINY = 1e-300


class StopResult(NamedTuple):
    """What a run with early exit gives.

    Attributes:
        logits: Log-probabilities of shape (B, K).
        steps: Executed steps, shape (B,), from 1 to T.
        macs: Multiply-adds of each input by the counting rule of :func:`core.macs_per_step`, shape (B,).
    """

    logits: Tensor
    steps: Tensor
    macs: Tensor


class _Policy(Protocol):
    """Decides after each step which of the remaining inputs stop."""

    def see(self, step: int, logits: Floats, pooled: Tensor) -> Bools:
        """Return which inputs stop at ``step``."""
        ...

    def answer(self, stopped: Bools) -> Floats:
        """Return the log-probabilities of the inputs that stop."""
        ...

    def keep(self, going: Bools) -> None:
        """Forget the inputs that stopped."""
        ...


def stop_early(
    model: LatticeRCNN,
    x: Tensor,
    rule: StopRule = "threshold",
    threshold: float = 0.5,
    generator: torch.Generator | None = None,
) -> StopResult:
    """Run each input until it stops, and no further.

    Args:
        model: The network.
        x: Images of shape (B, C, H, W).
        rule: "threshold" stops when the halting mass so far reaches ``threshold`` and answers with the mixture so far,
            renormalised: deterministic, for deployment, its mean step is not E[t]. "sample" draws the step from p_t and
            answers with that step's readout: its mean step is E[t].
        threshold: Halting mass in (0, 1]; .5 is the median step.
        generator: Source of the draws of "sample"; None takes a fresh one with seed 0.

    Returns:
        A :class:`StopResult`; it equals what the full run would answer if stopped at the same steps.

    Raises:
        InputError: An unknown rule, a threshold outside (0, 1], images that do not fit, a subclass that halts or
            connects its layers in a way of its own.
    """
    core.check_rule(rule, threshold)
    source = core.generator_or_default(generator)
    refuse_overridden(model, "log_p_time", "fan_in")
    if rule == "sample":
        return _run(model, x, lambda count: _Halting(model, _uniform(count, source), sampled=True))
    return _run(model, x, lambda count: _Halting(model, np.full(count, threshold - MASS_SLACK), sampled=False))


class EntropyThreshold:
    """Post-hoc stopping (the reaction-time model of BLT networks): the first step whose entropy is below a threshold.

    Args:
        model: A network; how it was trained to halt is ignored.
        threshold: In nats; an input that never gets below runs all steps.

    Raises:
        InputError: A threshold that is negative or NaN, a subclass that connects its layers in a way of its own.
    """

    def __init__(self, model: LatticeRCNN, threshold: float = 0.5) -> None:
        if not core.is_number(threshold) or not threshold >= 0:
            raise InputError(f"threshold must be an entropy in nats that is not negative, not {threshold!r}.")
        refuse_overridden(model, "fan_in")
        self.model, self.threshold = model, threshold

    def __call__(self, x: Tensor) -> StopResult:
        """Run each image of (B, C, H, W) until its readout is certain enough; answers with that readout."""
        return _run(self.model, x, lambda count: _Certain(self.threshold))


def _uniform(count: int, generator: torch.Generator) -> Floats:
    draws = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    uniform: Floats = draws.cpu().numpy()
    return uniform


def _run(model: LatticeRCNN, x: Tensor, make_policy: Callable[[int], _Policy]) -> StopResult:
    with torch.inference_mode():
        kernel = model.begin(x)  # refuses what are no images
        policy = make_policy(len(x))
        weight, bias = (model.readout * model.readout_scale).t(), model.readout_bias
        state, rows = kernel.first(), np.arange(len(x))
        answers = np.empty((len(x), model.n_classes))
        steps = np.empty(len(x), dtype=np.int64)
        for step in range(1, model.max_steps + 1):
            if step > 1:
                state = kernel.step(state)
            pooled = model.pooled(state)
            logits = torch.addmm(bias, pooled, weight).to("cpu", torch.float64).numpy()
            stopped = policy.see(step, logits, pooled)
            if step == model.max_steps:
                stopped[:] = True
            if not stopped.any():
                continue
            answers[rows[stopped]] = policy.answer(stopped)
            steps[rows[stopped]] = step
            going = ~stopped
            rows = rows[going]
            if len(rows) == 0:
                break
            policy.keep(going)
            index = torch.from_numpy(np.flatnonzero(going)).to(x.device)
            state = [h[index] for h in state]  # unlike index_select, indexing keeps the memory format
            kernel.keep(index)
    macs = core.total_macs(model.macs_per_step(*x.shape[2:]), steps)
    taken, spent = (torch.from_numpy(counts).to(x.device) for counts in (steps, macs))
    return StopResult(torch.from_numpy(answers).to(model.readout), taken, spent)


class _Halting:
    """The network's own hazards, step by step in float64: stop once the mass so far passes each input's limit.

    The formulas are those of ``core`` in numpy, whose calls on a few numbers cost less than torch's.
    """

    def __init__(self, model: LatticeRCNN, limits: Floats, sampled: bool) -> None:
        self._limits, self._sampled, self._steps = limits, sampled, model.max_steps
        self._stay = np.ones(len(limits))
        self._mass = np.zeros(len(limits))
        self._mixture: Floats = np.zeros((len(limits), model.n_classes))
        self._fixed = model.time == "fixed"
        self._bound = model.halting_bound
        if self._fixed:
            self._p = torch.softmax(model.theta.detach().to("cpu", torch.float64), 0).numpy()
            return
        self._bias = model.halting_bias.detach().to("cpu", torch.float64).numpy()
        self._kappa = float(model.kappa.detach())
        self._state = model.halting_state.detach() if model.state_term else None

    def see(self, step: int, logits: Floats, pooled: Tensor) -> Bools:
        log_probs = _log_softmax(logits)
        probs = np.exp(log_probs)
        p = self._stop(step, log_probs, probs, pooled)
        self._mass = self._mass + p
        self._mixture = log_probs if self._sampled else self._mixture + p[:, None] * probs
        return self._mass > self._limits if self._sampled else self._mass >= self._limits

    def _stop(self, step: int, log_probs: Floats, probs: Floats, pooled: Tensor) -> Floats:
        """Return p_t of the remaining inputs."""
        if self._fixed:
            return np.broadcast_to(self._p[step - 1], self._mass.shape)
        if step == self._steps:
            return self._stay
        z = self._bias[step - 1] + self._kappa * (1.0 + (probs * log_probs).sum(1))
        if self._state is not None:
            z = z + (pooled @ self._state).to("cpu", torch.float64).numpy()
        if self._bound is not None:
            z = self._bound * np.tanh(z / self._bound)
        go_on = 1.0 / (1.0 + np.exp(np.minimum(z, 700.0)))
        p: Floats = self._stay * (1.0 - go_on)
        self._stay = self._stay * go_on
        return p

    def answer(self, stopped: Bools) -> Floats:
        if self._sampled:
            return self._mixture[stopped]
        answers: Floats = np.log(np.maximum(self._mixture[stopped] / self._mass[stopped, None], _TINY))
        return answers

    def keep(self, going: Bools) -> None:
        self._limits, self._stay = self._limits[going], self._stay[going]
        self._mass, self._mixture = self._mass[going], self._mixture[going]


class _Certain:
    """Stop when the readout's entropy is below the threshold."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._log_probs: Floats = np.empty((0, 0))

    def see(self, step: int, logits: Floats, pooled: Tensor) -> Bools:
        self._log_probs = _log_softmax(logits)
        below: Bools = -(np.exp(self._log_probs) * self._log_probs).sum(1) < self._threshold
        return below

    def answer(self, stopped: Bools) -> Floats:
        return self._log_probs[stopped]

    def keep(self, going: Bools) -> None:
        """Nothing is carried from step to step."""


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(1, keepdims=True)
    log_probs: Floats = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return log_probs
