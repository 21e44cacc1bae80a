"""Recording a language model: the scores, the keys, the file, the package's own recording, the conformity curve."""

import collections
import json
from importlib import resources

import numpy as np
import pytest

from steelyard.agents.dear import recorder
from steelyard.agents.dear.items import ITEMS, Item
from steelyard.agents.dear.option_scores import mean_log_probabilities
from steelyard.agents.dear.policies import (
    CritiqueAll,
    FullyConnected,
    KeepAll,
    RandomOne,
    ReConcile,
    Sparse,
    self_consistency,
)
from steelyard.agents.dear.recorded import RecordedAgents
from steelyard.agents.dear.recorder import OptionAgent
from steelyard.agents.dear.rollout import rollout
from steelyard.agents.dear.switching import measured_curve, recorded_curve
from steelyard.errors import InputError
from steelyard.models import load_default_lm, tiny_random_lm
from steelyard.rng import generator

ITEM = Item("colour", "Which?", ("red", "dark blue", "green"), 1)


@pytest.fixture(scope="module")
def lm():
    return tiny_random_lm(seed=1)


@pytest.fixture(scope="module")
def packed(lm):
    return recorder.record(lm, [ITEM, Item("size", "How?", ("big", "small", "flat"), 0)], source={"model": "tiny"})


@pytest.fixture(scope="module")
def shipped():
    return recorder.default_recording()


def test_the_items_are_balanced_and_well_formed():
    assert len(ITEMS) == len({item.id for item in ITEMS}) == len({item.question for item in ITEMS}) == 20
    assert collections.Counter(item.answer for item in ITEMS) == dict.fromkeys(range(4), 5)
    assert all(len(item.options) == 4 for item in ITEMS)
    for options, answer in ((("a",), 0), (("a", "a"), 0), (("a", "b"), 2)):
        with pytest.raises(InputError, match="item 'x'"):
            Item("x", "?", options, answer)


def test_scores_equal_a_pass_per_prompt_and_answer(lm):
    prompts = [lm.prompt_ids(text) for text in ("abc", "abd", "abd and more", "abc")]
    answers = [lm.response_ids(text) for text in (" x", " yes it is", " no")]
    expected = [
        [logs.mean() for logs in lm.logprobs([prompt] * len(answers), answers)] for prompt in prompts
    ]  # the slow way
    for batch_size in (1, 16):
        np.testing.assert_allclose(mean_log_probabilities(lm, prompts, answers, batch_size), expected, atol=1e-4)
    single = [answer[:1] for answer in answers]
    expected = [[logs.mean() for logs in lm.logprobs([prompt] * 3, single)] for prompt in prompts]
    np.testing.assert_allclose(mean_log_probabilities(lm, prompts, single), expected, atol=1e-4)


@pytest.mark.parametrize(("prompts", "answers"), [([], [[1]]), ([[1]], []), ([[]], [[1]]), ([[1]], [[]])])
def test_empty_prompts_and_answers_are_refused(lm, prompts, answers):
    with pytest.raises(InputError, match="at least one"):
        mean_log_probabilities(lm, prompts, answers)


def test_prompts_beyond_the_context_are_refused(lm):
    with pytest.raises(InputError, match="context"):
        mean_log_probabilities(lm, [[1] * lm.context], [[1]])


def test_every_way_to_read_is_there_once():
    reads = recorder.reads_of(4, 3)
    assert len(reads) == len(set(reads)) == 15
    assert reads[0] == ()
    assert all(tuple(sorted(peers)) == peers for peers in reads)


def test_what_is_read_does_not_depend_on_the_places_of_options():
    other = Item("colour", "Which?", ("green", "red", "dark blue"), 2)
    assert recorder.revise_tail(ITEM, 0, (1, 2)) == recorder.revise_tail(other, 1, (0, 2))
    assert recorder.critique_tail(ITEM, (1, 2), "abc") == recorder.critique_tail(other, (0, 2), "cab")
    assert "dark blue" not in recorder.critique_tail(ITEM, (1,), ["", "it is deep", ""])


def test_an_argument_hides_its_option():
    class Says:
        def generate(self, prompts, **_):
            return ["Dark Blue  is the sky,\tnot darkblue"]

    assert recorder.argument(Says(), ITEM, 1) == "it is the sky, not darkblue"


