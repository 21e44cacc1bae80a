"""The loop and its policies at their edges: temperatures, kept states, endless games, evaluations that pair."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.policy import (
    CommitmentPolicy,
    KeyDoorChain,
    LogLinearPolicy,
    StepBatch,
    TransformerPolicy,
    collect,
    evaluate,
    generate_games,
    grpo,
    run_policy,
    train_household,
)
from steelyard.policy.arc.heads import committed
from steelyard.policy.chain import Wanderer
from steelyard.policy.loglinear import HashedSoftmax
from steelyard.policy.training import Streams

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GAMES = generate_games(6, seed=3)
POLICIES = (LogLinearPolicy, CommitmentPolicy, TransformerPolicy)


def draws(seed=0):
    return np.random.default_rng(seed)


def played(policy, temperature):
    wrap = committed if isinstance(policy, CommitmentPolicy) else lambda env: env
    envs = [(task, wrap(game.make_env(6, 10.0))) for task, game in enumerate(GAMES[:2]) for _ in range(2)]
    return [step["trace"] for steps in collect(envs, policy, draws(), temperature=temperature) for step in steps]


def mean_log_probability(heads, weights, advantages, temperature):
    """Sum over heads of the mean of advantage times log probability at a temperature, from the weights alone."""
    total = 0.0
    for head, traces in heads:
        for trace, advantage in zip(traces, advantages, strict=True):
            scores = weights[head._table[trace.rows]].sum(axis=1) / temperature
            total += advantage * (scores[trace.chosen] - np.log(np.exp(scores).sum())) / len(advantages)
    return total


def heads_of(policy, traces):
    if isinstance(policy, LogLinearPolicy):
        return [(policy._softmax, traces)]
    return [(policy._actions, [one.action for one in traces]),
            (policy._predictions, [one.prediction for one in traces]),
            *((policy._statements, [one.heads[place] for one in traces]) for place in range(3))]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("made", [LogLinearPolicy, CommitmentPolicy])
def test_the_gradient_is_that_at_the_temperature_of_the_draw(made, temperature):
    policy = made(bins=256)
    policy.weights = draws(1).normal(size=256) * 0.5
    traces = played(policy, temperature)
    advantages = draws(2).normal(size=len(traces))
    given_as = advantages if made is LogLinearPolicy else dict.fromkeys(policy.segments, advantages)
    gradient = policy.gradient(traces, given_as)
    heads = heads_of(policy, traces)
    for place in np.argsort(-np.abs(gradient))[:10]:
        nudge = 1e-5 * (np.arange(256) == place)
        up, down = (mean_log_probability(heads, policy.weights + by, advantages, temperature) for by in (nudge, -nudge))
        assert gradient[place] == pytest.approx((up - down) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_transformers_gradient_is_that_at_the_temperature_of_the_draw(temperature):
    policy = TransformerPolicy(width=8, words=64)
    policy.network.double()
    traces = played(policy, temperature)
    advantages = np.round(draws(2).normal(size=len(traces)), 2).astype(np.float32)
    weights = policy.network.command[0].bias
    policy.objective(traces, advantages).backward()

    def value():
        with torch.no_grad():
            scores = policy._scores(traces)
        logs = [
            torch.log_softmax(own / temperature, 0)[one.chosen].item() for own, one in zip(scores, traces, strict=True)
        ]
        return float(np.mean(advantages.astype(np.float64) * logs))

    for place in range(len(weights)):
        ends = []
        for by in (1e-5, -2e-5):
            with torch.no_grad():
                weights[place] += by
            ends.append(value())
        with torch.no_grad():
            weights[place] += 1e-5
        assert weights.grad[place].item() == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-7)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6), st.floats(0.2, 4), st.data())
@settings(deadline=None)
def test_a_temperature_is_a_scale_of_the_scores(scores, temperature, data):
    """d/dw log softmax(w / T) is 1/T of the derivative at T = 1 from the scores w / T."""
    head, size = HashedSoftmax(lambda key: ((key,),), 4096), len(scores)
    rows = head.rows(range(size))
    weights = np.zeros(4096)
    weights[head._table[rows, 0]] = scores
    seed = data.draw(st.integers(0, 99))
    warm = head.choose(weights, [rows], draws(seed), temperature)
    plain = head.choose(weights / temperature, [rows], draws(seed), 1.0)
    np.testing.assert_allclose(
        head.gradient(warm, np.ones(1)), head.gradient(plain, np.ones(1)) / temperature, atol=1e-12
    )


@pytest.mark.parametrize("made", POLICIES)
def test_what_was_drawn_without_chance_has_no_gradient(made):
    policy = made()
    traces = played(policy, 0.0)
    before = str(policy.state_dict())
    with pytest.raises(InputError, match="temperature 0"):
        policy.ascend(traces, np.ones(len(traces)))
    assert str(policy.state_dict()) == before


@pytest.mark.parametrize("made", POLICIES)
@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_advantages_are_one_a_turn(made, shape):
    policy = made()
    traces = played(policy, 1.0)[:3]
    with pytest.raises(InputError, match=r"advantages: .*\(3,\)"):
        policy.ascend(traces, np.ones(shape))
    with pytest.raises(InputError, match="traces"):
        policy.ascend([], np.ones(0))


@pytest.mark.parametrize("made", [LogLinearPolicy, TransformerPolicy])
def test_advantages_by_segment_name_the_action(made):
    policy = made()
    traces = played(policy, 1.0)
    with pytest.raises(InputError, match="'action'"):
        policy.ascend(traces, {"progress": np.ones(len(traces))})


@pytest.mark.parametrize("made", [LogLinearPolicy, TransformerPolicy])
def test_advantages_by_segment_are_those_of_the_action(made):
    one = made()
    traces, two = played(one, 1.0), one.copy()
    credit = draws(2).normal(size=len(traces))
    one.ascend(traces, credit)
    two.ascend(traces, {"progress": -credit, "action": torch.tensor(credit)})
    assert str(one.state_dict()) == str(two.state_dict())
    with pytest.raises(InputError, match="advantages: they must be one number a turn"):
        one.ascend(traces, ["much"] * len(traces))


@pytest.mark.parametrize("made", POLICIES)
def test_without_walkthroughs_there_is_nothing_to_imitate(made):
    with pytest.raises(InputError, match="there is no"):
        made().fit_bc([])


@pytest.mark.parametrize("made", [LogLinearPolicy, CommitmentPolicy])
@pytest.mark.parametrize(
    "change",
    [{"weights": None}, {"first": np.zeros(3)}, {"second": [[1], [1, 2]]}, {"second": np.full(64, -1.0)}, {"count": -1},
     {"weights": np.full(64, np.nan)}, {"count": "x"}, {"first": "abc"}, {"count": True}],
)  # fmt: skip
def test_a_state_that_is_none_is_refused_and_nothing_of_it_is_taken(made, change):
    policy = made(bins=64)
    policy.weights += 1
    before = str(policy.state_dict())
    with pytest.raises(InputError, match="state: ") as caught:
        policy.load_state_dict({**made(bins=64).state_dict(), **change})
    assert "\n" not in str(caught.value)
    for bad in (None, {}, {"weights": np.zeros(64)}):
        with pytest.raises(InputError, match="state: "):
            policy.load_state_dict(bad)
    assert str(policy.state_dict()) == before


def test_a_transformers_state_belongs_to_nobody_else():
    one, two, other = (TransformerPolicy(width=8, words=64, seed=seed) for seed in range(3))
    traces = played(one, 1.0)
    credit = np.ones(len(traces))
    one.ascend(traces, credit)
    state = one.state_dict()
    kept = str(state)
    for policy in (two, other):
        policy.load_state_dict(state)
    two.ascend(traces, credit)
    assert str(state) == kept, "moments are copied, not shared"
    other.ascend(traces, credit)
    assert all(torch.equal(a, b) for a, b in zip(two.network.parameters(), other.network.parameters(), strict=True))


def test_a_transformers_weights_are_those_of_its_seed_alone():
    def weights():
        return [one.detach().clone() for one in TransformerPolicy(width=8, words=64, seed=1).network.parameters()]

    with torch.random.fork_rng(devices=[]):
        before = weights()
        torch.rand(3)  # torch's global generator goes on, as it does in a program, and differs between processes
        assert all(torch.equal(a, b) for a, b in zip(before, weights(), strict=True))


def broken(change):
    """Return a transformer's state with one thing wrong."""
    policy = TransformerPolicy(width=8, words=64)
    traces = played(policy, 1.0)
    policy.ascend(traces, np.ones(len(traces)))
    state = policy.state_dict()
    if change == "moments":
        state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    elif change == "step":
        state["optimizer"]["state"][0]["step"] = None
    elif change == "groups":
        state["optimizer"]["param_groups"] = []
    elif change == "names":
        state["network"].pop("place.weight")
    elif change == "content":
        state["network"]["place.weight"] = torch.full_like(state["network"]["place.weight"], torch.nan)
    elif change == "kind":
        state["network"]["place.weight"] = "abc"
    else:
        state = {"network": state["network"]} if change == "half" else None
    return state


