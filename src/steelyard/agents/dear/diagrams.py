"""Pictures of debates: rounds as columns, agents as rows, who read whom, who flipped, right and wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.episodes import BEHAVIOURS, KEEP
from steelyard.agents.dear.rollout import Outcome
from steelyard.contracts import Diagram, Edge, Node

_LEGEND = {"good": "right answer", "bad": "wrong answer", "solid": "read by", "dashed": "kept its answer, no call"}
_MOST_AGENTS, _MOST_EDGES = 8, 120


def debate_diagrams(outcome: Outcome) -> tuple[Diagram, ...]:
    """Return a picture of a debate that mended a wrong vote and one of a debate that broke a right one, if any.

    Args:
        outcome: Of `rollout` with ``trace=True``.
    """
    if not outcome.history or outcome.answers0.shape[1] > _MOST_AGENTS:
        return ()
    before, after = outcome.vote0 == outcome.truth, outcome.vote == outcome.truth
    clear = ~_tied(outcome.answers0) & ~_tied(outcome.history[-1])  # who won a tie cannot be seen
    wanted = (
        ("mended", "A wrong first vote mended", clear & ~before & after),
        ("broken", "A right first vote broken", clear & before & ~after),
    )
    found = []
    for name, title, rows in wanted:
        if rows.any():
            moved = np.where(rows, outcome.flips.sum(axis=1), -1)
            found.append(debate_diagram(outcome, int(moved.argmax()), name, title))
    return tuple(found)


def debate_diagram(outcome: Outcome, debate: int, name: str, title: str) -> Diagram:
    """Return the picture of one debate."""
    rounds = int(outcome.rounds[debate])
    truth, nodes, edges = int(outcome.truth[debate]), list[Node](), list[Edge]()
    answers = [history[debate] for history in outcome.history[: rounds + 1]]
    for t, given in enumerate(answers):
        for agent, answer in enumerate(given.tolist()):
            flipped = t > 0 and answer != int(answers[t - 1][agent])
            how = BEHAVIOURS[int(outcome.behaviours[t - 1][debate, agent])] if t else "first answer"
            nodes.append(
                Node(
                    id=f"{t}-{agent}", label=f"{_letter(answer)}{'*' if flipped else ''}", x=t, y=agent,
                    kind="good" if answer == truth else "bad",
                    note=f"agent {agent + 1}, {how}{', changed its answer' if flipped else ''}",
                )
            )  # fmt: skip
    for t in range(rounds):
        for agent in range(len(answers[t])):
            if int(outcome.behaviours[t][debate, agent]) == KEEP:
                edges.append(Edge(source=f"{t}-{agent}", target=f"{t + 1}-{agent}", kind="dashed"))
            for peer in np.flatnonzero(outcome.reads[t][debate, agent]).tolist():
                edges.append(Edge(source=f"{t}-{peer}", target=f"{t + 1}-{agent}"))
    votes = f"First vote {_letter(int(outcome.vote0[debate]))}, last vote {_letter(int(outcome.vote[debate]))}"
    return Diagram(
        name=name, title=title,
        caption=f"{votes}, right is {_letter(truth)}. A row is an agent; * marks an answer that changed.",
        nodes=tuple(nodes), edges=tuple(edges[:_MOST_EDGES]),
        columns=("first answers", *(f"round {t + 1}" for t in range(rounds))), legend=_LEGEND,
    )  # fmt: skip


def _tied(answers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return in which debates, shape (B,), no answer of (B, N) has more votes than every other."""
    counts = np.sort((answers[:, :, None] == answers[:, None, :]).sum(axis=2) * (answers >= 0), axis=1)
    best = counts[:, -1]
    return np.asarray(counts.shape[1] - np.argmax(counts == best[:, None], axis=1) > best, dtype=np.bool_)


def _letter(answer: int) -> str:
    return "none" if answer < 0 else chr(ord("A") + answer % 26)
