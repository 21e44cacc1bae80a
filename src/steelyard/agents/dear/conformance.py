"""Probes for the checks that every method passes; the acceptance test takes a controller in any form."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.agents.dear import bench, user
from steelyard.agents.dear.cells import Policy
from steelyard.agents.dear.controller import DEARController
from steelyard.agents.dear.episodes import BEHAVIOURS, Backend, Bools, Ints, State
from steelyard.agents.dear.observation import Observation, observe
from steelyard.agents.dear.policies import FixedController, FullyConnected, KeepAll
from steelyard.agents.dear.reward import Reward
from steelyard.agents.dear.rollout import Outcome, rollout
from steelyard.agents.dear.settings import PPOSettings
from steelyard.agents.dear.simulator import SimAgents
from steelyard.contracts import Arrays, BadInput, Conformance
from steelyard.rng import generator

Maker = Callable[[Backend, int], Policy]
"""From agents and a seed to a controller for them, trained if it is one that learns."""

_ROUNDS, _DEBATES, _EPISODES = 3, 20_000, 15_000
_PRICE = 0.008  # higher than the bench's: teaches silence where debating gains nothing, in a short training
_GAIN, _NEAR, _SHARE, _QUIET = 0.005, 0.01, 0.45, 8.0


def trained(backend: Backend, seed: int, episodes: int = _EPISODES) -> DEARController:
    """Return a controller trained on the tuning streams with the bench's settings but a higher price of calls."""
    config = bench.TUNED["dear"]["config"]
    settings = PPOSettings(**{name: config[name] for name in PPOSettings.model_fields if name in config})
    made = DEARController(reward=Reward(credit=config["credit"]), settings=settings)
    return made.fit(backend, episodes=episodes, lam=_PRICE, seed=seed, root="tuning", rounds=_ROUNDS)


def _played(backend: Backend, controller: Policy, seed: int, batch: int = 200) -> Outcome:
    stream = generator("conformance", "dear/judged", seed)
    return rollout(backend, controller, batch=batch, rounds=_ROUNDS, generator=stream)


@functools.lru_cache(maxsize=8)
def _small(seed: int) -> DEARController:
    """Return a controller trained for an instant, with calls for nothing, so that it does not fall silent."""
    made = DEARController(hidden=(8, 8), settings=PPOSettings(batch=64))
    return made.fit(SimAgents(), episodes=128, lam=0.0, seed=seed)


def _arrays(outcome: Outcome) -> Arrays:
    return {"answers": outcome.answersT, "vote": outcome.vote, "cost": outcome.cost}


def _run(seed: int, dtype: str) -> Arrays:
    """Train a little and debate; costs are float64 whatever is asked."""
    fresh = DEARController(hidden=(8, 8), settings=PPOSettings(batch=64))
    return _arrays(_played(SimAgents(), fresh.fit(SimAgents(), episodes=128, lam=0.0, seed=seed), seed))


def _noop() -> tuple[Arrays, Arrays]:
    """A controller that may only keep is the majority vote."""
    silent = DEARController(behaviours=("keep",), hidden=(8, 8)).fit(SimAgents(), episodes=128)
    return _arrays(_played(SimAgents(), silent, 0)), _arrays(_played(SimAgents(), KeepAll(), 0))


def _effect() -> tuple[Arrays, Arrays]:
    return _arrays(_played(SimAgents(), _small(0), 0)), _arrays(_played(SimAgents(), KeepAll(), 0))


def _resumed() -> tuple[Arrays, Arrays]:
    """A controller, and the same one stored after training and loaded again."""
    with tempfile.TemporaryDirectory() as folder:
        _small(0).save(Path(folder) / "stored")
        loaded = DEARController.from_pretrained(Path(folder) / "stored")
    return _arrays(_played(SimAgents(), _small(0), 1)), _arrays(_played(SimAgents(), loaded, 1))


def _state() -> State:
    return SimAgents().start(16, generator("conformance", "dear/state", 0)).public()


def _untouched() -> tuple[Arrays, Arrays]:
    state = _state()
    seen = observe(state, _ROUNDS)
    inputs = {"answers": state.answers, "flips": state.flips, "tie": state.tie, **seen._asdict()}
    before = {name: values.copy() for name, values in inputs.items()}
    _small(0).decide(seen, state, generator("conformance", "dear/draws", 0))
    return before, inputs


