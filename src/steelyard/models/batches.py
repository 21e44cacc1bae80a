"""Rows of tokens put into batches: which share the start of their text, and how they are padded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from steelyard.extras import require

if TYPE_CHECKING:
    from torch import Tensor

Ids = Sequence[int]
Share = bool | Literal["auto"]
Side = Literal["left", "right"]

MIN_ROWS, MIN_SHARE = 4, 0.5  # below these the pass over the shared part is not worth it


class Group(NamedTuple):
    """Rows that go together, shortest first, and how many of their first tokens are the same in all and run once."""

    rows: list[int]
    shared: int


def group(rows: Sequence[Ids], limits: Sequence[int], share: Share) -> list[Group]:
    """Split rows into groups by what they share.

    The start that rows share is compared as tokens of the whole row, so no token is ever cut in two.

    Args:
        rows: Tokens of each row.
        limits: How many first tokens of each row may be shared at most.
        share: False shares nothing, True whatever all rows have in common, ``"auto"`` makes groups of at least four
            rows whose common start is at least half of the longest.
    """
    everything = list(range(len(rows)))
    if share is True:
        shared = min(limits, default=0)
        for row in rows[1:]:
            shared = min(shared, common_start(rows[0], row))
        return [_group(rows, everything, shared if len(rows) > 1 else 0)]
    found, rest = _find_groups(rows, limits) if share == "auto" else ([], everything)
    return [*found, _group(rows, rest, 0)] if rest else found


def _find_groups(rows: Sequence[Ids], limits: Sequence[int]) -> tuple[list[Group], list[int]]:
    """Go through the rows in the order of their tokens, where those with one start are neighbours."""
    order = sorted(range(len(rows)), key=lambda index: list(rows[index]))
    found, rest = [], []
    while order:
        shared, longest, count = limits[order[0]], len(rows[order[0]]), 1
        for before, index in itertools.pairwise(order):
            common = min(shared, limits[index], common_start(rows[before], rows[index]))
            if common < MIN_SHARE * max(longest, len(rows[index])):
                break
            shared, longest, count = common, max(longest, len(rows[index])), count + 1
        if count >= MIN_ROWS:
            found.append(_group(rows, order[:count], shared))
        else:
            rest += order[:count]
        order = order[count:]
    return found, rest


def _group(rows: Sequence[Ids], members: Sequence[int], shared: int) -> Group:
    return Group(sorted(members, key=lambda index: (len(rows[index]), index)), shared)


def common_start(one: Ids, other: Ids) -> int:
    """Return how many tokens two rows have in common at their start."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        count += 1
    return count


def padded(rows: Sequence[Ids], side: Side, device: object = "cpu") -> tuple[Tensor, Tensor]:
    """Return ids and mask, int64 of shape (rows, longest), with 0 in both where there is no token.

    The mask is built from the lengths: the padding token of a model may be one that its texts hold.
    """
    torch = require("torch", "models")
    width = max(map(len, rows))
    ids, mask = torch.zeros((2, len(rows), width), dtype=torch.int64)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[index, place] = torch.tensor(list(row), dtype=torch.int64)
        mask[index, place] = 1
    return ids.to(device), mask.to(device)
