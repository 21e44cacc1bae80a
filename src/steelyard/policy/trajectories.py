"""Rollouts in files: JSON Lines with one step or one episode a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from steelyard.data.records import read_json_lines
from steelyard.errors import InputError
from steelyard.policy.rollouts import Episode
from steelyard.policy.steps import LARGEST, StepBatch

AnchorField = Literal["anchor", "observation", "history"]
_TEXTS = ("observation", "action", "next_observation")
_ENDINGS = (".csv", ".jsonl", ".parquet")
_FLAGS = ("valid", "success", "truncated")


def read_trajectories(path: str | os.PathLike[str]) -> list[Episode]:
    """Return the episodes of a JSON Lines file, in the order in which they begin.

    A line is a step with ``task``, ``traj``, ``t`` and ``reward``, and as far as they are known ``anchor``,
    ``observation``, ``action``, ``admissible``, ``valid``, ``success``, ``truncated``, ``process``; or an episode with
    ``steps``, a list of such steps, whose other fields hold for all of them.

    Raises:
        InputError: A line is not JSON, lacks a field or holds one that cannot be used, a step is there twice or
            missing, or a trajectory belongs to two tasks; the message names line and field.
    """
    path = Path(path)
    episodes: dict[Hashable, list[tuple[int, str, dict[str, Any]]]] = {}
    for where, row in read_json_lines(path):
        for number, (step, told) in enumerate(_steps(row, where)):
            if "traj" in step:
                step["traj"] = _key(step["traj"], told, "traj")
            here = episodes.setdefault(step.get("traj", where), [])
            t = step.get("t", len(here) if "steps" not in row else number)
            here.append((_whole(t, told), told, _checked(step, told)))
    if not episodes:
        raise InputError(f"{path}: it has no steps")
    return [_ordered(steps) for steps in episodes.values()]


def _steps(row: Mapping[str, Any], where: str) -> Iterable[tuple[dict[str, Any], str]]:
    if "steps" not in row:
        if "traj" not in row:
            raise InputError(f"{where}: the field 'traj' is missing; it says to which rollout the step belongs")
        yield dict(row), where
        return
    steps = row["steps"]
    if not isinstance(steps, list) or not steps:
        raise InputError(f"{where}: 'steps' must be a list of at least one step")
    shared = {name: value for name, value in row.items() if name != "steps"}
    for number, step in enumerate(steps):
        if not isinstance(step, Mapping):
            raise InputError(f"{where}, step {number}: it must be an object, got a {type(step).__name__}")
        yield {**shared, **step}, f"{where}, step {number}"


def _ordered(steps: list[tuple[int, str, dict[str, Any]]]) -> Episode:
    """Return one trajectory's steps in time, after a look at whether all are there."""
    steps.sort(key=lambda step: step[0])
    first, task = steps[0][0], steps[0][2]["task"]
    for _, where, step in steps:
        if step["task"] != task:
            raise InputError(
                f"{where}: 'task' is {_short(step['task'])}, other steps of this trajectory have {_short(task)}; give "
                "each rollout a 'traj' that no other task uses"
            )
    for place, (t, where, _) in enumerate(steps):
        if place and t == steps[place - 1][0]:
            raise InputError(f"{where}: 't' is {t}, as in another step of the same trajectory")
        if t != first + place or first > 1:
            raise InputError(f"{where}: 't' is {t}; the trajectory has no step {first + place if first <= 1 else 0}")
    won = any(step.get("success") for _, _, step in steps)
    told = any("success" in step for _, _, step in steps)
    for t, _, step in steps:
        step["t"] = t
        if told:
            step["success"] = won
    return [step for _, _, step in steps]


def _checked(step: dict[str, Any], where: str) -> dict[str, Any]:
    step["task"] = _key(step.get("task", 0), where, "task")
    if "reward" not in step:
        raise InputError(f"{where}: the field 'reward' is missing")
    if not _is_number(step["reward"]):
        raise InputError(
            f"{where}: the field 'reward' must be a finite number of at most {LARGEST:g}, got {_short(step['reward'])}"
        )
    if "anchor" in step:
        step["anchor"] = _key(step["anchor"], where, "anchor")
    for name in _TEXTS:
        if step.get(name) is not None and not isinstance(step[name], str):
            raise InputError(f"{where}: the field '{name}' must be a text, got a {type(step[name]).__name__}")
        _refuse_half_letters(step.get(name), where, name)
    for name in _FLAGS:
        if name in step and not isinstance(step[name], bool):
            raise InputError(f"{where}: the field '{name}' must be true or false, got {_short(step[name])}")
    offered = step.get("admissible")
    if offered is not None and not (isinstance(offered, list) and all(isinstance(one, str) for one in offered)):
        raise InputError(f"{where}: the field 'admissible' must be a list of texts")
    process = step.get("process")
    if process is not None:
        if not isinstance(process, Mapping):
            raise InputError(f"{where}: the field 'process' must be an object of named numbers")
        for name, value in process.items():
            masked = value is None or (isinstance(value, float) and math.isnan(value))
            if not masked and not _is_number(value):
                raise InputError(f"{where}: 'process' has {_short(value)} for '{name}', which is no finite number")
    return step


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST  # false for NaN


