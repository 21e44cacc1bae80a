"""The documentation is run: snippets, commands, links, generated pages."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer

import steelyard
from steelyard import catalog
from steelyard.bench import Outcome
from steelyard.cli.main import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# file: (\S+)\n")


class Block(NamedTuple):
    """A fenced block of a page; ``line`` is that of its fence."""

    language: str
    code: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = [
        Block(match["language"], textwrap.dedent(match["code"]), text[: match.start()].count("\n") + 1)
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def run(code: str, name: str, line: int, namespace: dict[str, Any]) -> None:
    # The blank lines make a traceback point into the page.
    exec(compile("\n" * line + code, name, "exec", dont_inherit=True), namespace)


def run_doctest(code: str, name: str, line: int, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(code, namespace, name, name, line)
    test.globs = namespace
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a reader who has written every file that the pages ask for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("STEELYARD_STORE", raising=False)
    for block in [block for page in PAGES for block in blocks(page, "python")]:
        if named := FILE.match(block.code):
            path = tmp_path / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
            for folder in path.relative_to(tmp_path).parents[:-1]:
                (tmp_path / folder / "__init__.py").touch()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("my_methods", "my_task")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python", "pycon")], ids=lambda page: page.stem
)
def test_snippets_run(page: Path, reader: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python", "pycon"):
        if FILE.match(block.code):
            continue
        if block.language == "pycon":
            run_doctest(block.code, str(page), block.line, namespace)
        else:
            run(block.code, str(page), block.line, namespace)


@pytest.mark.parametrize("row", catalog.METHODS, ids=lambda row: row.id)
def test_usage_of_each_card_runs(row: catalog.Entry, reader: Path) -> None:
    run(catalog.load_card(row.id).usage, f"the usage of {row.id}", 0, {"__name__": "__main__"})


def test_own_bench_is_judged(reader: Path) -> None:
    weighing = steelyard.weigh("my_methods.trimmed_mean")
    outcomes = {verdict.claim.id: verdict.outcome for verdict in weighing.verdicts}
    assert outcomes == {"beats_mean": Outcome.BORNE_OUT, "like_median": Outcome.NO_DIFFERENCE}


def test_own_bench_says_what_is_wrong_with_a_column(reader: Path) -> None:
    with pytest.raises(steelyard.errors.InputError, match="'name' holds text"):
        steelyard.weigh("my_methods.trimmed_mean", data={"name": ["a", "b"]}, column="name")


def commands() -> dict[str, Any]:
    """Every command by its words after ``steelyard``."""

    def below(group: Any, before: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, f"{before}{name} ")
            else:
                yield f"{before}{name}", command

    return dict(below(typer.main.get_command(app), ""))


def shown_commands() -> list[tuple[str, str]]:
    """(page, line) of every ``steelyard`` command line in a console block."""
    return [
        (page.name, line.removeprefix("$ "))
        for page in PAGES
        for block in blocks(page, "console")
        for line in block.code.splitlines()
        if line.removeprefix("$ ").startswith("steelyard ")
    ]


def test_pages_show_commands() -> None:
    assert len(shown_commands()) >= 12


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_command_lines_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    known = commands()
    name = next((joined for n in (3, 2) if (joined := " ".join(words[:n])) in known), words[0])
    assert name in known, f"{page}: there is no command in: {line}"
    options = {option for param in known[name].params for option in (*param.opts, *param.secondary_opts)}
    used = {word.partition("=")[0] for word in words if word.startswith("-")}
    method = words[1] if name == "weigh" else None
    if method in {row.id for row in catalog.METHODS}:
        model = catalog.load_bench(method).options
        options |= {f"--{field.replace('_', '-')}" for field in model.model_fields} if model else set()
    elif method is not None and "." in method:
        options |= {"--column"}  # of the bench that the page on benches builds
    assert used <= options, f"{page}: unknown options {used - options} in: {line}"


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_conf", DOCS / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_method_has_a_page_made_from_its_card(conf: ModuleType, tmp_path: Path) -> None:
    written = {path.relative_to(tmp_path).as_posix() for path in conf.write_generated(tmp_path)}
    index = (tmp_path / "methods/index.md").read_text(encoding="utf-8")
    for row in catalog.METHODS:
        assert f"methods/{row.id}.md" in written
        assert f"]({row.id}.md)" in index
        assert f"\n{row.id}\n" in index, "missing in the table of contents"
        page = (tmp_path / f"methods/{row.id}.md").read_text(encoding="utf-8")
        card = catalog.load_card(row.id)
        assert page.startswith(f"# {card.name}\n")
        for decision in card.decisions:
            assert f"| {decision.id} |" in page
        for claim in card.claims:
            assert claim.metric in page


def test_generated_pages_keep_their_time_when_nothing_changed(conf: ModuleType, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in conf.write_generated(tmp_path)}
    assert {path: path.stat().st_mtime_ns for path in conf.write_generated(tmp_path)} == before


def test_commands_page_has_every_command_with_its_example(conf: ModuleType) -> None:
    page = conf.commands_page()
    for name, command in commands().items():
        assert f"## `steelyard {name}`" in page
        assert command.epilog in page
        for param in command.params:
            shown = param.metavar or param.name.upper() if param.param_type_name == "argument" else param.opts[0]
            assert param.name == "help" or f"`{shown}`" in page or f"[{shown}]" in page


def test_api_pages_have_every_public_name(conf: ModuleType) -> None:
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    for name in {*steelyard.__all__} - {"__version__"}:
        assert f"steelyard.{name}\n" in page
    for name in steelyard.bench.__all__:
        assert f"steelyard.bench.{name}\n" in page
    for name in steelyard.data.__all__:
        assert f"steelyard.data.{name}\n" in page
    for room in {row.room for row in catalog.METHODS}:
        for name in getattr(steelyard, room).__all__:
            assert f"steelyard.{room}.{name}\n" in conf.room_page(room)


def slugs(text: str) -> set[str]:
    """Anchors of the headings, as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def generated_names() -> set[str]:
    rooms = {f"generated/{row.room}.md" for row in catalog.METHODS}
    return {"methods/index.md", "generated/commands.md", *rooms, *(f"methods/{row.id}.md" for row in catalog.METHODS)}


