"""Questions of the project, data sets, planted answers, disjoint parts, and what users bring."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.guard.discrepancy import answering, tasks
from steelyard.guard.discrepancy.labels import contains_gold, normalise
from steelyard.guard.discrepancy.questions import PASSAGES
from steelyard.guard.discrepancy.tasks import Question, planted_pairs, user_task
from steelyard.models.tiny import tiny_random_lm


@pytest.fixture(autouse=True)
def _no_checksum(monkeypatch):
    monkeypatch.setattr(tasks.smollm2, "check", lambda: "0" * 64)  # of 92 MB, in nearly every test here


def cell(task, data=None, seed=0, root="evaluation"):
    return CellInput(task, "discrepancy", {}, {}, {}, seed, data or {}, root)


def test_every_answer_of_the_projects_questions_stands_in_its_passage_alone():
    asked = [question for passage in PASSAGES for question, _ in passage.questions]
    assert len(set(asked)) == len(asked) == 96
    for passage in PASSAGES:
        assert len(passage.questions) == 4
        for question, gold in passage.questions:
            assert gold in passage.context
            assert normalise(gold) not in normalise(question)
            elsewhere = [other for other in PASSAGES if other != passage and contains_gold(other.context, [gold])]
            assert not elsewhere or len(gold) < 15, (gold, elsewhere)


def test_own_questions_as_arrays_and_back():
    arrays = tasks.own_questions()
    found = tasks.all_questions(arrays)
    assert len(found) == 96
    assert found[0] == Question(0, *PASSAGES[0].questions[0][:1], PASSAGES[0].context, (PASSAGES[0].questions[0][1],))
    assert len(arrays["contexts"]) == len(PASSAGES)
    assert all(array.dtype.kind in "Uib" for array in arrays.values())


@given(st.integers(20, 400), st.sampled_from(["questions", "xquad", "own", "own_answers"]))
def test_parts_are_disjoint_and_tuning_has_one_of_its_own(items, task):
    seeds = tasks.SEEDS.get(task, 10)
    parts = [tasks.part_of(cell(task, seed=seed), items) for seed in range(seeds)]
    if not task.startswith("own"):
        parts.append(tasks.part_of(cell(task, root="tuning"), items))
    every = [row for part in parts for row in part]
    assert sorted(every) == list(range(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_seed_too_many_is_refused():
    with pytest.raises(InputError, match=r"task 'xquad' are split for 10 seeds; there is no seed 10"):
        tasks.part_of(cell("xquad", seed=10), 100)


@given(st.integers(0, 50))
def test_planted_answers_have_the_length_of_the_copied_ones_and_come_from_elsewhere(seed):
    every = _EVERY
    lengths = [len(one.golds[0]) for one in every]
    pairs = planted_pairs(every[:20], every, lengths, np.random.default_rng(seed))
    for copied, planted in zip(pairs[::2], pairs[1::2], strict=True):
        assert (copied.wrong, planted.wrong) == (False, True)
        assert copied[:2] == planted[:2]
        assert copied.group == planted.group
        assert copied.response in copied.context
        assert planted.response.lower() not in planted.context.lower()
        assert len(copied.response) == len(planted.response)


_EVERY = [
    Question(4 * place + number, question, passage.context, (gold,))
    for place, passage in enumerate(PASSAGES)
    for number, (question, gold) in enumerate(passage.questions)
]


def test_a_question_without_an_answer_of_its_length_elsewhere_is_left_out():
    every = [Question(0, "a?", "b c", ("b",)), Question(1, "d?", "e f", ("e f",))]
    assert planted_pairs(every, every, [1, 2], np.random.default_rng(0)) == []


def test_data_sets_as_tasks(monkeypatch):
    from steelyard import data

    monkeypatch.setattr(data, "xquad", lambda: [data_row("Text.", "Q?", ("A", "B"))])
    monkeypatch.setattr(data, "nq_open", lambda: [named(question="q", answers=("x", "y"))])
    knowledge = named(knowledge="K.", question="q", right="r", hallucinated="h")
    monkeypatch.setattr(data, "halueval", lambda turn: [knowledge])
    truthful = [named(question="q", best="b", incorrect=("i", "j")), named(question="p", best="b", incorrect=())]
    monkeypatch.setattr(data, "truthfulqa", lambda: truthful)
    assert tasks.all_questions(tasks.xquad()) == [Question(0, "Q?", "Text.", ("A", "B"))]
    assert tasks.all_questions(tasks.nq_open()) == [Question(0, "q", None, ("x", "y"))]
    assert tasks.all_questions(tasks.halueval()) == [Question(0, "q", "K.", ("r",))]
    pairs = tasks.halueval_pairs()
    assert (pairs["response"].tolist(), pairs["wrong"].tolist()) == (["r", "h"], [False, True])
    assert tasks.truthfulqa_pairs()["response"].tolist() == ["b", "i"]


def named(**fields):
    from types import SimpleNamespace

    return SimpleNamespace(**fields)


def data_row(*values):
    return values


def rows(count=40, **more):
    return [{"question": f"What is {n}?", "answer": [str(n), f"number {n}"], **more} for n in range(count)]


def test_the_users_questions(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({**row, "context": "Numbers."}) for row in rows()))
    for source in (str(path), path, [{**row, "context": "Numbers."} for row in rows()]):
        task = user_task(source)
        arrays = dict(task.load())
        assert (task.name, task.source, task.label) == ("own", "your own", "your questions, SmolLM2-135M")
        assert tasks.all_questions(arrays)[3] == Question(3, "What is 3?", "Numbers.", ("3", "number 3"))
        assert str(arrays["folder"]) == ""


def test_the_users_answers_with_and_without_labels():
    given = [{**row, "response": f"It is {n if n % 2 else n + 1}."} for n, row in enumerate(rows())]
    task = user_task(given)
    assert task.name == "own_answers"
    assert task.load()["wrong"].tolist() == [n % 2 == 0 for n in range(40)]
    labelled = [{**row, "label": n < 20} for n, row in enumerate(given)]
    assert user_task(labelled).load()["wrong"].sum() == 20
    without_gold = [{name: row[name] for name in ("question", "response", "label")} for row in labelled]
    arrays = user_task(without_gold).load()
    found = tasks.pairs_of(cell("own_answers", arrays), 3)
    assert [pair.group for pair in found] == sorted({pair.group for pair in found})
    assert len(found) == 3
    assert found[0].context is None


def test_the_users_own_model(tmp_path):
    lm = tiny_random_lm()
    lm.model.save_pretrained(tmp_path)
    lm.tokenizer.save_pretrained(tmp_path)
    arrays = user_task(rows(), model=str(tmp_path)).load()
    assert len(str(arrays["model"])) == 64
    assert str(arrays["folder"]) == str(tmp_path.resolve())
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert str(user_task(rows(), model=str(tmp_path)).load()["model"]) != str(arrays["model"])  # it asks otherwise
    (tmp_path / "chat_template.jinja").unlink()
    lm.tokenizer.save_pretrained(tmp_path)
    opened = answering.open_model(cell("own", arrays))
    assert (opened.num_layers, opened.is_chat) == (2, True)


def test_a_gguf_file_is_opened_as_one(tmp_path, monkeypatch):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    arrays = user_task(rows(), model=str(file)).load()
    calls = []
    monkeypatch.setattr(answering.TransformersLM, "from_pretrained", lambda *given: calls.append(given))
    answering.open_model(cell("own", arrays))
    assert calls == [(tmp_path, "m.gguf")]


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (rows(31), {}, "31 rows; at least 32"),
        ([*rows(), {"question": "x?", "answer": "y", "response": "z"}], {}, "row 41: 'response' must be in every row"),
        ([{"question": "x?"}] * 40, {}, "row 1: 'answer' is missing"),
        ([{"question": "x?", "response": "y"}] * 40, {}, "row 1: 'answer' is missing, and so is 'label'"),
        ([{"question": "x?", "response": "y", "label": True}] * 40, {}, "40 made-up and 0 right answers"),
        (rows(context="x" * 200_001), {}, "row 1: a text has more than 200000 letters"),
        (rows(), {"model": "/nonexistent"}, "neither a folder nor a file"),
        (rows(), {"samples": 21}, "samples"),
        (3, {}, "JSON Lines"),
    ],
)
def test_what_users_bring_in_vain(source, options, says):
    with pytest.raises(ValueError, match=says):
        user_task(source, **options)


def test_a_model_without_weights_or_configuration(tmp_path):
    with pytest.raises(InputError, match=r"holds no \.safetensors file"):
        user_task(rows(), model=str(tmp_path))
    (tmp_path / "m.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        user_task(rows(), model=str(tmp_path))
