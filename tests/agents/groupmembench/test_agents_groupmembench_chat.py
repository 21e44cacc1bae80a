"""Chats: order, replies, circles, audiences, threads, predicted links."""

from __future__ import annotations

import os
import warnings
from datetime import UTC, datetime, timedelta, timezone

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import data
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.links import predict_parents, score_links
from steelyard.agents.groupmembench.messages import Message, UnknownUserError
from steelyard.errors import InputError


def say(id, author="ann", content="hi", **more):
    return Message(id, content, author, **more)


def ids(messages):
    return [message.id for message in messages]


def chain(links, **more):
    return GroupChat([say(child, reply_to=parent) for child, parent in links.items()], **more)


# --- order and ids ---------------------------------------------------------------------------------------------------


@given(st.permutations(range(6)))
def test_order_does_not_depend_on_arrival(order):
    messages = [
        say("b", channel="one", timestamp="2025-06-19T10:00:00"),
        say("a", channel="one", timestamp="2025-06-19T10:00:00"),
        say("c", channel="one", timestamp=datetime(2025, 6, 18)),
        say("d", channel="two"),
        say("e", channel="one"),
        say("f"),
    ]
    assert ids(GroupChat([messages[i] for i in order])) == ["f", "e", "c", "a", "b", "d"]


def test_zones_are_compared_as_instants():
    chat = GroupChat(
        [
            say("late", timestamp="2025-06-19T10:00:00+00:00"),
            say("early", timestamp="2025-06-19T11:00:00+02:00"),
            say("z", timestamp=datetime(2025, 6, 19, 9, 30, tzinfo=timezone(timedelta(hours=1)))),
            say("none"),
        ]
    )
    assert ids(chat) == ["none", "z", "early", "late"]
    assert chat["early"].timestamp.astimezone(UTC).hour == 9


def test_naive_beside_aware_names_the_first_two():
    messages = [
        say("x"),
        say("n1", timestamp="2025-06-19T10:00:00"),
        say("n2", timestamp="2025-06-19T10:00:00"),
        say("a1", timestamp="2025-06-19T10:00:00Z"),
    ]
    with pytest.raises(InputError, match=r"'a1' has a timestamp with a zone and message 'n1' one without"):
        GroupChat(messages)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (say("m", timestamp="yesterday"), "message 'm': timestamp 'yesterday' is not ISO 8601"),
        (say("m", timestamp=12), "message 'm': timestamp must be"),
        (say("", "ann"), "must not be empty"),
        (say("m", ""), "must not be empty"),
        (say("m", content=None), "message 'm': content must be text"),
        (say("m", audience={"ann"}), "message 'm': audience must be a frozenset"),
        ({"id": "m"}, "must be Message objects, got dict"),
    ],
)
def test_bad_messages_are_named(message, text):
    with pytest.raises(InputError, match=text):
        GroupChat([message])


def test_duplicate_ids():
    twice = [say("m", content="first"), say("n"), say("m", content="second")]
    with pytest.raises(InputError, match="two messages have the id 'm'"):
        GroupChat(twice)
    chat = GroupChat(twice, on_duplicate="first")
    assert (len(chat), chat["m"].content) == (2, "first")


def test_lookups():
    chat = chain({"a": None, "b": "a", "c": "a", "d": "b"})
    assert [message.id for message in chat] == ["a", "b", "c", "d"]
    assert "b" in chat
    assert "x" not in chat
    assert chat.parents.tolist() == [-1, 0, 0, 1]
    assert chat.parent("d").id == "b"
    assert chat.parent("a") is None
    assert ids(chat.children("a")) == ["b", "c"]
    assert chat.children("d") == ()
    assert chat.links == ((0, 1), (0, 2), (1, 3))
    for call in (chat.parent, chat.children, chat.index, chat.__getitem__):
        with pytest.raises(InputError, match="no message with the id 'x'"):
            call("x")
    with pytest.raises(InputError, match="on_bad_reply must be"):
        GroupChat([], on_bad_reply="maybe")
    with pytest.raises(InputError, match="on_duplicate must be"):
        GroupChat([], on_duplicate="last")
    assert GroupChat([]).threads() == ()


# --- bad replies -----------------------------------------------------------------------------------------------------


