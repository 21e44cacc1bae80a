"""Keep what live debates of real models came to, so that a controller can be trained on it without asking them again.

Models behind an API change: a recording pins what they answered. Run the debates that the controllers in question would
have, over several of them and of seeds, and add each result; `RecordedAgents` then replays the transitions.
Reconstruction.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

from steelyard.agents.dear.debate import DebateResult
from steelyard.agents.dear.items import Item
from steelyard.agents.dear.recorded import START, Entry, RecordedQuestion, Recording, make_key
from steelyard.agents.dear.table import Turn
from steelyard.errors import InputError


class DebateRecorder:
    """Collects debates about questions with options.

    A call is kept under its key: question, agent, own answer, answers read, behaviour. A peer without an answer is not
    read in a live debate, so it is in no key.

    Args:
        source: Notes for the recording: which models, when, where the questions come from and under which licence.
    """

    def __init__(self, source: Mapping[str, str] | None = None) -> None:
        self._source = dict(source or {})
        self._agents: tuple[str, ...] = ()
        self._items: dict[str, Item] = {}
        self._entries: list[Entry] = []
        self._seen: collections.Counter[tuple[object, ...]] = collections.Counter()

    def add(self, item: Item, result: DebateResult, *, independent: bool = False) -> None:
        """Add a debate about ``item``.

        Args:
            item: The question.
            result: Of a debate about it.
            independent: Whether its calls are draws of their own (the debate had another seed than those before). Then
                calls with a key that is known are kept as repeats, which self-consistency needs; else they are dropped.

        Raises:
            InputError: Other agents or another number of options than before, another item of the same id, or an answer
                that is no option of the item.
        """
        agents = tuple(turn.agent for turn in result.transcript if turn.round == 0)
        known = next(iter(self._items.values()), item)
        if self._items and (agents != self._agents or len(item.options) != len(known.options)):
            raise InputError(f"item {item.id!r}: a recording has the same agents and number of options throughout.")
        if self._items.get(item.id, item) != item:
            raise InputError(f"item {item.id!r} was recorded with another text, options or answer.")
        answers: dict[str, int | None] = {}
        places = {option: place for place, option in enumerate(item.options)}
        if any(turn.answer is not None and turn.answer not in places for turn in result.transcript):
            raise InputError(f"item {item.id!r}: an answer is none of its options; debate it with these options.")
        self._agents, self._items[item.id] = agents, item
        for t in range(result.rounds_run + 1):
            turns = [turn for turn in result.transcript if turn.round == t]
            for turn in turns:
                entry = self._entry(item, turn, answers, places)
                if independent or not entry.repeat:
                    self._entries.append(entry)
                    self._seen[entry.key[:5]] += 1
            answers |= {turn.agent: None if turn.answer is None else places[turn.answer] for turn in turns}

    def recording(self) -> Recording:
        """Return everything added so far; ``.save(path)`` writes it as JSON.

        Raises:
            InputError: Nothing was added.
        """
        if not self._items:
            raise InputError("nothing was recorded yet: add the results of debates.")
        questions = [
            RecordedQuestion(id=item.id, question=item.question, options=list(item.options), answer=item.answer)
            for item in self._items.values()
        ]
        return Recording(agents=list(self._agents), source=self._source, questions=questions, entries=self._entries)

    def _entry(self, item: Item, turn: Turn, answers: Mapping[str, int | None], places: Mapping[str, int]) -> Entry:
        own = None if turn.behaviour == START else answers[turn.agent]
        key = make_key(item.id, turn.agent, own, [answers[peer] for peer in turn.read], turn.behaviour)
        return Entry.model_validate(
            {
                "question": item.id,
                "agent": turn.agent,
                "own": own,
                "read": list(key.read),
                "behaviour": turn.behaviour,
                "answer": None if turn.answer is None else places[turn.answer],
                "rationale": turn.argument,
                "prompt_tokens": turn.tokens.prompt,
                "completion_tokens": turn.tokens.completion,
                "confidence": turn.confidence,
                "repeat": self._seen[key[:5]],
            }
        )
