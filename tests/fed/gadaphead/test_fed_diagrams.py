"""Pictures: columns are groups that were found, colours those that were planted."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steelyard.fed.gadaphead.diagrams import sharing_diagram


def test_a_picture_of_two_groups_and_a_loner():
    picture = sharing_diagram(
        ("a", "b", "c", "d"), np.array([7, 7, 2, 7]), np.array([0.5, 0.2, 0.0, 1.0]), np.array([0, 0, 1, 1])
    )
    nodes = {node.id: node for node in picture.nodes}
    assert picture.columns == ("group 1", "group 2")
    assert [nodes[f"client-{number}"].x for number in range(4)] == [0, 0, 1, 0]
    assert nodes["client-0"].kind == nodes["client-1"].kind != nodes["client-2"].kind
    assert nodes["client-3"].kind == nodes["client-2"].kind  # planted together, found apart
    assert "mean-0" in nodes
    assert "mean-1" not in nodes  # who is alone shares with nobody
    assert [(edge.target, edge.kind, edge.label) for edge in picture.edges] == [
        ("client-0", "solid", "0.50"), ("client-1", "dashed", "0.20"), ("client-3", "solid", "1.00"),
    ]  # fmt: skip
    assert "50% of the mean" in nodes["client-0"].note
    assert "not shown" not in picture.caption


@given(st.lists(st.integers(0, 80), min_size=1, max_size=200))
def test_any_number_of_clients_fits(groups):
    labels = np.array(groups)
    picture = sharing_diagram([str(n) for n in range(len(groups))], labels, np.full(len(groups), 0.3))
    shown = [node for node in picture.nodes if node.id.startswith("client")]
    assert len(shown) <= 40
    assert ("not shown" in picture.caption) == (len(shown) < len(groups))
    assert len(picture.columns) == 1 + max(node.x for node in picture.nodes)


@given(st.permutations(range(4)))
def test_names_of_groups_do_not_matter(names):
    labels, strength = np.array([0, 1, 1, 2, 3, 0]), np.linspace(0, 1, 6)
    renamed = np.array(names)[labels]
    clients = [str(n) for n in range(6)]
    assert sharing_diagram(clients, renamed, strength) == sharing_diagram(clients, labels, strength)