def test_dangling_replies_become_roots_with_one_warning():
    with pytest.warns(UserWarning, match="2 of 3 messages answer a message that is not there, first 'b'") as caught:
        chat = chain({"a": None, "b": "gone", "c": "also gone"})
    assert len(caught) == 1
    assert chat.parents.tolist() == [-1, -1, -1]
    with pytest.raises(InputError, match="1 of 1 messages answer a message that is not there"):
        chain({"a": "gone"}, on_bad_reply="raise")


def test_quiet_where_nothing_is_wrong_or_it_is_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chain({"a": None, "b": "a", "c": ""})
        chain({"a": "gone", "b": "b"}, on_bad_reply="ignore")


def test_circles_are_cut_at_their_first_message():
    with pytest.warns(UserWarning, match="2 of 6 messages begin a circle of replies, first 'a'"):
        chat = chain({"a": "c", "b": "a", "c": "b", "d": "c", "e": "e", "f": "e"})
    assert chat.parents.tolist() == [-1, 0, 1, 2, -1, 4]
    assert [ids(thread) for thread in chat.threads()] == [["a", "b", "c", "d"], ["e", "f"]]


def test_many_circles_take_no_time():
    n = 20_000
    links = {f"{i:06d}": f"{i ^ 1:06d}" for i in range(n)}
    chat = chain(links, on_bad_reply="ignore")
    assert (chat.parents >= 0).sum() == n // 2


@given(st.lists(st.integers(-1, 9), min_size=10, max_size=10))
def test_whatever_the_replies_are_there_is_no_circle(parents):
    links = {str(i): None if parent < 0 else str(parent) for i, parent in enumerate(parents)}
    chat = chain(links, on_bad_reply="ignore")
    graph = nx.DiGraph(chat.links)
    graph.add_nodes_from(range(10))
    assert nx.is_directed_acyclic_graph(graph)
    expected = {frozenset(map(str, part)) for part in nx.connected_components(graph.to_undirected())}
    assert {frozenset(ids(thread)) for thread in chat.threads()} == expected


def test_extra_links_join_threads():
    messages = [say("a"), say("b"), say("c", reply_to="a")]
    assert [ids(thread) for thread in GroupChat(messages).threads()] == [["a", "c"], ["b"]]
    chat = GroupChat(messages, extra_links=[("b", "c")])
    assert [ids(thread) for thread in chat.threads()] == [["a", "b", "c"]]
    with pytest.raises(InputError, match="no message with the id 'x'"):
        GroupChat(messages, extra_links=[("x", "c")])


# --- who may see what ------------------------------------------------------------------------------------------------


@pytest.fixture
def office():
    return GroupChat(
        [
            say("1", "ann", channel="all"),
            say("2", "bob", reply_to="1", channel="all", audience=frozenset({"cid"})),
            say("3", "cid", reply_to="2", channel="all"),
            say("4", "dan", reply_to="3", channel="all", audience=frozenset()),
        ],
        extra_links=[("1", "3"), ("2", "4")],
    )


@pytest.mark.parametrize(
    ("user", "seen"),
    [
        ("ann", ["1", "3"]),
        ("bob", ["1", "2", "3"]),
        ("cid", ["1", "2", "3"]),
        ("dan", ["1", "3", "4"]),
        ("eve", ["1", "3"]),
    ],
)
def test_only_what_one_may_see(office, user, seen):
    assert office.users == {"ann", "bob", "cid", "dan"}
    assert ids(office.visible_to(user)) == seen


def test_a_hidden_message_leaves_no_trace(office):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = office.visible_to("ann")
    assert seen["3"].reply_to is None
    assert seen.parents.tolist() == [-1, -1]
    assert seen.links == ((0, 1),)  # the extra link between what is visible stays
    assert "bob" not in seen.users
    assert "2" not in repr(seen.messages)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.frozensets(st.sampled_from("abcd"))), max_size=9))
def test_visibility_is_strict_and_idempotent(rows):
    chat = GroupChat([say(str(i), author, audience=audience) for i, (author, audience) in enumerate(rows)])
    for user in "abcde":
        seen = chat.visible_to(user)
        assert all(m.audience is None or user in m.audience or m.author == user for m in seen)
        assert seen.visible_to(user).messages == seen.messages


