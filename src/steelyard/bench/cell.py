"""One cell in a process of its own: limits set, nothing of the caller's touched, the result sent as one JSON line."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from steelyard import catalog
from steelyard.bench import arrays
from steelyard.bench.store import Store
from steelyard.contracts import Arrays, CellInput, Measured
from steelyard.errors import InputError, SteelyardError, StoreError

LoadArrays = Callable[[str], Arrays]
_PR_SET_PDEATHSIG = 1


def execute(spec: dict[str, Any], load: LoadArrays) -> dict[str, Any]:
    """Run one cell and return its result, or ``{"error": …}``; never raises.

    Args:
        spec: The cell as planned (see :mod:`steelyard.bench.plan`).
        load: Returns the arrays stored under a name.
    """
    try:
        _limit_memory(spec["memory_mb"])
        bench = catalog.load_bench(spec["method"])
        data = {name: value for blob in spec["data"] for name, value in load(blob).items()}
        cell = CellInput(
            task=spec["task"],
            arm=spec["arm"],
            config=spec["config"],
            params=spec["params"],
            options=spec["options"],
            seed=spec["seed"],
            data=data,
            root=spec["root"],
        )
        wall, cpu = time.perf_counter(), time.process_time()
        measured = bench.run(cell)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return _result(measured, wall, cpu)
    except InputError as error:
        return {"error": str(error), "final": True}
    except SteelyardError as error:
        return {"error": str(error), "final": False}
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return {"error": f"out of memory: the cell's limit is {spec['memory_mb']} MB", "final": False}
        return {"error": traceback.format_exc(limit=-8), "final": False}
    except Exception:
        return {"error": traceback.format_exc(limit=-8), "final": False}


def to_bytes(result: dict[str, Any]) -> bytes:
    """Return ``result`` as JSON; characters that no file can hold (half a pair, of a damaged name) become "?"."""
    return json.dumps(result, ensure_ascii=False).encode("utf-8", "replace")


def _limit_memory(megabytes: int) -> None:
    """Cap the address space at what is mapped now plus ``megabytes``; CUDA maps far more than it uses, so not there."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        return
    try:
        with open("/proc/self/statm") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
    except OSError:
        mapped = 0
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = mapped + megabytes * 2**20
    with contextlib.suppress(ValueError, OSError):  # some systems have no such limit; the worker watches RSS as well
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _result(measured: Measured, wall: float, cpu: float) -> dict[str, Any]:
    metrics = {name: _number(value) for name, value in measured.metrics.items()}
    result = {
        "metrics": metrics,
        "steps": int(measured.steps),
        "traces": {
            name: [[_number(x) for x in xs], [_number(y) for y in ys]] for name, (xs, ys) in measured.traces.items()
        },
        "notes": dict(measured.notes),
        "diagrams": [diagram.model_dump(mode="json") for diagram in measured.diagrams],
        "wall_s": wall,
        "cpu_s": cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    missing = sorted(name for name, value in metrics.items() if value is None)
    if missing:
        # A bench gives a value to whatever may happen to an arm; what it gives none to is a failure that must show.
        result = {"error": f"not a finite number: {', '.join(missing)}", "final": True}
    return result


def _number(value: float) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when ``parent`` dies, so that nothing computes on; leave if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def isolate(folder: str) -> None:
    """Make ``folder`` the working and temporary directory, keep files private, and model hubs offline."""
    os.umask(0o077)
    os.chdir(folder)
    os.environ.update(TMPDIR=folder, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    tempfile.tempdir = folder


def load_arrays(store: Store, name: str) -> Arrays:
    """Return the arrays that ``store`` keeps under ``name``."""
    content = store.blob(name)
    if content is None:
        raise StoreError(f"the store {store.path} holds no data under {name[:12]}; weigh again")
    try:
        return arrays.from_bytes(content)
    except Exception:  # damaged bytes make zipfile and numpy raise whatever they stumble on
        raise StoreError(f"the store {store.path} is damaged: its data under {name[:12]} cannot be read") from None


def main() -> int:
    """Run the cell that standard input describes (where there is no fork); its result goes to standard output."""
    request = json.loads(sys.stdin.readline())
    die_with(request["parent"])
    isolate(request["folder"])
    answer = os.dup(1)
    os.dup2(2, 1)  # what a cell prints must not mix with its result
    with Store(request["store"], create=False) as store:
        result = execute(request["spec"], lambda name: load_arrays(store, name))
    with os.fdopen(answer, "wb") as out:
        out.write(to_bytes(result))
    return 0


if __name__ == "__main__":
    os._exit(main())  # threads that a method left behind must not keep the process
