"""Ratios of running times, measured side by side: arms take turns, so that a drift of the machine hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping


def interleaved(
    arms: Mapping[str, Callable[[], object]],
    repeats: int = 9,
    warmup: int = 2,
    number: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    """Time each arm ``repeats`` times, in rounds whose order rotates.

    Args:
        arms: Name -> function without arguments.
        repeats: Timed rounds.
        warmup: Untimed rounds before them.
        number: Calls per timing; the value is the mean over them.
        clock: Tells seconds; None: wall time. ``time.process_time`` counts the processor's time, which other programs
            disturb less.

    Returns:
        Name -> seconds per call, one value per round; the same index is the same round, so ratios pair.
    """
    clock = time.perf_counter if clock is None else clock
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(warmup + repeats):
            shift = turn % len(names)
            for name in names[shift:] + names[:shift]:
                call = arms[name]
                start = clock()
                for _ in range(number):
                    call()
                elapsed = (clock() - start) / number
                if turn >= warmup:
                    seconds[name].append(elapsed)
    finally:
        if collecting:
            gc.enable()
    return seconds
