"""Group chats from files: GroupMemBench, Slack, Discord, IRC logs, JSON Lines.

Everything in these files is what strangers wrote: kinds are checked, errors name file and line, nothing is executed.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steelyard.agents.groupmembench.jsonstream import MAX_VALUE_CHARACTERS, opened, opened_bytes
from steelyard.agents.groupmembench.messages import Message, parse_time
from steelyard.data.irc import irc_message, read_irc_log
from steelyard.data.registry import Progress
from steelyard.errors import InputError
from steelyard.models.paths import check_links, usable_path

_SURROGATE = re.compile("[\ud800-\udfff]")
_SLACK_LISTS = ("channels", "groups", "mpims", "dms")
_DISCORD_TALK = ("Default", "Reply")
_DISCORD_PRIVATE = ("DirectTextChat", "DirectGroupTextChat")


def read_groupmembench(path: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of a conversation file ``{channel: [message, …]}`` of GroupMemBench.

    ``msg_node``, ``content`` and ``author`` are needed; HTML entities in ``content`` are unescaped.

    Raises:
        InputError: The file or a message in it cannot be used.
    """
    with opened(usable_path(path), progress) as stream:
        for channel in stream.keys():  # noqa: SIM118  a stream is no mapping: its keys come with the cursor
            for where, row in stream.items():
                yield _groupmembench_message(_mapping(row, where), f"{where}, channel {channel!r:.80}", channel)
        stream.end()


def _groupmembench_message(row: Mapping[str, Any], where: str, channel: str) -> Message:
    return Message(
        id=_needed(row, ("msg_node",), where),
        content=html.unescape(_needed(row, ("content",), where, empty=True)),
        author=_needed(row, ("author",), where),
        channel=_clean(channel),
        timestamp=parse_time(_text(row, "timestamp", where) or "", where),
        reply_to=_text(row, "reply_to", where),
        role=_text(row, "role", where),
        phase=html.unescape(_text(row, "phase_name", where) or "") or None,
        topic=html.unescape(_text(row, "topic", where) or "") or None,
        is_noise=_flag(row, "is_noise", where),
        is_decision_point=_flag(row, "is_decision_point", where),
        decision_type=_text(row, "decision_type", where),
        decision_label=_label(row, where),
        decision_change=_optional_mapping(row, "decision_change_metadata", where),
    )


