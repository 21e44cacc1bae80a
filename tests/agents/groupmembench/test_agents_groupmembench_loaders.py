"""Loaders on hand-made files: the release's key set, Slack, Discord, IRC, JSON Lines, and what goes wrong in them."""

from __future__ import annotations

import json
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.groupmembench import jsonstream
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.loaders import read_groupmembench
from steelyard.agents.groupmembench.people import unique_names
from steelyard.errors import InputError

FIXTURE = Path(__file__).with_name("groupmembench_60.json")
KEYS = [
    *("msg_node", "content", "author", "role", "timestamp", "reply_to", "phase_name", "topic", "is_noise"),
    *("is_decision_point", "decision_type", "decision_label", "decision_change_metadata"),
]


@pytest.fixture
def release():
    return json.loads(FIXTURE.read_text())


@pytest.fixture
def saved(tmp_path):
    """Write a value, text or bytes into a file and return its path."""

    def save(value, name="chat.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        body = value if isinstance(value, bytes) else (value if isinstance(value, str) else json.dumps(value)).encode()
        path.write_bytes(body)
        return path

    return save


# --- GroupMemBench ---------------------------------------------------------------------------------------------------


def test_the_release_format(release, recwarn):
    for rows in release.values():
        for row in rows:
            assert list(row) == KEYS
    chat = GroupChat.from_groupmembench(FIXTURE)
    assert not recwarn
    assert len(chat) == 60
    assert len({message.channel for message in chat}) == 3
    assert list(chat) == sorted(chat, key=lambda m: (m.channel, m.timestamp, m.id))
    for rows in release.values():
        for row in rows:
            message = chat[row["msg_node"]]
            assert (message.author, message.role, message.is_noise) == (row["author"], row["role"], row["is_noise"])
            assert message.timestamp == datetime.fromisoformat(row["timestamp"])
            assert message.reply_to == (row["reply_to"] or None)
            assert message.is_decision_point == row["is_decision_point"]
            assert message.decision_change == row["decision_change_metadata"]
            assert message.decision_label == row["decision_label"]
            assert message.audience is None
    assert sum(message.decision_type == "changed" for message in chat) == 3
    assert sum(not message.content for message in chat) == 1


def test_html_entities_are_unescaped():
    chat = GroupChat.from_groupmembench(FIXTURE)
    assert chat["Msg_2"].content == "I propose we copy the history with nightly batches & validate row counts."
    assert chat["Msg_4"].content.endswith("5\u00a0EUR are listed.")
    assert chat["Msg_14"].content.endswith("<15 minutes>.")
    assert {message.phase for message in chat if message.channel == "access-review"} == {"Inventory", "Sign-off & Lock"}
    assert not any("&amp;" in message.content for message in chat)


def test_progress_is_told():
    told = []
    GroupChat.from_groupmembench(FIXTURE, progress=lambda *all_of: told.append(all_of))
    size = FIXTURE.stat().st_size
    assert told[-1] == (FIXTURE.name, size, size)


def test_dangling_and_cyclic_replies(release, saved):
    rows = next(iter(release.values()))
    rows[5]["reply_to"] = "Msg_999"
    rows[0]["reply_to"] = rows[1]["msg_node"]
    with pytest.warns(UserWarning, match="they are taken for roots") as caught:
        chat = GroupChat.from_groupmembench(saved(release))
    assert [str(one.message).split(",")[0] for one in caught] == [
        "1 of 60 messages answer a message that is not there",
        "1 of 60 messages begin a circle of replies",
    ]
    assert chat.parent("Msg_6") is None
    assert chat.parent("Msg_1") is None
    with pytest.raises(InputError, match="answer a message that is not there"):
        GroupChat.from_groupmembench(saved(release), on_bad_reply="raise")


def test_mixed_zones_and_duplicates(release, saved):
    rows = next(iter(release.values()))
    rows[3]["timestamp"] += "+02:00"
    with pytest.raises(InputError, match="'Msg_4' has a timestamp with a zone and message 'Msg_1' one without"):
        GroupChat.from_groupmembench(saved(release))
    rows[3]["timestamp"] = None
    assert len(GroupChat.from_groupmembench(saved(release))) == 60
    rows[4]["msg_node"] = "Msg_1"
    with pytest.raises(InputError, match="two messages have the id 'Msg_1'"):
        GroupChat.from_groupmembench(saved(release), on_bad_reply="ignore")
    assert len(GroupChat.from_groupmembench(saved(release), on_bad_reply="ignore", on_duplicate="first")) == 59


@pytest.mark.parametrize("key", ["msg_node", "content", "author"])
def test_a_missing_key_is_named_with_its_line(release, saved, key):
    del release["month-end-close"][2][key]
    path = saved(json.dumps(release, indent=0))
    before = path.read_text().split('"timestamp"')[22]  # the 23rd message's row begins shortly before its timestamp
    line = path.read_text().split(before)[0].count("\n") + before.count("\n") + 1
    with pytest.raises(InputError) as caught:
        GroupChat.from_groupmembench(path)
    text = str(caught.value)
    assert f"'{key}' is missing" in text
    assert "channel 'month-end-close'" in text
    assert str(path) in text
    assert abs(int(text.split("line ")[1].split(",")[0]) - line) <= len(KEYS)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("content", 3.5, "'content' must be text, not float"),
        ("content", ["a"], "'content' must be text, not list"),
        ("msg_node", "", "'msg_node' is empty"),
        ("author", True, "'author' must be text, not bool"),
        ("is_noise", "yes", "'is_noise' must be true or false"),
        ("timestamp", "soon", "'soon' is not ISO 8601"),
        ("decision_change_metadata", "x", "must be an object, not str"),
    ],
)
def test_values_of_another_kind(release, saved, key, value, message):
    release["access-review"][0][key] = value
    with pytest.raises(InputError, match=message):
        GroupChat.from_groupmembench(saved(release))


