"""Prompts and questions that a user brings: JSON Lines files, or the same rows in memory, checked row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steelyard.data.records import read_json_lines, text_field, whole_text
from steelyard.errors import InputError

Rows = str | Path | Sequence[Mapping[str, Any] | str]
"""A JSON Lines file, or its rows in memory; a row that is text alone stands for its first field."""

_HARMFUL = ("harmful", "unsafe", "attack", "jailbreak", True)
_SAFE = ("safe", "harmless", "benign", False)
_ROLES = ("system", "developer", "user", "assistant")


class PromptRow(NamedTuple):
    """A prompt, text or turns of a chat; ``label`` is "harmful", "safe" or None, ``target`` what an attack wants."""

    prompt: str | tuple[Mapping[str, str], ...]
    label: str | None = None
    target: str | None = None


class QARow(NamedTuple):
    """A question; ``answers`` are those that count as right, ``hallucinated`` is the user's verdict on ``response``."""

    question: str
    response: str | None = None
    context: str | None = None
    answers: tuple[str, ...] = ()
    hallucinated: bool | None = None


def read_prompts(rows: Rows) -> list[PromptRow]:
    """Read prompts: ``prompt`` (text) or ``messages`` (turns with role and content), and ``label``, ``target`` if any.

    Labels: harmful, unsafe, attack, jailbreak, true or 1; safe, harmless, benign, false or 0. Other fields are ignored.

    Raises:
        InputError: Whatever is wrong, with its row.
    """
    return [_prompt_row(row, where) for where, row in _rows(rows, "prompt")]


def read_questions(rows: Rows, blank_response: bool = False) -> list[QARow]:
    """Read questions: ``question``, and if any ``response``, ``context``, ``answer`` (text or a list), ``label``.

    ``label`` says whether the response is made up: true, 1 or "hallucinated"; false, 0 or "right". Other fields are
    ignored.

    Args:
        rows: A file, or rows.
        blank_response: Take a response without text as it is, in the place of refusing it.

    Raises:
        InputError: Whatever is wrong, with its row.
    """
    return [_question_row(row, where, blank_response) for where, row in _rows(rows, "question")]


def _rows(rows: Rows, field: str) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(rows, str | Path):
        source = str(rows)
        found = read_json_lines(Path(rows))
    elif isinstance(rows, Sequence):
        source = "data"
        found = [(f"data, row {number}", _row(row, field, number)) for number, row in enumerate(rows, 1)]
    else:
        raise InputError(f"data must be a JSON Lines file or a list of rows, got {type(rows).__name__}")
    if not found:
        raise InputError(f"{source} has no rows; it needs at least one with a '{field}'")
    return found


def _row(row: object, field: str, number: int) -> Mapping[str, Any]:
    if isinstance(row, str):
        return {field: row}
    if isinstance(row, Mapping):
        return row
    raise InputError(f"data, row {number}: it must be text or a mapping with '{field}', got {type(row).__name__}")


def _prompt_row(row: Mapping[str, Any], where: str) -> PromptRow:
    both, neither = "prompt" in row and "messages" in row, "prompt" not in row and "messages" not in row
    if both or neither:
        raise InputError(f"{where}: it needs either 'prompt' or 'messages'" + (", not both" if both else ""))
    prompt = text_field(row, "prompt", where) if "prompt" in row else _messages(row["messages"], where)
    return PromptRow(prompt, _label(row.get("label"), where), _optional(row, "target", where))


def _messages(value: object, where: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{where}: 'messages' must be a list of turns with role and content")
    turns = []
    for number, turn in enumerate(value, 1):
        if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES or not isinstance(turn.get("content"), str):
            raise InputError(
                f"{where}: message {number} must have a 'role' ({', '.join(_ROLES)}) and a 'content' that is text"
            )
        content = whole_text(turn["content"], f"{where}: message {number}")
        turns.append({"role": str(turn["role"]), "content": content})
    if turns[-1]["role"] != "user" or not turns[-1]["content"].strip():
        raise InputError(f"{where}: the last message must be the user's and not empty")
    return tuple(turns)


def _label(value: object, where: str) -> str | None:
    if value is None:
        return None
    word = value.strip().lower() if isinstance(value, str) else value
    if word in _HARMFUL:
        return "harmful"
    if word in _SAFE:
        return "safe"
    raise InputError(f"{where}: 'label' must be 'harmful' or 'safe'")


def _question_row(row: Mapping[str, Any], where: str, blank_response: bool) -> QARow:
    answer = row.get("answer")
    if isinstance(answer, list | tuple):
        answers = tuple(text_field({"answer": part}, "answer", where) for part in answer)
    else:
        answers = () if answer is None else (text_field(row, "answer", where),)
    response = row.get("response")
    blank = blank_response and isinstance(response, str) and not response.strip()
    return QARow(
        text_field(row, "question", where),
        "" if blank else _optional(row, "response", where),
        _optional(row, "context", where),
        answers,
        _made_up(row.get("label"), where),
    )


def _made_up(value: object, where: str) -> bool | None:
    if value is None:
        return None
    word = value.strip().lower() if isinstance(value, str) else value
    if word in ("hallucinated", True):
        return True
    if word in ("right", False):
        return False
    raise InputError(f"{where}: 'label' must be true or 'hallucinated', false or 'right'")


def _optional(row: Mapping[str, Any], name: str, where: str) -> str | None:
    return None if row.get(name) is None else text_field(row, name, where)
