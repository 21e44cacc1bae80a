"""What a hidden message must never do: be found, change a ranking through names or circles, or give a name away."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.agents.groupmembench import cues
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Message, UnknownUserError
from steelyard.agents.groupmembench.replies import Links
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.agents.groupmembench.table import MessageTable


def test_a_name_that_only_hidden_messages_bear_does_not_cover_a_shorter_one():
    names = cues.Names([("pilot run", 1), ("pilot", 2)])
    tokens = ["the", "pilot", "run", "date"]
    assert names.find(tokens) == [(1, 3, {1})]
    assert names.find(tokens, lambda code: code != 1) == [(1, 2, {2})]


@pytest.mark.parametrize("memory", [BM25Memory, StructuredGroupMemory])
def test_an_unknown_asker_is_not_told_the_names_of_hidden_people(memory):
    searched = memory()
    searched.add_many(
        [
            Message("1", "open word", "anna"),
            Message("2", "secret word", "roberta", audience=frozenset({"roberto"})),
        ]
    )
    with pytest.raises(UnknownUserError) as told:
        searched.search("word", asker="robert")
    assert "roberta" not in str(told.value)
    assert "roberto" not in str(told.value)
    with pytest.raises(UnknownUserError, match="Did you mean 'anna'"):
        searched.search("word", asker="ana")


def test_a_hidden_reply_that_closes_a_circle_takes_no_link_from_the_view():
    table = MessageTable(0)
    hidden = frozenset({"eve"})
    table.extend(
        [
            Message("a", "root", "ana", reply_to="c"),
            Message("b", "child", "bob", reply_to="a"),
            Message("c", "secret", "eve", reply_to="b", audience=hidden),
        ]
    )
    changes = np.zeros(3, np.bool_)
    whole = Links(table, changes)
    assert whole.circular
    assert (whole.parents == -1).all()
    view = Links(table, changes, table.visible("ana", None))
    assert not view.circular
    assert view.parents.tolist() == [-1, 0, -1]


def test_a_change_is_reached_by_seen_rows_alone():
    table = MessageTable(0)
    table.extend(
        [
            Message("a", "decision", "ana"),
            Message("b", "hidden step", "eve", reply_to="a", audience=frozenset({"eve"})),
            Message("c", "change", "bob", reply_to="b"),
            Message("d", "change", "bob", reply_to="a"),
        ]
    )
    changes = np.array([False, False, True, True])
    links = Links(table, changes)
    assert links.changes_below(np.array([0])).tolist() == [2, 3]
    assert links.changes_below(np.array([0]), table.visible("bob", None)).tolist() == [3]