def test_optional_keys_and_odd_values(saved):
    row = {"msg_node": 7, "content": "a \ud800 b", "author": "u"}
    chat = GroupChat.from_groupmembench(saved({"c": [row]}))
    assert chat["7"].content == "a \ufffd b"
    assert chat["7"].timestamp is None
    assert len(GroupChat.from_groupmembench(saved({"c": []}))) == 0
    assert len(GroupChat.from_groupmembench(saved("{}"))) == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "line 1: expected '{'"),
        (b"[]", "expected '{', found '\\['"),
        (b'{"a": {}}', "expected '\\['"),
        (b'{"a": [1]}', "must be an object, not int"),
        (b'{"a": [{"msg_node": "1", "content": "x", "author": "y"}', "expected ','.*cut off"),
        (b'{"a": [{"msg_node": "1"', "is not JSON"),
        (b'{"a" []}', "expected ':'"),
        (b"{a: []}", "expected '\"'"),
        (b'{"a": []} x', "text follows"),
        (b'{"a": [\n{"msg_node": "\xff"}]}', "line 2: byte 0xff is not UTF-8"),
        (b'{"a": [' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": [' + b"9" * 5000 + b"]}", "a number is too large"),
    ],
)
def test_damaged_files(saved, body, message):
    with pytest.raises(InputError, match=message):
        GroupChat.from_groupmembench(saved(body))


def test_files_that_cannot_be_read(tmp_path, saved, monkeypatch):
    with pytest.raises(InputError, match=r"nothing\.json cannot be read \(No such file"):
        GroupChat.from_groupmembench(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="cannot be read"):
        GroupChat.from_groupmembench(tmp_path)
    with pytest.raises(InputError, match="a character in it is not allowed"):
        GroupChat.from_groupmembench("a\0b")
    monkeypatch.setattr(jsonstream, "MAX_FILE_BYTES", 10)
    with pytest.raises(InputError, match="larger than 10 bytes; split it"):
        GroupChat.from_groupmembench(saved({"c": [{}]}))