@pytest.mark.parametrize("change", ["moments", "step", "groups", "names", "content", "kind", "half", "none"])
def test_a_transformers_state_that_is_none_is_refused_and_nothing_of_it_is_taken(change):
    policy = TransformerPolicy(width=8, words=64, seed=5)
    before = str(policy.state_dict())
    with pytest.raises(InputError, match="state: ") as caught:
        policy.load_state_dict(broken(change))
    assert "\n" not in str(caught.value)
    assert str(policy.state_dict()) == before


class Endless:
    """A room without a way out."""

    def reset(self, *, seed=None, options=None):
        return "a room", {"admissible": ["wait"], "task": "leave."}

    def step(self, command):
        return "a room", 0.0, False, False, {"admissible": ["wait"], "task": "leave."}

    def state_key(self, full=False):
        return "room"


def test_an_endless_game_is_cut_off():
    episode = run_policy(Endless(), LogLinearPolicy(), draws(), max_steps=7)
    assert [step["truncated"] for step in episode] == [False] * 6 + [True]
    batch = StepBatch.from_episodes([episode])
    assert batch.truncated.all()


def test_a_limit_changes_nothing_before_it_and_a_win_on_it_is_no_cut():
    def walk(limit, rooms=4):
        envs = [(0, KeyDoorChain(start=start, max_steps=60)) for start in range(rooms)]
        return collect(envs, Wanderer(1.0), draws(), max_steps=limit)

    whole = walk(None)
    assert walk(60) == whole
    lengths = [len(steps) for steps in whole]
    for steps, cut in zip(whole, walk(lengths[1]), strict=True):
        assert cut[:-1] == steps[: len(cut) - 1]
        assert cut[-1]["truncated"] == (len(steps) > lengths[1])
        assert cut[-1]["success"] == (len(steps) <= lengths[1])


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_limits_that_cannot_be_are_refused(limit):
    for play in (
        lambda: run_policy(KeyDoorChain(), Wanderer(), draws(), max_steps=limit),
        lambda: collect([(0, KeyDoorChain())], Wanderer(), draws(), max_steps=limit),
        lambda: evaluate(Wanderer(), [KeyDoorChain()], draws(), max_steps=limit),
        lambda: train_household(Wanderer(), [KeyDoorChain()], grpo, tasks=1, max_steps=limit),
    ):
        with pytest.raises(InputError, match=r"^max_steps must be a whole number of at least 1, got .*$"):
            play()


