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
from steelyard.agents.groupmembench.people import unique_names
from steelyard.data.irc import irc_message, read_irc_log
from steelyard.data.registry import Progress
from steelyard.errors import InputError, did_you_mean
from steelyard.models.paths import check_links, usable_path

_SURROGATE = re.compile("[\ud800-\udfff]")
_SLACK_LISTS = ("channels", "groups", "mpims", "dms")
_SLACK_MENTION = re.compile(r"<@([A-Z0-9]+)(?:\|[^<>]*)?>")
_DISCORD_TALK = ("Default", "Reply")
_DISCORD_NOTICES = (
    "RecipientAdd", "RecipientRemove", "Call", "ChannelNameChange", "ChannelIconChange", "ChannelPinnedMessage",
    "GuildMemberJoin", "ThreadCreated",
)  # fmt: skip
_DISCORD_PRIVATE = ("DirectTextChat", "DirectGroupTextChat")
_JSONL_KEYS = (
    "id", "content", "text", "author", "user", "channel", "timestamp", "reply_to", "role", "phase", "topic", "is_noise",
    "audience",
)  # fmt: skip
_OTHER_WORDS = {
    "id": ("msg_id", "message_id", "msg_node", "uuid", "ts"),
    "content": ("message", "msg", "body"),
    "author": ("sender", "speaker", "from", "name", "username", "nick", "user_id"),
}
_SHOWN_KEYS = 8


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

    People are called by their names in ``users.json`` (the real name where others share the name, the id where others
    share both), as authors, in mentions and in audiences; without that file by their ids. Notices of joining and
    leaving keep their place without their text, so that no search returns them.

    Raises:
        InputError: The folder, a file or a message in it cannot be used.
    """
    root = usable_path(export_dir)
    if not root.is_dir():
        raise InputError(f"{root} is no folder; unpack the Slack export and give its folder.")
    check_links(root)
    people = _slack_people(root / "users.json")
    listed = {name: _slack_list(root / f"{name}.json", people) for name in _SLACK_LISTS}
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not any(folder.glob("*.json") for folder in folders):
        raise InputError(f"{root} has no folder with *.json files; give the folder of an unpacked Slack export.")
    for folder in folders:
        if folder.is_symlink():
            raise InputError(f"{folder} is a link; put the folder itself there.")
        check_links(folder)
        messages = [
            _slack_message(_mapping(row, where), where, folder.name, people)
            for day in sorted(folder.glob("*.json"))
            for where, row in _elements(day, progress)
        ]
        yield from _with_audience(messages, _slack_audience(folder.name, listed, messages))


def _slack_people(path: Path) -> dict[str, str]:
    """Return what everyone in the export's list of users is called, by id; nothing without the list."""
    called: dict[str, list[str]] = {}
    for where, row in _elements(path, None) if path.is_file() else ():
        row = _mapping(row, where)
        profile = _optional_mapping(row, "profile", where) or {}
        names = (_text(row, "name", where), _text(row, "real_name", where), _text(profile, "real_name", where))
        called[_needed(row, ("id",), where)] = [name for name in names if name]
    return unique_names(called)


def _slack_list(path: Path, called: Mapping[str, str]) -> dict[str, frozenset[str]] | None:
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
                members[name] = frozenset(called.get(one, one) for one in people)
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


def _slack_message(row: Mapping[str, Any], where: str, channel: str, people: Mapping[str, str]) -> Message:
    stamp, thread = _needed(row, ("ts",), where), _text(row, "thread_ts", where)
    notice = str(row.get("subtype", "")).endswith(("_join", "_leave"))
    return Message(
        id=f"{channel}:{stamp}",
        content="" if notice else _slack_text(_text(row, "text", where) or "", people),
        author=_slack_author(row, where, people),
        channel=channel,
        timestamp=_epoch(stamp, where),
        reply_to=f"{channel}:{thread}" if thread and thread != stamp else None,
        is_noise=notice or None,
    )


def _slack_text(text: str, people: Mapping[str, str]) -> str:
    """Return a text with people's names in its mentions and its HTML entities undone."""

    def named(found: re.Match[str]) -> str:
        name = people.get(found[1])
        return found[0] if name is None else f"@{html.escape(name, quote=False)}"

    return html.unescape(_SLACK_MENTION.sub(named, text))


def _slack_author(row: Mapping[str, Any], where: str, people: Mapping[str, str]) -> str:
    author = _needed(row, ("user", "bot_id", "username"), where)
    if row.get("user") is None and row.get("bot_id") is None and author in people.values():
        return f"{author} (bot)"  # a program may call itself what it likes
    return people.get(author, author)