def read_slack(export_dir: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of an unpacked Slack export; ids are ``channel:ts``.

    Raises:
        InputError: The folder, a file or a message in it cannot be used.
    """
    root = usable_path(export_dir)
    if not root.is_dir():
        raise InputError(f"{root} is no folder; unpack the Slack export and give its folder.")
    check_links(root)
    listed = {name: _slack_list(root / f"{name}.json") for name in _SLACK_LISTS}
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not any(folder.glob("*.json") for folder in folders):
        raise InputError(f"{root} has no folder with *.json files; give the folder of an unpacked Slack export.")
    for folder in folders:
        if folder.is_symlink():
            raise InputError(f"{folder} is a link; put the folder itself there.")
        check_links(folder)
        messages = [
            _slack_message(_mapping(row, where), where, folder.name)
            for day in sorted(folder.glob("*.json"))
            for where, row in _elements(day, progress)
        ]
        yield from _with_audience(messages, _slack_audience(folder.name, listed, messages))


def _slack_list(path: Path) -> dict[str, frozenset[str]] | None:
    """Return the members by name and by id of the channels that a list of the export names, None without the list."""
    if not path.is_file():
        return None
    members = {}
    for where, row in _elements(path, None):
        row = _mapping(row, where)
        people = row.get("members") or []
        if not isinstance(people, list) or not all(isinstance(one, str) for one in people):
            raise InputError(f"{where}: 'members' must be a list of user ids.")
        for name in (row.get("name"), row.get("id")):
            if isinstance(name, str):
                members[name] = frozenset(people)
    return members


def _slack_audience(
    channel: str, listed: Mapping[str, dict[str, frozenset[str]] | None], messages: Sequence[Message]
) -> frozenset[str] | None:
    """Return who may see a channel: only what is known to be public is, where the export says anything at all."""
    for kind in ("groups", "mpims", "dms"):
        members = listed[kind]
        if members is not None and channel in members:
            return members[channel]
    public = listed["channels"]
    if all(known is None for known in listed.values()) or (public is not None and channel in public):
        return None
    return frozenset(message.author for message in messages)


def _slack_message(row: Mapping[str, Any], where: str, channel: str) -> Message:
    stamp, thread = _needed(row, ("ts",), where), _text(row, "thread_ts", where)
    return Message(
        id=f"{channel}:{stamp}",
        content=html.unescape(_text(row, "text", where) or ""),
        author=_needed(row, ("user", "bot_id", "username"), where),
        channel=channel,
        timestamp=_epoch(stamp, where),
        reply_to=f"{channel}:{thread}" if thread and thread != stamp else None,
        is_noise=str(row.get("subtype", "")).endswith(("_join", "_leave")) or None,
    )


def _epoch(stamp: str, where: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(stamp), UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{where}: 'ts' {stamp[:40]!r} is no number of seconds.") from None


def read_discord(path: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of a Discord export, or of every ``*.json`` in a folder of exports.

    Raises:
        InputError: A file or a message in it cannot be used.
    """
    place = usable_path(path)
    files = [place]
    if place.is_dir():
        check_links(place)
        files = sorted(place.glob("*.json"))
        if not files:
            raise InputError(f"{place} has no *.json files; give a Discord export or a folder of them.")
    for file in files:
        yield from _discord_file(file, progress)


def _discord_file(path: Path, progress: Progress | None) -> Iterator[Message]:
    messages: list[Message] = []
    channel: Mapping[str, Any] = {}
    found = False
    with opened(path, progress) as stream:
        for key in stream.keys():  # noqa: SIM118  a stream is no mapping
            if key == "messages":
                found = True
                messages += [_discord_message(_mapping(row, where), where) for where, row in stream.items()]
            elif key == "channel":
                where = stream.where
                channel = _mapping(stream.value(), where)
            else:
                stream.value()
        stream.end()
    if not found:
        raise InputError(f"{path} has no 'messages'; give a Discord export in JSON.")
    name = _text(channel, "name", str(path)) or path.stem
    authors = frozenset(message.author for message in messages)
    private = channel.get("type") in _DISCORD_PRIVATE
    yield from _with_audience([replace(message, channel=name) for message in messages], authors if private else None)


def _discord_message(row: Mapping[str, Any], where: str) -> Message:
    author = _mapping(row.get("author"), f"{where}, 'author'")
    reference = _optional_mapping(row, "reference", where) or {}
    return Message(
        id=_needed(row, ("id",), where),
        content=_text(row, "content", where) or "",
        author=_needed(author, ("id",), f"{where}, 'author'"),
        timestamp=parse_time(_needed(row, ("timestamp",), where), where),
        reply_to=_text(reference, "messageId", where),
        is_noise=row.get("type", "Default") not in _DISCORD_TALK or None,
    )


def read_jsonl(path: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of a JSON Lines file; see ``GroupChat.from_jsonl`` for the keys.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    for where, row in json_lines(usable_path(path), progress):
        yield Message(
            id=_needed(row, ("id",), where),
            content=_needed(row, ("content", "text"), where, empty=True),
            author=_needed(row, ("author", "user"), where),
            channel=_text(row, "channel", where),
            timestamp=parse_time(_text(row, "timestamp", where) or "", where),
            reply_to=_text(row, "reply_to", where),
            role=_text(row, "role", where),
            phase=_text(row, "phase", where),
            topic=_text(row, "topic", where),
            is_noise=_flag(row, "is_noise", where),
            audience=_names(row, "audience", where),
        )


def json_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (words that name file and line, object) for every line that is not empty, one line at a time.

    Raises:
        InputError: The file cannot be read, a line is too long, not UTF-8, or no JSON object.
    """
    with opened_bytes(path, progress) as (stream, advance):
        for number in range(1, 1 << 62):
            line = stream.readline(MAX_VALUE_CHARACTERS + 1)
            if not line:
                return
            advance(len(line))
            where = f"{path}, line {number}"
            if len(line) > MAX_VALUE_CHARACTERS:
                raise InputError(f"{where} is longer than {MAX_VALUE_CHARACTERS} bytes; write one message per line.")
            if line.strip():
                yield where, _mapping(_parsed(line, where), where)


def _parsed(line: bytes, where: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte 0x{line[error.start]:02x} is not UTF-8; save it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number or its nesting is too large"
        raise InputError(f"{where}: it is not JSON ({reason}); write one JSON object per line.") from error


def read_irc(
    ascii_path: str | Path, annotation_path: str | Path | None = None
) -> tuple[list[Message], list[tuple[str, str]]]:
    """Return the messages of an IRC log, and the (parent id, child id) links that ``reply_to`` has no room for.

    Raises:
        InputError: A file cannot be used.
    """
    log = read_irc_log(usable_path(ascii_path), None if annotation_path is None else usable_path(annotation_path))
    spoken = {line: said for line, text in enumerate(log.lines) if (said := irc_message(text)) is not None}
    parents: dict[int, list[int]] = {}
    for earlier, later in sorted(set(log.links)):
        if earlier != later and earlier in spoken and later in spoken:
            parents.setdefault(later, []).append(earlier)
    messages = [
        Message(
            id=str(line),
            content=text,
            author=nick,
            channel=log.name,
            reply_to=str(parents[line][-1]) if line in parents else None,
            position=line,
        )
        for line, (nick, text) in spoken.items()
    ]
    return messages, [(str(parent), str(child)) for child, all_of in parents.items() for parent in all_of[:-1]]


def _elements(path: Path, progress: Progress | None) -> Iterator[tuple[str, Any]]:
    with opened(path, progress) as stream:
        yield from stream.items()
        stream.end()


def _with_audience(messages: Sequence[Message], audience: frozenset[str] | None) -> Iterator[Message]:
    for message in messages:
        yield message if audience is None else replace(message, audience=audience)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: it must be an object, not {type(value).__name__}.")
    return value


def _optional_mapping(row: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any] | None:
    value = row.get(key)
    return None if value is None else _mapping(value, f"{where}, '{key}'")


def _label(row: Mapping[str, Any], where: str) -> str | Mapping[str, Any] | None:
    value = row.get("decision_label")
    return value if isinstance(value, dict) else _text(row, "decision_label", where)


def _needed(row: Mapping[str, Any], keys: Sequence[str], where: str, empty: bool = False) -> str:
    """Return the text under the first of ``keys`` that is there; ``empty``: it may be an empty one.

    Raises:
        InputError: None is there, or it is no text, or empty.
    """
    for key in keys:
        if row.get(key) is not None:
            value = _text(row, key, where)
            if value is None and not empty:
                raise InputError(f"{where}: '{key}' is empty.")
            return value or ""
    raise InputError(f"{where}: {' or '.join(map(repr, keys))} is missing.")


def _text(row: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return the text under ``key``, a whole number as text, nothing and empty text as None."""
    value = row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{where}: '{key}' must be text, not {type(value).__name__}.")
    return _clean(value) if value else None


def _clean(text: str) -> str:
    """Return ``text`` with half surrogate pairs, which no UTF-8 file can carry, replaced."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _flag(row: Mapping[str, Any], key: str, where: str) -> bool | None:
    value = row.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise InputError(f"{where}: '{key}' must be true or false, not {type(value).__name__}.")


def _names(row: Mapping[str, Any], key: str, where: str) -> frozenset[str] | None:
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InputError(f"{where}: '{key}' must be a list of names; leave it out for a public message.")
    return frozenset(_clean(name) for name in value)
