import math

import numpy as np
import pytest

from steelyard.optim.gdro_fsq import baselines
from steelyard.optim.gdro_fsq.baselines import Descent, Exp3IX, Exp3P, Game, Run, TsallisINF

SLOPES = np.array([1.0, -1.0, 0.5, -0.25])


class Line:
    """Losses 1/2 + .4 a_i w without noise; the worst risk is least (1/2) at w = 0."""

    m = 4

    def __init__(self):
        self.asked = []

    def draw(self, groups, rng):
        self.asked.append(len(groups))
        return SLOPES[groups]

    def draw_pooled(self, count, rng):
        self.asked.append(count)
        return SLOPES[rng.integers(0, 4, count)]


def loss_grad(w, a):
    return 0.5 + 0.4 * a * w[0], lambda weights: np.array([0.4 * weights @ a])


def game(sampler=None):
    return Game(loss_grad, sampler or Line(), np.array([0.5]), 1.0, 0.4, 1.0)


def run(r=2, rounds=3000, seed=0, **more):
    return Run(r, rounds, np.random.default_rng(seed), **more)


def worst(w):
    return float((0.5 + 0.4 * SLOPES * w[0]).max())


@pytest.mark.parametrize(
    ("play", "r", "near"),
    [
        (baselines.smd, 4, 0.01),
        (baselines.smd, 1, 0.02),
        (baselines.one_per_round, 1, 0.04),
        (baselines.sagawa, 2, 0.04),
    ],
)
def test_minimax_players_find_the_minimax_point(play, r, near):
    assert worst(play(game(), run(r)).average) - 0.5 < near


@pytest.mark.parametrize("bandit", [Exp3P, TsallisINF])
def test_soma_players_find_it(bandit):
    assert worst(baselines.one_per_round(game(), run(), bandit).average) - 0.5 < 0.05


def test_averages_do_not():
    """The mean slope is positive, so both averages go to the lower end of the ball, where group 1 pays."""
    for balanced in (False, True):
        assert worst(baselines.average_risk(game(), run(), balanced).average) - 0.5 > 0.1


def test_smd_follows_its_recipe():
    found = baselines.smd(game(), run(4, 20, c_w=2.0, c_q=0.5))
    w, w0, logs = np.array([0.5]), np.array([0.5]), np.zeros(4)
    total, weight = 0.0, 0.0
    for k in range(1, 21):
        q = np.exp(logs) / np.exp(logs).sum()
        step = 2.0 * (1 / 0.4) / math.sqrt(k)
        total, weight = total + step * w[0], weight + step
        logs += 0.5 * math.sqrt(math.log(4)) / math.sqrt(k) * (0.5 + 0.4 * SLOPES * w[0])
        w = w0 + np.clip(w - step * 0.4 * (q @ SLOPES) - w0, -1, 1)
    assert found.average[0] == pytest.approx(total / weight, rel=1e-12)
    assert found.last[0] == pytest.approx(w[0], rel=1e-12)


def test_waiting_carries_leftovers_over():
    sampler = Line()
    found = baselines.smd(game(sampler), run([3, 3, 3, 3, 4, 1, 1], 7))
    assert sampler.asked == [4, 4, 4, 4]  # purses 3, 6, 5, 4, 4, 1, 2
    assert found.samples == 16
    assert found.rounds == 7


def test_one_query_wastes_the_rest():
    sampler = Line()
    assert baselines.one_per_round(game(sampler), run(4, 10)).samples == 10
    assert set(sampler.asked) == {1}


@pytest.mark.parametrize("bandit", [Exp3IX, Exp3P, TsallisINF])
def test_bandits_play_mixed_strategies_that_lean_to_the_costly_arm(bandit):
    rng = np.random.default_rng(0)
    player = bandit(5, 2.0, 3000)
    for _ in range(3000):
        q = player.strategy()
        assert q.min() > 0
        assert q.sum() == pytest.approx(1.0, abs=1e-9)
        arm = int(rng.choice(5, p=q / q.sum()))
        player.learn(arm, float(q[arm]), 0.9 if arm == 3 else 0.2)
    assert player.strategy().argmax() == 3
    assert player.strategy()[3] > 0.5


def test_tsallis_strategy_solves_its_equation():
    player = TsallisINF(3, 1.0, 10)
    assert player.strategy() == pytest.approx([1 / 3] * 3)
    player.learn(0, 1 / 3, 0.0)
    q = player.strategy()
    roots = 2 / np.sqrt(q) / (2 / math.sqrt(2))  # 2/(eta sqrt(q_i)) = S_i - level
    assert roots[0] - roots[1] == pytest.approx(3.0)
    assert roots[1] == pytest.approx(roots[2])


def test_losses_are_scaled_clipped_and_counted():
    one = Game(loss_grad, Line(), np.array([0.5]), 1.0, 0.4, 0.5)
    losses, slope = one.play(np.array([0.5]), SLOPES)
    assert losses.max() == 1.0
    assert one.clipped == 2
    assert one.samples == 4
    assert slope(np.ones(4))[0] == pytest.approx(0.4 * SLOPES.sum() / 0.5)


def test_descent_projects_and_averages_before_the_step():
    descent = Descent(game(), 1.0, step_weighted=False)
    descent.move(np.array([100.0]))
    assert descent.average.tolist() == [0.5]
    assert descent.w[0] == pytest.approx(-0.5)
    descent.move(np.array([0.0]))
    assert descent.average[0] == pytest.approx(0.0)


def test_trace():
    found = baselines.sagawa(game(), run(2, 20, evaluate=worst, trace_rounds=(5, 20)))
    assert found.trace["round"] == [5.0, 20.0]
    assert found.trace["samples"] == [10.0, 40.0]
    assert found.trace["value"][-1] == worst(found.average)
    assert baselines.sagawa(game(), run(2, 20, trace_rounds=(5,))).trace["round"] == []
