"""From a request to cells: which data, which arms, which seeds; each cell keyed by its content."""

from __future__ import annotations

import hashlib
import importlib
import json
import operator
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

import steelyard
from steelyard import catalog
from steelyard.bench import arrays, environment
from steelyard.bench.results import TaskInfo
from steelyard.bench.store import Store
from steelyard.contracts import BenchSpec, Block, Profile, Task
from steelyard.errors import InputError, SteelyardError, did_you_mean

USER_SEEDS = 8  # on the user's own data
_SHARED_SOURCES = (
    "card.py",
    "contracts.py",
    "rng.py",
    "timing.py",
    "data",
    "models",
)  # what every cell's result depends on


@dataclass
class Plan:
    """A weighing before it runs: what the store keeps of it, its cells, and the data they read."""

    record: dict[str, Any]
    cells: list[dict[str, Any]]
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The weighing's name in the store."""
        return str(self.record["id"])

    def save(self, store: Store) -> None:
        """Write the plan into ``store``."""
        store.add_weighing(self.record, self.cells, self.blobs, environment.record())


@dataclass(frozen=True)
class _Request:
    """What is the same for every cell of a plan."""

    spec: BenchSpec
    profile: Profile
    options: dict[str, Any]
    source: str


def make_plan(
    method: str,
    store: Store,
    data: Any = None,
    profile: str = "quick",
    seeds: int | Sequence[int] | None = None,
    arms: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan the weighing of ``method``.

    Args:
        method: A name of the catalog, or the dotted name of a package of your own.
        store: Where preparations that cost time are kept.
        data: The user's own data, as the method's bench takes it; None for the profile's tasks.
        profile: ``quick``, ``full`` or another profile of the bench.
        seeds: How many seeds, or which.
        arms: Names of the arms to run; all of the profile when None.
        options: What the bench takes beside the data (a label column, a model).

    Raises:
        InputError: A name or an option is unknown, or the data cannot be used.
        MissingExtraError: The method's extra is not installed.
        DataMissingError: A data set of the profile cannot be had.
    """
    arms = arms.split(",") if isinstance(arms, str) else arms
    spec, source = catalog.load_bench(method), source_hash(method)
    chosen = _profile(spec, profile)
    settings: dict[str, Any] = {}
    if data is None:
        if options:
            raise InputError(f"{', '.join(options)}: only with data of your own (--data)")
        blocks, own = chosen.blocks, {}
    else:
        task, settings = _user_task(spec, data, options or {})
        update: dict[str, Any] = {"tasks": (task.name,), "seeds": None}
        if spec.user_arms:
            spec = replace(spec, arms=spec.user_arms, primary=spec.user_primary or spec.primary)
            update["arms"] = tuple(arm.name for arm in spec.arms)
        blocks = (chosen.blocks[0].model_copy(update=update),)
        own = {task.name: task}
    request = _Request(spec, chosen, settings, source)
    seed_list = _seeds(seeds, USER_SEEDS if own else chosen.seeds)
    blocks = tuple(_with_arms(block, spec, arms) for block in blocks)
    if not any(block.arms for block in blocks):
        raise InputError(f"none of the arms {', '.join(arms or ())} is part of the {profile} profile of {method}")
    names = dict.fromkeys(name for block in blocks for name in block.tasks)
    tasks = {name: own.get(name) or spec.task(name) for name in names}
    loaded = {name: load_task(task, source, store) for name, task in tasks.items()}
    cells = list(_cells(request, blocks, seed_list, {name: list(blobs) for name, (_, blobs) in loaded.items()}))
    return Plan(
        record={
            **plan_record(spec, chosen, source, settings, blocks, seed_list, [info for info, _ in loaded.values()]),
            "own_data": bool(own),
        },
        cells=cells,
        blobs={name: content for _, blobs in loaded.values() for name, content in blobs.items()},
    )


def _profile(spec: BenchSpec, name: str) -> Profile:
    if name not in spec.profiles:
        known = ", ".join(spec.profiles)
        raise InputError(f"unknown profile '{name}'.{did_you_mean(name, spec.profiles)} {spec.method} has: {known}")
    profile = spec.profiles[name]
    if profile.recipe is not None:
        raise InputError(f"the {name} profile of {spec.method} is a recipe to run by hand: {profile.recipe}")
    return profile


def _seeds(seeds: int | Sequence[int] | None, default: int) -> list[int]:
    wanted = default if seeds is None else seeds
    try:  # whole numbers of numpy are as good as Python's
        chosen = [operator.index(seed) for seed in (wanted if isinstance(wanted, Iterable) else range(wanted))]
    except TypeError:
        chosen = []
    if not chosen or len(set(chosen)) != len(chosen) or any(seed < 0 for seed in chosen):
        raise InputError(f"seeds must be a number above 0 or a list of distinct seeds, got {seeds!r}")
    return chosen


def _with_arms(block: Block, spec: BenchSpec, arms: Sequence[str] | None) -> Block:
    known = [arm.name for arm in spec.arms]
    for name in arms or ():
        if name not in known:
            raise InputError(f"unknown arm '{name}'.{did_you_mean(name, known)} {spec.method} has: {', '.join(known)}")
    kept = [name for name in block.arms if not spec.arm(name).derived and (arms is None or name in arms)]
    return block.model_copy(update={"arms": tuple(kept)})


def _user_task(spec: BenchSpec, data: Any, options: Mapping[str, Any]) -> tuple[Task, dict[str, Any]]:
    if spec.user_task is None:
        raise InputError(f"{spec.method} takes no data of your own")
    settings: dict[str, Any] = dict(options)
    if spec.options is None:
        if options:
            raise InputError(f"{spec.method} takes no option beside the data, got: {', '.join(options)}")
    else:
        settings = validate(spec.options, options, f"{spec.method} on your own data").model_dump(mode="json")
    try:
        return spec.user_task(data, **settings), settings
    except SteelyardError:
        raise
    except Exception as error:  # the user's own model or loader may raise anything
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"your own data or model failed before anything was run ({said})") from error


def validate(model: type[BaseModel], values: Mapping[str, Any], what: str) -> BaseModel:
    """Return ``model(**values)``; a failure becomes one InputError sentence that names the field."""
    try:
        return model(**{name.replace("-", "_"): value for name, value in values.items()})
    except ValidationError as error:
        # A misspelt option is the cause of the missing one: it comes first.
        first = min(error.errors(), key=lambda found: found["type"] != "extra_forbidden")
        name = ".".join(str(part) for part in first["loc"]) or "value"
        if first["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields) or "none"
            hint = did_you_mean(name, model.model_fields)
            raise InputError(f"{what}: unknown option '{name}'.{hint} Options: {known}") from None
        if first["type"] == "missing":
            raise InputError(f"{what}: option '{name}' is missing (--{name.replace('_', '-')} …)") from None
        raise InputError(f"{what}: option '{name}': {first['msg']}, got {first['input']!r}") from None


def load_task(task: Task, source: str, store: Store) -> tuple[TaskInfo, dict[str, bytes]]:
    """Return what a task is and its arrays by stored name; what it prepares is kept in ``store``."""
    loaded = arrays.plain(task.load(), task.name)
    digest = arrays.content_hash(loaded)
    blobs = {digest: arrays.to_bytes(loaded)}
    if task.prepare is not None:
        name = f"{digest[:32]}-prepared-{source[:16]}-{task.name}"
        blobs[name] = store.blob(name) or arrays.to_bytes(arrays.plain(task.prepare(loaded), task.name))
        store.add_blob(name, blobs[name])
    info = TaskInfo(
        name=task.name,
        label=task.label,
        source=task.source,
        data_hash=digest,
        shapes={name: tuple(array.shape) for name, array in loaded.items()},
    )
    return info, blobs


def _cells(
    request: _Request, blocks: Sequence[Block], seeds: Sequence[int], blobs: Mapping[str, list[str]]
) -> Iterator[dict[str, Any]]:
    """Yield the cells, seed by seed, so that a weighing cut short has every arm."""
    for seed_index, seed in enumerate(seeds):
        for block in blocks:
            if block.seeds is not None and seed_index >= block.seeds:
                continue
            for task in block.tasks:
                for arm in block.arms:
                    tuned = request.spec.tuned.get(task, {}).get(arm, {})
                    config = {**request.spec.arm(arm).config, **tuned}
                    params = {**request.profile.params, **block.params}
                    yield make_cell(request.spec.method, request.profile, request.source, "evaluation", {
                        "task": task, "arm": arm, "seed": seed, "config": config, "params": params,
                        "options": request.options, "data": blobs[task],
                    })  # fmt: skip


def make_cell(method: str, profile: Profile, source: str, root: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return one cell as the store takes it; ``content`` has task, arm, seed, config, params, options and data."""
    identity = {"method": method, "profile": profile.name, "root": root, "source": source, **content}
    try:
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"arm {content['arm']}: its configuration is not plain JSON ({error})") from None
    limits = {"seconds": profile.cell_seconds, "memory_mb": profile.cell_memory_mb}
    return {
        "key": hashlib.sha256(canonical.encode()).hexdigest(),
        "method": method,
        "task": content["task"],
        "arm": content["arm"],
        "seed": content["seed"],
        "exclusive": int(profile.exclusive),
        "spec": {**identity, **limits},
    }