def test_one_huge_value_is_refused(saved, monkeypatch):
    monkeypatch.setattr(jsonstream, "MAX_VALUE_CHARACTERS", 1000)
    monkeypatch.setattr(jsonstream, "_CHUNK", 64)
    row = {"msg_node": "1", "content": "x" * 2000, "author": "u"}
    with pytest.raises(InputError, match="longer than 1000 characters"):
        GroupChat.from_groupmembench(saved({"c": [row]}))


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5), st.lists(values, max_size=4), max_size=4),
    st.integers(1, 12),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_the_stream_reads_what_json_reads(tmp_path_factory, value, chunk, indent, ascii_only):
    path = tmp_path_factory.mktemp("stream") / "x.json"
    path.write_bytes(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"))
    old, jsonstream._CHUNK = jsonstream._CHUNK, chunk
    try:
        with jsonstream.opened(path) as stream:
            found = {key: [item for _, item in stream.items()] for key in stream.keys()}  # noqa: SIM118
            stream.end()
    finally:
        jsonstream._CHUNK = old
    assert found == value


def test_memory_is_bounded(saved):
    body = "lorem ipsum " * 40
    path = saved("", "big.json")
    with path.open("w") as stream:
        stream.write('{"c": [')
        for number in range(12_000):
            row = {"msg_node": f"m{number}", "content": "one" if number % 100 else body, "author": "u", "waste": body}
            stream.write((", " if number else "") + json.dumps(row))
        stream.write("]}")
    size = path.stat().st_size
    assert size > 6_000_000
    tracemalloc.start()
    count = sum(1 for _ in read_groupmembench(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 12_000
    assert peak < 2_500_000  # a few chunks, not the file


# --- Slack -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def slack(saved, tmp_path):
    saved([{"id": "C1", "name": "general", "members": ["U1", "U2"]}], "x/channels.json")
    saved([{"id": "G1", "name": "secret", "members": ["U1", "U3"]}], "x/groups.json")
    saved([{"id": "D1", "members": ["U1", "U2"]}], "x/dms.json")
    saved([{"type": "message", "user": "U3", "ts": "1700000300.000000", "text": "psst"}], "x/secret/2023-11-14.json")
    saved([{"user": "U2", "ts": "1700000400.000000", "text": "just us"}], "x/D1/2023-11-14.json")
    saved([{"user": "U9", "ts": "1700000500.000000", "text": "?"}], "x/forgotten/2023-11-14.json")
    saved(
        [
            {
                "type": "message",
                "user": "U1",
                "ts": "1700000000.000100",
                "text": "R&amp;D?",
                "thread_ts": "1700000000.000100",
            },
            {"type": "message", "subtype": "channel_join", "user": "U2", "ts": "1700000001.000000", "text": "joined"},
        ],
        "x/general/2023-11-14.json",
    )
    saved(
        [{"bot_id": "B1", "ts": "1700090000.000200", "thread_ts": "1700000000.000100"}],
        "x/general/2023-11-15.json",
    )
    return tmp_path / "x"


def test_slack(slack, recwarn):
    chat = GroupChat.from_slack(slack)
    assert not recwarn
    root = chat["general:1700000000.000100"]
    assert (root.content, root.author, root.channel, root.reply_to) == ("R&D?", "U1", "general", None)
    assert root.timestamp == datetime(2023, 11, 14, 22, 13, 20, 100, tzinfo=UTC)
    answer = chat["general:1700090000.000200"]
    assert (chat.parent(answer.id), answer.author, answer.content) == (root, "B1", "")
    assert chat["general:1700000001.000000"].is_noise
    assert root.audience is None
    assert root.is_noise is None


def test_what_is_private_in_slack_stays_private(slack):
    chat = GroupChat.from_slack(slack)
    seen = {user: {m.channel for m in chat.visible_to(user)} for user in ("U1", "U2", "U3", "U9", "nobody")}
    assert seen == {
        "U1": {"general", "secret", "D1"},
        "U2": {"general", "D1"},
        "U3": {"general", "secret"},
        "U9": {"general", "forgotten"},  # no list names it, so only those who wrote there may see it
        "nobody": {"general"},
    }


def test_slack_people_are_called_by_their_names(slack, saved):
    users = [
        {"id": "U1", "name": "ana", "real_name": "Ana López"},
        {"id": "U2", "name": "bo", "profile": {"real_name": "Bo <&> Co"}},
        {"id": "U3", "name": "BO", "real_name": "Bo Berg"},  # shares a name with U2
        {"id": "U9"},
    ]
    saved(users, "x/users.json")
    rows = [
        {"user": "U2", "ts": "1700100000.000000", "text": "<@U1> and <@U3|bo> ask <@U77>; &lt;@U1&gt; is no mention"},
        {"user": "U3", "ts": "1700100001.000000", "text": "<@U2>: yes"},
        {"username": "ana", "ts": "1700100002.000000", "text": "I am a program"},
    ]
    saved(rows, "x/general/2023-11-16.json")
    chat = GroupChat.from_slack(slack)
    said = chat["general:1700100000.000000"]
    assert said.author == "Bo <&> Co"
    assert said.content == "@ana and @Bo Berg ask <@U77>; <@U1> is no mention"
    assert chat["general:1700100001.000000"].content == "@Bo <&> Co: yes"
    assert chat["general:1700100002.000000"].author == "ana (bot)"
    assert chat["secret:1700000300.000000"].audience == {"ana", "Bo Berg"}
    assert chat["D1:1700000400.000000"].audience == {"ana", "Bo <&> Co"}
    assert {m.channel for m in chat.visible_to("ana")} == {"general", "secret", "D1"}
    assert not {"U1", "U2", "U3"} & chat.users


def test_who_joined_is_kept_and_never_found(slack):
    chat = GroupChat.from_slack(slack)
    assert chat["general:1700000001.000000"].content == ""
    memory = BM25Memory()
    memory.add_many(chat)
    assert not any("joined" in hit.message.content for hit in memory.search("joined", asker="U1", k=99))


@pytest.mark.parametrize(
    ("user", "message"),
    [({"name": "x"}, "'id' is missing"), ({"id": "U1", "name": 1.5}, "'name' must be text"), (3, "obj")],
)
def test_bad_slack_users(slack, saved, user, message):
    saved([user], "x/users.json")
    with pytest.raises(InputError, match=message):
        GroupChat.from_slack(slack)


words = st.text("abU1 \x00", max_size=4)


@given(st.dictionaries(words, st.lists(words, max_size=3), max_size=6))
def test_no_two_people_have_one_name(called):
    names = unique_names(called)
    assert names.keys() == called.keys()
    assert len(set(names.values())) == len(names)
    for id_, name in names.items():
        assert name == id_ or (name not in called and name.isprintable())


def test_a_name_is_taken_only_by_who_has_it_alone():
    assert unique_names({"1": ["ana"], "2": ["Ana", "ana b"], "3": ["U1", "77", ""]}) == {
        "1": "1",
        "2": "ana b",
        "3": "3",
    }
    assert unique_names({"a": ["b"], "b": ["c"]}) == {"a": "a", "b": "c"}


def test_a_slack_export_without_lists_is_public(saved, tmp_path):
    saved([{"user": "U1", "ts": "1.5", "text": "hi"}], "y/any/d.json")
    assert next(iter(GroupChat.from_slack(tmp_path / "y"))).audience is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"user": "U1"}, "d.json, line 1: 'ts' is missing"),
        ({"ts": "1.0"}, "'user' or 'bot_id' or 'username' is missing"),
        ({"user": "U1", "ts": "soon"}, "'soon' is no number of seconds"),
        ({"user": "U1", "ts": "1e400"}, "is no number of seconds"),
    ],
)
def test_bad_slack_rows(saved, tmp_path, row, message):
    saved([row], "y/any/d.json")
    with pytest.raises(InputError, match=message):
        GroupChat.from_slack(tmp_path / "y")


