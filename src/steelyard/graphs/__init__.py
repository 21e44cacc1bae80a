"""Parts for graph neural networks: why a node classifier is uncertain."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "graph": ("Graph", "check_graph", "load_graph"),
        "graphuat.core": ("Uncertainty", "coverage_strength", "dirichlet_uncertainty", "uce_loss"),
        "graphuat.student": ("GraphUATStudent",),
        "graphuat.attribution": ("Attributor", "attribute_uncertainty", "edge_deletion_scores", "feature_scores"),
        "graphuat.explanation": ("NodeAttribution", "UncertaintyAttribution"),
        "graphuat.pyg_explanation": ("UncertaintyExplanation",),
        "graphuat.models": ("TeacherEntropy",),
        "graphuat.teachers": ("build_teacher", "check_teacher", "load_teacher", "save_teacher", "train_teacher"),
        "graphuat.baselines": ("Scenes", "rank"),
        "graphuat.facade": ("GraphUAT",),
        "graphuat.faithfulness": ("RemovalCurve", "removal_faithfulness"),
        "graphuat.pyg": ("UATExplainer",),
    },
    extra="graphs",
)
