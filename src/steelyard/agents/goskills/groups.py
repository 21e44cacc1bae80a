"""Groups of skills around an anchor, with roles, and the graph of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from steelyard.agents.goskills.graph import Edge, SkillGraph
from steelyard.agents.goskills.profile import Profile
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.words import FORMATS
from steelyard.errors import InputError

Role = Literal["preprocessor", "parser", "formatter", "checker", "fallback"]
GroupKind = Literal["support", "artifact", "visible-check", "fallback", "incompatibility"]
GROUP_WEIGHTS: dict[GroupKind, float] = {
    "support": 1.0,
    "artifact": 0.8,
    "visible-check": 0.6,
    "fallback": 0.3,
    "incompatibility": -1.0,
}
_RANK = {"dependency": 0, "workflow": 1, "alternative": 2}


@dataclass(frozen=True)
class Member:
    """A supporting skill of a group: its place in the library and its role."""

    skill: int
    role: Role


@dataclass(frozen=True)
class Group:
    """An anchor, which is the entry, and the skills that support it."""

    anchor: int
    members: tuple[Member, ...] = ()

    @property
    def skills(self) -> tuple[int, ...]:
        """The anchor and its members."""
        return (self.anchor, *(member.skill for member in self.members))


def build_skill_groups(
    skills: Sequence[Skill], graph: SkillGraph, profiles: Sequence[Profile], max_members: int = 2
) -> tuple[Group, ...]:
    """Return one group per skill: its heaviest edges that are not semantic, dependency before workflow, ties by name.

    Raises:
        InputError: ``max_members`` is negative.
    """
    if isinstance(max_members, bool) or not isinstance(max_members, int) or max_members < 0:
        raise InputError(f"max_members must be a whole number of at least 0, got {max_members!r}")
    groups = []
    for place in range(len(skills)):
        edges = [edge for edge in graph.leaving(place) if edge.kind != "semantic" and not edge.apart]
        edges.sort(key=lambda edge: (-edge.weight, _RANK[edge.kind], skills[edge.target].name))
        chosen: dict[int, Edge] = {}
        for edge in edges:
            if len(chosen) < max_members:
                chosen.setdefault(edge.target, edge)
        members = tuple(Member(at, role_of(edge, profiles[at], profiles[place])) for at, edge in chosen.items())
        groups.append(Group(place, members))
    return tuple(groups)


def role_of(edge: Edge, member: Profile, anchor: Profile) -> Role:
    """Return the role of a member, by the first rule that fits (reconstruction).

    An alternative is a fallback. What gives a format that the anchor reads is a preprocessor, or a parser if it reads a
    file format itself. What reads a format that the anchor gives is a formatter. What checks is a checker. What is
    left: a dependency is a preprocessor, or a parser if it reads a file format, and a workflow edge a formatter.
    """
    if edge.kind == "alternative":
        return "fallback"
    before: Role = "parser" if member.reads & FORMATS else "preprocessor"
    if member.writes & anchor.reads:
        return before
    if member.reads & anchor.writes:
        return "formatter"
    if member.checker:
        return "checker"
    return before if edge.kind == "dependency" else "formatter"


class GroupRows:
    """Groups as arrays.

    Attributes:
        anchors: Anchor of each group, shape (groups,).
        members: Its members, filled up with the anchor, shape (groups, width).
        real: Which of them are members, shape (groups, width).
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        width = max((len(group.members) for group in groups), default=0)
        rows = [[*group.skills[1:], *[group.anchor] * (width - len(group.members))] for group in groups]
        self.anchors = np.array([group.anchor for group in groups], dtype=np.int64)
        self.members = np.array(rows, dtype=np.int64).reshape(len(groups), width)
        self.real = np.arange(width) < np.array([[len(group.members)] for group in groups], dtype=np.int64)

    def cover(self, cover: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how well each group as a whole covers each feature, shape (groups, features)."""
        best = cover[self.anchors]
        for column in self.members.T:
            best = np.maximum(best, cover[column])
        return best

    def mean(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of a value over the members of each group, 0 without members, shape (groups,)."""
        sums: NDArray[np.float64] = np.where(self.real, values[self.members], 0.0).sum(axis=1)
        means: NDArray[np.float64] = sums / np.maximum(self.real.sum(axis=1), 1)
        return means


class GroupGraph:
    """Directed edges between groups, one boolean sparse table (N, N) a kind, in ``tables``."""

    def __init__(self, tables: dict[GroupKind, sparse.csr_array]) -> None:
        self.tables = tables

    def link(self, plan: Sequence[int]) -> NDArray[np.float64]:
        """Return the heaviest edge between every group and the groups of a plan, either way, shape (N,).

        A group that must not be used with one of them has -1, whatever other edge it has (reading of "max").
        """
        size = next(iter(self.tables.values())).shape[0]
        best = np.zeros(size)
        for kind, weight in sorted(GROUP_WEIGHTS.items(), key=lambda item: item[1], reverse=True):
            joined = np.zeros(size, dtype=np.bool_)
            table = self.tables[kind]
            for group in plan:
                joined[table.indices[table.indptr[group] : table.indptr[group + 1]]] = True
            best = np.where(joined, weight if weight < 0 else np.maximum(best, weight), best)
        return best

    def edges(self, kind: GroupKind) -> list[tuple[int, int]]:
        """Return the edges of a kind, by group; both directions are listed."""
        table = self.tables[kind].tocoo()
        return sorted(zip(table.row.tolist(), table.col.tolist(), strict=True))


def build_group_graph(graph: SkillGraph, groups: Sequence[Group], profiles: Sequence[Profile]) -> GroupGraph:
    """Return the graph of the groups; group i is anchored at skill i. Reconstruction.

    Support: a member of one is the anchor of the other, or a dependency or workflow edge joins the anchors. Artifact:
    one gives a format that the other reads. Visible check: the other has a checker that reads what the first gives.
    Fallback: an alternative edge joins the anchors. Incompatibility: a text says not to use the two together.
    """
    pairs: dict[GroupKind, list[tuple[int, int]]] = {"support": [], "fallback": [], "incompatibility": []}
    for group in groups:
        pairs["support"] += [(group.anchor, member.skill) for member in group.members if member.role != "fallback"]
    for edge in graph.edges:
        ends = (edge.source, edge.target)
        if edge.kind in ("dependency", "workflow"):
            pairs["support"].append(ends)
        elif edge.kind == "alternative":
            pairs["fallback"].append(ends)
        if edge.apart:
            pairs["incompatibility"].append(ends)
    known = sorted({name for cues in profiles for name in cues.reads | cues.writes})
    column = {name: place for place, name in enumerate(known)}
    sides: list[list[set[str]]] = [[], [], []]
    for group in groups:
        cues = [profiles[at] for at in group.skills]
        sides[0].append({name for one in cues for name in one.writes})
        sides[1].append({name for one in cues for name in one.reads})
        sides[2].append({name for one in cues if one.checker for name in one.reads})
    gives, takes, checks = (_incidence(side, column) for side in sides)
    size = len(groups)
    tables: dict[GroupKind, sparse.csr_array] = {kind: _both_ways(_pairs(found, size)) for kind, found in pairs.items()}
    tables["artifact"] = _both_ways(gives @ takes.T)
    tables["visible-check"] = _both_ways(gives @ checks.T)
    return GroupGraph(tables)


def _incidence(sets: Sequence[set[str]], column: dict[str, int]) -> sparse.csr_array:
    pairs = [(row, column[name]) for row, names in enumerate(sets) for name in sorted(names)]
    rows, columns = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    ones = np.ones(len(pairs), dtype=np.int32)
    return sparse.csr_array((ones, (rows, columns)), shape=(len(sets), max(len(column), 1)))


def _pairs(pairs: Sequence[tuple[int, int]], size: int) -> sparse.csr_array:
    rows, columns = (np.array([pair[end] for pair in pairs], dtype=np.int64) for end in (0, 1))
    return sparse.csr_array((np.ones(len(pairs), dtype=np.int32), (rows, columns)), shape=(size, size))


def _both_ways(table: sparse.csr_array) -> sparse.csr_array:
    """Return the table and its mirror image as booleans, without the diagonal, rows sorted."""
    both = (table + table.T).tocoo()
    keep = (both.row != both.col) & (both.data != 0)
    shape = both.shape
    found = sparse.csr_array((np.ones(int(keep.sum()), dtype=np.bool_), (both.row[keep], both.col[keep])), shape=shape)
    found.sort_indices()
    return found
