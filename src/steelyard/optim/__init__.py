"""Optimisation: momentum that chooses itself, losses that do not collapse, groups that are sampled flexibly."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "greedy_momentum.core": ("alignment_curve", "optimal_momentum_ar1", "optimal_momentum_signal_noise"),
        "greedy_momentum.torch_optim": ("GradAutocorrelation", "GreedyAdamW", "GreedySGD"),
        "nfi.binary": ("exact_bce_with_logits",),
        "nfi.core": ("exact_cross_entropy",),
        "nfi.theory": ("collapse_threshold", "simulate_nfi"),
        "nfi.torch_nn": ("ExactCrossEntropyLoss", "center_head_", "zero_sum_hook"),
        "nfi.monitor": ("NFIMonitor",),
        "nfi.huggingface": ("NFICallback",),
        "gdro_fsq.core": ("PLAPlayer", "fsq_minimize", "gdro_error_bound", "rounds_for_eps"),
        "gdro_fsq.torch_data": ("FlexGroupBatchSampler", "FlexGroupDRO"),
        "gdro_fsq.huggingface": ("GroupDROTrainerMixin",),
    },
    extra="optim",
    apart=("nfi.huggingface", "gdro_fsq.huggingface"),
)
