"""G2PO and GiGPO beside loops written from their equations, in every mode; the golden batch in exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.policy import StepBatch, gigpo, grpo
from steelyard.policy.g2po.core import g2po_advantage

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def made(seed, shaped=False):
    """Steps of 1-3 tasks in random order: revisits, cycles, lone rollouts, invalid and cut-off steps."""
    draws = np.random.default_rng(seed)
    steps = []
    for traj in range(int(draws.integers(1, 9))):
        length = int(draws.integers(1, 7))
        won, cut = bool(draws.random() < 0.5), bool(draws.random() < 0.3)
        for t in range(length):
            reward = 10.0 * won * (t + 1 == length) + (0.25 * int(draws.integers(-2, 3)) if shaped else 0.0)
            state, valid = f"s{draws.integers(0, 4)}", bool(draws.random() < 0.8)
            steps.append((f"task {traj % 3}", traj, t, reward, state, valid, won, cut))
    fields = ("task", "traj", "t", "reward", "anchor", "valid", "success", "truncated")
    columns = zip(*[steps[row] for row in draws.permutation(len(steps))], strict=True)
    return StepBatch(**{name: list(values) for name, values in zip(fields, columns, strict=True)})


def mean(values):
    return math.fsum(values) / len(values)


def scaled(values, value, norm, floor=0.0):
    centre = mean(values)
    spread = math.sqrt(math.fsum((x - centre) ** 2 for x in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    if spread <= 1e-12 * (1 + abs(centre)):  # rounding alone
        return 0.0
    return (value - centre) / (max(spread, floor) + 1e-6) if norm == "std" else value - centre


def rollouts(batch):
    """Task -> rollout -> its rows in the order of time."""
    found = {}
    for row in sorted(range(len(batch)), key=lambda row: (int(batch.traj[row]), int(batch.t[row]))):
        found.setdefault(batch.task[row], {}).setdefault(int(batch.traj[row]), []).append(row)
    return found.values()


def episode(batch, steps, norm, stats, penalty, floor=0.0):
    """A_EP of every row of a task."""
    total = {traj: math.fsum(float(batch.reward[row]) for row in rows) for traj, rows in steps.items()}
    if stats == "trajectory":
        return {row: scaled(list(total.values()), total[traj], norm, floor) for traj in steps for row in steps[traj]}
    seen = {row: total[traj] - (0 if batch.valid[row] else penalty) for traj in steps for row in steps[traj]}
    if len(steps) == 1:
        return dict.fromkeys(seen, 0.0)
    return {row: scaled(list(seen.values()), value, norm, floor) for row, value in seen.items()}


def values_of(batch, steps, gamma, weighting):
    visits = {}
    for traj, rows in steps.items():
        total = math.fsum(float(batch.reward[row]) for row in rows)
        for j, row in enumerate(rows, 1):
            visits.setdefault(batch.anchor[row], {}).setdefault(traj, []).append(gamma ** (len(rows) - j + 1) * total)
    if weighting == "visits":
        return {state: mean([v for own in by_traj.values() for v in own]) for state, by_traj in visits.items()}
    return {state: mean([mean(own) for own in by_traj.values()]) for state, by_traj in visits.items()}


def loops(batch, mode):
    out = np.zeros(len(batch))
    for steps in rollouts(batch):
        value = values_of(batch, steps, mode["gamma"], mode["weighting"])
        led, edge = {}, {}
        for rows in steps.values():
            total = math.fsum(float(batch.reward[row]) for row in rows)
            end = 2 * total - 1 if mode["terminal_value"] else total * bool(batch.success[rows[-1]])
            if mode["bootstrap"] and batch.truncated[rows[-1]]:
                end = value[batch.anchor[rows[-1]]]
            after = 0.0
            for row, following in reversed(list(zip(rows, [*rows[1:], None], strict=True))):
                led[row] = end if following is None else value[batch.anchor[following]]
                after = edge[row] = led[row] - value[batch.anchor[row]] + mode["lam"] * after
        lowered = {row: led[row] - (0 if batch.valid[row] else mode["invalid_penalty"]) for row in led}
        norm, floor = mode["norm"], mode["min_std"]
        ep = episode(batch, steps, norm, mode["episode_stats"], mode["invalid_penalty"], floor)
        for row in led:
            same = [lowered[other] for other in led if batch.anchor[other] == batch.anchor[row]]
            nc, ec = scaled(same, lowered[row], norm, floor), scaled(list(edge.values()), edge[row], norm, floor)
            terms = {"ep": ep[row], "nc": mode["w"] * nc, "ec": mode["w"] * ec}
            out[row] = math.fsum(terms[name] for name in mode["parts"])
    return out


MODES = st.fixed_dictionaries(
    {
        "gamma": st.sampled_from([0.95, 1.0, 0.5]),
        "w": st.sampled_from([0.0, 0.8, 1.0]),
        "norm": st.sampled_from(["std", "mean"]),
        "episode_stats": st.sampled_from(["trajectory", "step"]),
        "parts": st.sampled_from([("ep", "nc", "ec"), ("ep", "ec"), ("ep", "nc"), ("nc", "ec"), ("ec",)]),
        "lam": st.sampled_from([0.0, 0.9, 1.0]),
        "terminal_value": st.sampled_from([None, lambda returns: 2 * returns - 1]),
        "invalid_penalty": st.sampled_from([0.0, 0.1]),
        "min_std": st.sampled_from([0.0, 0.5]),
        "weighting": st.sampled_from(["visits", "trajectories"]),
        "bootstrap": st.booleans(),
    }
)


@given(st.integers(0, 2**32 - 1), st.booleans(), MODES)
def test_it_is_the_equations_written_as_loops_in_every_mode(seed, shaped, mode):
    batch = made(seed, shaped)
    np.testing.assert_allclose(g2po_advantage(batch, **mode), loops(batch, mode), rtol=1e-12, atol=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["std", "mean"]), st.sampled_from(["trajectory", "step"]))
def test_gigpo_is_its_equations_written_as_loops(seed, norm, stats):
    batch = made(seed, shaped=True)
    expected = np.zeros(len(batch))
    for steps in rollouts(batch):
        ep = episode(batch, steps, norm, stats, penalty=0.0)
        to_go = {
            row: math.fsum(0.95**k * float(batch.reward[later]) for k, later in enumerate(rows[place:]))
            for rows in steps.values()
            for place, row in enumerate(rows)
        }
        for row, value in to_go.items():
            same = [to_go[other] for other in to_go if batch.anchor[other] == batch.anchor[row]]
            expected[row] = ep[row] + 0.7 * scaled(same, value, norm)
    found = gigpo(batch, w=0.7, norm=norm, episode_stats=stats)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_golden_batch_in_exact_fractions():
    """A-B-C-win and A-B-B-end by rational arithmetic; roots alone are taken in floating point."""
    gamma = Fraction(19, 20)
    node = {"A": 10 * gamma**3 / 2, "B": 10 * gamma**2 / 3, "C": 10 * gamma}
    path = list("ABCABB")
    led = [node["B"], node["C"], Fraction(10), node["B"], node["B"], Fraction(0)]
    rise = [after - node[state] for after, state in zip(led, path, strict=True)]

    def exact(values, value):
        centre = sum(values) / len(values)
        square = sum((x - centre) ** 2 for x in values) / max(len(values) - 1, 1)
        return float(value - centre) / (math.sqrt(square) + 1e-6) if square else 0.0

    ep = [exact([Fraction(10), Fraction(0)], Fraction(10 if row < 3 else 0)) for row in range(6)]
    nc = [exact([led[o] for o in range(6) if path[o] == path[row]], led[row]) for row in range(6)]
    ec = [exact(rise, value) for value in rise]
    batch = StepBatch([0] * 6, [0] * 3 + [1] * 3, [0, 1, 2] * 2, [0, 0, 10.0, 0, 0, 0], path)
    found = g2po_advantage(batch, return_info=True)
    for name, values in {"ep": ep, "nc": nc, "ec": ec, "next_value": led, "delta": rise}.items():
        np.testing.assert_allclose(getattr(found, name), list(map(float, values)), rtol=1e-12, atol=1e-13)
    assert sum(rise[:3]) == 10 - node["A"] == Fraction("5.713125")
    assert sum(rise[3:]) == -node["A"] == Fraction("-4.286875")


@given(st.integers(0, 2**32 - 1), st.sampled_from(["trajectory", "step"]))
def test_a_part_of_weight_zero_keeps_every_bit_of_grpo(seed, stats):
    batch = made(seed, shaped=True)
    whole, alone = (
        g2po_advantage(batch, w=w, parts=p, episode_stats=stats) for w, p in ((0, ["ep", "nc", "ec"]), (1, ["ep"]))
    )
    assert whole.tobytes() == alone.tobytes()
    if stats == "trajectory":
        assert whole.tobytes() == grpo(batch).tobytes()
