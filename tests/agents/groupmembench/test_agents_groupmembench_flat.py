"""Flat facts: overwriting, what is erased, and callables that extract and decide."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from steelyard.agents.groupmembench.flat import FlatFactMemory
from steelyard.agents.groupmembench.messages import Message
from steelyard.errors import InputError

START = datetime(2025, 6, 19, tzinfo=UTC)


def say(id, text, author="ana", minute=0, **more):
    return Message(id, text, author, timestamp=START + timedelta(minutes=minute), **more)


def test_later_messages_overwrite_the_key_whatever_their_order():
    old = say("old", "the vendor choice is Acme", minute=1, phase="p")
    new = say("new", "the vendor choice is Bolt", "bob", 2, phase="p", reply_to="old", role="Dev")
    elsewhere = say("other", "the vendor choice is Coil", minute=0, phase="q")
    for messages in ([old, new, elsewhere], [new, elsewhere, old]):
        memory = FlatFactMemory()
        for message in messages:
            memory.add(message)
        hits = memory.search("vendor choice", k=9)
        assert {hit.id for hit in hits} == {"new", "other"}
        erased = next(hit.message for hit in hits if hit.id == "new")
        assert (erased.author, erased.role, erased.reply_to) == ("user", None, None)
        assert {hit.id for hit in memory.search("vendor choice", k=9, at=START + timedelta(minutes=1))} == {
            "old",
            "other",
        }


def test_first_person_becomes_user_and_the_asker_does_not_matter():
    memory = FlatFactMemory()
    memory.add_many([say("a", "I think my laptop hates me"), say("b", "i.e. nothing", "bob")])
    texts = {hit.id: hit.message.content for hit in memory.search("user laptop")}
    assert texts["a"] == "user think user laptop hates user"
    assert texts["b"] == "i.e. nothing"
    assert [hit[:2] for hit in memory.search("laptop", asker="ana")] == [
        hit[:2] for hit in memory.search("laptop", asker="bob")
    ]


def test_without_timestamps_the_last_to_arrive_counts():
    memory = FlatFactMemory()
    memory.add_many([Message("1", "status of x is red", "ana"), Message("2", "status of x is green", "ana")])
    assert [hit.id for hit in memory.search("status")] == ["2"]


def test_callables_extract_and_decide():
    shown = []

    def decide(fact, similar):
        shown.append((fact, [one.text for one in similar]))
        if fact.startswith("forget"):
            return ("DELETE", similar[0].number)
        if fact.startswith("maybe"):
            return ["NOOP", None]
        return ("UPDATE", similar[0].number) if similar else ("ADD", None)

    memory = FlatFactMemory(extract=lambda message: message.content.split("; "), decide=decide)
    memory.add(say("1", "vendor is Acme; colour is red", minute=1))
    memory.add(say("2", "vendor is Bolt; maybe colour", minute=2))
    found = {hit.why["fact"]: hit.id for hit in memory.search("vendor colour is", k=9)}
    # "colour is red" shares "is" with the vendor's fact and therefore updated it in this toy decision.
    assert found == {"vendor is Bolt": "2"}
    assert shown[0] == ("vendor is Acme", [])
    assert memory.search("vendor", at=START + timedelta(minutes=1))[0].why["fact"] == "colour is red"
    memory.add(say("3", "forget the vendor is", minute=3))
    assert memory.search("vendor") == []
    memory.forget("ana")
    assert len(memory) == 0


def test_a_decision_never_sees_facts_of_another_audience():
    seen = []

    def decide(fact, similar):
        seen.append([one.text for one in similar])
        return ("ADD", None)

    memory = FlatFactMemory(decide=decide)
    memory.add(say("1", "vendor Acme", audience=frozenset({"bob"})))
    memory.add(say("2", "vendor Bolt", minute=1))
    memory.add(say("3", "vendor Coil", minute=2, audience=frozenset({"bob"})))
    assert seen == [[], [], ["vendor Acme"]]


@pytest.mark.parametrize("answer", ["ADD", ("MERGE", 1), ("UPDATE", 99), ("DELETE", None), None, ("ADD", 1, 2)])
def test_bad_decisions_are_one_clear_error(answer):
    memory = FlatFactMemory(decide=lambda fact, similar: answer)
    with pytest.raises(InputError, match="decide must return"):
        memory.add(say("1", "vendor"))
    assert len(memory) == 0


@pytest.mark.parametrize("answer", ["a fact", 3, [1], None])
def test_bad_extractions_are_one_clear_error(answer):
    memory = FlatFactMemory(extract=lambda message: answer)
    with pytest.raises(InputError, match=r"extract must return.*'1'"):
        memory.add(say("1", "vendor"))
    assert len(memory) == 0


def test_a_message_with_several_facts_is_found_once():
    memory = FlatFactMemory(extract=lambda message: ["red apple", "red pear"])
    memory.add(say("1", "fruit"))
    assert [hit.id for hit in memory.search("red", k=5)] == ["1"]