def test_a_recording_holds_every_key_and_replays(lm, packed, tmp_path):
    recording = recorder.unpacked(packed)
    agents = RecordedAgents(recording)
    assert len(recording.entries) == 2 * 3 * (1 + recorder.REPEATS + 3 * 3 * 10)
    assert agents.draws == recorder.REPEATS
    for controller in (FullyConnected(), CritiqueAll(early_stop="never"), FullyConnected(behaviour="explore")):
        rollout(agents, controller, batch=2, rounds=3, generator=generator("test", "replay", 0))
    recorder.save(packed, tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == packed
    again = recorder.record(lm, [ITEM], source={"model": "tiny"})
    assert again["items"] == packed["items"][:1]


def test_a_transition_is_what_the_agent_would_say(lm, packed):
    agent = OptionAgent(lm, "teacher", recorder.SYSTEMS["teacher"])
    entries = {entry.key: entry for entry in recorder.unpacked(packed).entries}
    for own, peers in ((0, (1, 2)), (2, (0,)), (1, ())):
        scored = agent.answer(ITEM, [recorder.revise_tail(ITEM, own, peers)])
        entry = entries["colour", "teacher", own, peers, "revise", 0]
        assert entry.answer == scored.scores[0].argmax()
        assert entry.prompt_tokens == scored.tokens[0]


def test_more_than_ten_options_are_refused(lm):
    agents = [OptionAgent(lm, "a", "")]
    with pytest.raises(InputError, match="11 options"):
        recorder.record_item(agents, Item("many", "?", tuple("abcdefghijk"), 0))


def test_progress_and_usage(lm, capsys, monkeypatch, tmp_path):
    assert recorder.main([]) == 2
    assert "usage" in capsys.readouterr().err
    monkeypatch.setattr("steelyard.models.load_default_lm", lambda name: lm)
    monkeypatch.setattr(recorder, "record", lambda lm, **options: options["progress"]("one") or {"items": [], "x": 1})
    assert recorder.main([str(tmp_path / "r.json")]) == 0
    assert capsys.readouterr().err == "one\n"
    assert json.loads((tmp_path / "r.json").read_text()) == {"x": 1, "items": []}


def test_the_shipped_recording_is_small_complete_and_about_the_items(shipped):
    file = resources.files("steelyard.agents.dear").joinpath("recording.json")
    assert len(file.read_bytes()) < 300_000
    assert [(one.id, one.question, tuple(one.options), one.answer) for one in shipped.questions] == [
        (item.id, item.question, item.options, item.answer) for item in ITEMS
    ]
    assert shipped.agents == list(recorder.SYSTEMS)
    assert len(shipped.entries) == 20 * 3 * (1 + recorder.REPEATS + 3 * 4 * 15)


@pytest.mark.parametrize(
    "controller",
    [KeepAll(), FullyConnected(), FullyConnected(early_stop="unanimous"), Sparse(degree=1), RandomOne(), ReConcile(),
     CritiqueAll(), FullyConnected(behaviour="explore")],
    ids=str,
)  # fmt: skip
def test_the_shipped_recording_answers_every_arm(shipped, controller):
    agents = RecordedAgents(shipped)
    found = rollout(agents, controller, batch=20, rounds=3, generator=generator("test", "arms", 0))
    assert len(found.vote) == 20
    assert (found.tokens > 0).all()


def test_the_shipped_recording_has_repeats_for_self_consistency(shipped):
    agents = RecordedAgents(shipped)
    stream = generator("test", "repeats", 0)
    votes = self_consistency(agents, agents.start(20, stream), np.array(12), stream)
    assert votes.shape == (20,)


def test_recorded_curves(shipped):
    curve = recorded_curve(shipped)
    assert [(row.read, row.against) for row in curve] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert [row.calls for row in curve] == [60, 180, 60, 180, 360]
    every = recorded_curve(shipped, held_only=False)
    assert [row.calls for row in every] == [4 * row.calls for row in curve]
    assert all(0 <= row.rate <= 1 for row in every)
    assert sum(row.switched for row in recorded_curve(shipped, "critique")) > 0


def test_a_measured_curve_counts_all_rivals(lm):
    agent = OptionAgent(lm, "a", "You answer.")
    curve = measured_curve(agent, [ITEM], peers=3)
    assert [(row.read, row.against, row.calls) for row in curve] == [(3, against, 2) for against in range(4)]
    for items, peers in (([], 2), ([ITEM], 0)):
        with pytest.raises(InputError, match="at least one"):
            measured_curve(agent, items, peers)


@pytest.mark.acceptance
def test_the_real_model_answers_as_recorded():
    """Two items, recorded anew: first answers, transitions and arguments are the shipped ones."""
    lm = load_default_lm("smollm2")
    text = resources.files("steelyard.agents.dear").joinpath("recording.json").read_text()
    rows = {row["id"]: row for row in json.loads(text)["items"]}
    agents = [OptionAgent(lm, name, system) for name, system in recorder.SYSTEMS.items()]
    for item in (ITEMS[1], ITEMS[11]):
        again, known = recorder.record_item(agents, item), rows[item.id]
        assert again["arguments"] == known["arguments"]
        for name in recorder.SYSTEMS:
            for row in ("start", "repeats", "revise", "critique", "explore"):
                assert again["agents"][name][row]["answers"] == known["agents"][name][row]["answers"]