def test_bad_slack_folders(saved, tmp_path):
    with pytest.raises(InputError, match="is no folder; unpack"):
        GroupChat.from_slack(saved("", "x.zip"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no folder with \*\.json"):
        GroupChat.from_slack(tmp_path / "empty")
    saved([{"name": "c", "members": "all"}], "z/channels.json")
    saved([], "z/c/d.json")
    with pytest.raises(InputError, match="'members' must be a list"):
        GroupChat.from_slack(tmp_path / "z")
    secret = saved([{"user": "U1", "ts": "1.0"}], "elsewhere/d.json")
    saved([], "w/c/d.json")
    (tmp_path / "w" / "c" / "e.json").symlink_to(secret)
    with pytest.raises(InputError, match="leads out of its folder"):
        GroupChat.from_slack(tmp_path / "w")
    saved([], "v/c/d.json")
    (tmp_path / "v" / "d").symlink_to(secret.parent)
    with pytest.raises(InputError, match="is a link; put the folder itself"):
        GroupChat.from_slack(tmp_path / "v")


# --- Discord ---------------------------------------------------------------------------------------------------------


def discord(id, author="1", **more):
    return {
        "id": id,
        "author": {"id": author, "name": "x"},
        "timestamp": "2024-01-02T03:04:05+00:00",
        "content": "a&lt;",
        **more,
    }


def test_discord(saved, tmp_path, recwarn):
    rows = [
        discord("10"),
        discord("11", "2", type="Reply", reference={"messageId": "10"}),
        discord("12", type="GuildMemberJoin"),
        {**discord("13"), "author": {"id": "3", "name": "zoe.z", "nickname": "Zoe"}},
    ]
    first = saved(
        {"guild": {"id": 3}, "channel": {"type": "GuildTextChat", "name": "talk"}, "messages": rows}, "d/a.json"
    )
    chat = GroupChat.from_discord(first)
    assert [m.id for m in chat] == ["10", "11", "12", "13"]
    assert chat.parent("11").id == "10"
    assert (chat["10"].content, chat["10"].channel, chat["10"].author) == ("a&lt;", "talk", "1")
    assert [m.author for m in chat] == ["1", "2", "1", "Zoe"]  # 1 and 2 are both called x
    assert [m.is_noise for m in chat] == [None, None, True, None]
    assert chat["12"].content == ""  # that somebody joined is no message to find
    # Keys in another order, a direct message, and a folder of exports.
    saved({"messages": [discord("20", "5"), discord("21", "6")], "channel": {"type": "DirectTextChat"}}, "d/b.json")
    both = GroupChat.from_discord(tmp_path / "d")
    assert both["20"].audience == {"5", "6"}
    assert both["20"].channel == "b"
    assert len(both.visible_to("1")) == 4
    assert not recwarn


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"channel": {}}, "has no 'messages'"),
        ({"messages": [{"id": "1"}]}, "'author': it must be an object, not NoneType"),
        ({"messages": [{"id": "1", "author": {"id": "2"}}]}, "line 1: 'timestamp' is missing"),
    ],
)
def test_bad_discord_files(saved, value, message):
    with pytest.raises(InputError, match=message):
        GroupChat.from_discord(saved(value))


