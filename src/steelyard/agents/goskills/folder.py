"""Find the SKILL.md files under a folder that strangers may have filled, and read each within bounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from steelyard.agents.goskills.skill import Finding, Skill, SkillFormatError, parse_skill
from steelyard.errors import InputError
from steelyard.models.paths import printable, usable_path

MAX_SKILL_BYTES = 1 << 20
MAX_SKILL_FILES = 50_000
_FILE_NAMES = ("SKILL.md", "skill.md")
_SKIPPED = frozenset({".git", "node_modules", "__pycache__"})


class Found(NamedTuple):
    """What was found under a folder: skills in the order of their paths, and findings."""

    skills: list[Skill]
    findings: list[Finding]


def read_folder(path: str | Path, *, namespace: str | None = None, strict: bool = False) -> Found:
    """Read every SKILL.md at any depth below ``path``.

    A skill's source is ``namespace`` if given; else the first folder below ``path`` on the way to it, where that is not
    the skill's own folder (``path/plugin/…/skill/SKILL.md`` is of ``plugin``); else empty. Links are followed as long
    as they stay inside ``path``; folders that are links are not walked. ``.git`` and ``node_modules`` are left out.

    Args:
        path: The folder.
        namespace: Source of all its skills.
        strict: Raise at the first finding instead of listing it.

    Raises:
        InputError: ``path`` is no folder, or holds no SKILL.md at all.
        SkillFormatError: A finding with ``strict``.
    """
    root = usable_path(path)
    if not root.is_dir():
        raise InputError(f"path must be a folder of skills, {printable(str(path))[:200]!r} is none")
    files, findings = _find(root, strict)
    if not files and not findings:
        raise InputError(f"there is no SKILL.md below {printable(str(path))[:200]!r}; name a folder that holds skills")
    skills: list[Skill] = []
    for file in files:
        shown = file.relative_to(root)
        source = namespace if namespace is not None else shown.parts[0] if len(shown.parts) > 2 else ""
        folder = file.parent.name if len(shown.parts) > 1 else ""
        name = printable(shown.as_posix())
        try:
            skill, found = parse_skill(_text(file, root, name), name, folder=folder, source=printable(source))
        except SkillFormatError as error:
            if strict:
                raise
            findings.append(_lost(name, str(error)))
            continue
        if strict and found:
            raise SkillFormatError(str(found[0]))
        skills.append(skill)
        findings += found
    return Found(skills, findings)


def _find(root: Path, strict: bool) -> tuple[list[Path], list[Finding]]:
    """Return the files in the order of their paths, and folders that could not be walked."""
    files: list[Path] = []
    findings: list[Finding] = []

    def unreadable(error: OSError) -> None:
        shown = printable(os.path.relpath(error.filename or root, root))
        findings.append(Finding(shown, 0, f"the folder cannot be read ({error.strerror or error})", lost=True))

    for place, folders, names in os.walk(root, onerror=unreadable):
        for folder in sorted(folders):
            if os.path.islink(os.path.join(place, folder)):
                shown = printable(os.path.relpath(os.path.join(place, folder), root))
                findings.append(
                    Finding(shown, 0, "the folder is a link and was not walked; put the folder itself there")
                )
        folders[:] = sorted(folder for folder in folders if folder not in _SKIPPED)
        wanted = [name for name in _FILE_NAMES if name in names][:1]
        files += [Path(place, name) for name in wanted]
        if len(files) > MAX_SKILL_FILES:
            raise InputError(f"there are more than {MAX_SKILL_FILES} skills below path; name a smaller folder")
    if strict and findings:
        raise SkillFormatError(str(findings[0]))
    return sorted(files), findings


def _text(file: Path, root: Path, shown: str) -> str:
    """Return the text of one file.

    Raises:
        SkillFormatError: A link out of ``root`` or to nowhere, no regular file, too large, binary or not UTF-8.
    """
    try:
        target = file.resolve(strict=True)
        if not target.is_relative_to(root.resolve()):
            raise SkillFormatError(f"{shown}: it is a link that leads out of the folder; put the file itself there")
        if not target.is_file():
            raise SkillFormatError(f"{shown}: it is no regular file; put a text file there")
        with target.open("rb") as stream:
            content = stream.read(MAX_SKILL_BYTES + 1)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a circle of links"
        raise SkillFormatError(f"{shown}: it cannot be read ({reason})") from None
    if len(content) > MAX_SKILL_BYTES:
        raise SkillFormatError(f"{shown}: it has more than {MAX_SKILL_BYTES} bytes; shorten it")
    if b"\0" in content:
        raise SkillFormatError(
            f"{shown}, line {content[: content.index(0)].count(10) + 1}: it holds binary data; save it as text"
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SkillFormatError(
            f"{shown}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; save it as UTF-8"
        ) from None


def _lost(name: str, message: str) -> Finding:
    """Turn the message of an error, which starts with path and line, back into a finding."""
    rest = message.removeprefix(name)
    place, _, sentence = rest.partition(": ")
    number = place.removeprefix(", line ")
    return Finding(name, int(number) if number.isdigit() else 0, sentence, lost=True)
