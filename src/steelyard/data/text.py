"""WikiText-2 as lines, and its word-level tokens turned back into running text."""

from __future__ import annotations

from typing import Literal

from steelyard.data.cache import locate
from steelyard.data.registry import Progress
from steelyard.errors import InputError

_JOINED = (("<unk>", ""), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."))
_BEFORE_PUNCTUATION = ((" ,", ","), (" .", "."))


def wikitext2(split: Literal["valid", "test"] = "test", progress: Progress | None = None) -> list[str]:
    """Return the lines of a split of WikiText-2, word-level tokens as in the file, without their line ends.

    Args:
        split: ``valid`` (3,760 lines) or ``test`` (4,358 lines).
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another split.
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    if split not in ("valid", "test"):
        raise InputError(f"split must be 'valid' or 'test', got {split!r}")
    valid, test = locate("wikitext2", progress).paths
    content = (valid if split == "valid" else test).read_text(encoding="utf-8")
    return content.removesuffix("\n").split("\n")


def plain_wikitext(text: str) -> str:
    """Return WikiText tokens as running text.

    ``<unk>`` is removed, ``@-@``, ``@,@`` and ``@.@`` are joined to their neighbours, and the space before a comma or
    a full stop goes.
    """
    for old, new in (*_JOINED, *_BEFORE_PUNCTUATION):
        text = text.replace(old, new)
    return text
