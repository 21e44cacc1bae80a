"""Read weighings back from a store: rows, derived arms, verdicts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steelyard import catalog
from steelyard.bench.results import Results, Row, TaskInfo
from steelyard.bench.store import Store
from steelyard.bench.verdicts import judge
from steelyard.card import Claim
from steelyard.contracts import Arm, Derive, Metric, Trace
from steelyard.errors import InputError


def read_results(store: Store, weighing: str) -> Results:
    """Return everything about a weighing, with the verdicts that its finished cells allow."""
    plan, environment = store.weighing(weighing)
    rows = [_row(store, cell) for cell in store.cells(weighing)]
    finished = all(row.state in ("done", "failed") for row in rows)
    metrics = tuple(Metric(**metric) for metric in plan["metrics"])
    arms = tuple(Arm(**arm) for arm in plan["arms"])
    rows = with_derived(rows, arms, _derive_of(plan["method"]))
    claims = [Claim(**claim) for claim in plan["card"]["claims"]]
    return Results(
        id=weighing,
        method=plan["method"],
        profile=plan["profile"],
        created=plan["created"],
        finished=finished,
        seeds=tuple(plan["seeds"]),
        options=plan["options"],
        card=plan["card"],
        tasks=tuple(TaskInfo(**task) for task in plan["tasks"]),
        arms=tuple(arm for arm in arms if not arm.derived or any(row.arm == arm.name for row in rows)),
        metrics=metrics,
        traces=tuple(Trace(**trace) for trace in plan["traces"]),
        primary=plan["primary"],
        cost=plan["cost"],
        resources=tuple(plan.get("resources", ())),
        rows=tuple(rows),
        verdicts=judge(claims, rows, metrics, _few(plan, arms), bool(plan.get("own_data"))) if finished else (),
        environment=environment,
    )


def _few(plan: Mapping[str, Any], arms: Sequence[Arm]) -> set[tuple[str, str]]:
    """Return the (task, arm) on too few seeds for a verdict; a task alone means all its arms."""
    few: set[tuple[str, str]] = set()
    for entry in plan["without_verdict"]:
        few |= {(entry, arm.name) for arm in arms} if isinstance(entry, str) else {(entry[0], entry[1])}
    return few


def _row(store: Store, cell: Mapping[str, Any]) -> Row:
    result = store.parse(cell["result"]) if cell["result"] else {"traces": {}, "notes": {}}
    kept = ("key", "task", "arm", "seed", "state", "metrics", "wall_s", "cpu_s", "rss_mb", "attempts", "error")
    config = store.parse(cell["spec"])["config"]
    return Row(**{name: cell[name] for name in kept}, steps=cell["steps"] or 0, config=config, **result)


def _derive_of(method: str) -> Derive | None:
    """Return the bench's derive function; None where the bench cannot be loaded, as on a machine that only reads."""
    try:
        return catalog.load_bench(method).derive
    except Exception:  # a missing extra, or a bench of the user's own, which may raise anything: its rows can be read
        return None


def with_derived(rows: Sequence[Row], arms: Sequence[Arm], derive: Derive | None) -> list[Row]:
    """Return ``rows`` with the metrics, and the rows of derived arms, that ``derive`` makes of each (task, seed)."""
    if derive is None:
        return list(rows)
    groups: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.seed), {})[row.arm] = row
    names = {arm.name for arm in arms}
    extended: list[Row] = []
    for (task, seed), group in groups.items():
        done = {name: row.metrics for name, row in group.items() if row.state == "done"}
        extra = _derived(derive, done, f"task {task}, seed {seed}")
        for name, row in group.items():
            more = extra.get(name, {}) if name in done else {}
            extended.append(row.model_copy(update={"metrics": {**row.metrics, **more}}))
        extended += [
            Row(key="", task=task, arm=name, seed=seed, state="done", metrics=dict(values))
            for name, values in extra.items()
            if name not in group and name in names
        ]
    return extended


def _derived(derive: Derive, done: Mapping[str, Mapping[str, float | None]], where: str) -> Mapping[str, Any]:
    """Return what ``derive`` makes of finished cells; it may add to what was measured, never replace it."""
    try:
        extra = derive({name: {k: v for k, v in values.items() if v is not None} for name, values in done.items()})
    except Exception as error:  # a bench of the user's own may raise anything
        raise InputError(f"the bench's derive function failed on {where} ({type(error).__name__}: {error})") from error
    for name, values in extra.items():
        replaced = sorted(set(values) & set(done.get(name, ())))
        if replaced:
            raise InputError(f"the bench's derive function replaces what arm {name} measured ({where}): {replaced[0]}")
    return extra


class StoreSource:
    """The weighings of a store for readers on any thread: each call opens the file anew."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._open: Callable[[], Store] = lambda: Store(path, create=False)
        self._open().close()

    def weighings(self) -> list[dict[str, Any]]:
        """Return id, method, profile, created, finished and the cell counts of every weighing, the newest first."""
        with self._open() as store:
            found = []
            for identity in reversed(store.weighing_ids()):
                plan, _ = store.weighing(identity)
                counts = store.counts([identity])
                kept = {name: plan[name] for name in ("id", "method", "profile", "created")}
                found.append({**kept, **counts._asdict(), "total": counts.total, "finished": counts.finished})
            return found

    def results(self, identity: str) -> Results:
        """Return the results of one weighing."""
        with self._open() as store:
            return read_results(store, identity)


def open_source(path: str | os.PathLike[str]) -> StoreSource:
    """Return the weighings of the store at ``path``; raises StoreError when there is none."""
    return StoreSource(path)
