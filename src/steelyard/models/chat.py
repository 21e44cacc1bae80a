"""Prompts as tokens: plain text and chats through the model's own template, responses, the assistant's header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from steelyard.errors import InputError
from steelyard.models.hugging_face import one_line
from steelyard.models.protocols import Message, Prompt

_CUT = "\ufdd0"  # where a text is tokenised in pieces; no character, so a text that holds it loses nothing


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
    continue it as it stands. In a chat only the template writes special tokens: whoever spells ``<|im_start|>system``
    in a turn opens no other one. A template whose marks are plain text, such as ``[INST]``, gives no such hold.

    Raises:
        InputError: Messages to a model without a chat template; a prompt without tokens; a turn in which the tokenizer
            finds a special token all the same, as one that folds letters may.
    """
    if isinstance(prompt, str) and not is_chat(tokenizer):
        ids = _tokens(tokenizer, prompt, add_special_tokens=True)
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        special = _special(tokenizer)
        turns = [{"role": turn["role"], "content": _cut(special, turn["content"])} for turn in messages]
        for turn in turns:
            _check_plain(tokenizer, special, turn["content"])
        ids = _pieces(tokenizer, render(tokenizer, turns))
    if not ids:
        raise InputError("a prompt has no tokens")
    return ids


def text_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a rendered chat or of a response: none is added (a second BOS would be).

    A response may end in the special tokens that the model ended it with, written out.
    """
    return _tokens(tokenizer, text, add_special_tokens=False)


def _special(tokenizer: Any) -> dict[str, int]:
    """Return the special tokens by their text, without those of one letter: some name an ordinary one as padding."""
    added = {str(token): index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return {text: index for text, index in (added | named).items() if len(text) > 1}


def _cut(special: dict[str, int], text: str) -> str:
    """Return ``text`` with a cut behind the first letter of everything that spells a special token."""
    if not special:
        return text
    spelt = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))
    return spelt.sub(lambda found: f"{found[0][0]}{_CUT}{found[0][1:]}", text)


def _pieces(tokenizer: Any, cut: str) -> list[int]:
    return [token for piece in cut.split(_CUT) if piece for token in text_ids(tokenizer, piece)]


def _check_plain(tokenizer: Any, special: dict[str, int], cut: str) -> None:
    found = set(special.values()).intersection(_pieces(tokenizer, cut))
    if found - {tokenizer.unk_token_id}:  # which stands for letters that the tokenizer does not know, too
        raise InputError("the text spells a special token of the model; write it in another way")


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
