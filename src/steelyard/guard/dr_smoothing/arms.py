"""The contestants and what is measured on them."""

from __future__ import annotations

from typing import Any

from steelyard.contracts import Arm, Metric, Role


def _arm(name: str, label: str, role: Role, **config: Any) -> Arm:
    return Arm(name=name, label=label, role=role, config=config)


WORDS = {"disrupt": "delete_words"}
FLOORS = (
    _arm("coin", "Votes by coin at the guard's base rate", "floor", kind="coin"),
    _arm("block_all", "Refuses everything", "floor", kind="block_all"),
    _arm("pass_all", "Lets everything through", "floor", kind="pass_all"),
)
BASELINES = (
    _arm("none", "No defence beyond the guard", "baseline", kind="none"),
    _arm("rectify_only", "Rectify only, one call", "baseline", kind="rectify_only"),
    _arm("smoothllm", "SmoothLLM, swap", "baseline", rectify="none"),
    _arm("delete", "Words deleted", "baseline", rectify="none", **WORDS),
    _arm("erase_and_check", "Erase-and-check, suffixes of up to 20 words", "baseline", kind="erase_and_check"),
)
METHODS = (_arm("dr", "DR-Smoothing: swap, spelling, coherence", "method"),)
ABLATIONS = (
    _arm("dr_spell", "DR without the coherence filter", "ablation", coherence=False),
    _arm("unrectified", "The noise of DR, not rectified", "ablation", rectify="none"),
    _arm("dr_delete", "DR, words deleted", "ablation", **WORDS),
    _arm("dr_random", "DR, a random operation per copy", "ablation", disrupt="random"),
    _arm("dr_restored", "DR, a rectifier that undoes the noise", "ablation", kind="restored"),
)
COPIES = tuple(
    _arm(f"{name}_n{n}", f"{label}, N = {n}", "ablation", n=n, **config)
    for n in (3, 5, 10)
    for name, label, config in (("dr", "DR", {}), ("smoothllm", "SmoothLLM", {"rectify": "none"}))
)
STRENGTHS = tuple(
    _arm(f"{name}_q{round(100 * q)}", f"{label}, q = {q:.0%}", "ablation", q=q, **config)
    for q in (0.05, 0.10)
    for name, label, config in (("dr", "DR", {}), ("smoothllm", "SmoothLLM", {"rectify": "none"}))
)
CEILINGS = (_arm("oracle", "The rectifier is told the clean goal", "ceiling", kind="oracle"),)
MODELS = (
    _arm("dr_llm", "DR, rectified by the model itself", "ablation", rectify="llm"),
    _arm("dr_paper", "DR as second-hand reports tell it", "ablation", disrupt="random", rectify="both"),
)
BOUNDS = (
    _arm("exact", "Exact formulas", "method", bound="exact"),
    _arm("chernoff", "Chernoff's bound", "baseline", bound="chernoff"),
    _arm("hoeffding", "Hoeffding's bound", "baseline", bound="hoeffding"),
)
HALFWAY = Arm(name="halfway", label="Half-way from unrectified to undisturbed", role="baseline", derived=True)

ARMS = (
    *FLOORS, *BASELINES, *METHODS, *ABLATIONS, *COPIES, *STRENGTHS, *CEILINGS, *MODELS, *BOUNDS, HALFWAY,
)  # fmt: skip
QUICK_ARMS = ("coin", "block_all", "pass_all", "none", "rectify_only", "smoothllm", "dr", "dr_spell")
GUARD_ARMS = tuple(arm.name for arm in (*FLOORS, *BASELINES, *METHODS, *ABLATIONS, *CEILINGS))
SWEEP_ARMS = tuple(arm.name for arm in (*COPIES, *STRENGTHS))
ADAPTIVE_ARMS = ("smoothllm", "dr", "rectify_only")
LONG_ADAPTIVE_ARMS = (*ADAPTIVE_ARMS, "dr_spell", "delete")
QA_ARMS = ("none", "rectify_only", "unrectified", "dr")
BOUND_ARMS = tuple(arm.name for arm in BOUNDS)

METRICS = (
    Metric(name="balanced", label="Attacks stopped and benign passed, mean", better="higher", worst=0.0, chance=0.5),
    Metric(name="asr", label="Harmful prompts complied with (ours: with plain suffixes)", better="lower", worst=1.0),
    Metric(name="asr_gibberish", label="Attack success, gibberish suffix", better="lower", worst=1.0),
    Metric(name="asr_words", label="Attack success, suffix of words", better="lower", worst=1.0),
    Metric(name="asr_adaptive", label="Attack success, adaptive suffix", better="lower", worst=1.0),
    Metric(name="asr_worst", label="Attack success, best of plain and adaptive", better="lower", worst=1.0),
    Metric(name="asr_natural", label="Attack success, natural language", better="lower", worst=1.0),
    Metric(name="copy_asr", label="Copies that a plain suffix gets through", better="lower", worst=1.0),
    Metric(name="harmed", label="Attacked prompts whose vote is lost (p >= gamma)", better="lower", worst=1.0),
    Metric(name="recall", label="Clean forbidden prompts stopped", better="higher", worst=0.0),
    Metric(name="benign_flagged", label="Safe prompts refused", better="lower", worst=1.0),
    Metric(name="copy_flagged", label="Copies of benign prompts refused", better="lower", worst=1.0),
    Metric(name="fidelity", label="Cosine of benign copies to their prompt", better="higher", worst=-1.0),
    Metric(name="qa_accuracy", label="Questions answered right, mean of the copies", better="higher", worst=0.0),
    Metric(name="calls", label="Calls of the target a prompt", better="lower"),
    Metric(name="rectifier_calls", label="Calls of the rectifier a prompt", better="lower"),
    Metric(name="worst_z", label="Largest deviation from Monte Carlo", better="lower", unit="sigma", worst=100.0),
    Metric(name="outside", label="Cells beyond 4 sigma", better="lower"),
    Metric(name="slack", label="Success probability not certified", better="lower", worst=1.0),
)
