"""Parts for vision-language models and for three dimensions: which frames to read, which points afford an action."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "gridprobe.core": (
            "GhostCells", "ShapeStatistic", "effective_budget", "evidence_hit_rate", "ghost_cells", "importance_map",
            "letter_posterior", "merge_posteriors", "select_frames", "shape_statistic",
        ),
        "gridprobe.cost": ("break_even_fraction", "compute_ratio", "forward_flops", "gridprobe_flops"),
        "gridprobe.probe": ("GridProbe", "GridProbeAnswer", "GridProbeCost"),
        "gridprobe.selectors": (
            "AKS", "BOLT", "MDP3", "FrameSelector", "RandomFrames", "TopSimilarity", "UniformFrames", "compare",
        ),
    },
    extra="vision",
)  # fmt: skip
