"""SKILL.md files from strangers: what is read, what is listed, what is refused, and that nothing else is lost."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skills_ref import validate

from steelyard.agents.goskills.folder import MAX_SKILL_BYTES, read_folder
from steelyard.agents.goskills.frontmatter import MAX_FRONT_MATTER
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.skill import Finding, Skill, SkillFormatError, parse_skill
from steelyard.errors import InputError


def text_of(name="alpha", description="Reads CSV files. Use when there is a CSV.", extra="", body="# Alpha\n\nText."):
    return f"---\nname: {name}\ndescription: {description}\n{extra}---\n\n{body}\n"


def put(root: Path, place: str, content: str | bytes) -> Path:
    path = root / place / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_plain_file():
    extra = (
        "license: MIT\nallowed-tools: Read, Bash\ntags:\n  - tables\nversion: 1.10\n"
        "metadata:\n  author: someone\n  inputs: [csv, '.TSV']\n  nested:\n    deep: 2024-01-01\n"
    )
    skill, found = parse_skill(text_of(extra=extra), "a/alpha/SKILL.md", folder="alpha", source="a")
    assert not found
    assert skill == Skill(
        "alpha", "Reads CSV files. Use when there is a CSV.", "# Alpha\n\nText.", "a/alpha/SKILL.md", "a",
        ("csv", ".TSV"), (), ("tables",), ("Read", "Bash"), "MIT",
        {"allowed-tools": "Read, Bash", "tags": "tables", "version": "1.10", "metadata.author": "someone",
         "metadata.inputs": "csv, .TSV", "metadata.nested.deep": "2024-01-01"},
    )  # fmt: skip
    assert skill.card == "alpha. Reads CSV files. Use when there is a CSV."
    assert skill.plain_name == "alpha"


def test_a_byte_order_mark_windows_lines_and_a_folded_description():
    text = "\ufeff---\r\nname: a\r\ndescription: >\r\n  one\r\n  two\r\n---\r\nbody\r\n"
    skill, found = parse_skill(text)
    assert (skill.description, skill.body, found) == ("one two", "body", [])


def test_an_unquoted_colon_is_read_line_by_line_and_listed():
    text = text_of(description="Handles data: CSV, TSV", extra="tags:\n- one\n- 'two'\nlicense: \"MIT\"\n")
    skill, found = parse_skill(text, "x/SKILL.md")
    assert skill.description == "Handles data: CSV, TSV"
    assert (skill.tags, skill.license) == (("one", "two"), "MIT")
    assert len(found) == 1
    assert found[0][:2] == ("x/SKILL.md", 3)
    assert "line by line" in found[0].message
    continued, _ = parse_skill("---\nname: b\nname: c\ndescription: >\n  a: b: c\n  goes on\n: :\n---\n")
    assert (continued.name, continued.description) == ("b", "a: b: c goes on")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("# no front matter", 1, "no front matter"),
        ("---\nname: a\ndescription: b\n", 1, "not closed"),
        ("---\nname: a\ndescription: " + "x" * MAX_FRONT_MATTER + "\n---\n", 1, "more than 16384"),
        ("---\n---\n", 2, "no fields"),
        ("---\n- a\n---\n", 2, "no fields"),
        ("---\n: : :\n  ]\n---\n", 2, "no YAML"),
        ("---\nname: a\n---\n", 1, "'description' is missing"),
        ("---\ndescription: a\nname:\n---\n", 3, "'name' is empty"),
        ("---\nname: [a]\ndescription: b\n---\n", 2, "'name' is not text"),
        ("---\nname: a\ndescription: &x b\n---\n", 3, "anchors, aliases and tags"),
        ("---\nname: a\ndescription: b\nz: !!python/object/apply:os.system [x]\n---\n", 4, "anchors, aliases and tags"),
        ("---\nname: ../a\ndescription: b\n---\n", 2, "cannot be used"),
        ('---\nname: "a\\e[31m"\ndescription: b\n---\n', 2, "cannot be used"),
        ("---\nname: a\ndescription: b\nz: " + "[" * 8 + "]" * 8 + "\n---\n", 4, "nested too deeply"),
        ("---\nname: a\ndescription: b\nz: " + "[" * 4000 + "\n---\n", 2, "nested too deeply"),
        ("---\nname: a\ndescription: b\nz:\n " + "- " * 5000 + "a\n---\n", 2, "nested too deeply"),
    ],
)
def test_what_costs_the_skill(text, line, part):
    with pytest.raises(SkillFormatError, match=rf"^p/SKILL.md, line {line}: ") as caught:
        parse_skill(text, "p/SKILL.md")
    assert part in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "description", "folder", "parts"),
    [
        ("Alpha", "x", "Alpha", ["not made of a-z"]),
        ("a--b", "x", "", ["not made of a-z"]),
        ("-a", "x", "-a", ["not made of a-z"]),
        ("a" * 65, "x", "a" * 65, ["65 characters"]),
        ("alpha", "x", "beta", ["differs from its folder 'beta'"]),
        ("alpha", "x" * 1025, "alpha", ["1025 characters"]),
        ("Alpha", "x" * 1025, "beta", ["not made", "differs", "1025"]),
    ],
)
def test_what_breaks_the_format_is_listed_and_strict_raises(tmp_path, name, description, folder, parts):
    _, found = parse_skill(text_of(name, description), "p", folder=folder)
    assert len(found) == len(parts)
    assert all(part in finding.message and finding.line for part, finding in zip(parts, found, strict=True))
    put(tmp_path, folder or "f", text_of(name, description))
    with pytest.raises(SkillFormatError, match=r"SKILL.md, line \d: "):
        SkillLibrary.from_dir(tmp_path, strict=True)
    assert len(SkillLibrary.from_dir(tmp_path)) == 1


BAD = {
    "good": text_of("good"),
    "other": text_of("other"),
    "none": "# nothing",
    "binary": b"---\nname: binary\n\0---",
    "latin": b"---\nname: latin\ndescription: caf\xe9\n---\n",
    "huge": b"---\nname: huge\ndescription: x\n---\n" + b"x" * MAX_SKILL_BYTES,
    "alias": "---\nname: alias\ndescription: &a [*a]\n---\n",
}


def test_one_bad_file_never_loses_the_others(tmp_path):
    for name, content in BAD.items():
        put(tmp_path, name, content)
    library = SkillLibrary.from_dir(tmp_path)
    assert [skill.name for skill in library.skills] == ["good", "other"]
    lost = {problem.path: problem for problem in library.problems}
    assert set(lost) == {f"{name}/SKILL.md" for name in BAD if name not in ("good", "other")}
    assert all(problem.lost for problem in library.problems)
    assert (lost["latin/SKILL.md"].line, lost["binary/SKILL.md"].line, lost["huge/SKILL.md"].line) == (3, 3, 0)
    assert "0xe9 is not UTF-8" in str(lost["latin/SKILL.md"])
    assert str(lost["huge/SKILL.md"]).startswith("huge/SKILL.md: it has more than")
    with pytest.raises(SkillFormatError, match=r"alias/SKILL\.md, line 3"):
        SkillLibrary.from_dir(tmp_path, strict=True)


def test_nothing_left_names_the_first(tmp_path):
    put(tmp_path, "none", "# nothing")
    with pytest.raises(
        SkillFormatError, match=r"no skill could be read: none/SKILL.md, line 1: there is no front matter"
    ):
        SkillLibrary.from_dir(tmp_path)
    (tmp_path / "none" / "SKILL.md").unlink()
    with pytest.raises(InputError, match=r"there is no SKILL.md below"):
        SkillLibrary.from_dir(tmp_path)
    with pytest.raises(InputError, match="path must be a folder"):
        SkillLibrary.from_dir(tmp_path / "nowhere")


def test_links_stay_inside(tmp_path):
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(root, "real", text_of("real"))
    put(outside, "secret", text_of("secret"))
    for name, target in (
        ("out", outside / "secret" / "SKILL.md"),
        ("gone", tmp_path / "no"),
        ("in", root / "real" / "SKILL.md"),
    ):
        (root / name).mkdir()
        (root / name / "SKILL.md").symlink_to(target)
    (root / "loop").mkdir()
    (root / "loop" / "SKILL.md").symlink_to(root / "loop" / "SKILL.md")
    (root / "folder").symlink_to(outside)
    (root / "pipe").mkdir()
    os.mkfifo(root / "pipe" / "SKILL.md")
    found = read_folder(root)
    messages = {finding.path: finding.message for finding in found.findings}
    assert "leads out" in messages["out/SKILL.md"]
    assert "cannot be read" in messages["gone/SKILL.md"]
    assert "cannot be read" in messages["loop/SKILL.md"]
    assert "no regular file" in messages["pipe/SKILL.md"]
    assert "was not walked" in messages["folder"]
    assert "differs from its folder" in messages["in/SKILL.md"]
    assert {skill.path for skill in found.skills} == {"real/SKILL.md", "in/SKILL.md"}
    with pytest.raises(SkillFormatError, match="folder: the folder is a link"):
        read_folder(root, strict=True)


def test_skipped_folders_and_the_lower_case_name(tmp_path):
    put(tmp_path, ".git/x", text_of("x"))
    put(tmp_path, "node_modules/y", text_of("y"))
    lower = put(tmp_path, "z", text_of("z"))
    lower.rename(lower.with_name("skill.md"))
    assert [skill.path for skill in SkillLibrary.from_dir(tmp_path).skills] == ["z/skill.md"]


def test_a_folder_that_cannot_be_walked(tmp_path, monkeypatch):
    put(tmp_path, "good", text_of("good"))

    def walk(root, onerror):
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "shut")))
        yield str(tmp_path / "good"), [], ["SKILL.md"]

    monkeypatch.setattr(os, "walk", walk)
    library = SkillLibrary.from_dir(tmp_path)
    assert (len(library), str(library.problems[0])) == (1, "shut: the folder cannot be read (Permission denied)")


def test_too_many_files(tmp_path, monkeypatch):
    monkeypatch.setattr("steelyard.agents.goskills.folder.MAX_SKILL_FILES", 1)
    for name in "abc":
        put(tmp_path, name, text_of(name))
    with pytest.raises(InputError, match="more than 1 skills"):
        SkillLibrary.from_dir(tmp_path)


def test_names_of_several_sources_are_told_apart(tmp_path):
    put(tmp_path, "one/pdf", text_of("pdf", "first"))
    put(tmp_path, "two/deep/pdf", text_of("pdf", "second"))
    put(tmp_path, "two/only", text_of("only"))
    put(tmp_path, "pdf", text_of("pdf", "top"))
    library = SkillLibrary.from_dir(tmp_path)
    assert [skill.name for skill in library.skills] == ["one/pdf", "only", "pdf", "two/pdf"]
    assert library["two/pdf"].description == "second"
    assert library["two/pdf"].plain_name == "pdf"
    assert not library.problems


def test_a_name_twice_in_one_source_names_both_paths(tmp_path):
    for place in ("b/pdf", "a/pdf"):
        put(tmp_path, place, text_of("pdf", place))
    library = SkillLibrary.from_dir(tmp_path, namespace="mine")
    assert [skill.description for skill in library.skills] == ["a/pdf"]
    assert "a/pdf/SKILL.md and b/pdf/SKILL.md; the first was kept" in library.problems[0].message
    with pytest.raises(
        SkillFormatError, match=r"twice in source 'mine': a/pdf/SKILL.md and b/pdf/SKILL.md; rename one"
    ):
        SkillLibrary.from_dir(tmp_path, namespace="mine", strict=True)


def test_joined_libraries_and_look_up():
    one = SkillLibrary.from_skills([Skill("pdf", "a", source="x"), Skill("csv", "b", source="x")])
    two = SkillLibrary.from_skills([Skill("pdf", "c", source="y")])
    joined = SkillLibrary.join([one, two])
    assert [skill.name for skill in joined.skills] == ["csv", "x/pdf", "y/pdf"]
    assert SkillLibrary.join([joined, SkillLibrary([])]).skills == joined.skills
    assert (len(joined), "csv" in joined, "pdf" in joined, joined.index("y/pdf")) == (3, True, False, 2)
    with pytest.raises(InputError, match=r"no skill is called 'x/pfd'. Did you mean 'x/pdf'"):
        joined.index("x/pfd")
    with pytest.raises(SkillFormatError, match="twice in source 'x'"):
        SkillLibrary.join([one, one])
    with pytest.raises(InputError, match="two skills have the name 'csv'"):
        SkillLibrary([Skill("csv", "a"), Skill("csv", "b")])
    with pytest.raises(InputError, match="call build_graph"):
        joined.build_groups()


@pytest.mark.parametrize(
    ("name", "values"), [("description", ("a", " ")), ("body", ("a", "b", None)), ("printable", ("a\n", "b"))]
)
def test_a_skill_made_in_python_is_checked(name, values):
    with pytest.raises(InputError, match=name):
        Skill(*values)


def test_findings_print_with_and_without_a_line():
    assert str(Finding("a", 3, "x")) == "a, line 3: x"
    assert str(Finding("a", 0, "x")) == "a: x"


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_a_skill_or_one_sentence(tmp_path_factory, content, fenced):
    root = tmp_path_factory.mktemp("any")
    put(root, "good", text_of("good"))
    put(root, "any", b"---\nname: any\ndescription: " + content + b"\n---\n" if fenced else content)
    library = SkillLibrary.from_dir(root)
    assert "good" in library
    assert len(library) == 2 or (len(library.problems) == 1 and library.problems[0].lost)
    assert all("\n" not in str(problem) for problem in library.problems)


@given(st.text(max_size=200))
def test_any_description_survives_the_line_reader_or_is_refused(description):
    try:
        skill, _ = parse_skill(f"---\nname: a\ndescription: {description}\n---\nbody")
    except SkillFormatError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right
    else:
        assert skill.description == " ".join(skill.description.split())


HAND_MADE = {
    "fine": text_of("fine"),
    "Upper": text_of("Upper"),
    "long": text_of("long", "x" * 1025),
    "elsewhere": text_of("not-here"),
    "double": text_of("double--hyphen"),
    "edge-": text_of("edge-"),
    "nothing": "no front matter",
    "open": "---\nname: open\ndescription: x\n",
    "nameless": "---\ndescription: x\n---\n",
    "mute": "---\nname: mute\n---\n",
    "colon": text_of("colon", "a: b: c"),
    "list": "---\n- a\n---\n",
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_the_reference_validator_agrees_on_made_up_files(tmp_path, name):
    path = put(tmp_path, name, HAND_MADE[name])
    assert bool(validate(path.parent)) == bool(_own_findings(tmp_path))


def test_the_reference_validator_agrees_on_the_real_files(skill_folders):
    """All 287; a field beside the six of the format is no finding of ours, since it costs nobody anything."""
    seen = {}
    for folder in skill_folders.values():
        library = SkillLibrary.from_dir(folder)
        odd = {problem.path for problem in library.problems}
        for skill in library.skills:
            errors = [error for error in validate((folder / skill.path).parent) if "Unexpected fields" not in error]
            assert bool(errors) == (skill.path in odd), (skill.path, errors)
            seen[skill.path] = bool(errors)
    assert (len(seen), sum(seen.values())) == (287, 2)


def test_the_real_files_are_read_whole(skill_folders):
    libraries = [SkillLibrary.from_dir(folder, namespace=name) for name, folder in skill_folders.items()]
    joined = SkillLibrary.join(libraries)
    assert [len(library) for library in libraries] == [94, 181, 12]
    assert len({skill.name for skill in joined.skills}) == len(joined) == 287
    assert [problem.path.split("/")[0] for problem in joined.problems] == ["claude-api", "database-design"]
    with pytest.raises(SkillFormatError, match=r"claude-api/SKILL\.md, line 3: the description has 1068 characters"):
        SkillLibrary.from_dir(skill_folders["anthropic_skills"], strict=True)
    shuffled = list(joined.skills)
    random.Random(3).shuffle(shuffled)
    assert SkillLibrary.from_skills(shuffled).skills == joined.skills


def _own_findings(root):
    try:
        return SkillLibrary.from_dir(root).problems
    except SkillFormatError as error:
        return [error]
