"""What an attribution can be asked for: tables, JSON, summaries, PyG explanations."""

import json

import pytest
import torch

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph
from steelyard.graphs.graphuat.explanation import NodeAttribution, UncertaintyAttribution
from steelyard.graphs.graphuat.pyg_explanation import UncertaintyExplanation, edge_mask

EDGES = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])


def item(node, source, edges, **changes):
    z = {"feature": 0.5, "structure": 2.0, "coverage": -1.0}
    return NodeAttribution(
        **{
            "node": node, "total": 1.2, "aleatoric": 1.0, "epistemic": 0.2, "teacher_entropy": 0.7,
            "scores": {name: value / 10 for name, value in z.items()}, "z": z,
            "shares": {"feature": 0.2, "structure": 0.8, "coverage": 0.0}, "dominant_source": source, "edges": edges,
            "features": [(1, 0.3), (0, -0.2)], "evidence": {"nearest_labelled": 3, "distance": 1.5, "label_mass": 0.1},
        }
        | changes
    )  # fmt: skip


def attribution():
    graph = Graph(torch.arange(8.0).reshape(4, 2), EDGES)
    items = [
        item(1, "structure", [(1, 2, 0.4), (1, 0, -0.1)]),
        item(2, "structure", [(2, 1, 0.2), (2, 3, 0.1)], total=1.0),
        item(3, None, [(3, 2, -0.2)], aleatoric=None, epistemic=None, isolated=True, z={"feature": 1.0}),
    ]
    return UncertaintyAttribution(
        items, reference={"feature": (0.1, 0.2)}, settings={"on": "student"}, num_nodes=4, data=graph
    )


def test_it_is_a_sequence_that_also_knows_node_numbers():
    found = attribution()
    assert len(found) == 3
    assert [one.node for one in found] == [1, 2, 3]
    assert found[0] is found.node(1)
    assert [one.node for one in found[1:]] == [2, 3]
    with pytest.raises(InputError, match="node 0 was not attributed; attributed are 1, 2, 3"):
        found.node(0)


def test_top_lists_hold_only_what_lowers_the_uncertainty():
    one = attribution()[0]
    assert one.top_edges(5) == [(1, 2, 0.4)]
    assert one.top_features(5) == [(1, 0.3)]
    assert one.top_edges(0) == []


def test_the_summary_adds_up_over_nodes():
    summary = attribution().summary(edges=1)
    assert summary["nodes"] == 3
    assert summary["dominant"] == pytest.approx({"structure": 2 / 3, "tie": 1 / 3})
    assert summary["uncertainty"]["structure"]["total"] == pytest.approx(1.1)
    assert summary["uncertainty"]["tie"]["epistemic"] is None
    (worst,) = summary["harmful_edges"]
    assert worst == {"u": 1, "v": 2, "fall": pytest.approx(0.6), "nodes": 2}
    empty = UncertaintyAttribution([], reference={}, settings={}, num_nodes=4)
    assert empty.summary()["dominant"] == {}
    assert "empty" in repr(empty)


def test_json_and_table_hold_every_node():
    found = attribution()
    read = json.loads(found.to_json())
    assert [one["node"] for one in read["nodes"]] == [1, 2, 3]
    assert read["reference"]["feature"] == {"mean": 0.1, "std": 0.2}
    assert json.loads(found[0].to_json())["edges"][0] == [1, 2, 0.4]
    lines = found.table().splitlines()
    assert len(lines) == 4
    assert "1-2 (0.400)" in lines[1]
    assert "tie (isolated)" in lines[3]
    assert lines[3].count("-") >= 3
    assert "structure 67%" in repr(found)


def test_the_pyg_explanation_carries_masks_and_sources():
    found = attribution().explanation(2)
    assert isinstance(found, UncertaintyExplanation)
    assert found.edge_mask.tolist() == pytest.approx([0, 0, 0.2, 0.2, 0.1, 0.1])
    assert found.node_mask.shape == (4, 2)
    assert found.node_mask[2].tolist() == pytest.approx([0.0, 0.3])
    assert int(found.node_mask.count_nonzero()) == 1
    assert found.validate(raise_on_error=True)
    assert found.uncertainty == {"total": 1.0, "aleatoric": 1.0, "epistemic": 0.2}
    assert found.dominant_source == "structure"
    assert found.shares["structure"] == 0.8
    assert found.source_scores["structure"] == pytest.approx(0.2)
    assert found.evidence["nearest_labelled"] == 3
    assert found.top_edges(1) == [(2, 1, 0.2)]
    assert found.top_features(9) == [(1, 0.3)]
    assert edge_mask(attribution()[2], EDGES).tolist() == [0.0] * 6
    with pytest.raises(InputError, match="not attributed"):
        attribution().explanation(0)


def test_many_attributed_nodes_are_named_in_short():
    many = UncertaintyAttribution(
        [item(node, "feature", []) for node in range(9)], reference={}, settings={}, num_nodes=99
    )
    with pytest.raises(InputError, match=r"0, 1, 2, 3, 4, … \(9 nodes\)"):
        many.node(50)
