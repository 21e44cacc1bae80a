"""A retrieval in words: the fields of a contract, and the explanation of how they came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steelyard.agents.goskills.contract import Debt, ExecutionContract, Note, Start, Support
from steelyard.agents.goskills.core import Coverage
from steelyard.agents.goskills.graph import SkillGraph
from steelyard.agents.goskills.profile import Profile
from steelyard.agents.goskills.schema import DEFAULT_CONFIDENCES
from steelyard.agents.goskills.skill import Skill

if TYPE_CHECKING:
    from steelyard.agents.goskills.retriever import Reading

MAX_NOTES = 12  # lines of CHECK, and of AVOID
_SHOWN = 20  # scored skills in an explanation


def fields(reading: Reading, skills: Sequence[Skill], graph: SkillGraph, profiles: Sequence[Profile]) -> dict[str, Any]:
    """Return the fields of a contract by name, ``payloads`` left out.

    CHECK: constraints of the task, what checkers among the chosen skills say to check, and the products that the task
    asks for. AVOID: warnings of the chosen skills, and skills that one of them must not be used with.
    """
    debt = tuple(Debt(one.dimension, one.value, one.conf) for one in reading.debt)
    if not reading.steps:  # where nothing is required either, the task itself is what no skill covers
        return {"start": None, "debt": debt or (Debt("goal", reading.schema.goal, DEFAULT_CONFIDENCES.embedded),)}
    chosen = [step.skill for step in reading.steps]
    anchor = chosen[0]
    roles = _roles(reading)
    support = [
        Support(skills[place].name, roles.get(place, "backfill"), profiles[place].use_when)
        for place in graph.in_order(chosen)
        if place != anchor
    ]
    check = [Note(text, "task") for text in reading.schema.constraints]
    made = [name for name in reading.schema.artifacts if name not in reading.schema.inputs]
    check += [Note(f"produce: {name}", "task") for name in made]
    check += [
        Note(text, skills[place].name) for place in chosen if profiles[place].checker for text in profiles[place].check
    ]
    avoid = [
        Note(f"do not use {skills[edge.target].name} together with {skills[place].name}", skills[place].name)
        for place in chosen
        for edge in graph.leaving(place)
        if edge.apart
    ]
    avoid += [Note(text, skills[place].name) for place in chosen for text in profiles[place].avoid]
    return {
        "start": Start(skills[anchor].name, _reason(reading, anchor)),
        "support": tuple(support),
        "check": tuple(check[:MAX_NOTES]),
        "avoid": tuple(avoid[:MAX_NOTES]),
        "debt": debt,
    }


def _roles(reading: Reading) -> dict[int, str]:
    """Return the role of every skill of the plan: that in the first group that holds it; other anchors support."""
    roles: dict[int, str] = {}
    for group in reading.plan:
        for member in group.members:
            roles.setdefault(member.skill, member.role)
        roles.setdefault(group.anchor, "support")
    return roles


def _reason(reading: Reading, anchor: int) -> str:
    named = any(anchor in feature.skills for feature in reading.required)
    met = sum(1 for value in reading.cover[anchor] if value >= 0.5)
    how = "named in the task and best" if named else "best"
    return f"{how} anchor by score ({reading.scores[anchor]:.3f}); covers {met} of {len(reading.required)} requirements"


def explanation(
    reading: Reading, skills: Sequence[Skill], contract: ExecutionContract, vrc: Coverage
) -> dict[str, Any]:
    """Return a retrieval as plain values: schema, scores, plan, chosen skills with reasons, debt, contract."""
    schema = reading.schema
    order = sorted(range(len(skills)), key=lambda place: (-reading.scores[place], place))[:_SHOWN]
    return {
        "schema": {
            "goal": schema.goal,
            "task_name": schema.task_name,
            "domain": schema.domain,
            "operations": list(schema.operations),
            "artifacts": list(schema.artifacts),
            "constraints": list(schema.constraints),
            "keywords": list(schema.keywords),
            "required": [
                {"dimension": one.dimension, "value": one.value, "conf": one.conf} for one in reading.required
            ],
        },
        "scores": [
            {
                "skill": skills[place].name,
                "score": float(reading.scores[place]),
                **{name: float(values[place]) for name, values in reading.terms.items()},
            }
            for place in order
        ],
        "plan": [
            {
                "anchor": skills[group.anchor].name,
                "kind": "anchor" if number == 0 else "support",
                "members": [{"skill": skills[member.skill].name, "role": member.role} for member in group.members],
            }
            for number, group in enumerate(reading.plan)
        ],
        "chosen": [{"skill": skills[step.skill].name, "why": step.why, "gain": step.gain} for step in reading.steps],
        "debt": [one._asdict() for one in contract.debt],
        "coverage": {"value": vrc.value, "vacuous": vrc.vacuous},
        "contract": contract.to_dict(),
    }
