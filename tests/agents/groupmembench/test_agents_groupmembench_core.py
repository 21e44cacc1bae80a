"""The pure functions of group memory: closed forms, properties, and the printed accuracies from their counts."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.groupmembench.core import (
    conformal_abstain_threshold,
    link_distances,
    micro_macro,
    on_cycle,
    recency_window,
    reply_propagation,
    thread_scores,
)
from steelyard.errors import InputError

TYPES = ("multi_hop", "knowledge_update", "term_ambiguity", "user_implicit", "temporal", "abstention")

# Integer readings of the printed BM25 rows: correct and questions by type, then the printed percentages.
ROWS = {
    "all": ((73, 27, 15, 20, 89, 85), (182, 107, 106, 49, 162, 109)),
    "Technology": ((18, 11, 10, 10, 27, 22), (41, 36, 43, 28, 37, 28)),
    "Finance": ((23, 11, 5, 8, 21, 22), (48, 32, 45, 15, 45, 29)),
    "Healthcare": ((18, 2, 0, 2, 17, 17), (48, 17, 7, 2, 37, 19)),
    "Manufacturing": ((14, 3, 0, 0, 24, 24), (45, 22, 11, 4, 43, 33)),
}
PRINTED = {
    "all": ((40.11, 25.23, 14.15, 40.82, 54.94, 77.98), 43.22),
    "Technology": ((43.9, 30.6, 23.3, 35.7, 73.0, 78.6), 46.0),
    "Finance": ((47.9, 34.4, 11.1, 53.3, 46.7, 75.9), 42.1),
    "Healthcare": ((37.5, 11.8, 0.0, 100.0, 45.9, 89.5), 43.1),
    "Manufacturing": ((31.1, 13.6, 0.0, 0.0, 55.8, 72.7), 41.1),
}


def counts(row):
    return dict(zip(TYPES, zip(*ROWS[row], strict=True), strict=True))


@pytest.mark.parametrize("row", ROWS)
def test_printed_accuracies_from_their_counts(row):
    digits = 2 if row == "all" else 1
    shares, micro = PRINTED[row]
    assert tuple(round(100 * correct / n, digits) for correct, n in counts(row).values()) == shares
    assert round(100 * micro_macro(counts(row)).micro, digits) == micro


def test_printed_averages_and_maxima():
    assert round(100 * micro_macro(counts("all")).macro, 2) == 42.21
    assert sum(ROWS["all"][0]) == 309
    assert sum(ROWS["all"][1]) == 715
    assert (round(100 * 329 / 715, 1), round(100 * 29 / 107, 1), round(100 * 40 / 106, 1)) == (46.0, 27.1, 37.7)
    assert round(100 * 113 / 214, 1) == 52.8


@pytest.mark.parametrize("place", [0, 1])
def test_the_domains_add_up_to_the_whole(place):
    domains = [ROWS[row][place] for row in ROWS if row != "all"]
    assert tuple(map(sum, zip(*domains, strict=True))) == ROWS["all"][place]


def test_averages_refuse():
    with pytest.raises(InputError, match="counts is empty"):
        micro_macro({})
    for bad in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(InputError, match="counts of 'x'"):
            micro_macro({"x": bad})


# --- reply propagation -----------------------------------------------------------------------------------------------


@st.composite
def forests(draw):
    n = draw(st.integers(1, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    scores = draw(st.lists(st.floats(0, 10), min_size=n, max_size=n))
    return np.array(scores), np.array(parents)


def by_hand(scores, parents, decay, hops):
    result = []
    for start in range(len(scores)):
        best, place = scores[start], start
        for distance in range(1, hops + 1):
            place = parents[place]
            if place < 0:
                break
            best = max(best, decay**distance * scores[place])
        result.append(best)
    return np.array(result)


@given(forests(), st.floats(0, 1), st.integers(0, 5))
def test_closed_form(forest, decay, hops):
    scores, parents = forest
    found = reply_propagation(scores, parents, decay, hops)
    np.testing.assert_allclose(found, by_hand(scores, parents, decay, hops), atol=1e-12)
    assert (found >= scores).all()


@given(forests(), st.integers(0, 4), st.lists(st.floats(0, 5), min_size=12, max_size=12))
def test_monotone(forest, hops, more):
    scores, parents = forest
    higher = scores + np.array(more[: len(scores)])
    assert (reply_propagation(higher, parents, hops=hops) >= reply_propagation(scores, parents, hops=hops)).all()
    assert (reply_propagation(scores, parents, hops=hops + 1) >= reply_propagation(scores, parents, hops=hops)).all()


@given(forests())
def test_fix_point_when_hops_reach_the_depth(forest):
    scores, parents = forest
    expected = scores.copy()
    for _ in scores:  # the recursion until nothing moves
        lent = np.where(parents >= 0, 0.9 * expected[parents], -np.inf)
        expected = np.maximum(expected, lent)
    for hops in (len(scores), 10 * len(scores)):
        np.testing.assert_allclose(reply_propagation(scores, parents, hops=hops), expected, atol=1e-12)


@st.composite
def any_graph(draw):
    n = draw(st.integers(1, 10))
    parents = draw(st.lists(st.integers(-1, n - 1), min_size=n, max_size=n))
    order = draw(st.permutations(range(n)))
    return np.array(draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n))), np.array(parents), np.array(order)


@given(any_graph(), st.integers(0, 12))
def test_permutation_equivariant_with_circles(graph, hops):
    scores, parents, order = graph
    place = np.argsort(order)
    moved = np.where(parents[order] < 0, -1, place[parents[order]])
    found = reply_propagation(scores[order], moved, hops=hops)
    np.testing.assert_array_equal(found, reply_propagation(scores, parents, hops=hops)[order])


@given(any_graph())
def test_circles_are_found(graph):
    _, parents, _ = graph
    edges = nx.DiGraph((child, int(parent)) for child, parent in enumerate(parents) if parent >= 0)
    expected = {node for circle in nx.simple_cycles(edges) for node in circle}
    assert set(np.flatnonzero(on_cycle(parents)).tolist()) == expected


def test_circles_are_cut_and_their_tails_still_gain():
    # 0 and 1 answer each other, 2 answers 1, 3 answers itself.
    found = reply_propagation([4.0, 1.0, 0.0, 2.0], [1, 0, 1, 3], hops=9)
    np.testing.assert_allclose(found, [4, 1, 0.9, 2])


def test_noise_neither_lends_nor_gains():
    scores, parents = [4.0, 0.0, 0.0], [-1, 0, 1]
    np.testing.assert_allclose(reply_propagation(scores, parents, skip=[False, True, False]), [4, 0, 0.81 * 4])
    np.testing.assert_allclose(reply_propagation(scores, parents, skip=[True, False, False]), scores)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [0, 1]), "equally long"),
        (([1.0], [1]), "below 1"),
        (([1.0], [-2]), "must hold -1"),
        (([np.nan], [-1]), "not finite"),
        (([1.0], [-1], 1.5), "decay must"),
        (([1.0], [-1], 0.9, -1), "decay must"),
    ],
)
def test_propagation_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        reply_propagation(*arguments)
    with pytest.raises(InputError, match="skip has shape"):
        reply_propagation([1.0], [-1], skip=[True, False])
    assert reply_propagation([], []).shape == (0,)


# --- conformal abstention --------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-5, 5), min_size=19, max_size=60), st.sampled_from([0.05, 0.1, 0.25, 0.5]))
def test_threshold_is_the_ranked_score(scores, alpha):
    rank = int(np.ceil(round((len(scores) + 1) * (1 - alpha), 9)))
    assert conformal_abstain_threshold(scores, alpha) == sorted(scores)[rank - 1]


def test_threshold_keeps_its_promise():
    # Exactly, for distinct scores: over all n + 1 places of the next score, at most alpha of them lie above.
    for n in range(4, 60):
        for alpha in (0.2, 0.3, 0.5):
            threshold = conformal_abstain_threshold(np.arange(n), alpha)
            above = sum(place - 0.5 > threshold for place in range(n + 1))
            assert above / (n + 1) <= alpha + 1e-12
            assert (above + 1) / (n + 1) > alpha  # and it is the least strict such threshold


@pytest.mark.parametrize(("alpha", "least"), [(0.05, 19), (0.1, 9), (0.3, 3), (0.01, 99)])
def test_the_smallest_number_is_stated(alpha, least):
    with pytest.raises(InputError, match=f"give at least {least},"):
        conformal_abstain_threshold(np.arange(least - 1), alpha)
    assert conformal_abstain_threshold(np.arange(least), alpha) == least - 1


@pytest.mark.parametrize(("scores", "alpha"), [([1.0], 0), ([1.0], 1), ([np.inf] * 30, 0.1), ([], 0.5)])
def test_threshold_refuses(scores, alpha):
    with pytest.raises(InputError):
        conformal_abstain_threshold(scores, alpha)


# --- threads ---------------------------------------------------------------------------------------------------------


@given(st.integers(2, 9), st.data())
def test_distances_are_shortest_paths(n, draw):
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    links = draw.draw(st.lists(ends, max_size=15))
    graph = nx.Graph(links)
    graph.add_nodes_from(range(n))
    lengths = nx.single_source_shortest_path_length(graph, 0, cutoff=3)
    assert link_distances(links, n, 0, 3).tolist() == [lengths.get(node, -1) for node in range(n)]


def test_distances_refuse():
    with pytest.raises(InputError, match="root must be"):
        link_distances([], 2, 2)
    with pytest.raises(InputError, match="must join"):
        link_distances([(0, 5)], 2, 0)


def test_thread_scores_by_hand():
    distances, offsets = np.array([1, 2, -1, -1]), np.array([1, 3, -2, 4])
    found = thread_scores(distances, offsets, np.array([2.0, 0.0, 4.0, 0.0]), np.array([False, True, True, True]))
    expected = [
        3 * 0.8 + 0.3 / 2 + 0.05 * 0.5,
        3 * 0.64 + 0.3 / 4 + 0.5 / 4,
        0.05,
        0.3 / 5 + 0.5 / 5,
    ]
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(recency_window([0, 1, -1, 9]), [0, 0.5, 0, 0.1])
    silent = thread_scores(distances, offsets, np.zeros(4), np.zeros(4, dtype=bool), recency=0)
    np.testing.assert_allclose(silent, [2.4, 1.92, 0, 0])
    with pytest.raises(InputError, match="equally long"):
        thread_scores(distances, offsets[:2], np.zeros(4), np.zeros(4, dtype=bool))