def test_a_folder_without_discord_exports(tmp_path):
    with pytest.raises(InputError, match=r"has no \*\.json files"):
        GroupChat.from_discord(tmp_path)


# --- IRC -------------------------------------------------------------------------------------------------------------


def test_irc(saved):
    lines = [
        "[00:01] <ann> hi",
        "=== bob joins",
        "[00:02] <bob> ann: hello",
        "[00:02] <cid> ",
        "[00:03] <ann> both of you",
    ]
    log = saved("\n".join(lines) + "\n", "2020-01-01_00.ascii.txt")
    links = saved("0 0 -\n0 2 -\n2 4 -\n3 4 -\n1 3 -\n", "2020-01-01_00.annotation.txt")
    chat = GroupChat.from_irc(log, links)
    assert [(m.id, m.author, m.position) for m in chat] == [
        ("0", "ann", 0),
        ("2", "bob", 2),
        ("3", "cid", 3),
        ("4", "ann", 4),
    ]
    assert [m.reply_to for m in chat] == [None, "0", None, "3"]  # the nearest; a system line is no parent
    assert chat.links == ((0, 1), (2, 3), (1, 3))
    assert len(chat.threads()) == 1
    assert chat["0"].channel == "2020-01-01_00"
    assert GroupChat.from_irc(log).links == ()


