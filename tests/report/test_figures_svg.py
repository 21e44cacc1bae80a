import math
import re
import subprocess
import sys

import pytest
from builders import HOSTILE, gdro_plan, weighing

from steelyard.bench.results import Outcome
from steelyard.contracts import Arm
from steelyard.report import figures, svg
from steelyard.report.curves import mean_curve
from steelyard.report.summary import arm_summaries, primary_metric

LABELS = {"digits10": HOSTILE + "$\\frac{1$ 税", "synthetic20": "b"}


def check(markup):
    assert markup.startswith("<svg viewBox=")
    assert markup.endswith("</svg>")
    assert not re.search(r"<(script|style|image|foreignObject|metadata|a)\b", markup)
    assert not re.search(r"#010[12]|https?:|url\(|\son\w+=", re.sub(r">[^<]*<|aria-label=\"[^\"]*\"", "><", markup))
    for target in re.findall(r'href="?#(\w+)', markup):
        assert f'id="{target}"' in markup
    return markup


def verdicts_of(results, claim):
    return [v for v in results.verdicts if v.claim.id == claim and v.estimate is not None]


@pytest.mark.parametrize("claim", ["anytime", "oracle", "rb"])
def test_interval_figure(small, claim):
    markup = check(figures.interval_figure(verdicts_of(small, claim), LABELS, "x"))
    assert "for the claim" in markup
    assert "&lt;script&gt;" in markup


def test_interval_figure_of_one_seed_and_of_equal_differences(small):
    first = verdicts_of(small, "anytime")[0]
    unknown = first.model_copy(
        update={"low": -math.inf, "high": math.inf, "differences": (0.3,), "outcome": Outcome.INCONCLUSIVE}
    )
    check(figures.interval_figure([unknown], LABELS, "x"))
    zero = first.model_copy(update={"estimate": 0.0, "low": 0.0, "high": 0.0, "differences": (0.0,) * 6})
    zero = zero.model_copy(update={"claim": first.claim.model_copy(update={"scale": "difference", "margin": 0.0})})
    check(figures.interval_figure([zero], LABELS, "x"))


def test_rows_of_very_different_size_share_one_axis(small):
    base = verdicts_of(small, "anytime")[0]
    claim = base.claim.model_copy(update={"scale": "difference", "margin": 0.0})
    near = base.model_copy(update={"claim": claim, "estimate": 0.01, "low": 0.0, "high": 0.02, "differences": (0.01,)})
    far = near.model_copy(update={"estimate": 50.0, "low": 40.0, "high": 60.0, "differences": (50.0,)})
    markup = check(figures.interval_figure([near, far], LABELS, "x"))
    assert ">0.01<" in markup
    assert ">1<" in markup


def test_scatter_and_curves(small):
    styles = figures.arm_styles(small.arms)
    items = [item for item in arm_summaries(small, "digits10") if item.interval and item.cost]
    markup = check(figures.scatter_figure(items, styles, primary_metric(small), "CPU", "d", "s"))
    for item in items:
        tail = f" {item.arm.role}" if item.arm.role in ("floor", "ceiling") else ""
        assert f">{styles[item.arm.name].letter}{tail}</text>" in markup
    rows = [row for row in small.rows if row.task == "digits10" and row.state == "done"]
    curves = {
        item.arm.name: mean_curve([row for row in rows if row.arm == item.arm.name], small.traces[0], 30)
        for item in items
    }
    markup = check(figures.trace_figure(curves, styles, small.traces[0], frozenset(["fsq"]), "d", "t"))
    assert markup.count("var(--a1)") >= 3  # line, band, letter


def test_scatter_with_chance_line_and_single_seed():
    plan = gdro_plan(1)
    plan.seeds = 1
    plan.primary = plan.primary.model_copy(update={"chance": 0.2})
    results = weighing(plan)
    items = [item for item in arm_summaries(results, "digits10") if item.interval and item.cost]
    check(figures.scatter_figure(items, figures.arm_styles(results.arms), plan.primary, "CPU", "d", "s"))


def test_forty_arms_have_letters_and_dashes_of_their_own():
    arms = [Arm(name=str(index), label="", role="baseline") for index in range(40)]
    styles = figures.arm_styles(arms)
    assert len({style.letter for style in styles.values()}) == 40
    assert styles["27"].letter == "AB"
    assert len({(style.colour, str(style.dash)) for style in styles.values()}) == 24


def test_equal_figures_are_equal_bytes_and_ids_of_two_do_not_meet(small):
    one, same, other = (
        figures.interval_figure(verdicts_of(small, "anytime"), LABELS, salt) for salt in ("x", "x", "y")
    )
    assert one == same
    assert not set(re.findall(r' id="(\w+)"', one)) & set(re.findall(r' id="(\w+)"', other))


def test_matplotlib_settings_of_the_user_are_neither_used_nor_changed(small):
    import matplotlib

    expected = figures.interval_figure(verdicts_of(small, "anytime"), LABELS, "x")
    with matplotlib.rc_context({"font.size": 33, "axes.facecolor": "red", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert figures.interval_figure(verdicts_of(small, "anytime"), LABELS, "x") == expected
        assert dict(matplotlib.rcParams) == before


def test_pyplot_is_never_imported():
    code = (
        "import sys\nfrom steelyard.report import svg\n"
        "svg.render(lambda f: f.add_axes((0.1, 0.1, 0.8, 0.8)).plot([1, 2]), 100, 80, 's', 'l')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sharing_keeps_every_reference(small):
    made = [figures.interval_figure(verdicts_of(small, c), LABELS, c) for c in ("anytime", "rb", "oracle", "wait")]
    shared, sheet, defs = svg.share(made, least=2)
    page = f"<style>{sheet}</style><svg><defs>{defs}</defs></svg>{''.join(shared)}"
    ids = re.findall(r' id="(\w+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"href=#(\w+)", page)) <= set(ids)
    assert set(re.findall(r"class=(\w+)", page)) <= set(re.findall(r"\.(\w+)\{", sheet))
    assert len(page) < sum(map(len, made))


def test_a_ceiling_far_from_all_arms_is_left_out_of_the_chart(small):
    items = [item for item in arm_summaries(small, "digits10") if item.interval and item.cost]
    assert figures.off_chart(items) == []
    far = [
        item._replace(interval=item.interval._replace(estimate=50.0)) if item.arm.role == "floor" else item
        for item in items
    ]
    assert [item.arm.role for item in figures.off_chart(far)] == ["floor"]
    markup = check(figures.scatter_figure(far, figures.arm_styles(small.arms), primary_metric(small), "CPU", "d", "s"))
    assert "ceiling</text>" in markup
    assert "floor</text>" not in markup


def test_quality_over_many_decades_is_drawn_on_a_logarithmic_axis(small):
    items = [item for item in arm_summaries(small, "digits10") if item.interval and item.cost]
    wide = [
        item._replace(interval=item.interval._replace(estimate=10.0**-n, low=0.9 * 10.0**-n, high=1.1 * 10.0**-n))
        for n, item in enumerate(items)
    ]
    markup = check(figures.scatter_figure(wide, figures.arm_styles(small.arms), primary_metric(small), "CPU", "d", "s"))
    assert "e−" in markup
