"""Live debates recorded and replayed."""

import numpy as np
import pytest

from steelyard.agents.dear.debate import Debate
from steelyard.agents.dear.debate_recorder import DebateRecorder
from steelyard.agents.dear.items import Item
from steelyard.agents.dear.policies import CritiqueAll, FullyConnected
from steelyard.agents.dear.recorded import RecordedAgents, Recording
from steelyard.agents.dear.rollout import rollout
from steelyard.errors import InputError
from steelyard.rng import generator

ITEMS = (
    Item("one", "Which city?", ("Lyon", "Paris", "Nice"), 1),
    Item("two", "Which town?", ("Bern", "Rome", "Oslo"), 0),
)


def follows(favourites):
    """An agent that answers one of its favourites, or "Nice" once it has read "because"."""

    def agent(messages):
        text = messages[-1]["content"]
        said = next((name for name in favourites if name in text.split("\n\n")[1]), "?")
        if "argued" in text and "Lyon" in text:
            said = "Nice"
        return f"because\nAnswer: {said}"

    return agent


AGENTS = {"ann": follows(["Lyon", "Bern"]), "bob": follows(["Paris", "Rome"]), "cem": follows(["Paris", "Bern"])}


def test_a_replay_gives_what_the_debates_gave(tmp_path):
    keeper = DebateRecorder({"models": "functions"})
    live = {}
    for controller in (FullyConnected(), CritiqueAll(early_stop="never")):
        for item in ITEMS:
            live[controller, item.id] = Debate(AGENTS, controller, rounds=2).run(item.question, item.options)
            keeper.add(item, live[controller, item.id])
    keeper.recording().save(tmp_path / "r.json")
    recording = Recording.load(tmp_path / "r.json")
    assert recording.source == {"models": "functions"}
    backend = RecordedAgents(recording)
    assert backend.draws == 0
    for controller in (FullyConnected(), CritiqueAll(early_stop="never")):
        found = rollout(backend, controller, batch=2, rounds=2, generator=generator("t", "r", 0), items=[0, 1])
        for row, item in enumerate(ITEMS):
            result = live[controller, item.id]
            assert (found.answersT[row] == found.truth[row]).sum() == result.votes.get(item.options[item.answer], 0)
            assert found.cost[row] == result.cost
            assert found.calls[row] == result.calls


def test_silent_agents_are_kept_as_such():
    keeper = DebateRecorder()
    agents = {**AGENTS, "cem": lambda _: "?"}
    keeper.add(ITEMS[0], Debate(agents, rounds=1).run(ITEMS[0].question, ITEMS[0].options))
    recording = keeper.recording()
    silent = [entry for entry in recording.entries if entry.agent == "cem"]
    assert [entry.answer for entry in silent] == [None, None]
    assert all(None not in entry.read for entry in recording.entries)
    backend = RecordedAgents(recording, on_missing="keep")
    assert (backend.start(1, generator("t", "s", 0)).answers == -1).sum() == 1


def test_what_does_not_fit_together_is_refused():
    keeper = DebateRecorder()
    with pytest.raises(InputError, match="nothing was recorded"):
        keeper.recording()
    item = ITEMS[0]
    result = Debate(AGENTS, rounds=0).run(item.question, item.options)
    with pytest.raises(InputError, match="none of its options"):
        keeper.add(ITEMS[1], result)
    keeper.add(item, result)
    with pytest.raises(InputError, match="another text"):
        keeper.add(Item("one", "Other?", item.options, 1), result)
    with pytest.raises(InputError, match="same agents"):
        keeper.add(Item("three", "x", ("Lyon", "Paris"), 1), result)
    two = dict(list(AGENTS.items())[:2])
    with pytest.raises(InputError, match="same agents"):
        keeper.add(item, Debate(two, rounds=0).run(item.question, item.options))
    assert np.array([entry.repeat for entry in keeper.recording().entries]).max() == 0


def test_only_independent_debates_give_further_samples():
    keeper, item = DebateRecorder(), ITEMS[0]
    for seed, independent, draws in ((0, False, 0), (0, False, 0), (1, True, 1), (2, True, 2)):
        keeper.add(item, Debate(AGENTS, rounds=1, seed=seed).run(item.question, item.options), independent=independent)
        assert RecordedAgents(keeper.recording()).draws == draws
