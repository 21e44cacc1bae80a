"""The contestants and what is measured on them.

One cell trains a teacher and a student and lets every explainer work on the same nodes, since training is what costs;
the arm ``graphuat`` is that cell, and :func:`derive` takes the other arms' figures out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric, carried, carried_arms

KS = (1, 2, 3, 5)
"""Numbers of removed edges."""


def _arm(name: str, label: str, role: Any, derived: bool = True) -> Arm:
    return Arm(name=name, label=label, role=role, derived=derived)


RUN = (
    _arm("graphuat", "GraphUAT (its cell runs all explainers)", "method", derived=False),
    _arm("chance", "A source drawn at random", "floor", derived=False),
    _arm("planted", "The planted sources themselves", "ceiling", derived=False),
)
ABLATIONS = (
    _arm("neighbour_mean", "GraphUAT, features replaced by the neighbours' mean", "ablation"),
    _arm("integrated", "GraphUAT, features by integrated gradients", "ablation"),
    _arm("plain_epistemic", "GraphUAT, coverage by the plain epistemic part", "ablation"),
    _arm("raw_scores", "GraphUAT, raw scores in the place of z-scores", "ablation"),
    _arm("confident_reference", "GraphUAT, the surer half of the validation nodes as reference", "ablation"),
    _arm("clean_reference", "GraphUAT, planted clean nodes as reference (a leak)", "ablation"),
    _arm("positive_only", "GraphUAT, may stop: removes only edges that it holds harmful", "ablation"),
    _arm("shuffled", "Control: GraphUAT's sources against shuffled ones", "floor"),
)
RIVALS = (
    _arm("teacher_entropy", "The same probes on the teacher's entropy, no student", "baseline"),
    _arm("entropy_gradient", "Gradient of the teacher's entropy", "baseline"),
    _arm("entropy_integrated", "Integrated gradients of the teacher's entropy (few nodes)", "baseline"),
    _arm("gnnexplainer", "GNNExplainer of the prediction (few nodes)", "baseline"),
    _arm("saliency", "Saliency of the prediction", "baseline"),
    _arm("attention", "Attention (GAT only)", "baseline"),
    _arm("degree", "Neighbours of highest degree", "baseline"),
    _arm("counting", "Counting words, edges and labels near, nothing learned", "baseline"),
    _arm("random", "Random edges and features", "floor"),
    _arm("planted_first", "Planted edges first, then random ones", "ceiling"),
)
ARMS = (*RUN, *ABLATIONS, *RIVALS)
PLANTED_ARMS = ("graphuat", "chance", "planted")
REMOVAL_ARMS = ("graphuat",)

_NATS = "nats"
METRICS = (
    Metric(name="source_accuracy", label="Planted source named", better="higher", worst=0.0, chance=1 / 3),
    Metric(name="auroc_feature", label="AUROC of the feature score for extra words", better="higher", worst=0.5,
           chance=0.5),
    Metric(name="auroc_structure", label="AUROC of the structure score for wrong edges", better="higher", worst=0.5,
           chance=0.5),
    Metric(name="auroc_coverage", label="AUROC of the coverage score for cut labels", better="higher", worst=0.5,
           chance=0.5),
    Metric(name="edge_precision", label="Planted among the first 4 edges", better="higher", worst=0.0),
    Metric(name="feature_precision", label="Planted among the first 20 words", better="higher", worst=0.0),
    *(Metric(name=f"drop_{k}", label=f"Fall of the teacher's entropy, {k} edge{'s' * (k > 1)} removed", better="higher",
             unit=_NATS) for k in KS),
    Metric(name="drop_auc", label="The same, mean height of the curve up to 5 edges", better="higher", unit=_NATS),
    Metric(name="few_drop", label="The same on the few nodes that dear methods explain", better="higher",
           unit=_NATS),
    Metric(name="planted_drop", label="Fall at nodes with planted edges, 4 edges removed", better="higher",
           unit=_NATS),
    Metric(name="cpu_node", label="Processor time of a node", better="lower", unit="ms"),
    Metric(name="teacher_accuracy", label="Accuracy of the teacher on test nodes", better="higher"),
    Metric(name="cut_accuracy", label="The same at nodes of the cut class", better="higher"),
    Metric(name="agreement", label="Student and teacher predict alike", better="higher"),
    Metric(name="eu_coverage", label="Epistemic uncertainty at nodes of the cut class", better="higher", unit=_NATS),
    Metric(name="eu_clean", label="Epistemic uncertainty at clean nodes", better="lower", unit=_NATS),
    Metric(name="teacher_cpu", label="Processor time of the teacher's training", better="lower", unit="s"),
    Metric(name="student_cpu", label="Processor time of the student's training", better="lower", unit="s"),
)  # fmt: skip


def flat(arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``graphuat``."""
    return carried("graphuat", arm, values)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every arm that the cell of ``graphuat`` ran, of one task and seed."""
    return carried_arms("graphuat", arms)
