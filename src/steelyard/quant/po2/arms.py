"""The contestants and what is measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import Arm, Metric


def _arm(name: str, label: str, role: Any, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config)


SWEEP = {"search": "sweep"}
FLOORS = (
    _arm("mxfp4", "MXFP4 (4.25 bits)", "floor", family="mxfp4"),
    _arm("random", "MPO2's grids, chosen by lot", "floor", family="mpo2", selector="random"),
)
BASELINES = (
    _arm("nvfp4", "NVFP4", "baseline", family="nvfp4"),
    _arm("four_over_six", "NVFP4, four over six", "baseline", family="four_over_six"),
    _arm("nf4", "NF4, groups of 16", "baseline", family="nf4"),
    _arm("lloyd1", "LLOYD1, one learned grid", "baseline", family="lloyd1"),
    _arm("if4", "IF4", "baseline", family="if4"),
    _arm("nvfp4_search", "NVFP4 + scale search", "baseline", family="nvfp4", **SWEEP),
    _arm("nf4_search", "NF4 + scale search", "baseline", family="nf4", **SWEEP),
    _arm("lloyd1_search", "LLOYD1 + scale search", "baseline", family="lloyd1", **SWEEP),
    _arm("lloyd1_learned", "One grid, learned on the data", "baseline", family="learned", n_grids=1),
    _arm("nvfp4_e3m4", "NVFP4, the bit spent on the scale's mantissa", "baseline", family="nvfp4", scale="e3m4"),
    _arm("nf4_b64", "NF4, blocks of 64 (bitsandbytes)", "baseline", family="nf4", group_size=64, scale="fp32"),
    _arm("q4_0", "GGUF Q4_0, blocks of 32", "baseline", family="q4_0"),
    _arm("q4_1", "GGUF Q4_1, blocks of 32 (5 bits)", "baseline", family="q4_1"),
)
METHODS = (
    _arm("mpo2", "MPO2", "method", family="mpo2"),
    _arm("po2_nf4", "PO2(NF4)", "method", family="po2_nf4"),
    _arm("po2_split87", "PO2(Split87)", "method", family="po2_split87"),
    _arm("sfp4", "SFP4", "method", family="sfp4"),
    _arm("mpo2_learned", "MPO2, learned on the data", "method", family="learned"),
)
ABLATIONS = (
    _arm("mpo2_first", "MPO2, its first grid alone", "ablation", family="mpo2", selector="first"),
    _arm("mpo2_robust", "MPO2, heavy-tail pair, ends pinned", "ablation", family="mpo2_robust"),
    _arm("po2_nf4_residual", "PO2(NF4), companion by its own recipe", "ablation", family="po2_nf4_residual"),
    _arm("sfp4_pair", "SFP4 without its middle grid", "ablation", family="sfp4_pair"),
    _arm("learned4", "Four grids, learned on the data", "ablation", family="learned", n_grids=4),
    _arm("mpo2_search", "MPO2 + scale search", "ablation", family="mpo2", **SWEEP),
    _arm("po2_nf4_search", "PO2(NF4) + scale search", "ablation", family="po2_nf4", **SWEEP),
    _arm("sfp4_search", "SFP4 (c = .375) + scale search", "ablation", family="sfp4", shift=0.375, **SWEEP),
)
IMPORTANCE = (
    _arm("mpo2_importance", "MPO2, errors weighed by the inputs", "ablation", family="mpo2", importance=True),
)
CEILING = (_arm("reference", "Unquantised", "ceiling", family="none"),)
GROUPS = (_arm("by_group", "Learned pair against learned grid, by group size", "method", family="learned"),)
DERIVED = (
    Arm(name="worst_po2", label="Worst of the four PO2 families", role="method", derived=True),
    Arm(name="best_nvfp4", label="Better of NVFP4 and four over six", role="baseline", derived=True),
)

ARMS = (*FLOORS, *BASELINES, *METHODS, *ABLATIONS, *IMPORTANCE, *CEILING, *GROUPS, *DERIVED)
TENSOR_ARMS = tuple(arm.name for arm in (*FLOORS, *BASELINES, *METHODS, *ABLATIONS, *CEILING))
QUICK_ARMS = (
    "mxfp4", "random", "nvfp4", "four_over_six", "nf4", "if4", "lloyd1", "lloyd1_search", "lloyd1_learned", "q4_1",
    "mpo2", "po2_nf4", "po2_split87", "sfp4", "mpo2_learned", "mpo2_first", "mpo2_search", "reference",
)  # fmt: skip
MODEL_ARMS = (*QUICK_ARMS, "nvfp4_search", "nf4_search", "sfp4_search", "po2_nf4_residual", "mpo2_importance")
LARGE_ARMS = (
    "mxfp4", "nvfp4", "four_over_six", "nf4", "if4", "lloyd1", "mpo2", "po2_nf4", "po2_split87", "sfp4",
    "mpo2_learned", "reference",
)  # fmt: skip
LARGE_W4A4 = ("nvfp4", "mpo2", "sfp4", "mpo2_learned")
TRAINED_ARMS = ("mxfp4", "nvfp4", "mpo2", "sfp4", "reference")

_FAMILIES = ("mpo2", "po2_nf4", "po2_split87", "sfp4")
_DERIVED_METRICS = ("weight_error", "kl_w4a16", "kl_w4a4", "cos_w4a16", "cos_w4a4")

METRICS = (
    Metric(name="weight_error", label="Squared error over the tensor's energy", better="lower"),
    Metric(name="kl_w4a16", label="KL of the output, 4-bit weights", better="lower", unit="nats"),
    Metric(name="kl_w4a4", label="KL of the output, 4-bit weights and inputs", better="lower", unit="nats"),
    Metric(name="cos_w4a16", label="1 - cos of embeddings, 4-bit weights", better="lower"),
    Metric(name="cos_w4a4", label="1 - cos of embeddings, 4-bit weights and inputs", better="lower"),
    Metric(name="loss", label="Held-out loss after training in 4 bits", better="lower", unit="nats / byte"),
    Metric(name="ppl_w4a16", label="Perplexity, 4-bit weights", better="lower"),
    Metric(name="ppl_w4a4", label="Perplexity, 4-bit weights and inputs", better="lower"),
    Metric(name="top1_w4a16", label="Same first choice, 4-bit weights", better="higher", worst=0.0),
    Metric(name="top1_w4a4", label="Same first choice, 4-bit weights and inputs", better="higher", worst=0.0),
    Metric(name="accuracy_w4a16", label="Accuracy, 4-bit weights", better="higher", worst=0.0, chance=0.1),
    Metric(name="accuracy_w4a4", label="Accuracy, 4-bit weights and inputs", better="higher", worst=0.0, chance=0.1),
    Metric(name="model_weight_error", label="Squared error of all weights over their energy", better="lower"),
    Metric(name="bits", label="Bits per weight (nominal)", better="lower"),
    Metric(name="gain_rank", label="Rank correlation of group size and gain", better="lower", worst=1.0),
    Metric(name="gain_slope", label="Slope of log gain over log group size", better="lower", worst=0.0),
    Metric(name="gain_spread", label="Largest over smallest gain times root of group size", better="lower"),
    Metric(name="gain_over_price", label="Least gain over the price of its bit", better="higher", worst=0.0),
    Metric(name="clark_error", label="Normal prediction over the error with a choice, off by", better="lower"),
)


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the two arms that claims about *every* family compare, for one task and seed."""
    found: dict[str, dict[str, float]] = {}
    for arm, members, worst in (("worst_po2", _FAMILIES, max), ("best_nvfp4", ("nvfp4", "four_over_six"), min)):
        there = [arms[name] for name in members if name in arms]
        if len(there) == len(members):
            shared = [metric for metric in _DERIVED_METRICS if all(metric in one for one in there)]
            found[arm] = {metric: worst(one[metric] for one in there) for metric in shared}
    return found