# --- JSON Lines ------------------------------------------------------------------------------------------------------


def test_jsonl(saved):
    rows = [
        {"id": "1", "content": "hi &amp; ho", "author": "ann", "channel": "c", "timestamp": "2025-01-01T00:00:00Z"},
        {
            "id": 2,
            "text": "",
            "user": "bob",
            "reply_to": "1",
            "channel": "c",
            "timestamp": "2025-01-01T00:00:01Z",
            "role": "r",
            "phase": "p",
            "topic": "t",
            "is_noise": True,
            "audience": ["ann"],
        },
    ]
    path = saved("\ufeff" + "\n\n".join(map(json.dumps, rows)) + "\r\n", "chat.jsonl")
    told = []
    chat = GroupChat.from_jsonl(path, progress=lambda *all_of: told.append(all_of))
    assert told[-1][1:] == (path.stat().st_size,) * 2
    assert chat["1"].content == "hi &amp; ho"  # a user's own text is taken as it is
    second = chat["2"]
    assert (second.content, second.author, second.role, second.phase, second.topic) == ("", "bob", "r", "p", "t")
    assert (second.is_noise, second.audience, chat.parent("2").id) == (True, {"ann"}, "1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "2", "author": "a"}', "line 3: 'content' or 'text' is missing; its fields are 'author', 'id'\\.$"),
        (
            b'{"id": 2, "user": "a", "Message": "x"}',
            "fields are 'Message', 'id', 'user'. Rename 'Message' to 'content'",
        ),
        (b'{"id": 2, "user": "a", "contnet": "x"}', "Rename 'contnet' to 'content'"),
        (b'{"id": 2, "sender": "a", "text": "x"}', "Rename 'sender' to 'author'"),
        (b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"j":1}', "'h' and 1 more"),
        (b"{}", "line 3: 'id' is missing; its fields are none"),
        (b'{"content": "x", "author": "a"}', "line 3: 'id' is missing"),
        (b'{"id": "2", "content": "x"}', "line 3: 'author' or 'user' is missing"),
        (b'{"id": "2", "content": "x", "author": "a", "audience": "all"}', "line 3: 'audience' must be a list"),
        (b"[1]", "line 3: it must be an object, not list"),
        (b"{", "line 3: it is not JSON"),
        (b"[" * 100_000, "line 3: it is not JSON"),
        (b'{"id": "\xe9"}', "line 3: byte 0xe9 is not UTF-8"),
        (b'"' + b"x" * (5 << 20) + b'"', "line 3 is longer than"),
    ],
)
def test_bad_jsonl_rows_are_named(saved, line, message):
    good = b'{"id": "1", "content": "x", "author": "a"}\n\n'
    with pytest.raises(InputError, match=message):
        GroupChat.from_jsonl(saved(good + line, "chat.jsonl"))


@pytest.mark.parametrize("body", ["", "\n \n"])
def test_a_file_without_messages_is_said(saved, body):
    with pytest.raises(InputError, match=r"chat\.jsonl holds no messages"):
        GroupChat.from_jsonl(saved(body, "chat.jsonl"))