def acceptance(make: Maker) -> None:
    """Demand that a controller gains by debating at little cost, and is silent where there is nothing to gain.

    On the simulator its votes must be right half a point more often than those of the plain vote, and not a point
    less often than MAD's, for at most 45 % of MAD's call-units and no more than MAD with early stop takes. On the
    simulator without conformity and arguments it must be as often right as the vote, for at most 8 call-units, of
    which 5 are first answers. The second demand tells a learned controller from fixed policies: MAD with early stop and
    critique-all debate there as well. Tuning streams only; no evaluation seed is used.

    Raises:
        AssertionError: It is not so.
    """
    gain, control = SimAgents(), SimAgents(conformity=0.0, arguments=False)
    ours = _played(gain, make(gain, 11), 11, _DEBATES).summary()
    mad, mad_stop, vote = (
        _played(gain, policy, 11, _DEBATES).summary()
        for policy in (FullyConnected(), FullyConnected(early_stop="unanimous"), KeepAll())
    )
    right = "vote_accuracy"
    assert ours[right] >= vote[right] + _GAIN, f"right votes {ours[right]:.3f}, without debate {vote[right]:.3f}"
    assert ours[right] >= mad[right] - _NEAR, f"right votes {ours[right]:.3f}, MAD {mad[right]:.3f}"
    most = min(_SHARE * mad["cost"], mad_stop["cost"])
    assert ours["cost"] <= most, f"{ours['cost']:.1f} call-units a debate, at most {most:.1f} were allowed"
    quiet = _played(control, make(control, 12), 12, _DEBATES).summary()
    silent = _played(control, KeepAll(), 12, _DEBATES).summary()
    assert quiet[right] >= silent[right] - _NEAR, f"control: {quiet[right]:.3f}, without debate {silent[right]:.3f}"
    assert quiet["cost"] <= _QUIET, f"control: {quiet['cost']:.1f} call-units where nothing is to be gained"


class _Random(FixedController):
    """Any peers, any behaviour."""

    def decide(self, observation: Observation, state: State, generator: np.random.Generator) -> tuple[Bools, Ints]:
        agents = state.n_agents
        reads = (generator.random((state.batch, agents, agents)) < 0.5) & ~np.eye(agents, dtype=bool)
        return reads, generator.integers(len(BEHAVIOURS), size=state.answers.shape)


DUMMIES: dict[str, Maker] = {
    "constant": lambda backend, seed: KeepAll(),
    "random": lambda backend, seed: _Random(),
    "identity": lambda backend, seed: FullyConnected(),  # debate as it is without a controller
}


def _bad_inputs() -> tuple[BadInput, ...]:
    state, draws = _state(), generator("conformance", "dear/bad", 0)
    row = {"question": "a?", "options": ["b", "c"], "answer": "b"}

    def rows(**changes: Any) -> Callable[[], object]:
        return lambda: user.read_rows([{**row, **changes}])

    calls: tuple[tuple[str, Callable[[], object], str], ...] = (
        ("a cap of 0", lambda: DEARController(d_max=0), "d_max"),
        ("an unknown behaviour", lambda: DEARController(behaviours=("shout",)), "behaviours"),
        ("no behaviour", lambda: DEARController(behaviours=()), "behaviours"),
        ("a width of 0", lambda: DEARController(hidden=(0, 8)), "hidden"),
        ("an unknown selection", lambda: DEARController(selection=_any("best")), "selection"),
        ("random peers of a macro", lambda: DEARController(selection="macro", who="random"), "who"),
        ("several debates at once", lambda: DEARController().act(state), "act"),
        ("an untrained controller", lambda: DEARController().decide(observe(state, 3), state, draws), "not trained"),
        ("an unknown algorithm", lambda: DEARController().fit(SimAgents(), algo="dqn"), "algo"),
        ("no episodes", lambda: DEARController().fit(SimAgents(), episodes=0), "episodes"),
        ("a negative price", lambda: DEARController().fit(SimAgents(), lam=-1.0), "lam"),
        ("one agent", lambda: DEARController().fit(SimAgents(n_agents=1)), "agents"),
        ("other features", lambda: _small(0).decide(observe(state, 3, identity=True), state, draws), "observation"),
        ("a folder that is not there", lambda: DEARController.from_pretrained("no such folder"), "path"),
        ("questions without options", rows(options=None), "options"),
        ("an answer that is no option", rows(answer="d"), "answer"),
        ("too few questions", lambda: user.user_task([row], endpoint="http://127.0.0.1:1/v1", model="m"), "questions"),
    )
    return tuple(BadInput(label, call, names) for label, call, names in calls)


def _any(value: Any) -> Any:
    return value


CONFORMANCE = Conformance(
    run=_run,
    dtypes=("float64",),
    bad_inputs=_bad_inputs(),
    noop=_noop,
    effect=_effect,
    resumed=_resumed,
    untouched=_untouched,
    implementation=trained,
    acceptance=acceptance,
    dummies=DUMMIES,
)
