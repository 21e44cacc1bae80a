"""Interleaved timing, with a clock of our own."""

import gc

import pytest

from steelyard import timing
from steelyard.timing import interleaved


@pytest.fixture
def clock(monkeypatch):
    now = {"s": 0.0}
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now["s"])
    return now


def test_seconds_per_call(clock):
    def cost(seconds):
        def call():
            clock["s"] += seconds

        return call

    found = interleaved({"fast": cost(1.0), "slow": cost(3.0)}, repeats=4, warmup=1, number=2)
    assert found == {"fast": [1.0] * 4, "slow": [3.0] * 4}


def test_arms_take_turns_and_the_order_rotates(clock):
    calls = []
    interleaved({name: lambda name=name: calls.append(name) for name in "abc"}, repeats=2, warmup=1)
    assert "".join(calls) == "abc" + "bca" + "cab"


def test_a_drift_of_the_machine_hits_all_arms_alike(clock):
    state = {"pace": 1.0}

    def call():
        clock["s"] += state["pace"]
        state["pace"] *= 1.01

    found = interleaved({"a": call, "b": call}, repeats=20, warmup=0)
    ratios = [a / b for a, b in zip(found["a"], found["b"], strict=True)]
    assert abs(sum(ratios) / len(ratios) - 1) < 1e-3


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_off_while_timing_and_as_before_after(collecting):
    seen = []
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        interleaved({"a": lambda: seen.append(gc.isenabled())}, repeats=1, warmup=0)
        with pytest.raises(ZeroDivisionError):
            interleaved({"a": lambda: 1 / 0})
        assert gc.isenabled() is collecting
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False]


def test_another_clock():
    ticks = iter(range(100))
    assert interleaved({"a": lambda: None}, repeats=2, warmup=0, clock=lambda: float(next(ticks))) == {"a": [1.0, 1.0]}