def _short(value: Any) -> str:
    """Return what was found in a few letters; Python refuses to print whole numbers of thousands of digits."""
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"a whole number of {value.bit_length()} bits"
    return repr(str(value)[:40])


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
        raise InputError(f"{where}: the field 't' must be a whole number of at least 0, got {_short(value)}")
    return value


def _key(value: Any, where: str, name: str) -> Hashable:
    """Return a JSON value as a key: lists and objects by their text."""
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{where}: the field '{name}' must be a text, a number or a list, got {value!r}")
    _refuse_half_letters(value, where, name)
    return value  # type: ignore[no-any-return]


def _refuse_half_letters(value: Any, where: str, name: str) -> None:
    """Refuse half a surrogate pair, which JSON can spell but no file of advantages could hold."""
    if not isinstance(value, str) or value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{where}: the field '{name}' holds half a surrogate pair, which is no character; remove it"
        ) from None


def given_episodes(data: Any) -> tuple[list[Any], str]:
    """Return the episodes of a file's path, or those given themselves, and in words where they are from."""
    if isinstance(data, str | os.PathLike):
        return list(read_trajectories(data)), str(data)
    return list(data), "rollouts given in Python"


def anchored_episodes(episodes: Sequence[Sequence[Mapping[str, Any]]], anchor: AnchorField) -> list[Episode]:
    """Return the episodes with the anchor that is asked for, theirs untouched.

    Args:
        episodes: Of steps.
        anchor: "anchor", the field; "observation"; or "history", the observation with the previous one and its action.

    Raises:
        InputError: A step lacks the field.
    """
    needed = {"anchor": ("anchor",), "observation": ("observation",), "history": ("observation", "action")}
    if anchor not in needed:
        raise InputError(f"anchor must be one of {', '.join(needed)}, got {anchor!r}")
    for number, episode in enumerate(episodes):
        for place, step in enumerate(episode):
            for name in needed[anchor]:
                if step.get(name) is None:
                    hint = "; give another anchor" if name == "anchor" else ""
                    raise InputError(f"trajectory {number + 1}, step {place}: the field '{name}' is missing{hint}")
    return [
        [{**step, "anchor": _anchor(episode, place, anchor)} for place, step in enumerate(episode)]
        for episode in episodes
    ]


def _anchor(episode: Sequence[Mapping[str, Any]], place: int, anchor: AnchorField) -> Hashable:
    step = episode[place]
    if anchor != "history":
        return step[anchor]  # type: ignore[no-any-return]
    before = (episode[place - 1]["observation"], episode[place - 1]["action"]) if place else ()
    return (step["observation"], *before)


def batch_of(episodes: Sequence[Episode], anchor: AnchorField = "anchor") -> StepBatch:
    """Return the steps of episodes as arrays, grouped by an anchor of :func:`anchored_episodes`."""
    return StepBatch.from_episodes(anchored_episodes(episodes, anchor))


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write columns as CSV, JSON Lines or Parquet, by the name's end; an existing file is replaced only by a whole one.

    Raises:
        InputError: Another ending, or the file cannot be written.
        MissingExtraError: Parquet without pyarrow.
    """
    path = check_ending(path)
    writers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    part = path.with_name(path.name + ".part")
    try:
        writers[path.suffix.lower()](part, columns)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written ({error.strerror})") from None
    return path


def check_ending(path: str | os.PathLike[str]) -> Path:
    """Return the path if :func:`write_table` can write such a file; raises InputError otherwise."""
    path = Path(path)
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"{path.name}: it must end in {', '.join(_ENDINGS)}")
    return path


def _csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    import csv

    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*(_plain(values) for values in columns.values()), strict=True))


def _jsonl(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for row in zip(*(_plain(values) for values in columns.values()), strict=True):
            stream.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")


def _parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    from steelyard.extras import require

    arrow, parquet = require("pyarrow", "tables"), require("pyarrow.parquet", "tables")
    parquet.write_table(arrow.table({name: _plain(values) for name, values in columns.items()}), path)


def _plain(values: Sequence[Any]) -> list[Any]:
    listed: Any = getattr(values, "tolist", lambda: list(values))()
    return list(listed)
