"""The steps of many rollouts as flat arrays: what every advantage function takes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import InputError
from steelyard.policy.groups import Floats, Ints, alike, factorise, plain

Bools = NDArray[np.bool_]
Keys = Sequence[Hashable] | NDArray[Any]
Step = Mapping[str, Any]
Episode = Sequence[Step]
LARGEST = 1e100
"""No reward may be larger: squares and sums of squares must stay finite."""
_HASHABLE = frozenset((str, bytes, int, bool))


class Layout(NamedTuple):
    """How the rows of a batch belong together; computed once, whatever their order.

    Attributes:
        order: Rows sorted by trajectory, then time, (S,): ``values[order]`` is sorted.
        traj: Trajectory of each sorted row, numbered by the order of their sorted names, (S,).
        starts: Place of each trajectory's first sorted row, (N,).
        ends: Place of each trajectory's last sorted row, (N,).
        traj_task: Task of each trajectory, (N,).
        task: Task of each sorted row, (S,).
        tasks: Number of tasks.
        place: Where each row went: ``sorted[place]`` has the rows in their own order again, (S,).
    """

    order: Ints
    traj: Ints
    starts: Ints
    ends: Ints
    traj_task: Ints
    task: Ints
    tasks: int
    place: Ints

    @property
    def lengths(self) -> Ints:
        """Steps of each trajectory, (N,)."""
        return self.ends - self.starts + 1

    @property
    def to_go(self) -> Ints:
        """Steps from each sorted row to the end of its trajectory, itself counted: 1 in the last row, (S,)."""
        return self.ends[self.traj] - np.arange(len(self.traj)) + 1


@dataclass(frozen=True, eq=False)
class StepBatch:
    """Steps of rollouts, one row each, in any order.

    Attributes:
        task: Which prompt or game the step belongs to; its rollouts are each other's group.
        traj: Which rollout; its steps all belong to one task.
        t: Number of the step in its rollout, from 0 (or from 1 in all), without gaps.
        reward: Reward that the environment gave for the step; a rollout's return is their sum.
        anchor: The state in which the action was taken; equal keys are one node. `gigpo` and
            `g2po_advantage` need it.
        valid: Whether the action was valid; None: all were.
        process: Further signals by name, NaN where a step is not scored; used by `arc_advantage`.
        success: Whether the rollout of this step succeeded.
        truncated: Whether the rollout of this step was cut off by a limit of time.

    Every field is an array or a sequence of S entries; torch tensors may stand for numbers, and what is computed from
    a batch whose rewards are a tensor is a tensor on the same device.

    Raises:
        InputError: A field is of another length, not finite or names a step twice; the message names field and row.
    """

    task: Any
    traj: Any
    t: Any
    reward: Any
    anchor: Any = None
    valid: Any = None
    process: Mapping[str, Any] = field(default_factory=dict)
    success: Any = None
    truncated: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_like", self.reward)
        rewards = _numbers("reward", self.reward)
        size = len(rewards)
        put = object.__setattr__
        put(self, "reward", rewards)
        _refuse(~np.isfinite(rewards), "reward", "is not a finite number")
        _refuse(np.abs(rewards) > LARGEST, "reward", f"is larger than {LARGEST:g}")
        for name in ("task", "traj", "t"):
            if getattr(self, name) is None:
                raise InputError(f"{name}: the steps have none; give one a step")
        put(self, "anchor", _anchors(self.anchor))
        for name in ("task", "traj", "anchor"):
            if getattr(self, name) is not None:
                put(self, name, _keys(name, getattr(self, name), size))
        put(self, "t", _whole("t", self.t, size))
        for name in ("valid", "success", "truncated"):
            if getattr(self, name) is not None:
                put(self, name, _flags(name, getattr(self, name), size))
        if not isinstance(self.process, Mapping):
            raise InputError("process: it must be a mapping from a signal's name to its values")
        put(self, "process", {name: _process(name, value, size) for name, value in self.process.items()})
        _ = self.layout  # refuses what does not belong together

    def __len__(self) -> int:
        return len(self.reward)

    @cached_property
    def layout(self) -> Layout:
        """How the rows belong together."""
        return _layout(self.task, self.traj, self.t)

    @cached_property
    def nodes(self) -> tuple[Ints, int]:
        """Node of each *sorted* row, numbered over all tasks (the same anchor in another task is another node)."""
        if self.anchor is None:
            raise InputError("anchor: the steps have none; say in which state each action was taken")
        codes, count = factorise(self.anchor)
        codes = codes[self.layout.order]
        return factorise(self.layout.task * count + codes) if self.layout.tasks > 1 else (codes, count)

    @cached_property
    def returns(self) -> Floats:
        """Return of each trajectory: the sum of its rewards, (N,), in the order of `layout`."""
        return np.add.reduceat(self.reward[self.layout.order], self.layout.starts) if len(self) else np.zeros(0)

    @cached_property
    def succeeded(self) -> Bools | None:
        """Whether each trajectory succeeded, (N,): what its last step says; None when the steps do not say."""
        return None if self.success is None else self.success[self.layout.order][self.layout.ends]

    def per_row(self, values: Floats) -> Any:
        """Return values of sorted rows in the rows' own order, as the rewards came: an array or a tensor, (S,)."""
        return alike(values[self.layout.place], self._like)  # type: ignore[attr-defined]

    def select(self, rows: Any) -> StepBatch:
        """Return the batch of ``rows``, an index or mask; whole trajectories only."""
        rows = np.arange(len(self))[np.asarray(plain(rows))]
        like = self._like  # type: ignore[attr-defined]

        def pick(values: Any) -> Any:
            if values is None or isinstance(values, np.ndarray):
                return None if values is None else values[rows]
            return [values[row] for row in rows]

        fields = ("task", "traj", "t", "reward", "anchor", "valid", "success", "truncated")
        process = {name: value[rows] for name, value in self.process.items()}
        picked = {name: pick(getattr(self, name)) for name in fields}
        picked["reward"] = like[rows] if hasattr(like, "dtype") else picked["reward"]
        return StepBatch(**picked, process=process)

    @classmethod
    def without_copies(cls, **fields: Any) -> tuple[StepBatch, Ints]:
        """Return the batch of rows some of which were doubled to fill up a batch, and which step each row is.

        Copies would count twice in every mean; here the first of them counts. With ``batch, step`` returned,
        ``g2po_advantage(batch)[step]`` has one advantage a row, (S,).

        Args:
            **fields: Those of `StepBatch`.

        Raises:
            InputError: Rows of the same trajectory and time differ in task, reward or anchor, or what `StepBatch`
                refuses.
        """
        for name in ("task", "traj", "t", "reward"):
            if name not in fields:
                raise InputError(f"{name}: the rows have none; give one a row")
        size = len(_numbers("reward", fields["reward"]))
        t = _whole("t", fields["t"], size)
        keys = {name: _keys(name, fields[name], size) for name in ("task", "traj")}
        keys["anchor"] = anchors = _anchors(fields.get("anchor"))
        if anchors is not None:
            keys["anchor"] = _keys("anchor", anchors, size)
        span = int(t.max(initial=0)) + 1
        _, rows, step = np.unique(factorise(keys["traj"])[0] * span + t, return_index=True, return_inverse=True)
        keys["reward"] = _numbers("reward", fields["reward"])
        for name in ("task", "reward", "anchor"):
            if keys[name] is not None:
                codes = factorise(keys[name])[0]
                _refuse(codes != codes[rows][step], name, "is not that of the row it is a copy of")

        def pick(values: Any) -> Any:
            return values[rows] if hasattr(values, "dtype") else [values[row] for row in rows.tolist()]

        process = {name: pick(values) for name, values in (fields.pop("process", None) or {}).items()}
        kept = {name: None if values is None else pick(values) for name, values in fields.items()}
        return cls(**kept, process=process), step

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> StepBatch:
        """Return the batch of ``episodes``, each a sequence of steps, in their order.

        A step is a mapping with ``reward`` and, where they are known, ``task`` (else all episodes share one),
        ``anchor`` (else ``observation``), ``valid``, ``success`` (of the episode; said by any of its steps),
        ``truncated`` and ``process``, a mapping of named signals. Every episode is one trajectory, whatever its
        ``traj`` says.

        Raises:
            InputError: A step lacks its reward, or a field cannot be used; the message names the episode.
        """
        rows: dict[str, list[Any]] = {name: [] for name in ("task", "traj", "t", "reward", "anchor", "valid")}
        flags: dict[str, list[bool]] = {"success": [], "truncated": []}
        known = {"success": False, "truncated": False}
        process: list[Mapping[str, Any]] = []
        if not isinstance(episodes, Iterable):
            raise InputError(f"episodes must be a list of lists of steps, got {type(episodes).__name__}")
        for number, episode in enumerate(episodes):
            steps = list(episode)
            for place, step in enumerate(steps):
                if not isinstance(step, Mapping) or not isinstance(step.get("process") or {}, Mapping):
                    raise InputError(f"episode {number}, step {place}: a step and its 'process' must be mappings")
                if "reward" not in step:
                    raise InputError(f"episode {number}, step {place}: 'reward' is missing")
                rows["task"].append(step.get("task", 0))
                rows["traj"].append(number)
                rows["t"].append(place)
                rows["reward"].append(step["reward"])
                rows["anchor"].append(step.get("anchor", step.get("observation")))
                rows["valid"].append(step.get("valid", True))
                process.append(step.get("process") or {})
            for name in flags:
                known[name] = known[name] or any(name in step for step in steps)
                flags[name] += [any(bool(step.get(name)) for step in steps)] * len(steps)
        names = sorted({name for scores in process for name in scores})
        anchors = rows.pop("anchor")
        return cls(
            **rows,
            anchor=None if all(anchor is None for anchor in anchors) else anchors,
            process={name: [_score(scores.get(name)) for scores in process] for name in names},
            success=flags["success"] if known["success"] else None,
            truncated=flags["truncated"] if known["truncated"] else None,
        )


