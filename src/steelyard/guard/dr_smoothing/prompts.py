"""The user's part of a prompt, and copies of the prompt in which that part alone is another text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from steelyard.errors import InputError
from steelyard.models.protocols import Prompt, check_prompts

Scope = Literal["last_user", "all_user"]


@dataclass(frozen=True)
class UserTurns:
    """A prompt and where the user speaks in it.

    Attributes:
        prompt: The prompt; content that was a list of text parts is one text.
        positions: Indices of the user turns in scope; (0,) for plain text.
        texts: What the user says there.
    """

    prompt: Prompt
    positions: tuple[int, ...]
    texts: tuple[str, ...]

    @property
    def request(self) -> str:
        """The last thing that the user says."""
        return self.texts[-1]

    def spliced(self, texts: Sequence[str]) -> Prompt:
        """Return the prompt with ``texts`` in the place of the user's; every other turn is the very same object.

        The turns are replaced by position, never by searching: the user's words may occur in the system text too.
        """
        if isinstance(self.prompt, str):
            return texts[0]
        said = dict(zip(self.positions, texts, strict=True))
        return [
            {**message, "content": said[index]} if index in said else message
            for index, message in enumerate(self.prompt)
        ]

    def digest(self) -> str:
        """Return a name of the whole prompt for random streams: other prompts draw other noise."""
        return hashlib.sha256(json.dumps(_plain(self.prompt)).encode()).hexdigest()[:16]


def user_turns(prompt: Any, scope: Scope = "last_user", where: str = "prompt") -> UserTurns:
    """Return the user's part of a prompt.

    Args:
        prompt: Text, or messages whose content is text or a list of text parts.
        scope: "last_user" (the last user turn) or "all_user".
        where: What an error calls the prompt.

    Raises:
        InputError: The prompt is empty, has no user turn, an empty one, or a part that is not text.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise InputError(f"{where} is empty; give the text of a request")
        return UserTurns(prompt, (0,), (prompt,))
    if isinstance(prompt, list | tuple) and prompt and all(isinstance(one, str) for one in prompt):
        raise InputError(f"{where} is a list of texts; use batch for several prompts")
    if not isinstance(prompt, Sequence) or not prompt:
        raise InputError(f"{where} must be text or a list of messages with role and content")
    messages = [_as_text(message, f"{where}: message {index}") for index, message in enumerate(prompt)]
    check_prompts([messages])
    users = tuple(index for index, message in enumerate(messages) if message["role"] == "user")
    if not users:
        raise InputError(f"{where} has no message with role user; there is nothing to smooth")
    positions = users[-1:] if scope == "last_user" else users
    texts = tuple(messages[index]["content"] for index in positions)
    for index, text in zip(positions, texts, strict=True):
        if not text.strip():
            raise InputError(f"{where}: message {index} of the user is empty")
    return UserTurns(messages, positions, texts)


def _as_text(message: Any, where: str) -> Any:
    """Return the message, its text parts joined when its content is a list of them."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return message
    parts = message["content"]
    for part in parts:
        if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            kind = str(part.get("type"))[:40] if isinstance(part, Mapping) else type(part).__name__
            raise InputError(f"{where} has a content part {kind!r}; only text can be smoothed")
    return {**message, "content": "\n".join(part["text"] for part in parts)}


def _plain(prompt: Prompt) -> Any:
    return prompt if isinstance(prompt, str) else [[message["role"], message["content"]] for message in prompt]
