"""Weighing: cells in processes of their own, one SQLite store, paired statistics, verdicts fixed in advance."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "results": ("Outcome", "Results", "Row", "Verdict"),
        "stats": (
            "Interval",
            "clustered_bootstrap",
            "detectable_effect",
            "holm",
            "iqm",
            "iqm_interval",
            "mcnemar_p",
            "paired_interval",
            "seeds_needed",
            "sign_flip_p",
        ),
        "source": ("open_source",),
        "verdicts": ("verdict",),
    },
    extra="optim",
)
