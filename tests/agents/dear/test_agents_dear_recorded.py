"""The recording's format, its replay, and what happens to missing calls and hostile files."""

import itertools
import json

import numpy as np
import pytest

from steelyard.agents.dear import episodes as ep
from steelyard.agents.dear.audit import audit_label_leak
from steelyard.agents.dear.policies import FullyConnected, KeepAll, RandomOne, self_consistency
from steelyard.agents.dear.recorded import (
    MAX_BYTES,
    Entry,
    RecordedAgents,
    RecordedQuestion,
    Recording,
    make_key,
)
from steelyard.agents.dear.rollout import rollout
from steelyard.errors import InputError, NoEffectWarning, UnsupportedError
from steelyard.rng import generator

AGENTS = ["Ann", "Bob", "Cy"]


def made(questions=4, peers=(2,), repeats=1, confidence=None):
    """A complete recording of three agents with random answers."""
    rng = np.random.default_rng(0)
    asked = [
        RecordedQuestion(id=f"q{i}", question=f"Question {i}?", options=["x", "y", "z"], answer=i % 3)
        for i in range(questions)
    ]
    entries = []
    for question, agent in itertools.product(asked, AGENTS):
        common = {"question": question.id, "agent": agent, "prompt_tokens": 3, "confidence": confidence}
        entries += [
            Entry(**common, behaviour="start", answer=int(rng.integers(3)), repeat=repeat) for repeat in range(repeats)
        ]
        for own, behaviour, size in itertools.product(range(3), ("revise", "critique"), peers):
            for read in itertools.combinations_with_replacement(range(3), size):
                answer = int(rng.integers(3))
                entries.append(
                    Entry(**common, own=own, read=list(read), behaviour=behaviour, answer=answer, completion_tokens=4)
                )
    return Recording(agents=AGENTS, source={"model": "made up"}, questions=asked, entries=entries)


def test_round_trip(tmp_path):
    recording = made()
    path = tmp_path / "recording.json"
    recording.save(path)
    again = Recording.load(path)
    assert again.questions == recording.questions
    assert again.source == {"model": "made up"}
    assert {entry.key: entry for entry in again.entries} == {entry.key: entry for entry in recording.entries}
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.json", "recording.json"]


def test_replay_follows_the_recording():
    recording = made()
    backend = RecordedAgents(recording)
    entries = {entry.key: entry for entry in recording.entries}
    state = backend.start(4, generator("t", "r", 0), items=[0, 1, 2, 3])
    others = np.broadcast_to(~np.eye(3, dtype=bool), (4, 3, 3))
    after = backend.advance(state, others, np.full((4, 3), ep.CRITIQUE))
    for b, i in itertools.product(range(4), range(3)):
        plain = [int(state.private[b, answer]) for answer in state.answers[b]]
        first = entries[make_key(f"q{b}", AGENTS[i], None, (), "start")]
        assert plain[i] == first.answer
        read = [plain[j] for j in range(3) if j != i]
        entry = entries[make_key(f"q{b}", AGENTS[i], plain[i], read, "critique")]
        assert state.private[b, after.answers[b, i]] == entry.answer
        assert state.private[b, state.truth[b]] == b % 3
    assert after.tokens.tolist() == [[3 + 7] * 3] * 4
    assert after.calls.tolist() == [[2] * 3] * 4


def test_rollout_counts_tokens_and_is_deterministic():
    backend = RecordedAgents(made())
    outcomes = [rollout(backend, FullyConnected(), batch=4, generator=generator("t", "r", 0)) for _ in range(2)]
    assert np.array_equal(outcomes[0].vote, outcomes[1].vote)
    assert outcomes[0].summary()["tokens"] == 3 * (3 + 3 * 7)
    assert sorted(outcomes[0].items.tolist()) == [0, 1, 2, 3]
    assert backend.start(9, generator("t", "r", 0)).items.max() < 4


