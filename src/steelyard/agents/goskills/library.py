"""A library of skills: read from folders or made in Python, with its typed graph and its groups."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steelyard.agents.goskills.folder import read_folder
from steelyard.agents.goskills.skill import Finding, Skill, SkillFormatError
from steelyard.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from steelyard.agents.goskills.graph import SkillGraph
    from steelyard.agents.goskills.groups import Group, GroupGraph
    from steelyard.agents.goskills.linker import Linker
    from steelyard.agents.goskills.profile import Profile


class SkillLibrary:
    """Skills in the order of their names, whatever order they came in.

    Attributes:
        skills: The skills.
        problems: What is wrong with the files they were read from, by path.
        graph: The typed skill graph, None before :meth:`build_graph`.
        groups: One group per skill, its anchor, in the order of the skills; empty before :meth:`build_groups`.
        group_graph: The graph of groups, None before :meth:`build_groups`.
    """

    skills: tuple[Skill, ...]
    problems: list[Finding]
    graph: SkillGraph | None
    groups: tuple[Group, ...]
    group_graph: GroupGraph | None

    def __init__(self, skills: Sequence[Skill], problems: Iterable[Finding] = ()) -> None:
        self.skills = tuple(sorted(skills, key=lambda skill: skill.name))
        self.problems = sorted(problems)
        self._index = {skill.name: place for place, skill in enumerate(self.skills)}
        if len(self._index) != len(self.skills):
            name, _ = Counter(skill.name for skill in self.skills).most_common(1)[0]
            raise InputError(f"two skills have the name {name!r}; give them sources of their own")
        self.graph, self.groups, self.group_graph = None, (), None

    @classmethod
    def from_dir(cls, path: str | Path, *, namespace: str | None = None, strict: bool = False) -> SkillLibrary:
        """Read every SKILL.md at any depth below ``path``.

        Without ``strict`` one bad file never loses the others: it is listed in ``problems``, also where it has no front
        matter, name or description, and SkillFormatError is raised only when no skill is left. A name that several
        sources have becomes ``source/name`` in each; see :func:`steelyard.agents.goskills.folder.read_folder` for what
        a source is.

        Args:
            path: The folder.
            namespace: Source of all skills, in place of the first folder below ``path``.
            strict: Raise SkillFormatError, with path and line, at the first thing that breaks the format.

        Raises:
            InputError: ``path`` is no folder or holds no SKILL.md.
            SkillFormatError: As said above.
        """
        found = read_folder(path, namespace=namespace, strict=strict)
        library = cls._named(found.skills, found.findings, strict)
        if not library.skills:
            raise SkillFormatError(f"no skill could be read: {library.problems[0]}")
        return library

    @classmethod
    def from_skills(cls, skills: Iterable[Skill]) -> SkillLibrary:
        """Return a library of skills made in Python; equal names of several sources become ``source/name``.

        Raises:
            SkillFormatError: One source has a name twice.
        """
        return cls._named(list(skills), [], strict=True)

    @classmethod
    def join(cls, libraries: Iterable[SkillLibrary]) -> SkillLibrary:
        """Return one library, without graph and groups, of the skills of several; equal names as in :meth:`from_dir`.

        Raises:
            SkillFormatError: A name is there twice under one source; read the folders with a namespace each.
        """
        parts = list(libraries)
        plain = [dataclasses.replace(skill, name=skill.plain_name) for part in parts for skill in part.skills]
        return cls._named(plain, [problem for part in parts for problem in part.problems], strict=True)

    @classmethod
    def _named(cls, skills: Sequence[Skill], findings: Sequence[Finding], strict: bool) -> SkillLibrary:
        """Drop what is there twice in one source, and name by source what several have."""
        kept: dict[tuple[str, str], Skill] = {}
        problems = list(findings)
        for skill in sorted(skills, key=lambda skill: (skill.path, skill.name, skill.source)):
            first = kept.setdefault((skill.source, skill.name), skill)
            if first is not skill:
                where = f"source {skill.source!r}" if skill.source else "one source"
                message = (
                    f"the name {skill.name!r} is there twice in {where}: {first.path or '-'} and {skill.path or '-'}"
                )
                if strict:
                    raise SkillFormatError(f"{message}; rename one")
                problems.append(Finding(skill.path, 1, f"{message}; the first was kept", lost=True))
        times = Counter(name for _, name in kept)
        named = [
            dataclasses.replace(skill, name=f"{source}/{name}") if times[name] > 1 and source else skill
            for (source, name), skill in kept.items()
        ]
        return cls(named, problems)

    def __len__(self) -> int:
        return len(self.skills)

    def __getitem__(self, name: str) -> Skill:
        return self.skills[self.index(name)]

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def index(self, name: str) -> int:
        """Return the place of the skill called ``name``.

        Raises:
            InputError: There is none; the message suggests the closest name.
        """
        if name not in self._index:
            raise InputError(f"no skill is called {name!r}.{did_you_mean(name, self._index)}")
        return self._index[name]

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """What the rules read out of each skill, in the order of the skills; computed once."""
        from steelyard.agents.goskills.profile import profile

        return tuple(profile(skill) for skill in self.skills)

    def build_graph(
        self,
        linker: Literal["rules"] | Linker = "rules",
        *,
        embedder: Any = None,
        link_top_k: int = 8,
        overlap: float = 0.6,
    ) -> SkillLibrary:
        """Build the typed skill graph and return the library itself; groups built before are dropped.

        Args:
            linker: ``"rules"``, or a function from the skills to links (a language model's, see
                :class:`steelyard.agents.goskills.linker.LanguageModelLinker`).
            embedder: Adds semantic edges; an Embedder of ``steelyard.models`` or a function from texts to vectors.
            link_top_k: Most links by text that leave a skill.
            overlap: Share of declared inputs that another skill's outputs must hold for a dependency.

        Raises:
            InputError: An argument is out of range, or the linker gave something else than links.
        """
        from steelyard.agents.goskills.graph import build_skill_graph

        self.graph = build_skill_graph(self.skills, linker, embedder=embedder, link_top_k=link_top_k, overlap=overlap)
        self.groups, self.group_graph = (), None
        return self

    def build_groups(self, max_members: int = 2) -> SkillLibrary:
        """Build one group per skill and the graph of groups, and return the library itself.

        Args:
            max_members: Most supporting members of a group, 0 for anchors alone.

        Raises:
            InputError: There is no skill graph yet, or ``max_members`` is negative.
        """
        from steelyard.agents.goskills.groups import build_group_graph, build_skill_groups

        if self.graph is None:
            raise InputError("the library has no graph yet; call build_graph() before build_groups()")
        self.groups = build_skill_groups(self.skills, self.graph, self.profiles, max_members)
        self.group_graph = build_group_graph(self.graph, self.groups, self.profiles)
        return self
