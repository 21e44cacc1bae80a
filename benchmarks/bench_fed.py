"""What a round costs the server that groups clients and mixes their heads, beside copying the heads and FedAvg.

Run: ``python benchmarks/bench_fed.py`` on a quiet machine. On a busy one set OMP_NUM_THREADS=1 and give
``--processor``, which counts the processor's time. Arms take turns; ratios are of the same turn. Heads are float32, 50
clients of four planted groups. "server step" is grouping by updates and mixing with a leave-one-out prototype of each
group, as a round does it; ``mix_heads`` in addition returns all prototypes. "whole" is a strategy's step with all that
it keeps from round to round, on a trunk as large as the head. The rounds in one process have clients that do no
work, so their time is all overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import receipt
from numpy.typing import NDArray

from steelyard.fed import (
    AdaptiveMix,
    ClientUpdate,
    FedAvg,
    GAdapHead,
    SharedTrunk,
    UpdateCosine,
    federated_rounds,
    group_clients,
    head_prototypes,
    mix_heads,
)
from steelyard.timing import interleaved

CLIENTS, GROUPS, THRESHOLD = 50, 4, 0.6
SIZES = {"20k parameters": 20_000, "1M parameters": 1_000_000}
PARAMETERS = (2_000, 20_000, 200_000, 1_000_000)
SCALED_CLIENTS = (25, 50, 100, 200)
TARGETS = {"20k parameters": 0.010, "1M parameters": 0.150}
Arms = dict[str, Callable[[], object]]
Clock = Callable[[], float]


def problem(clients: int, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Heads and updates of clients in planted groups."""
    generator = np.random.default_rng(0)
    base = generator.standard_normal((GROUPS, size), dtype=np.float32)[np.arange(clients) % GROUPS]
    heads = base + 0.3 * generator.standard_normal((clients, size), dtype=np.float32)
    updates = base + 0.5 * generator.standard_normal((clients, size), dtype=np.float32)
    return heads, updates


def server_step(heads: NDArray[np.float32], updates: NDArray[np.float32]) -> dict[int, NDArray[Any]]:
    """Group and mix, as a round does."""
    clients = range(len(heads))
    found = group_clients(updates, threshold=THRESHOLD)
    mixing = AdaptiveMix(warmup=0)
    mixing.smooth(dict.fromkeys(clients, 0.05 * heads.shape[1]))
    groups = dict(zip(found.clients, found.labels.tolist(), strict=True))
    return mixing.mix(1, dict(enumerate(heads)), groups, dict.fromkeys(clients), dict.fromkeys(clients, 0))[0]


def whole(strategy: SharedTrunk, updates: dict[int, ClientUpdate]) -> Callable[[], object]:
    """Return a function that takes the next round's step with the same updates again."""
    rounds = iter(range(1, 1_000_000))
    return lambda: strategy.aggregate(next(rounds), updates)


def arms(clients: int, size: int) -> Arms:
    heads, moved = problem(clients, size)
    labels, variances = np.arange(clients) % GROUPS, np.full(clients, 0.05 * size)
    updates = {i: ClientUpdate({"w": heads[i]}, heads[i], moved[i], 0.05 * size, 1) for i in range(clients)}
    adaptive = GAdapHead(UpdateCosine(THRESHOLD), mixing=AdaptiveMix(warmup=0))
    found: Arms = {
        "copy": heads.copy,
        "server step": lambda: server_step(heads, moved),
        "group_clients": lambda: group_clients(moved, threshold=THRESHOLD),
        "head_prototypes": lambda: head_prototypes(heads, labels),
        "mix_heads": lambda: mix_heads(heads, labels, variances),
        "whole FedAvg": whole(FedAvg(), updates),
        "whole GAdapHead": whole(adaptive, updates),
    }
    found["whole GAdapHead"]()
    assert len(set(adaptive.groups.values())) == GROUPS, "the planted groups are not found"
    return found


def times(clients: int, size: int, repeats: int, clock: Clock) -> dict[str, Any]:
    """Median seconds of each arm with quartiles, and ratios."""
    seconds = interleaved(arms(clients, size), repeats=repeats, number=max(1, 100_000 // size), clock=clock)
    found: dict[str, Any] = {"clients": clients, "parameters": size}
    for name, values in seconds.items():
        low, middle, high = statistics.quantiles(values, n=4)
        found[name] = {"seconds": middle, "quartiles": [low, high]}
    pairs = zip(seconds["whole GAdapHead"], seconds["whole FedAvg"], strict=True)
    found["GAdapHead / FedAvg, whole step"] = statistics.median(ours / theirs for ours, theirs in pairs)
    pairs = zip(seconds["server step"], seconds["copy"], strict=True)
    found["server step / copy"] = statistics.median(ours / theirs for ours, theirs in pairs)
    return found


def idle(trunk: Any, head: Any, round: int, generator: np.random.Generator) -> ClientUpdate:
    return ClientUpdate(trunk, head + generator.standard_normal(head.shape, dtype=np.float32), None, 1.0, 1)


def in_process(repeats: int, clock: Clock) -> dict[str, float]:
    """Milliseconds per round of :func:`federated_rounds` with 50 clients of 20k parameters that do no work."""
    start = ({"w": np.zeros(20_000, np.float32)}, np.zeros(20_000, np.float32))
    runs: Arms = {
        kind.__name__: lambda kind=kind: federated_rounds([idle] * CLIENTS, 10, kind(), 0, initial=start)
        for kind in (SharedTrunk, FedAvg, GAdapHead)
    }
    seconds = interleaved(runs, repeats=max(2, repeats // 3), clock=clock)
    return {name: 100 * statistics.median(values) for name, values in seconds.items()}


def scaling(repeats: int, clock: Clock) -> dict[str, Any]:
    """Seconds of a server step by parameters and by clients, as curves that plot_scaling.py draws."""
    steps: dict[str, dict[int, float]] = {"parameters": {}, "clients": {}}
    for what, sizes in (("parameters", PARAMETERS), ("clients", SCALED_CLIENTS)):
        for size in sizes:
            heads, moved = problem(*((CLIENTS, size) if what == "parameters" else (size, 20_000)))
            call = {"": lambda heads=heads, moved=moved: server_step(heads, moved)}
            steps[what][size] = statistics.median(interleaved(call, repeats=repeats, clock=clock)[""])
    titles = {"parameters": f"server step, {CLIENTS} clients", "clients": "server step, heads of 20k parameters"}
    return {
        titles[what]: {"x": list(found), "y": list(found.values()), "x_label": what, "y_label": "s"}
        for what, found in steps.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="timed rounds")
    parser.add_argument("--processor", action="store_true", help="count the processor's time, of all threads")
    chosen = parser.parse_args()
    repeats, clock = chosen.repeats, time.process_time if chosen.processor else time.perf_counter
    figures: dict[str, Any] = {"targets": TARGETS, "clock": "processor" if chosen.processor else "wall"}
    figures.update({name: times(CLIENTS, size, repeats, clock) for name, size in SIZES.items()})
    figures["milliseconds per round in one process, clients without work"] = in_process(repeats, clock)
    figures["scaling"] = scaling(repeats, clock)
    figures["met"] = {name: figures[name]["server step"]["seconds"] <= limit for name, limit in TARGETS.items()}
    print(json.dumps(figures, indent=1))
    print(receipt.write("speed_fed", figures))


if __name__ == "__main__":
    main()
