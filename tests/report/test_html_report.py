import re
import sys
from html.parser import HTMLParser

import pytest
from builders import HOSTILE, gdro_plan, hostile, nfi_plan, no_rows, unfinished, weighing

from steelyard.errors import InputError, MissingExtraError
from steelyard.report import html, page
from steelyard.report.clean import clean, tidy

VOID = {"meta", "link", "br", "input", "use", "path", "rect", "circle"}


class Page(HTMLParser):
    """Tags with their attributes, the text, and figures with whether each holds a table."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.headings, self.figures = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "figure":
            self.figures.append(False)
        if tag == "table" and self.figures:
            self.figures[-1] = True

    handle_startendtag = handle_starttag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def three_text(three):
    return html.render_report(three)


def test_three_methods_fit_in_500_kb_with_every_row(three, three_text):
    assert len(three_text.encode()) <= 500_000
    raw = re.findall(r'<pre [^>]*data-task="[^"]*">(.*?)</pre>', three_text, re.S)
    rows = sum(len(block.splitlines()) - 1 for block in raw)
    assert rows == sum(len(results.rows) for results in three) == 1680


def test_a_small_report_holds_rows_as_tables_with_notes():
    text = html.render_report([weighing(gdro_plan(1))])
    assert text.count('<tr data-arm="') == 10
    assert "clips 2" in text


def test_rows_give_way_before_the_limit_does(three, monkeypatch):
    monkeypatch.setattr(html, "LIMIT", 1)
    text = html.render_report([weighing(gdro_plan(1))])
    assert "The rows are left out to keep this file small" in text


def test_nothing_is_loaded_from_anywhere(three_text):
    page = Page(three_text)
    for tag, attrs in page.tags:
        assert tag not in {"iframe", "img", "object", "embed", "base", "form", "video", "audio"}
        assert not any(name.startswith("on") for name in attrs)
        for name in ("src", "href", "xlink:href", "action", "srcset", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith("#") or value == "data:,"
    style = "".join(re.findall(r"<style>(.*?)</style>", three_text, re.S))
    assert not re.search(r"@import|url\(|expression", style)
    assert len(re.findall("<script", three_text)) == 1


def test_structure(three, three_text):
    page = Page(three_text)
    names = [tag for tag, _ in page.tags]
    for tag in ("main", "nav", "header", "footer"):
        assert tag in names
    assert dict(page.tags)["html"] == {"lang": "en"} or page.tags[0][1].get("lang") == "en"
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in zip(page.headings, page.headings[1:], strict=False))
    assert page.figures
    assert all(page.figures)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {attrs["href"][1:] for _, attrs in page.tags if attrs.get("href", "").startswith("#")}
    assert targets <= set(ids)
    labelled = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") == "true" for attrs in labelled)


def test_sections_stand_in_their_order(three_text):
    order = [
        "verdicts",
        "claims",
        "arms",
        "cost",
        "curves",
        "ledger",
        "paper",
        "limits",
        "environment",
        "failures",
        "raw",
    ]
    places = [three_text.index(f'<section id="m1-{name}"') for name in order]
    assert places == sorted(places)


def test_summary_counts_all_verdicts(three, three_text):
    total = sum(len(results.verdicts) for results in three)
    assert f"{total} verdicts: " in three_text


def test_equal_results_give_equal_bytes(small):
    assert html.render_report([small]) == html.render_report([small.model_copy(deep=True)])


def test_hostile_text_is_text():
    text = html.render_report([hostile()])
    page = Page(text)
    assert "img" not in {tag for tag, _ in page.tags}
    assert len(re.findall("<script", text)) == 1
    assert any(HOSTILE in data for data in page.text)
    assert "49" not in {data.strip() for data in page.text}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    assert len(text.encode()) <= 500_000


def test_unfinished_shows_progress_and_no_verdict():
    text = html.render_report([unfinished()])
    assert 'role="progressbar"' in text
    assert "120 of 180 cells are in" in text
    for absent in ('id="m1-verdicts"', 'id="m1-arms"', "<figure"):
        assert absent not in text
    assert "No cell has been planned yet." in html.render_report([no_rows()])


def test_finished_and_unfinished_side_by_side(small):
    text = html.render_report([small, unfinished()])
    assert "1 not finished" in text
    assert 'id="m1-verdicts"' in text
    assert 'id="m2-progress"' in text


def test_finished_without_any_verdict_value_or_trace(small):
    empty = small.model_copy(
        update={
            "verdicts": (),
            "traces": (),
            "rows": tuple(
                row.model_copy(update={"state": "failed", "metrics": {}, "traces": {}, "error": None, "cpu_s": None})
                for row in small.rows
            ),
        }
    )
    text = html.render_report([empty])
    assert "No claim could be judged." in text
    assert "no error was recorded" in text
    assert "<figure" not in text


def test_write_makes_folders_and_replaces_whole_files(tmp_path, small):
    path = html.write_report([small], tmp_path / "new" / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    html.write_report([unfinished()], path)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_bad_paths_and_empty_results_are_one_sentence(tmp_path, small):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="path: the report cannot be written to"):
        html.write_report([small], tmp_path / "file" / "report.html")
    with pytest.raises(InputError, match="at least one weighing"):
        html.render_report([])


@pytest.mark.parametrize("module", ["matplotlib", "jinja2"])
def test_missing_packages_are_named_with_the_command(small, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=f"{module} is not installed; install it with: pip install"):
        html.render_report([small])


def test_clean_keeps_the_end_of_what_is_too_long():
    assert clean("a" * 10_000 + "the error").endswith("the error")
    assert clean("a\u202eb\x1b[31m\ud800\tc\n") == "ab[31m\tc\n"
    assert clean("Größe 税 ≤") == "Größe 税 ≤"


def test_tidy_reaches_keys_and_nested_values():
    row = tidy(hostile()).rows[0]
    assert all(len(value) <= 4100 for value in row.notes.values() if isinstance(value, str))
    assert HOSTILE in row.config


def test_every_resource_gets_a_scatter_of_its_own_beside_the_cost(small):
    resource = small.metrics[1].name
    plain = page.method_page(small, "m1", 30)["scatters"]
    with_resource = page.method_page(small.model_copy(update={"resources": (resource,)}), "m1", 30)["scatters"]
    assert with_resource[: len(plain)] == plain
    added = with_resource[len(plain) :]
    assert {figure["label"] for figure in added} <= {figure["label"] for figure in plain}
    assert added
    assert all(small.metrics[1].label in figure["table"]["head"][1] for figure in added)


def test_what_follows_a_reason_in_the_ledger_starts_a_new_sentence():
    results = weighing(nfi_plan(2))
    first, second, *_ = results.card["decisions"]
    decisions = [
        {**first, "why": "It is simple", "alternatives": ["another one."]},
        {**second, "why": "Why not?", "alternatives": ["none"]},
    ]
    text = html.render_report([results.model_copy(update={"card": {**results.card, "decisions": decisions}})])
    assert re.search(r"It is simple\. Instead: another one\.[^.]", text)
    assert "Why not? Instead: none." in text
