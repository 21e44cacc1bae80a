"""The baselines: stochastic mirror descent, one-sample bandit games, Sagawa's online group DRO, and plain averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from steelyard.optim.gdro_fsq.core import FSQResult
from steelyard.optim.gdro_fsq.player import Floats, Ints, Schedule, schedule

SAGAWA_RATE = 0.01  # the group step size of published practice


class Sampler(Protocol):
    """Where samples come from; ``draw_pooled`` ignores groups, each sample being equally likely."""

    @property
    def m(self) -> int:
        """Number of groups."""
        ...

    def draw(self, groups: Ints, rng: np.random.Generator) -> Any:
        """Return the batch with one fresh sample of each of the ``groups``."""
        ...

    def draw_pooled(self, count: int, rng: np.random.Generator) -> Any:
        """Return a batch of ``count`` samples of the pooled data."""
        ...


@dataclass
class Game:
    """A convex group problem as the baselines see it; losses are divided by ``loss_range``, clipped and counted."""

    loss_grad: Callable[[Floats, Any], tuple[Floats, Callable[[Floats], Floats]]]
    sampler: Sampler
    w0: Floats
    radius: float
    G: float
    loss_range: float
    clipped: int = 0
    samples: int = 0

    def play(self, w: Floats, batch: Any) -> tuple[Floats, Callable[[Floats], Floats]]:
        """Return scaled losses [r] and the function weights [r] -> weighted sum of the scaled gradients."""
        raw, slope = self.loss_grad(w, batch)
        losses = raw / self.loss_range
        self.samples += len(losses)
        self.clipped += int((losses > 1).sum())
        return np.minimum(losses, 1.0), lambda weights: slope(weights / self.loss_range)


class Descent:
    """Projected gradient steps c_w D / (G sqrt k), and the running average of the iterates before each step."""

    def __init__(self, game: Game, c_w: float, step_weighted: bool) -> None:
        self._game, self._step, self._step_weighted = game, c_w * game.radius / game.G, step_weighted
        self._k, self._total = 0, 0.0
        self.w: Floats = game.w0.copy()
        self.average: Floats = game.w0.copy()

    def move(self, gradient: Floats) -> None:
        """Average the iterate in, then step against ``gradient`` and project onto the ball."""
        self._k += 1
        step = self._step / math.sqrt(self._k)
        weight = step if self._step_weighted else 1.0
        self._total += weight
        self.average += (self.w - self.average) * (weight / self._total)
        shift = self.w - step * gradient - self._game.w0
        norm = float(np.linalg.norm(shift))
        self.w = self._game.w0 + (shift * (self._game.radius / norm) if norm > self._game.radius else shift)


class Record:
    """Trace of a run: the value of the average at chosen rounds."""

    def __init__(self, rounds: Iterable[int], evaluate: Callable[[Floats], float] | None) -> None:
        self._rounds, self._evaluate = set(rounds), evaluate
        self.values: dict[str, list[float]] = {"round": [], "samples": [], "value": []}

    def take(self, t: int, game: Game, average: Floats) -> None:
        """Note round ``t`` if it is one of the chosen."""
        if t in self._rounds and self._evaluate is not None:
            for name, value in (("round", t), ("samples", game.samples), ("value", self._evaluate(average))):
                self.values[name].append(float(value))


@dataclass(frozen=True)
class Run:
    """What every baseline is given: the stream of sample sizes, its length, the factors, randomness and the trace."""

    r_schedule: Schedule
    rounds: int
    rng: np.random.Generator
    c_w: float = 1.0
    c_q: float = 1.0
    evaluate: Callable[[Floats], float] | None = None
    trace_rounds: tuple[int, ...] = ()

    def stream(self) -> Iterable[tuple[int, int]]:
        """Yield (t, r_t)."""
        return zip(range(1, self.rounds + 1), schedule(self.r_schedule), strict=False)


def smd(game: Game, run: Run) -> FSQResult:
    """Stochastic mirror descent with all m groups per update (Zhang et al. 2023, algorithm 1; Nemirovski).

    With fewer than m queries in a round it waits until m have come together (leftovers carry over), so a stream of m
    gives the classical method and any other stream gives "wait".
    """
    m = game.sampler.m
    everything, log_m = np.arange(m), math.log(m)
    descent, record = Descent(game, run.c_w, step_weighted=True), Record(run.trace_rounds, run.evaluate)
    gains, q, q_sum, purse, k = np.zeros(m), np.full(m, 1.0 / m), np.zeros(m), 0, 0
    for t, r in run.stream():
        purse += r
        if purse >= m:
            purse -= m
            k += 1
            losses, slope = game.play(descent.w, game.sampler.draw(everything, run.rng))
            q_sum += q
            descent.move(slope(q))
            gains += run.c_q * math.sqrt(log_m / k) * losses
            gains -= gains.max()
            q = np.exp(gains)
            q /= q.sum()
        record.take(t, game, descent.average)
    return _result(game, descent, q_sum / max(k, 1), run, record)


class Exp3IX:
    """Exp3 with implicit exploration on the losses 1 - risk (Neu 2015): eta_t = c sqrt(ln m/(m t)), gamma = eta/2."""

    def __init__(self, m: int, c: float, rounds: int) -> None:
        self._sums, self._c, self._t, self._m = np.zeros(m), c, 0, m
        self._gamma = 0.0

    def strategy(self) -> Floats:
        """Return the probabilities of the next round."""
        self._t += 1
        eta = self._c * math.sqrt(math.log(self._m) / (self._m * self._t))
        self._gamma = eta / 2
        q: Floats = np.exp(-eta * (self._sums - self._sums.min()))
        q /= q.sum()
        return q

    def learn(self, arm: int, probability: float, loss: float) -> None:
        """Take the risk ``loss`` in [0, 1] of the arm that was played with ``probability``."""
        self._sums[arm] += (1.0 - loss) / (probability + self._gamma)


class Exp3P:
    """Exp3.P on the gains ``risk`` (Bubeck and Cesa-Bianchi 2012, theorem 3.3, for a known horizon)."""

    def __init__(self, m: int, c: float, rounds: int) -> None:
        rate = math.sqrt(math.log(m) / (m * rounds))
        self._m, self._eta, self._bonus = m, 0.95 * c * rate, rate
        self._mixing = min(0.5, 1.05 * m * rate)
        self._sums, self._q = np.zeros(m), np.full(m, 1.0 / m)

    def strategy(self) -> Floats:
        """Return the probabilities of the next round."""
        weights = np.exp(self._eta * (self._sums - self._sums.max()))
        self._q = (1.0 - self._mixing) * weights / weights.sum() + self._mixing / self._m
        return self._q

    def learn(self, arm: int, probability: float, loss: float) -> None:
        """Take the risk ``loss`` in [0, 1] of the arm that was played with ``probability``."""
        self._sums += self._bonus / self._q
        self._sums[arm] += loss / probability


class TsallisINF:
    """Tsallis-INF with exponent 1/2 on the losses 1 - risk (Zimmert and Seldin 2021): eta_t = 2c/sqrt(t)."""

    def __init__(self, m: int, c: float, rounds: int) -> None:
        self._sums, self._c, self._t = np.zeros(m), c, 0

    def strategy(self) -> Floats:
        """Return the probabilities of the next round, q_i = 4 (eta (S_i - level))^-2, the level found by Newton."""
        self._t += 1
        eta = 2.0 * self._c / math.sqrt(self._t)
        scaled = eta * (self._sums - self._sums.min())
        level = -2.0  # q of the best arm is then 1, so the root lies at or below and Newton descends to it
        for _ in range(60):
            q: Floats = 4.0 / (scaled - level) ** 2
            error = q.sum() - 1.0
            if error < 1e-12:
                break
            level -= error / (q**1.5).sum()
        q /= q.sum()
        return q

    def learn(self, arm: int, probability: float, loss: float) -> None:
        """Take the risk ``loss`` in [0, 1] of the arm that was played with ``probability``."""
        self._sums[arm] += (1.0 - loss) / probability


def one_per_round(game: Game, run: Run, bandit: type[Exp3IX | Exp3P | TsallisINF] = Exp3IX) -> FSQResult:
    """One query a round, the rest of the stream unused (Zhang et al. 2023, algorithm 2; Soma et al. 2022).

    ``bandit`` is Exp3-IX for Zhang's, Exp3.P or Tsallis-INF for Soma's GDRO-EXP3 and GDRO-TINF.
    """
    m = game.sampler.m
    player = bandit(m, run.c_q, run.rounds)
    descent, record = Descent(game, run.c_w, step_weighted=False), Record(run.trace_rounds, run.evaluate)
    one, q_sum = np.ones(1), np.zeros(m)
    for t, _ in run.stream():
        q = player.strategy()
        cumulative = q.cumsum()
        arm = int(cumulative.searchsorted(run.rng.random() * cumulative[-1], side="right"))
        losses, slope = game.play(descent.w, game.sampler.draw(np.array([arm]), run.rng))
        player.learn(arm, float(q[arm]), float(losses[0]))
        descent.move(slope(one))
        q_sum += q
        record.take(t, game, descent.average)
    return _result(game, descent, q_sum / run.rounds, run, record)


def sagawa(game: Game, run: Run) -> FSQResult:
    """Online group DRO (Sagawa et al. 2020, algorithm 1) with r_t uniform groups a round instead of one.

    q_g grows by exp(eta_q loss), eta_q = 0.01 c_q; the step uses (m/r) sum_g q_g grad_g, unbiased for the sum over all.
    """
    m = game.sampler.m
    descent, record = Descent(game, run.c_w, step_weighted=False), Record(run.trace_rounds, run.evaluate)
    gains, q_sum = np.zeros(m), np.zeros(m)
    for t, r in run.stream():
        groups = run.rng.permutation(m)[:r]
        losses, slope = game.play(descent.w, game.sampler.draw(groups, run.rng))
        gains[groups] += SAGAWA_RATE * run.c_q * losses
        q = np.exp(gains - gains.max())
        q /= q.sum()
        descent.move(slope(q[groups] * (m / r)))
        q_sum += q
        record.take(t, game, descent.average)
    return _result(game, descent, q_sum / run.rounds, run, record)


def average_risk(game: Game, run: Run, balanced: bool = False) -> FSQResult:
    """Empirical risk minimisation on r_t pooled samples a round; ``balanced`` takes r_t uniform groups instead.

    The balanced form answers whether a gain is due to the reweighting of groups alone, without an adversary.
    """
    m = game.sampler.m
    descent, record = Descent(game, run.c_w, step_weighted=False), Record(run.trace_rounds, run.evaluate)
    for t, r in run.stream():
        batch = (
            game.sampler.draw(run.rng.permutation(m)[:r], run.rng) if balanced else game.sampler.draw_pooled(r, run.rng)
        )
        _, slope = game.play(descent.w, batch)
        descent.move(slope(np.full(r, 1.0 / r)))
        record.take(t, game, descent.average)
    return _result(game, descent, np.full(m, 1.0 / m), run, record)


def _result(game: Game, descent: Descent, q: Floats, run: Run, record: Record) -> FSQResult:
    return FSQResult(descent.average, descent.w, q, run.rounds, game.samples, game.clipped, record.values)