def _score(value: Any) -> Any:
    return math.nan if value is None else value


def _layout(task: Keys, traj: Keys, t: Ints) -> Layout:
    codes, tasks = factorise(task)
    trajs, count = factorise(traj)
    trajs = _by_name(trajs, count, traj)
    step = np.flatnonzero((trajs[1:] < trajs[:-1]) | ((trajs[1:] == trajs[:-1]) & (t[1:] < t[:-1])))
    order = np.lexsort((t, trajs)) if len(step) else np.arange(len(t))
    trajs, times, codes = trajs[order], t[order], codes[order]
    starts = np.flatnonzero(np.diff(trajs, prepend=-1))
    ends = np.append(starts[1:], len(trajs)) - 1 if len(trajs) else starts
    same = np.diff(trajs) == 0
    _refuse_at(same & (np.diff(times) == 0), order, "t", "is there twice in its trajectory", traj, t)
    _refuse_at(same & (np.diff(times) > 1), order, "t", "does not follow the step before it in its trajectory", traj, t)
    _refuse_at(same & (np.diff(codes) != 0), order, "task", "is not that of the same trajectory's other steps", traj, t)
    if (len(starts) and not (first := times[starts])[0] == first.min() == first.max()) or (len(t) and t.min() > 1):
        late = int(order[starts[np.argmax(times[starts])]])
        raise InputError(f"t: trajectory {_short(traj[late])} begins with {t[late]}; steps count from 0 in all")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return Layout(order, trajs, starts, ends, codes[starts], codes, tasks, place)


