"""How long work in a thread learns that nobody waits for it any more: threads cannot be stopped from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from steelyard.errors import SteelyardError


class RequestEndedError(SteelyardError):
    """The request that the work was for has ended."""


_ENDED: ContextVar[Callable[[], bool] | None] = ContextVar("steelyard_request_ended", default=None)


@contextmanager
def ended_by(ended: Callable[[], bool]) -> Iterator[None]:
    """Let :func:`checkpoint` raise in this thread, within the block, once ``ended`` returns True."""
    token = _ENDED.set(ended)
    try:
        yield
    finally:
        _ENDED.reset(token)


def checkpoint() -> None:
    """Do nothing, unless the work's request has ended; for loops over texts and words.

    Raises:
        RequestEndedError: It has.
    """
    ended = _ENDED.get()
    if ended is not None and ended():
        raise RequestEndedError("the request has ended")
