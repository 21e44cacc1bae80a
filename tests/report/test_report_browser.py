from pathlib import Path

import builders
import pytest

from steelyard.report.html import write_report

pytestmark = pytest.mark.browser

CONTRAST = """() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).slice(0, 3).map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
  const back = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (rgb(c).length < 4 || rgb(c)[3] > 0) return c; } return 'rgb(255,255,255)'; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') || !e.offsetParent || e.closest('.vh')) continue;
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const a = light(getComputedStyle(e).color), b = light(back(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([ratio.toFixed(2), e.tagName, e.className, e.textContent.trim().slice(0, 40)]);
  }
  const page = light(back(document.body)), paper = document.querySelector('article');
  for (const t of document.querySelectorAll('figure svg text')) {
    const a = light(getComputedStyle(t).fill), b = light(back(paper));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([ratio.toFixed(2), 'text', '', t.textContent]);
  }
  return [bad.slice(0, 8), page];
}"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    made = {
        "three": builders.three_methods(2),
        "hostile": [builders.hostile()],
        "unfinished": [builders.unfinished()],
    }
    return {name: write_report(results, folder / f"{name}.html").as_uri() for name, results in made.items()}


@pytest.mark.parametrize("name", ["three", "hostile", "unfinished"])
@pytest.mark.parametrize("width", [1280, 768, 360])
def test_no_sideways_scroll_no_error_no_request(open_page, files, name, width):
    page = open_page(files[name], width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll,svg,pre,.vh,.skip') &&"
        " e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className).slice(0, 5)"
    )
    assert wide == []
    assert page.trouble == []
    assert page.requests == [files[name]]


def test_a_picture_that_scrolls_sideways_says_so_on_a_small_screen(open_page, files):
    script = """[...document.querySelectorAll('.diagram')].map(d => { const box = d.querySelector('.scroll');
      const cue = d.querySelector('.sideways');
      return [box.scrollWidth > box.clientWidth, !!cue && getComputedStyle(cue).display !== 'none']; })"""
    small = open_page(files["three"], width=360).evaluate(script)
    assert small
    assert all(scrolls == cued for scrolls, cued in small)
    assert [True, True] in small
    assert all(not cued for _, cued in open_page(files["three"], width=1280).evaluate(script))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_contrast_and_dark_mode(open_page, files, dark, width):
    page = open_page(files["three"], width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    bad, light = page.evaluate(CONTRAST)
    assert bad == []
    assert (light < 0.05) is dark


def test_figures_follow_the_colours_of_dark_mode(open_page, files):
    script = "getComputedStyle(document.querySelector('figure svg text')).fill"
    day, night = (open_page(files["three"], dark=dark).evaluate(script) for dark in (False, True))
    assert day != night


def test_hostile_text_does_not_run(open_page, files):
    page = open_page(files["hostile"])
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned === undefined")
    assert page.evaluate("document.images.length") == 0
    assert "<script>window.pwned=1</script>" in page.inner_text("main")


def test_even_injected_markup_could_not_run(open_page, files):
    page = open_page(files["three"])
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned=1\">')")
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned === undefined")


def test_every_figure_has_its_table(open_page, files):
    page = open_page(files["three"])
    assert page.locator("figure").count() > 20
    assert page.evaluate(
        "[...document.querySelectorAll('figure')].every(f => f.querySelector('details table tbody tr'))"
    )
    first = page.locator("figure details").first
    first.locator("summary").click()
    assert first.locator("table").is_visible()


def test_ledger_is_filtered_by_source(open_page, files):
    page = open_page(files["three"])
    ledger = page.locator("#m1-ledger")
    assert ledger.locator("li:visible").count() == 6
    ledger.get_by_text("reconstruction 1", exact=True).click()
    assert ledger.locator("li:visible").count() == 1
    assert "reconstruction" in ledger.locator("li:visible").inner_text()
    ledger.get_by_text("all 6", exact=True).click()
    assert ledger.locator("li:visible").count() == 6


def test_rows_can_be_saved(open_page, files):
    page = open_page(files["three"])
    page.locator("#m1-raw summary").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as CSV").first.click()
    lines = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("task,arm,seed,state")
    assert len(lines) == 1 + 200
    assert len({line.count(",") for line in lines[1:2]}) == 1


def test_saved_text_starts_no_formula(open_page, files):
    page = open_page(files["hostile"])
    page.locator("#m1-raw summary").click()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as CSV").click()
    text = Path(waiting.value.path()).read_text(encoding="utf-8")
    assert not any(line.startswith(("=", "@", "+")) for line in text.splitlines())


def test_print_opens_what_is_folded(open_page, files):
    page = open_page(files["three"])
    page.emulate_media(media="print")
    heights = page.evaluate(
        "[...document.querySelectorAll('details:not(.raw)')]"
        ".map(d => d.lastElementChild.getBoundingClientRect().height)"
    )
    assert len(heights) > 20
    assert min(heights) > 0
    assert page.locator("#m1-raw .only-print").is_visible()
    assert not page.locator("nav.toc").is_visible()
    assert page.pdf(format="A4")[:4] == b"%PDF"


def test_keyboard_reaches_the_report_first(open_page, files):
    page = open_page(files["three"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
