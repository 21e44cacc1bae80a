import html
import re

import builders
import pytest
from pydantic import ValidationError

from steelyard.bench.cell import _result
from steelyard.contracts import Diagram, Edge, Grid, Measured, Node
from steelyard.report.answer import Part, write_answer
from steelyard.report.diagrams import MOST, diagram_pictures, picture
from steelyard.report.html import render_report


def _one(diagram):
    results = builders.weighing(builders.nfi_plan(2))
    return diagram_pictures(builders.with_diagrams(results, (diagram,)), {})[0]


def test_arrows_end_at_their_nodes_and_bend_apart():
    picture = _one(builders.debate_diagram())
    places = {node["said"].split(":")[0]: None for node in picture["nodes"]}
    assert places
    assert len(picture["nodes"]) == 9
    assert len(picture["edges"]) == 6
    there, back = picture["edges"][4]["path"], picture["edges"][5]["path"]
    middle = [re.search(r"Q(\S+) (\S+)", path).groups() for path in (there, back)]
    assert middle[0] != middle[1]  # both directions between two nodes can be told apart
    by_place = {(float(node["x"]), float(node["y"])) for node in picture["nodes"]}
    for edge in picture["edges"]:
        x, y = map(float, edge["path"].split()[-2:])
        assert min((x - a) ** 2 + (y - b) ** 2 for a, b in by_place) ** 0.5 == pytest.approx(10, abs=0.2)


def test_rows_and_columns_become_places_in_order():
    nodes = [Node(id=f"{x},{y}", label=f"{x},{y}", x=x, y=y) for x in (0, 2) for y in (-1, 3)]
    picture = _one(Diagram(name="grid", title="g", nodes=nodes))
    at = {node["label"]: (float(node["x"]), float(node["y"])) for node in picture["nodes"]}
    assert at["2,-1"][0] - at["0,-1"][0] == pytest.approx(2 * 132)
    assert at["0,3"][1] - at["0,-1"][1] == pytest.approx(4 * 46)
    assert float(picture["width"]) > at["2,3"][0]
    assert float(picture["height"]) > at["2,3"][1] + 20


def test_only_finished_cells_are_drawn_and_no_more_than_the_limit():
    results = builders.with_diagrams(builders.weighing(builders.nfi_plan(2)), (builders.debate_diagram(),) * 5, rows=9)
    assert len(diagram_pictures(results, {})) == MOST
    waiting = tuple(row.model_copy(update={"state": "failed"}) for row in results.rows)
    assert diagram_pictures(results.model_copy(update={"rows": waiting}), {}) == []


def test_a_wide_picture_says_that_it_scrolls():
    narrow = [Node(id=str(x), label=str(x), x=x, y=0) for x in range(2)]
    wide = [Node(id=str(x), label=str(x), x=x, y=0) for x in range(6)]
    for nodes, told in ((narrow, 0), (wide, 1)):
        results = builders.with_diagrams(
            builders.weighing(builders.nfi_plan(2)), (Diagram(name="row", title="r", nodes=nodes),)
        )
        page = render_report([results])
        assert page.count('<p class="meta sideways far" aria-hidden="true">scroll →</p>') == told
        assert "Point at a node for its whole text, or open the tables" in page


def test_a_legend_word_that_is_no_kind_is_left_out():
    words = [item["text"] for item in _one(builders.debate_diagram())["legend"]]
    assert words == ["right", "wrong", "read, not followed"]


def test_the_page_shows_the_picture_and_its_tables_with_hostile_text_escaped():
    page = render_report([builders.hostile()])
    assert builders.HOSTILE not in page
    assert html.escape(builders.HOSTILE)[:30] in page
    page = render_report(builders.three_methods(2))
    assert page.count('class="diagram"') == 1
    assert "Who read whom" in page
    assert "read, not followed" in page


def test_a_diagram_is_checked_when_it_is_made():
    node = Node(id="a", label="a", x=0, y=0)
    with pytest.raises(ValidationError, match="not unique"):
        Diagram(name="d", title="t", nodes=(node, node))
    for place in (float("nan"), float("inf"), -1e308):  # the page would have no width
        with pytest.raises(ValidationError):
            Node(id="a", label="a", x=place, y=0)
    with pytest.raises(ValidationError, match="leads nowhere"):
        Diagram(name="d", title="t", nodes=(node,), edges=(Edge(source="a", target="b"),))
    with pytest.raises(ValidationError):
        Diagram(name="d", title="t", nodes=())


def test_a_cell_hands_its_diagrams_on_as_plain_data():
    diagram = builders.debate_diagram()
    result = _result(Measured({"m": 1.0}, steps=1, diagrams=(diagram,)), 0.1, 0.1)
    assert Diagram(**result["diagrams"][0]) == diagram


def test_a_strong_edge_is_drawn_thick():
    nodes = (Node(id="a", label="a", x=0, y=0), Node(id="b", label="b", x=1, y=0))
    edges = (Edge(source="a", target="b", kind="good", strong=True), Edge(source="b", target="a", kind="good"))
    drawn = _one(Diagram(name="d", title="d", nodes=nodes, edges=edges))["edges"]
    assert [edge["css"] for edge in drawn] == ["good strong", "good"]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_a_grid_is_drawn_with_its_shades_images_and_marks():
    grid = Grid(name="g", title="Map", values=((0.0, 1.0), (0.5, 0.25)), marked=((0, 1),), images=(PIXEL,) * 4)
    drawn = picture(grid)
    assert [cell["shade"] for cell in drawn["cells"]] == ["0.05", "0.95", "0.50", "0.28"]
    assert [cell["marked"] for cell in drawn["cells"]] == [False, True, False, False]
    assert (drawn["width"], drawn["height"]) == (80, 80)
    assert drawn["table"]["rows"] == [("1", "0", "1"), ("2", "0.5", "0.25")]
    assert picture(Grid(name="g", title="Flat", values=((3.0, 3.0),)))["cells"][1]["shade"] == "0.05"


@pytest.mark.parametrize(
    "fields",
    [
        {"values": ((1.0,), (1.0, 2.0))},
        {"values": ((1.0,) * 33,)},
        {"values": ((1.0,),), "marked": ((0, 1),)},
        {"values": ((1.0, 2.0),), "images": (PIXEL,)},
        {"values": ((1.0,),), "images": ('"><script>',)},
    ],
)
def test_grids_that_cannot_be(fields):
    with pytest.raises(ValueError, match=r"grid|images"):
        Grid(name="g", title="t", **fields)


def test_a_page_with_a_grid(tmp_path):
    grid = Grid(name="g", title="<b>Map</b>", values=((0.0, 1.0),), marked=((0, 0),), images=(PIXEL, PIXEL))
    text = write_answer(tmp_path / "a.html", "T", "lead", [Part("P", "", (), (grid,))]).read_text()
    assert text.count("data:image/png;base64,") == 2
    assert "&lt;b&gt;Map" in text
    assert '<g class="on">' in text
    assert "Cells: " in text
