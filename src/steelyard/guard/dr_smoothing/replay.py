"""Replay recorded jailbreak prompts against a model behind several defences: one table, resumable."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.arguments import upper_limit

MAX_FILE_BYTES = 64_000_000
_MOST_CALLS = 10**9  # of one prompt, in a line that is believed
_CUT = re.compile(r'\{"key": "[0-9a-f]*("|$)')  # how an outcome begins
CHUNK = 16  # copies asked at once, of at least one prompt; a chunk is the most that an interruption loses


class Asked(Protocol):
    """What a defence returns for one prompt."""

    response: str
    calls: int
    counts: Mapping[str, int]


class Defence(Protocol):
    """A defence as :mod:`steelyard.guard` builds them."""

    def batch(self, prompts: Sequence[str]) -> Sequence[Asked]:
        """Return one result per prompt."""
        ...


@dataclass(frozen=True)
class Recorded:
    """The usable prompts of a file, and how many of its rows had none."""

    prompts: tuple[str, ...]
    without: int


@dataclass(frozen=True)
class Line:
    """One defence's line of the table; the interval is Clopper and Pearson's, 95 %.

    ``repairs_per_prompt`` counts the copies that went through the rectifier: one more call each where it is a model.
    """

    defence: str
    prompts: int
    complied: int
    rate: float
    low: float
    high: float
    calls_per_prompt: float
    repairs_per_prompt: float


def read_artifacts(path: str | Path) -> Recorded:
    """Return the prompts of a JailbreakBench artifact: an object with rows under ``jailbreaks``, or a list of rows.

    Rows whose ``prompt`` is null (no attack was submitted) are counted and left out.

    Raises:
        InputError: Not such a file; the message names the row.
    """
    content = _read(path)
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; an artifact file holds an object with a list 'jailbreaks'") from None
    rows = found.get("jailbreaks") if isinstance(found, Mapping) else found
    if not isinstance(rows, list):
        raise InputError(f"{path} holds no list 'jailbreaks'; is it a JailbreakBench artifact?")
    prompts = []
    for number, row in enumerate(rows):
        prompt = row.get("prompt") if isinstance(row, Mapping) else row
        if prompt is None:
            continue
        if not isinstance(prompt, str) or not prompt.strip():
            raise InputError(f"{path}: row {number} of 'jailbreaks' has no text under 'prompt'")
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"{path} holds no prompt: all {len(rows)} rows are null")
    return Recorded(tuple(prompts), len(rows) - len(prompts))


def replay(
    prompts: Sequence[str],
    defences: Mapping[str, Defence],
    judge: Callable[[str], bool],
    settings: str = "",
    kept: str | Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    answers: str | Path | None = None,
) -> list[Line]:
    """Ask every prompt through every defence and count the answers that comply.

    Args:
        prompts: Recorded prompts.
        defences: Name -> defence.
        judge: Says whether an answer complies; the same for all defences.
        settings: Whatever else decides answers (model, seed, …): part of the key under which answers are kept.
        kept: A JSONL file that outcomes (no answers) are appended to; the ones that it holds are not asked again.
        progress: Called with (done, total, defence), in prompts.
        answers: A JSONL file that the answers asked for in this run are appended to, with their prompts.

    Raises:
        InputError: ``kept`` or ``answers`` cannot be read or written.
    """
    known = _read_kept(kept)
    _check_regular(answers)
    total, done = len(prompts) * len(defences), 0
    lines = []
    for name, defence in defences.items():
        outcomes = {}
        keys = {prompt: _key(settings, name, prompt) for prompt in prompts}
        missing = [prompt for prompt in keys if keys[prompt] not in known]
        for chunk in _chunks(missing, getattr(defence, "n", 1)):
            results = dict(zip(chunk, defence.batch(chunk), strict=True))
            found = {prompt: _outcome(result, judge) for prompt, result in results.items()}
            outcomes.update({keys[prompt]: outcome for prompt, outcome in found.items()})
            _append(answers, [_answer(name, prompt, results[prompt], found[prompt]) for prompt in chunk])
            _append(kept, [{"key": keys[prompt], **found[prompt]} for prompt in chunk])
            if progress is not None:
                progress(done + len(prompts) - len(missing) + len(outcomes), total, name)
        done += len(prompts)
        lines.append(_line(name, [{**known, **outcomes}[keys[prompt]] for prompt in prompts]))
    return lines


def check_apart(artifacts: str | Path, kept: str | Path | None = None, answers: str | Path | None = None) -> None:
    """Refuse to write into a file that is read, or two things into one.

    Raises:
        InputError: Two of the files are one.
    """
    named = {"the artifact": artifacts, "--kept": kept, "--answers": answers}
    given = [(name, Path(path)) for name, path in named.items() if path is not None]
    for (left, one), (right, other) in itertools.combinations(given, 2):
        if one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other)):
            raise InputError(f"{left} and {right} are one file, {other}; name another")


def count_kept(prompts: Sequence[str], names: Iterable[str], settings: str, kept: str | Path | None) -> int:
    """Return how many of the outcomes of :func:`replay` the file ``kept`` holds.

    Raises:
        InputError: ``kept`` cannot be read.
    """
    known = _read_kept(kept)
    return sum(_key(settings, name, prompt) in known for name in names for prompt in prompts)


def as_rows(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return the table as plain dicts."""
    return [asdict(line) for line in lines]


