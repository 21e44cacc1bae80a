"""The typed graph of skills: dependency, workflow, semantic and alternative edges, kept sparse."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from steelyard.agents.goskills.linker import KINDS, Kind, Link, Linker, rule_links, schema_links
from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.skill import Skill
from steelyard.agents.goskills.vectors import CardVectors
from steelyard.errors import InputError

TYPE_WEIGHTS: Mapping[str, float] = {"dependency": 1.0, "workflow": 0.7, "semantic": 0.4, "alternative": 0.3}
REVERSE_WEIGHTS: Mapping[str, float] = {"dependency": 1.0, "workflow": 0.5, "semantic": 0.2, "alternative": 0.1}
SEMANTIC_NEIGHBOURS = 5
SEMANTIC_COSINE = 0.5


@dataclass(frozen=True)
class Edge:
    """One directed edge between places of the library; of a dependency, the source needs the target."""

    source: int
    target: int
    kind: Kind
    strength: float
    apart: bool = False

    @property
    def weight(self) -> float:
        """Weight of the type times strength."""
        return TYPE_WEIGHTS[self.kind] * self.strength


class SkillGraph:
    """Edges in the order (source, target, kind); no loops, at most one edge of a kind between two skills.

    Attributes:
        edges: The edges.
        names: The index of names that the links were found with.
    """

    def __init__(self, size: int, edges: Iterable[Edge], names: NameIndex) -> None:
        best: dict[tuple[int, int, int], Edge] = {}
        for edge in edges:
            key = (edge.source, edge.target, KINDS.index(edge.kind))
            if edge.source != edge.target and (key not in best or edge.strength > best[key].strength):
                best[key] = edge
        self.edges = tuple(best[key] for key in sorted(best))
        self.names = names
        self._size = size
        self._leaving: list[list[Edge]] = [[] for _ in range(size)]
        for edge in self.edges:
            self._leaving[edge.source].append(edge)
        self._warned = False

    def __len__(self) -> int:
        return self._size

    def leaving(self, place: int) -> Sequence[Edge]:
        """Return the edges that leave a skill, by target and kind."""
        return self._leaving[place]

    def counts(self) -> dict[str, int]:
        """Return how many edges there are of each kind."""
        return {kind: sum(edge.kind == kind for edge in self.edges) for kind in KINDS}

    def matrix(
        self,
        type_weights: Mapping[str, float] = TYPE_WEIGHTS,
        reverse_weights: Mapping[str, float] | None = REVERSE_WEIGHTS,
    ) -> sparse.csr_array:
        """Return the weights of the edges and, unless None, of their reverse, summed over kinds; shape (N, N)."""
        rows, columns, values = [], [], []
        for edge in self.edges:
            rows.append(edge.source)
            columns.append(edge.target)
            values.append(type_weights[edge.kind] * edge.strength)
            if reverse_weights is not None:
                rows.append(edge.target)
                columns.append(edge.source)
                values.append(reverse_weights[edge.kind] * edge.strength)
        table = sparse.coo_array((np.asarray(values, dtype=np.float64), (rows, columns)), shape=(len(self), len(self)))
        return table.tocsr()

    def degrees(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return how many edges leave or reach each skill, shape (N,)."""
        ends = [end for edge in self.edges for end in (edge.source, edge.target)]
        return np.bincount(np.asarray(ends, dtype=np.int64), minlength=len(self))

    def in_order(self, places: Sequence[int]) -> list[int]:
        """Return the skills so that what another depends on comes first, otherwise in the given order.

        A circle of dependencies is cut where it is first met, with a warning, once a graph.
        """
        inside, done, open_ = set(places), dict[int, None](), set[int]()
        stack = [(place, False) for place in reversed(places)]  # not recursive: a chain may be as long as the budget
        while stack:
            place, left = stack.pop()
            if left:
                open_.discard(place)
                done.setdefault(place)
            elif place in open_:
                self._warn_of_circle()
            elif place not in done:
                open_.add(place)
                stack.append((place, True))
                needed = [edge.target for edge in self._leaving[place] if edge.kind == "dependency"]
                stack += [(target, False) for target in reversed(needed) if target in inside]
        return list(done)

    def _warn_of_circle(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn("skills depend on each other in a circle; it was cut (said once)", stacklevel=3)


def build_skill_graph(
    skills: Sequence[Skill],
    linker: str | Linker = "rules",
    *,
    embedder: Any = None,
    link_top_k: int = 8,
    overlap: float = 0.6,
) -> SkillGraph:
    """Return the graph of the skills; see :meth:`steelyard.agents.goskills.library.SkillLibrary.build_graph`.

    Raises:
        InputError: An argument is out of range, or the linker gave something else than links between the skills.
    """
    if isinstance(link_top_k, bool) or not isinstance(link_top_k, int) or link_top_k < 0:
        raise InputError(f"link_top_k must be a whole number of at least 0, got {link_top_k!r}")
    if not 0 < overlap <= 1:
        raise InputError(f"overlap must lie in (0, 1], got {overlap}")
    names = NameIndex(skills)
    if callable(linker):
        links = _checked(linker(skills), skills)
    elif linker == "rules":
        links = rule_links(skills, link_top_k, names)
    else:
        raise InputError(
            "linker must be 'rules' or a function from skills to links such as LanguageModelLinker(model), "
            f"got {linker!r}"
        )
    links += schema_links(skills, link_top_k, overlap)
    places = {skill.name: place for place, skill in enumerate(skills)}
    edges = [Edge(places[link.source], places[link.target], *link[2:]) for link in links]
    if embedder is not None and len(skills) > 1:
        near = CardVectors(skills, embedder).neighbours(SEMANTIC_NEIGHBOURS, SEMANTIC_COSINE)
        edges += [Edge(one, other, "semantic", min(cosine, 1.0)) for one, other, cosine in near]
    return SkillGraph(len(skills), edges, names)


def _checked(links: Iterable[Link], skills: Sequence[Skill]) -> list[Link]:
    known = {skill.name for skill in skills}
    found = []
    for number, link in enumerate(links):
        if not isinstance(link, Link) or link.kind not in KINDS or not 0 < link.strength <= 1:
            raise InputError(
                f"linker: item {number} is no Link with a kind of {', '.join(KINDS)} and strength in (0, 1]"
            )
        if not {link.source, link.target} <= known:
            raise InputError(
                f"linker: item {number} links {link.source!r} and {link.target!r}, not both in the library"
            )
        found.append(link)
    return found