def test_the_truth_has_no_fixed_place_and_nothing_leaks():
    backend = RecordedAgents(made(questions=40, peers=(0, 1, 2)), on_missing="keep")
    with pytest.warns(NoEffectWarning):  # the audit explores, which was not recorded
        assert audit_label_leak(backend, episodes=400, rounds=1).passed
    truth = backend.start(3000, generator("t", "place", 0), items=[0] * 3000).truth
    assert np.bincount(truth) / 3000 == pytest.approx([1 / 3] * 3, abs=0.05)


def test_missing_call_is_named():
    backend = RecordedAgents(made())
    with pytest.raises(InputError, match=r"question q\d, agent Ann, own \d, read \[\d\], revise"):
        rollout(backend, RandomOne(), batch=4, generator=generator("t", "r", 0))


def test_missing_call_may_keep():
    backend = RecordedAgents(made(), on_missing="keep")
    with pytest.warns(NoEffectWarning, match=r"lacks 12 call\(s\)"):
        outcome = rollout(backend, RandomOne(), batch=4, rounds=1, generator=generator("t", "r", 0))
    assert np.array_equal(outcome.answers0, outcome.answersT)
    assert outcome.calls.tolist() == [6] * 4


def test_missing_first_answer():
    recording = made()
    entries = [entry for entry in recording.entries if entry.behaviour != "start"]
    backend = RecordedAgents(recording.model_copy(update={"entries": entries}), on_missing="keep")
    with pytest.raises(InputError, match=r"no first answer .*Ann"):
        backend.start(1, generator("t", "r", 0))


def test_repeats_give_self_consistency_or_say_that_it_is_not_available():
    backend = RecordedAgents(made(repeats=3))
    assert backend.draws == 2
    state = backend.start(4, generator("t", "r", 0))
    votes = self_consistency(backend, state, 9, generator("t", "s", 0))
    firsts = {(e.question, e.agent, e.repeat): e.answer for e in made(repeats=3).entries if e.behaviour == "start"}
    for b, item in enumerate(state.items):
        counts = np.bincount([firsts[f"q{item}", a, r] for a in AGENTS for r in range(3)], minlength=3)
        assert counts[state.private[b, votes[b]]] == counts.max()
    with pytest.raises(UnsupportedError, match="not available"):
        self_consistency(backend, state, 10, generator("t", "s", 0))


def test_unparsable_answers_have_no_vote():
    entries = [
        Entry(question="q", agent="Ann", behaviour="start", answer=None),
        Entry(question="q", agent="Bob", behaviour="start", answer=1, confidence=0.5),
        Entry(question="q", agent="Ann", own=None, read=[1], behaviour="revise", answer=1),
        Entry(question="q", agent="Bob", own=1, read=[None], behaviour="revise", answer=None),
    ]
    question = RecordedQuestion(id="q", question="?", options=["x", "y"], answer=1)
    backend = RecordedAgents(Recording(agents=["Ann", "Bob"], questions=[question], entries=entries))
    outcome = rollout(backend, FullyConnected(), batch=1, rounds=1, generator=generator("t", "r", 0))
    assert outcome.answers0[0, 0] == ep.NO_ANSWER
    assert outcome.answersT[0, 1] == ep.NO_ANSWER
    assert outcome.unparsable == 0.5
    assert outcome.vote == outcome.truth
    state = backend.start(1, generator("t", "r", 0))
    assert state.confidence is None  # one entry states none
    assert ep.vote(ep.replace(state, answers=np.array([[-1, -1]]))) == [ep.NO_ANSWER]


def test_confidences_are_replayed():
    backend = RecordedAgents(made(confidence=0.7))
    state = backend.start(2, generator("t", "r", 0))
    others = np.broadcast_to(~np.eye(3, dtype=bool), (2, 3, 3))
    assert backend.advance(state, others, np.ones((2, 3), int)).confidence.tolist() == [[0.7] * 3] * 2


QUESTION = {"id": "q", "question": "?", "options": ["x", "y"], "answer": 0}
ENTRY = {"question": "q", "agent": "Ann", "behaviour": "start", "answer": 0}
CALL = {**ENTRY, "behaviour": "revise", "own": 0, "read": [1]}


