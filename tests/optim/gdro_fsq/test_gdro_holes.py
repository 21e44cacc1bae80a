"""Closed forms for what plausible mistakes would change; each was written after such a mistake went unseen."""

import math

import numpy as np
import pytest
import torch

from steelyard.optim import FlexGroupBatchSampler, FlexGroupDRO, PLAPlayer, fsq_minimize
from steelyard.optim.gdro_fsq import baselines
from steelyard.optim.gdro_fsq.baselines import Exp3P, Game, Run


def test_a_round_counts_with_its_weight_in_the_sums():
    player = PLAPlayer(4, "auto", round_weight="samples")
    player.propose(2, np.random.default_rng(0))
    one = player.open_proposals[0]
    player.update([0.2, 0.6])
    load = 0.25 * 4 / 2
    S = np.zeros(4)
    S[one.indices] = 0.5 * np.array([0.8, 0.4]) / one.probs
    wanted = np.exp(-math.sqrt(math.log(4) / load) * (S - S.min()))
    assert player.weights == pytest.approx(wanted / wanted.sum(), rel=1e-12)


def flat(value):
    return lambda w, z: (value[int(z)], np.zeros(1))


def groups(m):
    return [lambda rng, i=i: i for i in range(m)]


@pytest.mark.filterwarnings("ignore:losses above")
def test_clipped_losses_count_as_one_and_each_is_counted():
    def play(values):
        return fsq_minimize(
            flat(values), groups(3), np.zeros(1), 1.0, 1.0, 3, rng=np.random.default_rng(0), rounds=10, mode="auto"
        )

    clipped, plain = play([5.0, 3.0, 0.5]), play([1.0, 1.0, 0.5])
    assert clipped.q_average == pytest.approx(plain.q_average, rel=1e-12)
    assert (clipped.clipped, plain.clipped) == (20, 0)


def test_the_average_strategy_is_the_mean_over_rounds_not_the_last():
    found = fsq_minimize(
        flat([1.0, 0.0]), groups(2), np.zeros(1), 1.0, 1.0, 2, rng=np.random.default_rng(0), rounds=3, mode="auto"
    )
    first = [1 / (1 + math.exp(-math.sqrt(math.log(2) / t) * (t - 1))) for t in (1, 2, 3)]  # Hedge, S = (0, t - 1)
    assert found.q_average[0] == pytest.approx(np.mean(first), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_losses_reach_the_group_they_belong_to_whatever_the_order_of_the_query(seed):
    player = PLAPlayer(5, "auto")
    player.propose(3, np.random.default_rng(seed))
    one = player.open_proposals[0]
    values = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    batch = np.sort(one.indices)
    dro = FlexGroupDRO(None, 5, player=player)
    loss = dro(torch.tensor(values[batch]), torch.tensor(batch))
    q = one.q[one.indices] / one.q[one.indices].sum()
    assert float(loss) == pytest.approx(float(q @ values[one.indices]))
    S = np.zeros(5)
    S[one.indices] = (1 - values[one.indices]) / one.probs
    wanted = np.exp(-math.sqrt(math.log(5) / (5 / 3)) * (S - S.min()))
    assert player.weights == pytest.approx(wanted / wanted.sum(), rel=1e-12)


def test_the_samples_of_a_group_are_drawn_one_by_one():
    sampler = FlexGroupBatchSampler(
        np.zeros(1000, dtype=int), 1, PLAPlayer(1), samples_per_group=20, rng=np.random.default_rng(0), batches=1
    )
    (rows,) = sampler
    assert len(set(rows)) > 15


def test_sagawa_step_is_scaled_to_all_groups():
    class One:
        m = 4

        def draw(self, chosen, rng):
            return chosen

        def draw_pooled(self, count, rng):
            return np.zeros(count, dtype=int)

    def loss_grad(w, chosen):
        return np.full(len(chosen), 0.5), lambda weights: np.array([float(weights.sum())])

    game = Game(loss_grad, One(), np.zeros(1), 1.0, 10.0, 1.0)
    found = baselines.sagawa(game, Run(2, 1, np.random.default_rng(0), c_q=3.0))
    # q = 1/4 before the update and e^(.015) up for two groups after it; two of four are asked, so each counts twice
    up = math.exp(0.015)
    assert found.last[0] == pytest.approx(-0.1 * 2 * (2 * up / (2 * up + 2)), rel=1e-12)


def test_exp3p_adds_its_bonus_to_every_arm():
    player = Exp3P(2, 1.0, 100)
    q = player.strategy()
    assert q.tolist() == [0.5, 0.5]
    player.learn(0, 0.5, 0.4)
    rate = math.sqrt(math.log(2) / 200)
    gains = np.array([rate / 0.5 + 0.4 / 0.5, rate / 0.5])
    weights = np.exp(0.95 * rate * gains)
    mixing = 1.05 * 2 * rate
    assert player.strategy() == pytest.approx((1 - mixing) * weights / weights.sum() + mixing / 2, rel=1e-12)
    player.learn(0, 0.5, 0.0)  # the bonuses differ now, since the strategy did
    p = (1 - mixing) * weights / weights.sum() + mixing / 2
    weights = np.exp(0.95 * rate * (gains + rate / p))
    assert player.strategy() == pytest.approx((1 - mixing) * weights / weights.sum() + mixing / 2, rel=1e-12)