def test_generated_names_are_those_of_conf(conf: ModuleType) -> None:
    assert set(conf.generated_pages()) == generated_names()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    generated = generated_names() if page.parent == DOCS else ()  # a reader of the repository has none of them
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        if name in generated:
            continue
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name} links to {target}, which is not there"
        heading_there = not anchor or anchor in slugs(path.read_text(encoding="utf-8"))
        assert heading_there, f"{page.name} links to {target}, which has no such heading"


def test_readme_is_short_and_has_its_picture() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert "docs/assets/report.png" in readme
    for row in catalog.METHODS:
        assert row.id in readme


def test_verdicts_page_names_every_outcome() -> None:
    rule = (DOCS / "how-verdicts-are-made.md").read_text(encoding="utf-8").partition("## The rule")[2]
    for outcome in Outcome:
        assert f"| *{outcome}* |" in rule


def test_what_own_data_need_is_what_is_said() -> None:
    from steelyard.agents.goskills import user as skills
    from steelyard.agents.groupmembench import questions, tasks, thread_recall
    from steelyard.agents.groupmembench import user as chats
    from steelyard.fed.gadaphead import user as clients
    from steelyard.graphs.graphuat import user as graphs
    from steelyard.graphs.graphuat.config import Config as GraphConfig

    page = " ".join((DOCS / "bring-your-own-data.md").read_text(encoding="utf-8").split())
    least = tasks.USER_PARTS * chats._LEAST
    messages, words = thread_recall.LEAST_MESSAGES, thread_recall.LEAST_WORDS
    assert f"a thread of at least {messages} messages whose first has at least {words} words" in page
    assert f"it takes at least {least} of them" in page
    assert f"needs questions, at least {least}:" in page
    assert f"At most {chats.LARGEST:,} messages" in page
    assert f"At least {skills.FOLDS} tasks are needed" in page
    assert f"with {skills._LEAST_LEFT} letters of description left" in page
    assert all(f"`{kind}`" in page for kind in questions.QUESTION_TYPES)
    assert f"At least {graphs._LEAST} nodes need a label" in page
    train, val = (round(100 * part) for part in graphs._PARTS)
    assert f"draws {train}, {val} and {100 - train - val} % of the nodes with a label" in page
    assert f"judged on up to {GraphConfig().judged} test nodes" in page
    assert f"At least {clients._LEAST_CLIENTS} clients with at least {clients._LEAST_ROWS} rows each" in page
    assert f"At most {clients._MOST_CLIENTS:,} clients and {clients._MOST_FEATURES} features" in page
    for section, options in (("A graph", graphs.Options), ("A table with a column of clients", clients.Options)):
        told = (DOCS / "bring-your-own-data.md").read_text(encoding="utf-8").partition(f"## {section}, with")[2]
        rows = re.findall(r"^\| `--([\w-]+)` \| .* \| (.*) \|$", told.partition("\n## ")[0], re.MULTILINE)
        defaults = {name: field.get_default() for name, field in options.model_fields.items()}
        assert [name.replace("-", "_") for name, _ in rows] == list(defaults)
        for name, shown in rows:
            value = defaults[name.replace("-", "_")]
            plain = f"{value:g}" if isinstance(value, float) else str(value).lower()
            assert shown.startswith(("none", "needed")) or shown.strip("`") == plain, name


def test_versions_agree() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {steelyard.__version__}\n" in citation
    assert f"## {steelyard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
