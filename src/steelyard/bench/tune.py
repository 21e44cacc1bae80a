"""Renew a bench's tuned settings: every arm's grid, on tuning seeds that no verdict is ever read from."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from steelyard import catalog
from steelyard.bench import runner
from steelyard.bench.plan import Plan, load_task, make_cell, plan_record, source_hash
from steelyard.bench.store import Store
from steelyard.contracts import BenchSpec, Block, Profile
from steelyard.errors import InputError

TUNING_SEEDS = (0, 1, 2)  # of the root "tuning": other numbers than the evaluation's seeds 0, 1, 2


def tune(
    method: str,
    store: Store,
    output: Path | None = None,
    jobs: int | None = None,
    on_progress: runner.OnProgress | None = None,
) -> Path:
    """Run the grid of every arm and write the best setting per task and arm.

    Args:
        method: The method.
        store: Keeps the cells, so that an interrupted tuning can be called again.
        output: JSON file; None: ``tuned.json`` beside the bench.
        jobs: Worker processes.
        on_progress: See :func:`steelyard.bench.runner.run`.

    Returns:
        The path written: task -> arm -> {config, score, tried}.
    """
    spec = catalog.load_bench(method)
    if not spec.grid:
        raise InputError(f"{method} has no grid to tune")
    plan = _plan(method, spec, store)
    plan.save(store)
    runner.run(store, [plan.id], jobs, on_progress)
    path = output or Path(str(importlib.import_module(catalog.package(method)).__path__[0])) / "tuned.json"
    text = json.dumps(_best(spec, store.cells(plan.id)), indent=1, sort_keys=True) + "\n"
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"output {path} cannot be written: {error.strerror}; the store keeps the cells") from None
    return path


def _plan(method: str, spec: BenchSpec, store: Store) -> Plan:
    base = spec.profiles["full"]
    profile = base.model_copy(
        update={
            "name": "tuning",
            "params": {**base.params, **spec.tuning_params},
            "blocks": (Block(tasks=spec.tuning_tasks, arms=tuple(spec.grid)),),
        }
    )
    source = source_hash(method)
    tasks = {name: load_task(spec.task(name), source, store) for name in spec.tuning_tasks}
    cells = list(_cells(spec, profile, source, {name: list(blobs) for name, (_, blobs) in tasks.items()}))
    record = plan_record(spec, profile, source, {}, profile.blocks, TUNING_SEEDS, [info for info, _ in tasks.values()])
    blobs = {name: content for _, contents in tasks.values() for name, content in contents.items()}
    return Plan(record, cells, blobs)


def _cells(spec: BenchSpec, profile: Profile, source: str, blobs: dict[str, list[str]]) -> Iterator[dict[str, Any]]:
    for seed in TUNING_SEEDS:
        for task, arm in _pairs(spec):
            for config in spec.grid[arm]:
                content = {
                    "task": task,
                    "arm": arm,
                    "seed": seed,
                    "config": {**spec.arm(arm).config, **config},
                    "params": profile.params,
                    "options": {},
                    "data": blobs[task],
                }
                yield make_cell(spec.method, profile, source, "tuning", content)


def _pairs(spec: BenchSpec) -> list[tuple[str, str]]:
    """Return the (task, arm) pairs to tune: those that some profile runs."""
    blocks = [block for profile in spec.profiles.values() for block in profile.blocks]
    return [
        (task, arm)
        for task in spec.tuning_tasks
        for arm in spec.grid
        if any(task in block.tasks and arm in block.arms for block in blocks)
    ]


def _mean(
    spec: BenchSpec, cells: Sequence[dict[str, Any]], task: str, arm: str, config: Mapping[str, Any]
) -> float | None:
    """Return the mean of the primary metric over the tuning seeds; None when a cell has failed."""
    wanted = {**spec.arm(arm).config, **config}
    scores = [
        cell["metrics"].get(spec.primary)
        for cell in cells
        if (cell["task"], cell["arm"]) == (task, arm) and json.loads(cell["spec"])["config"] == wanted
    ]
    return None if not scores or None in scores else sum(scores) / len(scores)


def _best(spec: BenchSpec, cells: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return task -> arm -> the first grid point with the best mean of the primary metric, and what else was tried."""
    metric = next(metric for metric in spec.metrics if metric.name == spec.primary)
    sign = 1.0 if metric.better == "higher" else -1.0
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task, arm in _pairs(spec):
        tried: list[dict[str, Any]] = [
            {"config": dict(config), "score": _mean(spec, cells, task, arm, config)} for config in spec.grid[arm]
        ]
        whole = [point for point in tried if point["score"] is not None]
        if not whole:
            raise InputError(f"tuning {spec.method}: no setting of {arm} on {task} finished all its cells")
        # To nine digits, so that no last bit of a mean decides between two that are equal.
        best = max(whole, key=lambda point: float(f"{sign * point['score']:.9g}"))
        found.setdefault(task, {})[arm] = {**best, "tried": tried, "seeds": list(TUNING_SEEDS)}
    return found
