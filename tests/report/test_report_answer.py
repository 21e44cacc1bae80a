import re

import pytest

from steelyard.contracts import Diagram, Edge, Node
from steelyard.errors import InputError
from steelyard.report.answer import Part, Table, write_answer

HOSTILE = "<script>alert(1)</script>\u202e\x00"


def _diagram():
    nodes = [
        Node(id="a", label=HOSTILE, x=0, y=0, kind="first", note=HOSTILE),
        Node(id="b", label="b", x=1, y=0, kind="second"),
        Node(id="c", label="c", x=1, y=1, kind="third"),
    ]
    legend = {"first": "features", "second": "neighbours", "third": "thin labels", "bad": "hurts"}
    return Diagram(
        name="n", title="Around a", nodes=nodes, edges=[Edge(source="b", target="a", kind="bad")], legend=legend
    )


def test_the_page_holds_everything_and_runs_nothing(tmp_path):
    table = Table(HOSTILE, ("node", "why"), (("a", HOSTILE), ("b", "its neighbours")))
    path = write_answer(
        tmp_path / "deep" / "a.html", HOSTILE, HOSTILE, [Part(HOSTILE, HOSTILE, (table,), (_diagram(),))]
    )
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page
    assert "\u202e" not in page
    assert "script-src" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    assert "its neighbours" in page
    assert page.count("&lt;script&gt;") >= 6


def test_three_classes_of_nodes_have_a_shape_and_a_place_in_the_legend_each(tmp_path):
    page = write_answer(tmp_path / "a.html", "t", "l", [Part("h", diagrams=(_diagram(),))]).read_text(encoding="utf-8")
    for kind, meaning in _diagram().legend.items():
        assert meaning in page
        if kind != "bad":
            assert f'id="n-{kind}"' in page
            assert page.count(f'href="#n-{kind}"') == 2  # in the picture and in its legend
    assert len(set(re.findall(r'<g id="n-(\w+)">', page))) == 8


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_answer(blocker / "a.html", "t", "l", [])
    assert list(tmp_path.iterdir()) == [blocker]
