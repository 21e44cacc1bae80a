"""Pictures of debates: rounds as columns, agents as rows, who read whom, who flipped, right and wrong."""

from __future__ import annotations

import numpy as np

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
    wanted = (
        ("mended", "A wrong first vote mended", ~before & after),
        ("broken", "A right first vote broken", before & ~after),
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
    return Diagram(
        name=name, title=title, caption=f"{title}; * marks an answer that changed. Rows are agents.",
        nodes=tuple(nodes), edges=tuple(edges[:_MOST_EDGES]),
        columns=("first answers", *(f"round {t + 1}" for t in range(rounds))), legend=_LEGEND,
    )  # fmt: skip


def _letter(answer: int) -> str:
    return "none" if answer < 0 else chr(ord("A") + answer % 26)
