"""Read a large JSON file piece by piece, so that memory is bounded by its largest value and not by its size."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from steelyard.data.registry import Progress
from steelyard.errors import InputError

MAX_FILE_BYTES = 1 << 30
MAX_VALUE_CHARACTERS = 4 << 20
_CHUNK = 1 << 18
_SPACE = re.compile(r"[ \t\n\r]+")
_DECODER = json.JSONDecoder()


class JsonStream:
    """A cursor in a JSON file: the caller says what comes next, values are decoded one at a time."""

    def __init__(self, stream: BinaryIO, source: str, advance: Callable[[int], None]) -> None:
        self._stream = stream
        self._source = source
        self._advance = advance
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text = ""
        self._at = 0
        self._line = 1  # line of the character at _counted
        self._counted = 0
        self._done = False

    @property
    def where(self) -> str:
        """Words that name the file and the line of the cursor."""
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return f"{self._source}, line {self._line}"

    def peek(self) -> str:
        """Return the next character that is no white space, or an empty string at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self._at = self._at if space is None else space.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def expect(self, character: str) -> None:
        """Step over ``character``.

        Raises:
            InputError: Something else comes next.
        """
        found = self.peek()
        if found != character:
            raise InputError(f"{self.where}: expected {character!r}, found {found!r:.10} (cut off?).")
        self._at += 1

    def value(self) -> Any:
        """Return the next value, decoded.

        Raises:
            InputError: It is not JSON, or longer than ``MAX_VALUE_CHARACTERS``.
        """
        self.peek()
        while True:
            problem = ""
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                # A number that touches the end of the text held may go on behind it.
                if end < len(self._text) or self._done:
                    self._at = end
                    return value
            except RecursionError:
                raise InputError(f"{self.where}: the value is nested too deeply.") from None
            except ValueError as error:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too large"
            if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                raise InputError(f"{self.where}: a value is longer than {MAX_VALUE_CHARACTERS} characters, or no JSON.")
            if not self._more() and problem:
                raise InputError(f"{self.where}: the value that begins here is not JSON ({problem}).")

    def keys(self) -> Iterator[str]:
        """Yield the keys of an object; the caller takes each one's value before the next.

        Raises:
            InputError: There is no object here, or it is damaged.
        """
        self.expect("{")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            if self.peek() != '"':
                self.expect('"')
            key = self.value()
            self.expect(":")
            yield str(key)
            if self.peek() == "}":
                self._at += 1
                return
            self.expect(",")

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield (words that name file and line, value) for every element of an array.

        Raises:
            InputError: There is no array here, or it is damaged.
        """
        self.expect("[")
        if self.peek() == "]":
            self._at += 1
            return
        while True:
            self.peek()
            where = self.where
            yield where, self.value()
            if self.peek() == "]":
                self._at += 1
                return
            self.expect(",")

    def end(self) -> None:
        """Make sure that nothing follows.

        Raises:
            InputError: Something does.
        """
        if self.peek():
            raise InputError(f"{self.where}: text follows behind the end of the JSON.")

    def _more(self) -> bool:
        """Read on; what lies behind the cursor is let go. False at the end of the file."""
        if self._done:
            return False
        chunk = self._stream.read(_CHUNK)
        self._done = not chunk
        self._line += self._text.count("\n", self._counted, self._at)
        self._text, self._at, self._counted = self._text[self._at :], 0, 0
        try:
            self._text += self._decode.decode(chunk, final=self._done)
        except UnicodeDecodeError as error:
            line = self._line + self._text.count("\n") + error.object.count(b"\n", 0, error.start)
            raise InputError(
                f"{self._source}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; save it as UTF-8."
            ) from error
        self._advance(len(chunk))
        return not self._done


@contextmanager
def opened(path: Path, progress: Progress | None = None) -> Iterator[JsonStream]:
    """Open a JSON file to be read piece by piece.

    Raises:
        InputError: It cannot be read or is larger than ``MAX_FILE_BYTES``.
    """
    with opened_bytes(path, progress) as (stream, advance):
        yield JsonStream(stream, str(path), advance)


@contextmanager
def opened_bytes(path: Path, progress: Progress | None = None) -> Iterator[tuple[BinaryIO, Callable[[int], None]]]:
    """Open a file; the second value tells ``progress`` how many bytes more are done.

    Raises:
        InputError: It cannot be read or is larger than ``MAX_FILE_BYTES``.
    """
    try:
        stream = path.open("rb")
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}).") from error
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(path.name, done, size)

    with stream:
        if size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes; split it by channel or by month.")
        yield stream, advance
