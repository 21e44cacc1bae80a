"""Why a graph network is unsure, side by side with GNNExplainer: CPU seconds a node on Cora and on Tolokers.

Run: ``python benchmarks/bench_graph_attribution.py`` (some minutes; ``--dry`` writes no receipt). The nodes are drawn
at random among the test nodes; GNNExplainer explains the whole graph, as its users run it, with feature and edge
masks, and takes turns with the attribution. The student's and the teacher's training stand beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import receipt
import torch
from torch_geometric.explain import Explainer, GNNExplainer

from steelyard.graphs.graph import Graph, load_graph
from steelyard.graphs.graphuat.attribution import REFERENCE_NODES, Attributor
from steelyard.graphs.graphuat.prober import NodeProber
from steelyard.graphs.graphuat.student import GraphUATStudent
from steelyard.graphs.graphuat.teachers import build_teacher, seeded, train_teacher
from steelyard.graphs.sampling import NeighbourSampler
from steelyard.rng import generator, torch_generator

EPOCHS = 200  # of GNNExplainer, per node
TARGETS = {
    "GNNExplainer over one node's attribution": 10,
    "student training over teacher training": 3,
    "a node of Tolokers over a node of Cora": "bounded by fanout and max_edges, not by the number of edges",
}


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of one call, and what it returned."""
    gc.collect()
    start = time.process_time()
    value = call()
    return time.process_time() - start, value


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(np.median(seconds)), "min": min(seconds), "max": max(seconds)}


def some_nodes(graph: Graph, count: int) -> list[int]:
    """Test nodes drawn without replacement, always the same."""
    assert graph.test_mask is not None
    nodes = graph.test_mask.nonzero().flatten().numpy()
    drawn = generator("bench", f"attributed nodes of {graph.name}", 0).choice(nodes, count, replace=False)
    return [int(node) for node in drawn]


def gnnexplainer(teacher: torch.nn.Module, graph: Graph, node: int) -> None:
    """Explain one node's prediction on the whole graph."""
    explainer = Explainer(
        teacher, GNNExplainer(epochs=EPOCHS), explanation_type="model", node_mask_type="attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    with seeded(torch_generator("bench", "gnnexplainer", node)):
        explainer(graph.x, graph.edge_index, index=node)


def trained(graph: Graph, share: float) -> tuple[dict[str, float], torch.nn.Module, GraphUATStudent]:
    """Teacher and student with a ``share`` of the epochs of the reconstruction, and what their training takes."""
    epochs, distilled = round(200 * share), round(300 * share)
    teacher = build_teacher("gcn", graph.x.shape[1], graph.num_classes)
    train_teacher(teacher, graph, epochs=1)  # the first call pays for imports
    teacher = build_teacher("gcn", graph.x.shape[1], graph.num_classes)
    taught, _ = cpu(lambda: train_teacher(teacher, graph, epochs=epochs))
    learnt, student = cpu(lambda: GraphUATStudent(teacher, epochs=distilled).fit(graph))
    seconds = {
        f"teacher, {epochs} epochs": taught,
        f"student, {distilled} epochs": learnt,
        "student over teacher": learnt / taught,
    }
    return seconds, teacher, student


def side_by_side(teacher: torch.nn.Module, student: GraphUATStudent, graph: Graph, count: int) -> dict[str, Any]:
    """One node at a time, the attribution and GNNExplainer in turns."""
    setup, made = cpu(lambda: Attributor(teacher, graph, student=student))
    reference, _ = cpu(made.reference_scores)
    nodes = some_nodes(graph, count + 1)
    made.attribute(nodes[0])
    ours: list[float] = []
    theirs: list[float] = []
    for node in nodes[1:]:
        ours.append(cpu(lambda node=node: made.attribute(node))[0])  # type: ignore[misc]
        theirs.append(cpu(lambda node=node: gnnexplainer(teacher, graph, node))[0])  # type: ignore[misc]
    ratios = [slow / fast for slow, fast in zip(theirs, ours, strict=True)]
    return {
        "nodes": count,
        "once per graph, s": {"check, sort and read": setup, f"{REFERENCE_NODES} reference nodes": reference},
        "a node, s": spread(ours),
        f"GNNExplainer, {EPOCHS} epochs, a node, s": spread(theirs),
        "GNNExplainer over ours": spread(ratios),
    }


def in_bulk(teacher: torch.nn.Module, student: GraphUATStudent, graph: Graph, count: int) -> dict[str, float]:
    """Seconds a node when many are asked for at once."""
    made = Attributor(teacher, graph, student=student)
    made.reference_scores()
    seconds, _ = cpu(lambda: made.attribute(some_nodes(graph, count)))
    return {"nodes": count, "a node, s": seconds / count}


def probes_alone(student: GraphUATStudent, graph: Graph, count: int) -> dict[str, float]:
    """Seconds a node of the feature probe (gradient) and of the deletion probe on sampled neighbourhoods."""
    sampler = NeighbourSampler(graph.edge_index.numpy(), graph.num_nodes)
    prober = NodeProber(
        student, graph.x, sampler, depth=2, hops=1, fanout=(32, 16), max_edges=32, feature_method="gradient",
        threshold=1e-3, seed=0,
    )  # fmt: skip
    nodes = some_nodes(graph, count)
    found = {}
    for probe in ("feature", "structure"):
        prober.probe(nodes[:2], (probe,))
        found[f"{probe}, s a node"] = cpu(lambda probe=probe: prober.probe(nodes, (probe,)))[0] / count  # type: ignore[misc]
    return found


def figures(name: str, count: int, bulk: int, share: float) -> dict[str, Any]:
    """All figures of one graph; the time of a node does not depend on how long the networks were trained."""
    graph = load_graph(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    training, teacher, student = trained(graph, share)
    found: dict[str, Any] = {"nodes": graph.num_nodes, "directed edges": graph.num_edges, "training, s": training}
    if count:
        found |= side_by_side(teacher, student, graph, count)
    found["in bulk"] = in_bulk(teacher, student, graph, bulk)
    found["probes alone"] = probes_alone(student, graph, bulk)
    found["peak RSS, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found["peak RSS before, MB"] = before
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=20, help="explained side by side on Cora")
    parser.add_argument("--bulk", type=int, default=100)
    parser.add_argument("--tolokers-nodes", type=int, default=1, help="side by side on Tolokers; minutes each")
    parser.add_argument("--dry", action="store_true", help="print the figures, write no receipt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    told: dict[str, Any] = {"clock": "process_time, one thread"}
    told["cora"] = figures("cora", arguments.nodes, arguments.bulk, share=1.0)
    told["tolokers"] = figures("tolokers", arguments.tolokers_nodes, arguments.bulk, share=0.05)
    told["a node of Tolokers over a node of Cora, in bulk"] = (
        told["tolokers"]["in bulk"]["a node, s"] / told["cora"]["in bulk"]["a node, s"]
    )
    told["targets"] = TARGETS
    print(json.dumps(told, indent=1))
    if not arguments.dry:
        print(receipt.write("speed_graph_attribution", told))


if __name__ == "__main__":
    main()
