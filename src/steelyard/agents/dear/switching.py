"""The conformity curve: how often an agent gives up its answer, by how many of those that it read were against it.

It says nothing about whether giving up was right; `core.conformity` does, with labels. Reconstruction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from steelyard.agents.dear.recorded import START, Recording
from steelyard.errors import InputError

if TYPE_CHECKING:
    from steelyard.agents.dear.items import Item
    from steelyard.agents.dear.recorder import OptionAgent


class Switching(NamedTuple):
    """Calls in which an agent read ``read`` answers, ``against`` of them other than its own, and how many switched."""

    read: int
    against: int
    calls: int
    switched: int

    @property
    def rate(self) -> float:
        """P(switch | against)."""
        return self.switched / self.calls


def recorded_curve(recording: Recording, behaviour: str = "revise", *, held_only: bool = True) -> list[Switching]:
    """Return the conformity curve of recorded agents, by number of answers read and of those against.

    Args:
        recording: Of any agents.
        behaviour: "revise", "critique" or "explore".
        held_only: Count only calls in which the agent's own answer is its first one; the others are about answers that
            it was told that it gave.
    """
    first = {
        (entry.question, entry.agent): entry.answer
        for entry in recording.entries
        if entry.behaviour == START and entry.repeat == 0
    }
    calls = []
    for entry in recording.entries:
        if entry.behaviour != behaviour or entry.own is None or not entry.read:
            continue
        if not held_only or first.get((entry.question, entry.agent)) == entry.own:
            against = sum(answer != entry.own for answer in entry.read)
            calls.append((len(entry.read), against, entry.answer != entry.own))
    return _curve(calls)


def measured_curve(agent: OptionAgent, items: Sequence[Item], peers: int = 4) -> list[Switching]:
    """Return the conformity curve of a model by option log-probabilities; ``peers`` answers are read each time.

    The agent holds its own first answer; for every other option, from none to all of the peers are for that option and
    the rest agree with the agent.

    Args:
        agent: A model that scores options.
        items: Questions.
        peers: How many answers are read.

    Raises:
        InputError: No items or no peers.
    """
    from steelyard.agents.dear.recorder import revise_tail

    if not items or peers < 1:
        raise InputError("items and peers must hold at least one each.")
    calls = []
    for item in items:
        own = int(agent.answer(item, [""]).scores[0].argmax())
        rivals = [option for option in range(len(item.options)) if option != own]
        asked = [(rival, against) for rival in rivals for against in range(peers + 1)]
        tails = [revise_tail(item, own, (own,) * (peers - against) + (rival,) * against) for rival, against in asked]
        answers = agent.answer(item, tails).scores.argmax(-1)
        calls += [(peers, against, answer != own) for (_, against), answer in zip(asked, answers, strict=True)]
    return _curve(calls)


def _curve(calls: Iterable[tuple[int, int, bool]]) -> list[Switching]:
    counts: dict[tuple[int, int], list[int]] = {}
    for read, against, switched in calls:
        row = counts.setdefault((read, against), [0, 0])
        row[0] += 1
        row[1] += bool(switched)
    return [Switching(*key, *counts[key]) for key in sorted(counts)]