def document(**changes):
    return {"agents": ["Ann"], "questions": [QUESTION], "entries": [ENTRY], **changes}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([], "file"),
        (document(format="other"), "format"),
        (document(version=2), "version"),
        (document(extra=1), "extra"),
        (document(agents=[]), "agents"),
        (document(agents=["Ann", "Ann"]), "unique"),
        (document(agents=["A"] * 100), "agents"),
        (document(questions=[]), "questions"),
        (document(questions=[QUESTION, QUESTION]), "unique"),
        (document(questions=[{**QUESTION, "answer": 2}]), "none of the 2 options"),
        (document(questions=[{**QUESTION, "options": ["x"]}]), "options"),
        (document(questions=[QUESTION, {**QUESTION, "id": "r", "options": ["x", "y", "z"]}]), "equally many"),
        (document(entries=[{**ENTRY, "agent": "Bob"}]), "unknown question or agent"),
        (document(entries=[{**ENTRY, "question": "r\u001b[2J"}]), "unknown question or agent"),
        (document(entries=[{**ENTRY, "answer": 5}]), "beyond"),
        (document(entries=[{**CALL, "read": [3]}]), "beyond"),
        (document(entries=[{**CALL, "own": 3}]), "beyond"),
        (document(entries=[{**ENTRY, "own": 0}]), "first answer"),
        (document(entries=[ENTRY, ENTRY]), "key of an earlier"),
        (document(entries=[CALL, {**CALL, "answer": 1}]), "key of an earlier"),
        (document(entries=[{**ENTRY, "answer": "0"}]), "answer"),
        (document(entries=[{**ENTRY, "answer": True}]), "answer"),
        (document(entries=[{**ENTRY, "behaviour": "shout"}]), "behaviour"),
        (document(entries=[{**ENTRY, "confidence": 1.5}]), "confidence"),
        (document(entries=[{**ENTRY, "rationale": "x" * 30_000}]), "rationale"),
        (document(entries=[{**ENTRY, "prompt_tokens": -1}]), "prompt_tokens"),
        (document(entries=[{**ENTRY, "__class__": "x"}]), "__class__"),
    ],
)
def test_hostile_documents(tmp_path, value, names):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match=names) as caught:
        Recording.load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[" * 200_000, b"\xff\xfe", b'{"version": ' + b"9" * 5000 + b"}", b'{"confidence": NaN'],
)
def test_hostile_bytes(tmp_path, raw):
    path = tmp_path / "bad.json"
    path.write_bytes(raw)
    with pytest.raises(InputError, match="no JSON"):
        Recording.load(path)


def test_confidence_that_is_no_number(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document(entries=[{**ENTRY, "confidence": float("nan")}])))
    with pytest.raises(InputError, match="confidence"):
        Recording.load(path)


def test_hostile_paths(tmp_path):
    with pytest.raises(InputError, match="no file"):
        Recording.load(tmp_path)
    with pytest.raises(InputError, match="cannot be used"):
        RecordedAgents("a\0b")
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(InputError, match="larger than 64 MiB"):
        Recording.load(large)


def test_bad_arguments():
    backend = RecordedAgents(made())
    with pytest.raises(InputError, match="on_missing"):
        RecordedAgents(made(), on_missing="guess")
    for items in ([0, 9], [0], [-1, 0], [0.5, 1.0]):
        with pytest.raises(InputError, match="items"):
            backend.start(2, generator("t", "r", 0), items=items)
    with pytest.raises(InputError, match="batch"):
        backend.start(0, generator("t", "r", 0))
    state = ep.replace(backend.start(1, generator("t", "r", 0)), private=None)
    with pytest.raises(InputError, match="start"):
        backend.advance(state, np.zeros((1, 3, 3), bool), np.ones((1, 3), int))


def test_keepers_ask_for_nothing():
    recording = made()
    firsts = [entry for entry in recording.entries if entry.behaviour == "start"]
    backend = RecordedAgents(recording.model_copy(update={"entries": firsts}))
    assert rollout(backend, KeepAll(), batch=4, generator=generator("t", "r", 0)).calls.tolist() == [3] * 4
