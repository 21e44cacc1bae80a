"""Who speaks next in an AutoGen group chat, as a debate's controller has it: ``selector_func`` of SelectorGroupChat.

AutoGen itself is not imported: messages are objects with ``source`` and ``to_text()`` or ``content``. A group chat is
broadcast, so everyone reads everyone: of a controller's decisions only who speaks (all but "keep") and when to stop
take effect here, not who reads whom nor how. Where those matter, use `Debate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.agents.dear.chat_agents import estimated
from steelyard.agents.dear.debate import regulate, usable_controller
from steelyard.agents.dear.episodes import State, StopRule, VoteRule, is_finished
from steelyard.agents.dear.prompts import START, DebatePrompts
from steelyard.agents.dear.table import Table, Turn
from steelyard.errors import InputError


class DebateSelector:
    """Names the next speaker of a group chat.

    Every agent speaks once, in the order of ``names``; then, round by round, those whom the controller lets speak.
    Give :meth:`is_finished` to AutoGen's ``FunctionalTermination``: once the debate is over, the selector returns None,
    at which AutoGen would let a model choose.

    Args:
        names: The agents' names in AutoGen.
        controller: As for `Debate`.
        options: Possible answers; None for an open question.
        rounds: Most rounds after the first answers.
        early_stop: When the debate ends before.
        vote: How :meth:`answer` counts.
        seed: Of orders and ties.
    """

    def __init__(
        self, names: Sequence[str], controller: Any = None, *, options: Sequence[str] | None = None, rounds: int = 3,
        early_stop: StopRule = "unanimous", vote: VoteRule = "majority", seed: int = 0,
    ) -> None:  # fmt: skip
        if isinstance(names, str) or len(names) < 2 or len(set(names)) != len(names):
            raise InputError("names must be a list of at least 2 different names.")
        self._names, self._options, self._rounds = tuple(names), options, rounds
        self._controller = usable_controller(controller, len(names))
        self._stop, self._vote, self._seed = early_stop, vote, seed
        self._thread: tuple[Any, ...] = ()

    def __call__(self, messages: Sequence[Any]) -> str | None:
        """Return the name of the next speaker, or None once the debate is finished; ``messages`` are all so far."""
        self._thread = tuple(messages)
        waiting = self._play(messages)[0]
        return self._names[waiting[0][0]] if waiting else None

    def is_finished(self, messages: Sequence[Any]) -> bool:
        """Return whether the debate is over; ``messages`` are the new ones since the selector was called."""
        return not self._play([*self._thread, *messages])[0]

    def answer(self, messages: Sequence[Any]) -> str | None:
        """Return the group's answer in all these messages; None before all have spoken, or if nobody has one."""
        _, table, state = self._play(messages)
        return None if state is None or table.is_silent else str(table.outcome(self._vote)["answer"])

    def _play(self, messages: Sequence[Any]) -> tuple[list[tuple[int, str, tuple[int, ...]]], Table, State | None]:
        """Return who is still to speak in this round, the table, and the state of the last complete round."""
        question = next((_text(message) for message in messages if message.source not in self._names), "") or "?"
        table = Table(
            self._names, question, self._options, prompts=DebatePrompts(), seed=self._seed, extractor=None,
            canonicalise=None, confidence=self._vote == "reconcile",
        )  # fmt: skip
        waiting: list[tuple[int, str, tuple[int, ...]]] = [(agent, START, ()) for agent in range(len(self._names))]
        turns: list[Turn] = []
        state: State | None = None
        for message in messages:
            asked = next((each for each in waiting if self._names[each[0]] == message.source), None)
            if asked is None:
                continue  # the user, a tool, or someone out of turn
            waiting.remove(asked)
            text = _text(message)
            turns.append(table.turn(*asked, text=text, problem="", tokens=estimated((), text)))
            if not waiting:
                table.heard(turns)
                if table.is_silent:  # nothing to debate about
                    break
                state = table.first() if state is None else table.end_round()
                waiting, state, turns = *self._next(table, state, question), []
        return waiting, table, state

    def _next(self, table: Table, state: State, question: str) -> tuple[list[tuple[int, str, tuple[int, ...]]], State]:
        """Return the speakers of the next round in which anyone speaks; none when the debate is over."""
        while state.t < self._rounds and not is_finished(state, self._stop)[0]:
            wanted = regulate(self._controller, state, rounds=self._rounds, question=question, seed=self._seed)
            waiting = table.begin_round(*wanted)
            if waiting:
                return waiting, state
            state = table.end_round()
        return [], state


def _text(message: Any) -> str:
    to_text = getattr(message, "to_text", None)
    text = to_text() if callable(to_text) else getattr(message, "content", "")
    return text if isinstance(text, str) else ""