@pytest.mark.parametrize("temperature", [-1.0, np.nan, np.inf, "1", None])
def test_temperatures_that_cannot_be_are_refused(temperature):
    for play in (
        lambda: run_policy(KeyDoorChain(), Wanderer(), draws(), temperature=temperature),
        lambda: evaluate(Wanderer(), [KeyDoorChain()], draws(), temperature=temperature),
        lambda: train_household(Wanderer(), [KeyDoorChain()], grpo, tasks=1, temperature=temperature),
    ):
        with pytest.raises(InputError, match=r"^temperature must be a finite number"):
            play()


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name in ("iterations", "tasks", "rollouts", "evaluate_every")
     for value in (0, -2, True, "2", 1.5)]
    + [("temperature", 0.0), ("reward", np.nan), ("reward", "10"), ("seed", None), ("seed", 1.5)],
)  # fmt: skip
def test_numbers_of_a_training_that_cannot_be_are_named(name, value):
    with pytest.raises(InputError, match=f"^{name} must be") as caught:
        train_household(
            Wanderer(), [KeyDoorChain()], grpo, **{"tasks": 1, "evaluate_on": [KeyDoorChain()], name: value}
        )
    assert "\n" not in str(caught.value)


def test_an_environment_plays_one_episode_at_a_time():
    env = KeyDoorChain()
    with pytest.raises(InputError, match="envs: 2 is the same environment as 0"):
        collect([(0, env), (0, KeyDoorChain()), (0, env)], Wanderer(), draws())


def test_an_environment_without_commands_is_named():
    class Mute(Endless):
        def reset(self, *, seed=None, options=None):
            return "a room", {"task": "leave."}

    with pytest.raises(InputError, match="envs: 1 offers no admissible command"):
        collect([(0, Endless()), (0, Mute())], LogLinearPolicy(), draws(), max_steps=3)


def test_evaluations_pair_however_often_they_are_made():
    def trained(every):
        policy = LogLinearPolicy()
        return train_household(
            policy, GAMES, lambda batch: np.zeros(len(batch)), iterations=4, tasks=2, rollouts=2, max_steps=5,
            evaluate_on=GAMES, evaluate_every=every, seed=1,
        ).evaluations  # fmt: skip

    def commands(evaluation):
        return [[step["action"] for step in steps] for steps in evaluation.episodes]

    often, once = trained(1), trained(None)
    assert [one.iteration for one in often] == [1, 2, 3, 4]
    assert [one.iteration for one in once] == [4]
    assert commands(often[-1]) == commands(once[-1])
    assert all(commands(one) == commands(once[0]) for one in often), "nothing was learned: the same games again"
    by_hand = evaluate(LogLinearPolicy(), GAMES, Streams.of(1).evaluation, max_steps=5)[1]
    assert commands(once[0]) == [[step["action"] for step in steps] for steps in by_hand]


@pytest.mark.parametrize("options", [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"betas": (0.9,)}, {"betas": None},
                                     {"learning_rate": np.nan}])  # fmt: skip
@pytest.mark.parametrize("made", [LogLinearPolicy, CommitmentPolicy])
def test_numbers_of_adam_that_cannot_be_are_refused(made, options):
    with pytest.raises(InputError, match=next(iter(options))):
        made(**options)


@pytest.mark.parametrize("name", ["width", "layers", "heads", "words"])
@pytest.mark.parametrize("value", [1.5, "4", True])
def test_sizes_of_the_transformer_are_whole(name, value):
    with pytest.raises(InputError, match=f"^{name} must be a whole number"):
        TransformerPolicy(**{name: value})


def test_the_number_of_weights_is_whole():
    for bins in (0, 1.5, True):
        with pytest.raises(InputError, match=r"^bins must be a whole number"):
            LogLinearPolicy(bins=bins)
