"""Prompts as tokens: plain text and chats through the model's own template, responses, the assistant's header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.models.hugging_face import one_line
from steelyard.models.protocols import Message, Prompt


def is_chat(tokenizer: Any) -> bool:
    """Say whether the model has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def render(tokenizer: Any, messages: Sequence[Message], *, header: bool = True) -> str:
    """Return a chat as the text that the model was trained on, with the header of the assistant's turn at its end.

    Raises:
        InputError: The model has no chat template, or its template refuses these messages.
    """
    if not is_chat(tokenizer):
        raise InputError("this model has no chat template: give prompts as plain text instead of messages")
    turns = [{"role": message["role"], "content": message["content"]} for message in messages]
    try:
        text: str = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=header)
    except Exception as error:  # what a template raises is up to it
        raise InputError(f"the model's chat template refuses these messages ({one_line(error)})") from error
    return text


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Return the tokens of a prompt.

    Plain text is one user turn to a model with a chat template, as it is at an endpoint for chats; other models
    continue it as it stands.

    Raises:
        InputError: Messages to a model without a chat template; a prompt without tokens.
    """
    if isinstance(prompt, str) and not is_chat(tokenizer):
        ids = _tokens(tokenizer, prompt, add_special_tokens=True)
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        ids = text_ids(tokenizer, render(tokenizer, messages))
    if not ids:
        raise InputError("a prompt has no tokens")
    return ids


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a rendered chat or of a response: none is added (a second BOS would be)."""
    return _tokens(tokenizer, text, add_special_tokens=False)


def _tokens(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    try:
        ids: list[int] = list(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
    except Exception as error:  # tokenizers raises bare ones; half a surrogate pair is enough
        raise InputError(f"the tokenizer cannot read the text ({one_line(error)})") from error
    return ids


def assistant_header_ids(tokenizer: Any) -> list[int]:
    """Return the least that a response can stand behind: the bare header of the assistant's turn, or BOS.

    Raises:
        InputError: The model has neither.
    """
    if is_chat(tokenizer):
        turns = [{"role": "user", "content": "x"}]
        short, long = render(tokenizer, turns, header=False), render(tokenizer, turns)
        if long.startswith(short) and (ids := text_ids(tokenizer, long[len(short) :])):
            return ids
    if tokenizer.bos_token_id is None:
        raise InputError("this model has neither a header of the assistant's turn nor a BOS token")
    return [int(tokenizer.bos_token_id)]