def _by_name(codes: Ints, count: int, keys: Keys) -> Ints:
    """Number trajectories by their sorted names, so that sums do not depend on the order of rows."""
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iub":
        return codes
    first = np.full(count, -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    names: list[Any] = [keys[int(row)] for row in first]
    try:
        ranks = sorted(range(count), key=names.__getitem__)
    except TypeError:  # of several kinds
        ranks = sorted(range(count), key=lambda number: (type(names[number]).__name__, repr(names[number])))
    number = np.empty(count, np.int64)
    number[ranks] = np.arange(count)
    return number[codes]


def _refuse(bad: Bools, name: str, what: str) -> None:
    if bad.any():
        raise InputError(f"{name}: row {int(np.flatnonzero(bad)[0])} {what}")


def _refuse_at(bad: Bools, order: Ints, name: str, what: str, traj: Keys, t: Ints) -> None:
    if bad.any():
        row = int(order[int(np.flatnonzero(bad)[0]) + 1])
        raise InputError(f"{name}: row {row} (trajectory {_short(traj[row])}, step {t[row]}) {what}")


def _short(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)[:60]


def _numbers(name: str, value: Any) -> Floats:
    try:
        array = np.asarray(plain(value), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: it must hold one number a step") from None
    if array.ndim != 1:
        raise InputError(f"{name}: it must have one entry a step, got shape {array.shape}")
    return array


def _sized(name: str, value: Any, size: int) -> Any:
    value = plain(value)
    if np.ndim(value) == 0 if isinstance(value, np.ndarray) else isinstance(value, str | bytes):
        raise InputError(f"{name}: it must have one entry a step, got a single value")
    try:
        found = len(value)
    except TypeError:
        raise InputError(f"{name}: it must be an array or a sequence with one entry a step") from None
    if found != size:
        raise InputError(f"{name}: it has {found} entries, reward has {size}")
    return value


def _anchors(value: Any) -> Any:
    """Return the anchors, None when no row has one; some without is refused: they would pass for one state."""
    if value is None or hasattr(value, "dtype") or not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return value
    missing = [row for row, key in enumerate(value) if key is None]
    if missing and len(missing) < len(value):
        raise InputError(f"anchor: row {missing[0]} has none, though others have; say in which state it was taken")
    return None if missing else value


def _keys(name: str, value: Any, size: int) -> Keys:
    value = _sized(name, value, size)
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and value.dtype.kind in "iub":
            return value
        if value.ndim == 1 and value.dtype.kind == "f":
            _refuse(~np.isfinite(value), name, "is not a finite number")
        value = value.tolist() if value.ndim == 1 else list(value)
    keys = list(value)
    if not size:
        return np.zeros(0, np.int64)
    kinds = set(map(type, keys))
    if kinds == {int} and min(keys) > -(2**62) and max(keys) < 2**62:
        return np.array(keys, np.int64)
    return keys if kinds <= _HASHABLE else [_key(name, row, key) for row, key in enumerate(keys)]


def _key(name: str, row: int, key: Any) -> Any:
    """Return a key that is equal for equal content: an array or tensor as its shape, kind and bytes."""
    array = plain(key)
    if isinstance(array, np.ndarray) and array.dtype.kind != "O":
        return (array.shape, array.dtype.str, array.tobytes()) if array.ndim else array.item()
    try:
        hash(key)
    except TypeError:
        kind = type(key).__name__
        raise InputError(
            f"{name}: row {row} is a {kind}, which cannot be a key; give a text, a number, a tuple or an array"
        ) from None
    if isinstance(key, float | np.floating) and key != key:
        raise InputError(f"{name}: row {row} is not a number")
    return key


def _whole(name: str, value: Any, size: int) -> Ints:
    array = np.asarray(_sized(name, value, size))
    if not size:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or (array.dtype.kind == "f" and (array % 1 != 0).any()):
        raise InputError(f"{name}: it must hold a whole number a step")
    _refuse(array < 0, name, "is negative")
    return array.astype(np.int64)


def _flags(name: str, value: Any, size: int) -> Bools:
    array = np.asarray(_sized(name, value, size))
    if array.ndim != 1 or (array.dtype.kind != "b" and not np.isin(array, (0, 1)).all()):
        raise InputError(f"{name}: it must hold true or false for each step")
    return array.astype(bool)


def _process(name: str, value: Any, size: int) -> Floats:
    array = _numbers(f"process['{name}']", _sized(f"process['{name}']", value, size))
    _refuse(np.isinf(array), f"process['{name}']", "is infinite")
    return array