def test_an_unknown_user_error_is_readable():
    error = UnknownUserError("nobody is called 'x'.")
    assert isinstance(error, KeyError)
    assert isinstance(error, ValueError)
    assert str(error) == "nobody is called 'x'."


# --- predicted links -------------------------------------------------------------------------------------------------


def predict(*lines, positions=None, **windows):
    authors, texts = zip(*(line.split("> ", 1) for line in lines), strict=True)
    return predict_parents(authors, texts, positions or range(len(lines)), **windows)


def test_the_rules_of_the_predictor():
    assert predict("ann> hello", "bob> Ann: hi", "ann> what now?", "ann> hm") == [-1, 0, 1, 2]
    assert predict("ann> hello", "bob> ann, hi") == [-1, 0]
    assert predict("ann> hello", "bob> bob: hi") == [-1, -1]  # oneself does not count
    assert predict("me> hello", "bob> me neither") == [-1, -1]  # two letters are no name
    assert predict("ann> hello", "bob> hi ann") == [-1, -1]  # the first word only
    assert predict("ann> bob: there?", "bob> yes") == [-1, 0]  # a name may be known before its first line
    assert predict("ann> hello", "bob> ") == [-1, -1]


@pytest.mark.parametrize(
    ("distance", "lines", "window"),
    [
        (150, ["ann> hello", "bob> ann: hi"], "address_window"),
        (60, ["ann> bob: hello", "bob> hi"], "response_window"),
        (40, ["ann> hello", "ann> more"], "own_window"),
    ],
)
def test_windows_count_lines(distance, lines, window):
    assert predict(*lines, positions=[0, distance - 1]) == [-1, 0]
    assert predict(*lines, positions=[0, distance]) == [-1, -1]
    assert predict(*lines, positions=[0, distance], **{window: distance + 1}) == [-1, 0]


def test_too_far_back_falls_to_the_next_rule():
    lines = ["ann> hello", "bob> one", "bob> ann: two"]
    assert predict(*lines, positions=[0, 199, 200]) == [-1, -1, 1]
    with pytest.raises(InputError, match="equally long"):
        predict_parents(["a"], [], [])


def test_a_chat_predicts_within_its_channels():
    chat = GroupChat(
        [
            say("1", "ann", channel="x", position=5, reply_to="3"),
            say("2", "bob", "ann: hi", channel="x", position=6),
            say("3", "bob", "ann: hi", channel="y"),
        ]
    )
    linked = chat.predict_replies()
    assert [message.reply_to for message in linked] == [None, "1", None]
    assert chat.positions.tolist() == [5, 6, 0]
    assert chat["1"].reply_to == "3"  # the first chat is as it was


def test_link_scores_by_hand():
    gold = {"b": {"a", "x"}, "c": {"c"}, "d": {"a"}, "e": {"a"}}
    found = score_links({"b": "x", "c": "a", "d": "b", "z": "y", "e": None}, gold)
    assert found == (1 / 3, 1 / 3, 1, 3, 3)
    with pytest.raises(InputError, match="0 annotated, 1 predicted"):
        score_links({"c": "a"}, {"c": {"c"}})


def test_the_predictor_on_real_chat(monkeypatch):
    if not os.environ.get("STEELYARD_DATA_MIRROR"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs a mirror folder: set STEELYARD_DATA_MIRROR")
    from steelyard.data import cache

    paths = [path for path in cache.locate("irc_disentanglement").paths if path.name.endswith(".ascii.txt")]
    logs = {log.name: log for split in ("dev", "test") for log in data.irc_logs(split)}
    right = predicted = linked = 0
    for path in paths:
        gold: dict[str, set[str]] = {}
        for earlier, later in logs[path.name.removesuffix(".ascii.txt")].links:
            gold.setdefault(str(later), set()).add(str(earlier))
        guess = GroupChat.from_irc(path).predict_replies()
        scores = score_links({message.id: message.reply_to for message in guess}, gold)
        right, predicted, linked = right + scores.right, predicted + scores.predicted, linked + scores.linked
    assert (round(right / predicted, 3), round(right / linked, 3)) == (0.596, 0.591)
