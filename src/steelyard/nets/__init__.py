"""Networks that decide during training how wide, how deep and how long they compute."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "lattice.core": ("breadth_cost", "depth_cost", "occlude", "time_cost"),
        "lattice.torch_nn": ("LatticeOutput", "LatticeRCNN", "ResourceCost"),
        "lattice.training": ("HaltingWarning", "train_lattice"),
        "lattice.inference": ("EntropyThreshold", "stop_early"),
        "lattice.resources": ("box_check", "used_resources"),
        "lattice.shrinking": ("shrink",),
        "lattice.sklearn": ("LatticeClassifier",),
        "lattice.reaction_time": ("reaction_time_correlation",),
    },
    extra="nets",
)
