"""Questions, contexts and answers as the token rows of the two passes (reconstruction; after the reference recipe)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.models.protocols import Prompt, check_prompts

SHORT_ANSWERS = "Give short answers only."


def build_prompts(
    questions: Sequence[Prompt],
    contexts: Sequence[str | None] | None = None,
    *,
    is_chat: bool = True,
    system: str | None = SHORT_ANSWERS,
) -> list[Prompt]:
    r"""Return what the model is asked: chat turns for a chat model, ``Question: …\nAnswer:`` for a base model.

    A question that is a list of messages is kept as it is.

    Args:
        questions: Texts, or chats.
        contexts: A text to answer from, or None, for each question.
        is_chat: Whether the model takes chats.
        system: The system turn of a chat; None: none of ours (a template may then insert its own).

    Raises:
        InputError: Lists of different length, an empty question, a context beside a chat.
    """
    check_prompts(questions)
    contexts = [None] * len(questions) if contexts is None else contexts
    check_same_length("questions", questions, "contexts", contexts)
    return [_prompt(i, *pair, is_chat, system) for i, pair in enumerate(zip(questions, contexts, strict=True))]


def _prompt(row: int, question: Prompt, context: str | None, is_chat: bool, system: str | None) -> Prompt:
    if not isinstance(question, str):
        if context is not None:
            raise InputError(f"contexts[{row}] stands beside a chat; write the context into the chat's messages")
        return question
    if context is not None and not isinstance(context, str):
        raise InputError(f"contexts[{row}] must be text or None, got {type(context).__name__}")
    text = question if context is None else f"Context: {context}\nQuestion: {question}"
    if is_chat:
        turns = [] if system is None else [{"role": "system", "content": system}]
        return [*turns, {"role": "user", "content": text}]
    return f"Question: {question}\nAnswer:" if context is None else f"{text}\nAnswer:"


def check_same_length(name: str, values: Sequence[Any], other: str, others: Sequence[Any]) -> None:
    """Raise InputError unless both are lists of one length."""
    for label, given in ((name, values), (other, others)):
        if isinstance(given, str):
            raise InputError(f"{label} must be a list, got one string; write [{label[:-1]}]")
    if len(values) != len(others):
        raise InputError(f"{name} and {other} must be equally long, got {len(values)} and {len(others)}")


def answer_ids(lm: Any, responses: Sequence[str | Sequence[int]]) -> list[list[int]]:
    """Return the token ids of each answer, tokenised apart from its prompt, special tokens at its end left out.

    The end-of-turn token is no part of the answer. A base model's answer follows ``Answer:`` after a space.

    Args:
        lm: The language model.
        responses: Texts, or the tokens themselves as they were generated.

    Raises:
        InputError: An answer is empty or has special tokens only.
    """
    special = set(lm.tokenizer.all_special_ids)
    found = []
    for row, response in enumerate(responses):
        if not isinstance(response, str | Sequence) or not (
            response.strip() if isinstance(response, str) else response
        ):
            raise InputError(f"responses[{row}] is empty; leave unanswered questions out")
        if isinstance(response, str):
            text = response if lm.is_chat or response[0].isspace() else f" {response}"
            response = lm.response_ids(text)
        found.append(trim_special(response, special, row))
    return found


def trim_special(ids: Sequence[int], special: set[int], row: int) -> list[int]:
    """Return ``ids`` without the special tokens at the end; raises InputError when there are only special ones."""
    kept = list(ids)
    while kept and kept[-1] in special:
        kept.pop()
    if not kept or all(token in special for token in kept):
        raise InputError(f"responses[{row}] holds special tokens only, no answer")
    return kept


def alone_prefix(lm: Any, prefix: str | Sequence[int]) -> list[int]:
    """Return the tokens that stand before the answer alone.

    Never none: the first token of a sequence draws the attention of all others and gets a state of huge norm, which
    would swamp the mean.

    Args:
        lm: The language model.
        prefix: "auto" ("header" for a chat model, "bos" for a base model), "header" (the bare assistant header of the
            chat template), "bos", or token ids.

    Raises:
        InputError: Unknown or empty prefix, or a model without a token that begins a text.
    """
    if prefix == "auto":
        prefix = "header" if lm.is_chat else "bos"
    if prefix == "header":
        if not lm.is_chat:
            raise InputError('prefix "header" needs a chat template, which this model lacks; use prefix="bos"')
        return list(lm.assistant_header_ids())
    if prefix == "bos":
        tokens = lm.tokenizer
        begin = tokens.bos_token_id if tokens.bos_token_id is not None else tokens.eos_token_id
        if begin is None:
            raise InputError("the tokenizer has no token that begins a text; give prefix= as a list of token ids")
        return [int(begin)]
    if isinstance(prefix, str) or not len(prefix):
        raise InputError(f'prefix must be "auto", "header", "bos" or a list of token ids that is not empty: {prefix!r}')
    return [int(token) for token in prefix]
