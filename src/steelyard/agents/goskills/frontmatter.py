"""The YAML front matter of a SKILL.md file: read into nodes only, so that no object is ever built from it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeAlias

from steelyard.errors import InputError
from steelyard.extras import require

Values: TypeAlias = "dict[str, Any]"

MAX_FRONT_MATTER = 16_384  # characters
_FENCE = re.compile(r"---[ \t]*")
_FIELD = re.compile(r"([A-Za-z][\w.-]*):(?:[ \t]+(.*)|[ \t]*)$")
_ITEM = re.compile(r"[ \t]*-[ \t]+(.*)$")
_MAX_DEPTH = 6
_MAX_BRACKETS = 512


class Front(NamedTuple):
    """A file's front matter, without its fences, and the body under it."""

    yaml: str
    body: str


def split_front_matter(text: str) -> Front | str:
    """Return the two parts of a SKILL.md file, or the sentence that says why it has none."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not _FENCE.fullmatch(lines[0]):
        return "there is no front matter; start the file with a line --- and the fields name and description"
    size = 0
    for number, line in enumerate(lines[1:], 1):
        if _FENCE.fullmatch(line):
            return Front("\n".join(lines[1:number]), "\n".join(lines[number + 1 :]).strip("\n"))
        size += len(line) + 1
        if size > MAX_FRONT_MATTER:
            return f"the front matter has more than {MAX_FRONT_MATTER} characters; shorten it"
    return "the front matter is not closed; end it with a line ---"


def read_front_matter(text: str) -> tuple[Values, dict[str, int], tuple[int, str] | None]:
    """Return the fields, the line of each in the file (the opening fence is line 1), and what had to be repaired.

    Every scalar stays the text that was written. The third is (line, sentence) when the YAML did not parse and the
    lines were read one by one instead, None otherwise.

    Raises:
        InputError: Anchors, aliases or tags, a list or a scalar in the place of fields, or no fields at all; the
            message starts with the line.
    """
    yaml = require("yaml", "agents")
    if text.count("[") + text.count("{") > _MAX_BRACKETS:  # the parser's time grows with their square
        raise InputError("line 2: the front matter is nested too deeply; write plain fields")
    try:
        _refuse_references(text, yaml)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        line, reason = _where(error)
        values, lines = _by_lines(text)
        if not values:
            raise InputError(f"line {line}: the front matter is no YAML ({reason}); quote the values") from None
        return (
            values,
            lines,
            (line, f"the front matter is no YAML ({reason}) and was read line by line; quote the value"),
        )
    except RecursionError:
        raise InputError("line 2: the front matter is nested too deeply; write plain fields") from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError("line 2: the front matter holds no fields; write name: … and description: …")
    lines = {key.value: key.start_mark.line + 2 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    value = _plain(node, yaml, 0)
    return value, lines, None


def _refuse_references(text: str, yaml: Any) -> None:
    """Refuse anchors and aliases, with which a small text grows without bound, and explicit tags."""
    if not any(sign in text for sign in "&*!"):
        return
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
            raise InputError(
                f"line {token.start_mark.line + 2}: anchors, aliases and tags of YAML are not read; write the value"
            )


def _where(error: Any) -> tuple[int, str]:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
    return (mark.line + 2 if mark is not None else 2), " ".join(str(reason).split())[:120]


def _plain(node: Any, yaml: Any, depth: int) -> Any:
    """Turn YAML nodes into text, lists and dictionaries; of two equal keys the first counts."""
    if depth > _MAX_DEPTH:
        raise InputError(f"line {node.start_mark.line + 2}: the front matter is nested too deeply; write plain fields")
    if isinstance(node, yaml.ScalarNode):
        return "" if node.tag.endswith(":null") else str(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, yaml, depth + 1) for item in node.value]
    found: dict[str, Any] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            found.setdefault(str(key.value), _plain(value, yaml, depth + 1))
    return found


def _by_lines(text: str) -> tuple[Values, dict[str, int]]:
    """Read ``key: value`` lines at the margin; see :func:`steelyard.agents.goskills.skill.parse_skill`."""
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    key = ""
    for number, line in enumerate(text.split("\n"), 2):
        start = _FIELD.fullmatch(line)
        if start:
            key = start[1] if start[1] not in values else ""
            if key:
                values[key], lines[key] = _unquoted(start[2] or ""), number
        elif key and line.strip():
            _continue(values, key, line)
    return values, lines


def _continue(values: Values, key: str, line: str) -> None:
    item = _ITEM.fullmatch(line)
    value = values[key]
    if item and (isinstance(value, list) or not value):
        values[key] = [*(value or []), _unquoted(item[1])]
    elif line[0] in " \t" and isinstance(value, str):
        begun = "" if value in ("|", ">", "|-", ">-") else value
        values[key] = f"{begun} {line.strip()}".strip()


def _unquoted(value: str) -> str:
    stripped = value.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] and stripped[0] in "\"'":
        return stripped[1:-1]
    return stripped
