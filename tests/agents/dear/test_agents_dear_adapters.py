"""The AutoGen selector and the LangGraph node, against objects of the shapes that those have."""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest

from steelyard.agents.dear.autogen import DebateSelector
from steelyard.agents.dear.debate import Debate
from steelyard.agents.dear.langgraph import async_debate_node, debate_node
from steelyard.errors import InputError


@dataclass
class Message:
    source: str
    content: object


@dataclass
class Texts:
    source: str
    said: str

    def to_text(self):
        return self.said


NAMES = ["ann", "bob", "cem"]
TASK = [Message("user", "Which city?")]


class OneSpeaks:
    """Only bob may answer again."""

    def act(self, state):
        return np.zeros((3, 3), dtype=int), ["keep", "revise", "keep"]


def drive(selector, script, limit=30):
    """Run a chat as AutoGen does: termination sees the new messages, the selector all of them."""
    thread, speakers = list(TASK), []
    assert not selector.is_finished(TASK)
    while len(speakers) < limit:
        name = selector(thread)
        if name is None:
            return thread, speakers
        speakers.append(name)
        new = [Message(name, script[name].pop(0) if len(script[name]) > 1 else script[name][0])]
        finished = selector.is_finished(new)
        thread += new
        if finished:
            return thread, speakers
    raise AssertionError("the chat does not end")


def test_everyone_speaks_and_agreement_ends_the_chat():
    selector = DebateSelector(NAMES)
    thread, speakers = drive(selector, {name: ["Answer: Paris"] for name in NAMES})
    assert speakers == NAMES
    assert selector.answer(thread) == "Paris"
    assert selector(thread) is None


def test_rounds_go_on_until_they_agree_or_run_out():
    script = {"ann": ["Answer: Rome", "Answer: Paris"], "bob": ["Answer: Paris"], "cem": ["Answer: Paris"]}
    assert drive(DebateSelector(NAMES), script)[1] == NAMES * 2
    split = {"ann": ["Answer: Rome"], "bob": ["Answer: Paris"], "cem": ["Answer: Paris"]}
    selector = DebateSelector(NAMES, rounds=2)
    thread, speakers = drive(selector, split)
    assert speakers == NAMES * 3
    assert selector.answer(thread) == "Paris"


def test_a_controller_says_who_speaks():
    script = {"ann": ["Answer: A"], "bob": ["Answer: B"], "cem": ["Answer: A"]}
    assert drive(DebateSelector(NAMES, OneSpeaks(), rounds=2, options=["x", "y"]), script)[1] == [*NAMES, "bob", "bob"]


def test_strangers_and_odd_messages_are_passed_over():
    selector = DebateSelector(NAMES, rounds=1)
    odd = [Texts("user", "Which?"), Message("tool", "x"), Message("bob", ["an image"]), Texts("ann", "Answer: Paris")]
    assert selector(odd) == "cem"
    assert selector.answer(odd) is None
    assert selector([]) == "ann"
    silent = [*TASK, *(Message(name, "") for name in NAMES)]
    assert selector(silent) is None
    assert selector.answer(silent) is None


@pytest.mark.parametrize("names", ["ab", ["a"], ["a", "a"]])
def test_names_are_checked(names):
    with pytest.raises(InputError, match="names"):
        DebateSelector(names)


def test_a_node_debates_what_the_state_asks():
    debate = Debate([lambda _: "Answer: Paris"] * 2)
    update = debate_node(debate)({"question": "Which?", "options": ["Paris", "Lyon"]})
    assert update["answer"] == "Paris"
    assert update["answer_debate"].calls == 2

    @dataclass
    class State:
        ask: str

    found = asyncio.run(async_debate_node(debate, question="ask", answer="said")(State("Which?")))
    assert found["said"] == "Paris"
    with pytest.raises(InputError, match="no 'question'"):
        debate_node(debate)({})


def test_rounds_in_which_nobody_speaks_pass():
    class Silent:
        def act(self, state):
            return np.zeros((3, 3), dtype=int), ["keep"] * 3

    script = {"ann": ["Answer: A"], "bob": ["Answer: B"], "cem": ["Answer: A"]}
    selector = DebateSelector(NAMES, Silent(), options=["x", "y"])
    thread, speakers = drive(selector, script)
    assert speakers == NAMES
    assert selector.answer(thread) in ("x", "y")
