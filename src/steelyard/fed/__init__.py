"""Parts for federated learning: with whom a client shares, and how strongly."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "gadaphead.core": (
            "ResidualSplit",
            "bellman_residual_decomposition",
            "debiased_mismatch",
            "head_variance_iterates",
            "head_variance_refit",
            "head_variance_split",
            "mixing_risk",
            "optimal_sharing_strength",
            "plug_in_strength",
        ),
        "gadaphead.grouping": ("GroupAssignment", "UpdateCosine", "group_clients"),
        "gadaphead.mixing": ("AdaptiveMix", "MixResult", "head_prototypes", "mix_heads"),
        "gadaphead.rounds": ("Broadcast", "ClientUpdate", "History", "federated_rounds"),
        "gadaphead.strategies": ("Clustered", "FedAvg", "GAdapHead", "Local", "SharedTrunk"),
        "gadaphead.user": ("weigh_clients",),
        "gadaphead.flower": ("GAdapHeadStrategy",),
    },
    extra="fed",
    apart=("gadaphead.flower",),
)