def _epoch(stamp: str, where: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(stamp), UTC)
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{where}: 'ts' {stamp[:40]!r} is no number of seconds.") from None


def read_discord(path: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of a Discord export, or of every ``*.json`` in a folder of exports.

    Authors are called by their nickname (by their name where others share the nickname, by their id where others share
    both). Notices (someone joined, a message was pinned) keep their place without their text, so that no search
    returns them.

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
    called: dict[str, list[str]] = {}
    read = [_discord_file(file, called, progress) for file in files]
    people = unique_names(called)
    for messages, private in read:
        named = [replace(message, author=people[message.author]) for message in messages]
        yield from _with_audience(named, frozenset(message.author for message in named) if private else None)


def _discord_file(path: Path, called: dict[str, list[str]], progress: Progress | None) -> tuple[list[Message], bool]:
    """Return the messages of a file by their authors' ids, and whether they are private.

    What authors are called, the nickname first, is put into ``called``; the latest names count.
    """
    messages: list[Message] = []
    channel: Mapping[str, Any] = {}
    found = False
    with opened(path, progress) as stream:
        for key in stream.keys():  # noqa: SIM118  a stream is no mapping
            if key == "messages":
                found = True
                messages += [_discord_message(_mapping(row, where), where, called) for where, row in stream.items()]
            elif key == "channel":
                where = stream.where
                channel = _mapping(stream.value(), where)
            else:
                stream.value()
        stream.end()
    if not found:
        raise InputError(f"{path} has no 'messages'; give a Discord export in JSON.")
    name = _text(channel, "name", str(path)) or path.stem
    return [replace(message, channel=name) for message in messages], channel.get("type") in _DISCORD_PRIVATE


def _discord_message(row: Mapping[str, Any], where: str, called: dict[str, list[str]]) -> Message:
    told = f"{where}, 'author'"
    author = _mapping(row.get("author"), told)
    author_id = _needed(author, ("id",), told)
    called[author_id] = [name for key in ("nickname", "name") if (name := _text(author, key, told))]
    reference = _optional_mapping(row, "reference", where) or {}
    return Message(
        id=_needed(row, ("id",), where),
        content="" if row.get("type") in _DISCORD_NOTICES else _text(row, "content", where) or "",
        author=author_id,
        timestamp=parse_time(_needed(row, ("timestamp",), where), where),
        reply_to=_text(reference, "messageId", where),
        is_noise=row.get("type", "Default") not in _DISCORD_TALK or None,
    )


def read_jsonl(path: str | Path, progress: Progress | None = None) -> Iterator[Message]:
    """Yield the messages of a JSON Lines file; see ``GroupChat.from_jsonl`` for the keys.

    Raises:
        InputError: The file or a row of it cannot be used, or the file has no row.
    """
    place, row = usable_path(path), None
    for where, row in json_lines(place, progress):
        yield Message(
            id=_field(row, ("id",), where),
            content=_field(row, ("content", "text"), where, empty=True),
            author=_field(row, ("author", "user"), where),
            channel=_text(row, "channel", where),
            timestamp=parse_time(_text(row, "timestamp", where) or "", where),
            reply_to=_text(row, "reply_to", where),
            role=_text(row, "role", where),
            phase=_text(row, "phase", where),
            topic=_text(row, "topic", where),
            is_noise=_flag(row, "is_noise", where),
            audience=_names(row, "audience", where),
        )
    if row is None:
        raise InputError(f"{place} holds no messages; write one JSON object per line.")


def _field(row: Mapping[str, Any], keys: Sequence[str], where: str, empty: bool = False) -> str:
    """Return :func:`_needed`'s text of a row whose keys its writer chose, and say which keys it has otherwise."""
    if any(row.get(key) is not None for key in keys):
        return _needed(row, keys, where, empty)
    found = sorted(row)
    near = next((told for key in found if (told := _meant(key, keys))), "")
    has = ", ".join(f"{_clean(key)[:40]!r}" for key in found[:_SHOWN_KEYS]) or "none"
    more = f" and {len(found) - _SHOWN_KEYS} more" if len(found) > _SHOWN_KEYS else ""
    raise InputError(f"{where}: {' or '.join(map(repr, keys))} is missing; its fields are {has}{more}.{near}")


def _meant(key: str, keys: Sequence[str]) -> str:
    """Return the advice to rename ``key``, where it is another word, or nearly the same, for one of ``keys``."""
    plain = key.lower()
    if plain in _OTHER_WORDS.get(keys[0], ()) or (plain not in _JSONL_KEYS and did_you_mean(plain, keys, 0.75)):
        return f" Rename {_clean(key)[:40]!r} to {keys[0]!r}."
    return ""


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