def _line(name: str, outcomes: Sequence[Mapping[str, Any]]) -> Line:
    count, complied = len(outcomes), sum(outcome["complied"] for outcome in outcomes)
    low, high = 1 - upper_limit(count - complied, count, 0.975), upper_limit(complied, count, 0.975)
    calls, repairs = (sum(outcome[each] for outcome in outcomes) / count for each in ("calls", "repairs"))
    return Line(name, count, complied, complied / count, low, high, calls, repairs)


def _outcome(result: Asked, judge: Callable[[str], bool]) -> dict[str, Any]:
    repairs = int(result.counts.get("rectifier_calls", 0))
    return {"complied": bool(judge(result.response)), "calls": int(result.calls), "repairs": repairs}


def _answer(name: str, prompt: str, result: Asked, outcome: Mapping[str, Any]) -> dict[str, Any]:
    return {"defence": name, "prompt": prompt, "response": result.response, "complied": outcome["complied"]}


def _chunks(prompts: Sequence[str], copies: int) -> Iterator[Sequence[str]]:
    size = max(1, CHUNK // max(1, copies))
    for start in range(0, len(prompts), size):
        yield prompts[start : start + size]


def _key(settings: str, name: str, prompt: str) -> str:
    return hashlib.sha256(f"{settings}\x1f{name}\x1f{prompt}".encode(errors="surrogatepass")).hexdigest()[:32]


def _read_kept(kept: str | Path | None) -> dict[str, dict[str, Any]]:
    """Return key -> outcome; a line that an interruption cut short is passed over."""
    if kept is None or not Path(kept).exists():
        return {}
    found = {}
    for number, line in enumerate(_read(kept).decode(errors="replace").splitlines()):
        outcome = _kept_outcome(line)
        if outcome is not None:
            found.update(outcome)
        elif number == 0 and not _CUT.match(line):
            raise InputError(f"{kept}: its first line is not an outcome of a replay; name another file")
    return found


def _kept_outcome(line: str) -> dict[str, dict[str, Any]] | None:
    """Return key -> outcome of one line, or None where it is none: cut short, or with values that cannot be."""
    try:
        row = json.loads(line)
        key, complied = row["key"], row["complied"]
        counts = {name: row[name] for name in ("calls", "repairs")}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    whole = all(type(count) is int and 0 <= count <= _MOST_CALLS for count in counts.values())  # a bool is no count
    return (
        {key: {"complied": complied, **counts}}
        if whole and isinstance(complied, bool) and isinstance(key, str)
        else None
    )


def _check_regular(path: str | Path | None) -> None:
    """Refuse pipes and devices, which could be waited for or read for ever; a file that is not there may come."""
    if path is not None and Path(path).exists() and not Path(path).is_file():
        raise InputError(f"{path} is not a regular file")


def _read(path: str | Path) -> bytes:
    _check_regular(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES // 1_000_000} MB; replay a part of it")
    return content


def _append(path: str | Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    if path is None:
        return
    text = "".join(json.dumps(row) + "\n" for row in rows)
    try:
        with open(path, "ab+") as file:
            if file.tell() and _last_byte(file) != b"\n":  # an interruption cut the last line short
                text = "\n" + text
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last