def _few(blocks: Sequence[Block]) -> list[str | list[str]]:
    """Return what has too few seeds for a verdict: a task with all its arms, or [task, arm] beside others on all."""
    whole = {(task, arm) for block in blocks if block.seeds is None for task in block.tasks for arm in block.arms}
    judged = {task for task, _ in whole}
    few = {(task, arm) for block in blocks if block.seeds is not None for task in block.tasks for arm in block.arms}
    return [
        *sorted({task for task, _ in few} - judged),
        *(list(pair) for pair in sorted(few - whole) if pair[0] in judged),
    ]


def plan_record(
    spec: BenchSpec,
    profile: Profile,
    source: str,
    options: Mapping[str, Any],
    blocks: Sequence[Block],
    seeds: Sequence[int],
    tasks: Sequence[TaskInfo],
) -> dict[str, Any]:
    """Return what the store keeps of a plan beside its cells: all that a reader of the results needs."""
    ran = {name for block in blocks for name in block.arms}
    derived = [arm for arm in spec.arms if arm.derived]
    return {
        "id": f"{spec.method.rpartition('.')[2]}-{profile.name}-{secrets.token_hex(3)}",
        "method": spec.method,
        "profile": profile.name,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "source": source,
        "seeds": list(seeds),
        "options": dict(options),
        "without_verdict": _few(blocks),
        "tasks": [info.model_dump(mode="json") for info in tasks],
        "arms": [arm.model_dump(mode="json") for arm in spec.arms if arm.name in ran or arm in derived],
        "metrics": [metric.model_dump(mode="json") for metric in spec.metrics],
        "traces": [trace.model_dump(mode="json") for trace in spec.traces],
        "primary": spec.primary,
        "cost": spec.cost,
        "resources": list(spec.resources),
        "card": catalog.load_card(spec.method).model_dump(mode="json"),
    }


def is_stale(record: Mapping[str, Any]) -> bool:
    """Return whether the code that a weighing was planned with has changed since, or is gone."""
    try:
        return bool(record["source"] != source_hash(record["method"]))
    except (SteelyardError, ImportError):
        return True


def source_hash(method: str) -> str:
    """Return a SHA-256 over the method's files and those of the floors that its cells' results depend on."""
    home = Path(steelyard.__file__).parent
    folder = Path(str(importlib.import_module(catalog.package(method)).__path__[0]))
    digest = hashlib.sha256()
    for root in (folder, *(home / name for name in _SHARED_SOURCES)):
        files = [root] if root.is_file() else sorted(root.rglob("*.py"))
        for file in files:
            digest.update(file.name.encode() + b"\x1f" + file.read_bytes())
    return digest.hexdigest()
