"""A picture of one retrieval: the groups of the plan with their roles, what was chosen of them, and the debt."""

from __future__ import annotations

from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.queries import Query
from steelyard.agents.goskills.retriever import GoSkillsRetriever, Reading
from steelyard.contracts import Diagram, Edge, Node
from steelyard.models.paths import printable

COLUMNS = ("groups of the plan", "their members", "chosen skills", "not covered (DEBT)")
_MOST_DEBT = 12
_LABEL, _NOTE = 80, 400


def of_task(library: SkillLibrary, retriever: GoSkillsRetriever, query: Query) -> Diagram:
    """Return the diagram of a task's contract, gold skills among the chosen marked."""
    reading = retriever.read(query.text)
    nodes, edges = _plan(library, reading)
    chosen = {step.skill: number for number, step in enumerate(reading.steps)}
    gold = set(query.gold)
    for place, number in chosen.items():
        name, why = library.skills[place].name, reading.steps[number].why
        kind = "main" if number == 0 else "good" if name in gold else "plain"
        note = f"{why}; {'a gold skill' if name in gold else 'not a gold skill'}"
        nodes.append(Node(id=f"chosen {place}", label=_text(name, _LABEL), x=2, y=number, kind=kind, note=note))
    edges += [
        Edge(source=node.id, target=f"chosen {place}", kind="good")
        for node in nodes
        if node.x < 2 and (place := int(node.id.split()[-1])) in chosen
    ]
    missing = sorted(gold - {library.skills[place].name for place in chosen})
    for number, one in enumerate(reading.debt[:_MOST_DEBT]):
        label = _text(f"{one.dimension}: {one.value}", _LABEL)
        nodes.append(Node(id=f"debt {number}", label=label, x=3, y=number, kind="bad"))
    more = len(reading.debt) - _MOST_DEBT
    return Diagram(
        name="groups",
        title="Groups, contract and debt of one task",
        caption=_text(
            f"Task: {query.text.splitlines()[0]} Gold skills that were not chosen: {', '.join(missing) or 'none'}."
            + (f" {more} more entries of DEBT are not shown." if more > 0 else ""),
            _NOTE,
        ),
        nodes=tuple(nodes) or (Node(id="none", label="no skill fits the task", x=0, y=0),),
        edges=tuple(edges),
        columns=COLUMNS,
        legend={"main": "START", "good": "gold skill", "plain": "other skill", "bad": "required, not covered",
                "muted": "in the plan, not chosen"},
    )  # fmt: skip


def _plan(library: SkillLibrary, reading: Reading) -> tuple[list[Node], list[Edge]]:
    """Return the anchors of the plan's groups and their members, with an edge for every role."""
    nodes, edges, row = [], [], 0
    chosen = {step.skill for step in reading.steps}
    for order, group in enumerate(reading.plan):
        anchor = group.anchor
        what = "anchor group" if order == 0 else "support group"
        identity = f"group{order} {anchor}"
        nodes.append(_of_skill(library, identity, anchor, 0, row, anchor in chosen, what))
        for offset, member in enumerate(group.members):
            own = f"member{order} {member.skill}"
            nodes.append(_of_skill(library, own, member.skill, 1, row + offset, member.skill in chosen, member.role))
            edges.append(Edge(source=identity, target=own, label=member.role))
        if order:
            first = f"group0 {reading.plan[0].anchor}"
            edges.append(Edge(source=first, target=identity, kind="dashed", label="expansion"))
        row += max(1, len(group.members))
    return nodes, edges


def _of_skill(library: SkillLibrary, identity: str, place: int, column: int, row: int, chosen: bool, note: str) -> Node:
    label = _text(library.skills[place].name, _LABEL)
    return Node(id=identity, label=label, x=column, y=row, kind="plain" if chosen else "muted", note=note)  # fmt: skip


def _text(text: str, most: int) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
