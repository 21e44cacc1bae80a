"""A skill, and how a SKILL.md file becomes one: front matter, body, and what is wrong with them, line by line.

The format is that of agentskills: a folder holds a SKILL.md whose YAML front matter names at least ``name`` (the
folder's name, at most 64 characters from ``a-z 0-9 -``) and ``description`` (at most 1,024 characters). Files come from
strangers: sizes are bounded, anchors, aliases and tags of YAML are refused, and nothing in them is ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from steelyard.agents.goskills.frontmatter import Values, read_front_matter, split_front_matter
from steelyard.errors import InputError
from steelyard.models.paths import printable

MAX_NAME = 64
MAX_DESCRIPTION = 1024
MAX_KEPT_NAME = 128  # a longer name is no name
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LISTS = {
    "inputs": ("inputs", "input"),
    "outputs": ("outputs", "output"),
    "tags": ("tags", "keywords", "category"),
    "tools": ("allowed-tools", "tools", "tooling"),
}


class SkillFormatError(InputError):
    """A SKILL.md file cannot be used, or breaks the format where ``strict=True`` was asked for."""


class Finding(NamedTuple):
    """One thing that is wrong with a SKILL.md file.

    Attributes:
        path: The file, relative to the folder that was read.
        line: Line in the file from 1; 0 where the file as a whole is meant.
        message: One sentence.
        lost: True when no skill came of the file.
    """

    path: str
    line: int
    message: str
    lost: bool = False

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.message}" if self.line else f"{self.path}: {self.message}"


@dataclass(frozen=True)
class Skill:
    """One skill of a library.

    Attributes:
        name: Unique in its library; ``source/name`` where two sources have one name.
        description: What it does and when to use it, on one line.
        body: The Markdown under the front matter.
        path: Its file, relative to the folder that was read; empty for a skill made in Python.
        source: Namespace it came from; empty when there is none.
        inputs: What it declares to read, e.g. file formats.
        outputs: What it declares to write.
        tags: Its tags.
        tools: Tools that it may use.
        license: The licence it states; empty when none.
        metadata: The other fields of the front matter, nested keys joined by a dot, as text.
    """

    name: str
    description: str
    body: str = ""
    path: str = ""
    source: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    license: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("name", "description"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"a skill needs a {name}, got {value!r}")
        if not isinstance(self.body, str):
            raise InputError(f"the body of skill {self.name!r} must be text, got {type(self.body).__name__}")
        if not self.name.isprintable():
            raise InputError(f"the name of a skill must be printable, got {self.name!r}")

    @property
    def plain_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition("/")[2]

    @property
    def card(self) -> str:
        """Name and description: what a vector of the skill is made from."""
        return f"{self.name}. {self.description}"


def parse_skill(
    text: str, path: str = "SKILL.md", *, folder: str = "", source: str = ""
) -> tuple[Skill, list[Finding]]:
    """Return the skill of a SKILL.md file and what breaks the format without costing the skill.

    YAML that does not parse (most often a colon in an unquoted description) is read line by line instead, which is a
    finding: a line ``key: value`` at the margin starts a field whose value is all that follows the first colon, without
    a pair of quotes around it; an indented line goes on with the field above; ``- item`` adds to a list.

    Args:
        text: The file's text.
        path: How findings name the file.
        folder: Name of the folder that the file lies in; empty: not compared with the skill's name.
        source: Namespace of the skill.

    Raises:
        SkillFormatError: No front matter, no usable name or description, or YAML with anchors, aliases or tags.
    """
    front = split_front_matter(text)
    if isinstance(front, str):
        raise SkillFormatError(f"{path}, line 1: {front}")
    try:
        values, lines, repaired = read_front_matter(front.yaml)
    except InputError as error:
        raise SkillFormatError(f"{path}, {error}") from None
    found = [Finding(path, *repaired)] if repaired else []
    name, description = (_required(values, lines, key, path) for key in ("name", "description"))
    if "/" in name or "\\" in name or not name.isprintable() or len(name) > MAX_KEPT_NAME:
        raise SkillFormatError(
            f"{path}, line {lines['name']}: the name {printable(name)[:80]!r} cannot be used; write at most {MAX_NAME} "
            "characters from a-z, 0-9 and -"
        )
    found += _name_findings(name, lines["name"], path, folder)
    if len(description) > MAX_DESCRIPTION:
        message = f"the description has {len(description)} characters, more than {MAX_DESCRIPTION}; shorten it"
        found.append(Finding(path, lines["description"], message))
    return _skill(name, description, front.body, path, source, values), found


def _required(values: Values, lines: Mapping[str, int], key: str, path: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        what = "missing" if value is None else "empty" if isinstance(value, str) else "not text"
        raise SkillFormatError(
            f"{path}, line {lines.get(key, 1)}: '{key}' is {what} in the front matter; write {key}: …"
        )
    return " ".join(value.split())


def _name_findings(name: str, line: int, path: str, folder: str) -> list[Finding]:
    found = []
    if len(name) > MAX_NAME:
        found.append(Finding(path, line, f"the name has {len(name)} characters, more than {MAX_NAME}; shorten it"))
    if not _NAME.fullmatch(name):
        message = f"the name {name!r} is not made of a-z, 0-9 and single hyphens inside; rename it"
        found.append(Finding(path, line, message))
    if folder and folder != name:
        message = f"the name {name!r} differs from its folder {printable(folder)!r}; make them equal"
        found.append(Finding(path, line, message))
    return found


def _skill(name: str, description: str, body: str, path: str, source: str, values: Values) -> Skill:
    flat = dict(_flattened(values, ""))
    lists = {
        target: tuple(dict.fromkeys(item for key in keys for item in _listed(values, key)))
        for target, keys in _LISTS.items()
    }
    for key in ("name", "description", "license"):
        flat.pop(key, None)
    licence = values.get("license")
    licence = licence if isinstance(licence, str) else ""
    return Skill(name, description, body, path, source, license=licence, metadata=flat, **lists)


def _listed(values: Values, key: str) -> list[str]:
    """Return the entries of a list field, at the top or under ``metadata``; text is split at commas."""
    nested = values.get("metadata")
    found: list[str] = []
    for place in (values, nested if isinstance(nested, dict) else {}):
        value = place.get(key, ())
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else ()
        found += [" ".join(part.split()) for part in parts if isinstance(part, str) and part.strip()]
    return found


def _flattened(values: Values, prefix: str) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, dict):
            flat += _flattened(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat.append((prefix + key, ", ".join(part for part in value if isinstance(part, str))))
        else:
            flat.append((prefix + key, value))
    return flat
