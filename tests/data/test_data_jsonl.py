"""A user's prompts and questions: JSON Lines files and rows in memory."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.data import PromptRow, QARow, read_prompts, read_questions
from steelyard.errors import InputError


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]


def test_prompts(write):
    path = write(
        lines(
            {"prompt": "Make tea", "label": "safe", "id": 7},
            {"messages": CHAT, "label": "Harmful", "target": "Sure, here is"},
            {"prompt": "x", "label": None},
        )
    )
    expected = [PromptRow("Make tea", "safe"), PromptRow(tuple(CHAT), "harmful", "Sure, here is"), PromptRow("x")]
    assert read_prompts(path) == read_prompts(str(path)) == expected
    assert read_prompts(["Make tea", {"messages": CHAT}]) == [PromptRow("Make tea"), PromptRow(tuple(CHAT))]


def test_labels():
    for words, label in (
        (("harmful", " UNSAFE ", "attack", "jailbreak", True, 1), "harmful"),
        (("safe", "harmless", "Benign", False, 0), "safe"),
    ):
        assert {row.label for row in read_prompts([{"prompt": "x", "label": word} for word in words])} == {label}
    for word in ("maybe", 2, [], {}):
        with pytest.raises(InputError, match="data, row 1: 'label' must be 'harmful' or 'safe'"):
            read_prompts([{"prompt": "x", "label": word}])


def test_questions(write):
    path = write(
        lines(
            {"question": "Who?", "answer": "Me"},
            {"question": "Who?", "answer": ["Me", "I"], "response": "You", "context": "I did it.", "label": True},
            {"question": "Who?", "label": "right", "extra": [1]},
        )
    )
    assert read_questions(path) == [
        QARow("Who?", answers=("Me",)),
        QARow("Who?", "You", "I did it.", ("Me", "I"), True),
        QARow("Who?", hallucinated=False),
    ]
    assert read_questions(["Who?"]) == [QARow("Who?")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "row 2: it needs either 'prompt' or 'messages'"),
        ({"prompt": "a", "messages": CHAT}, "row 2: it needs either 'prompt' or 'messages', not both"),
        ({"prompt": 3}, "row 2: 'prompt' is a number, not text"),
        ({"prompt": None}, "row 2: 'prompt' is missing"),
        ({"prompt": " \n"}, "row 2: 'prompt' is empty"),
        ({"prompt": "a\ud800"}, "row 2: 'prompt' holds half a surrogate pair"),
        ({"prompt": "a", "target": {}}, "row 2: 'target' is an object, not text"),
        ({"messages": []}, "row 2: 'messages' must be a list of turns"),
        ({"messages": "Hi"}, "row 2: 'messages' must be a list of turns"),
        ({"messages": ["Hi"]}, "row 2: message 1 must have a 'role'"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "row 2: message 1 must have a 'role'"),
        ({"messages": [{"role": [], "content": "x"}]}, "row 2: message 1 must have a 'role'"),
        ({"messages": [{"role": "user", "content": None}]}, "row 2: message 1 must have a 'role'"),
        ({"messages": [{"role": "user", "content": "\udc00"}]}, "row 2: message 1 holds half a surrogate pair"),
        ({"messages": [{"role": "user", "content": " "}]}, "row 2: the last message must be the user's and not empty"),
        ({"messages": [CHAT[1], {"role": "assistant", "content": "x"}]}, "row 2: the last message must be the user's"),
    ],
)
def test_prompts_that_are_none(write, row, message):
    for rows in (write(lines({"prompt": "a"}, row)), [{"prompt": "a"}, row]):
        with pytest.raises(InputError, match=message):
            read_prompts(rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "a"}, "row 1: 'question' is missing"),
        ({"question": "q", "answer": 3}, "row 1: 'answer' is a number, not text"),
        ({"question": "q", "answer": ["a", ""]}, "row 1: 'answer' is empty"),
        ({"question": "q", "context": ["a"]}, "row 1: 'context' is a list, not text"),
        ({"question": "q", "label": "maybe"}, "row 1: 'label' must be true or 'hallucinated', false or 'right'"),
    ],
)
def test_questions_that_are_none(row, message):
    with pytest.raises(InputError, match=message):
        read_questions([row])


def test_what_is_no_list_of_rows(write, tmp_path):
    for rows, message in (
        ([], "data has no rows; it needs at least one with a 'prompt'"),
        (write("\n \n"), r"t\.csv has no rows"),
        (3, "data must be a JSON Lines file or a list of rows, got int"),
        ([3], "data, row 1: it must be text or a mapping with 'prompt', got int"),
        (tmp_path, "cannot be read"),
        (tmp_path / "none.jsonl", "cannot be read"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(InputError, match=message):
            read_prompts(rows)


plain = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(str.strip)


@given(st.lists(plain, min_size=1, max_size=8))
def test_what_is_written_is_read(texts):
    """Whatever separators a text holds, one line stays one row."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.jsonl"
        path.write_text("".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
        assert [row.prompt for row in read_prompts(path)] == texts


@given(st.lists(plain, min_size=1, max_size=8))
def test_memory_and_file_agree(texts):
    rows = [{"question": text, "answer": [text]} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.jsonl"
        path.write_text(lines(*rows))
        assert read_questions(path) == read_questions(rows)


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_refused(content):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.jsonl"
        path.write_bytes(content)
        with contextlib.suppress(InputError):
            assert read_prompts(path)
