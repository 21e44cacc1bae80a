"""Guards round a language model: a vote over disrupted copies of a prompt, and a detector of ungrounded answers."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "dr_smoothing.certificates": ("ablation_certificate", "certify_from_samples", "swap_certificate"),
        "dr_smoothing.theory": (
            "break_probability",
            "copies_needed",
            "defense_success_probability",
            "dr_answer_probability",
            "dr_copy_probability",
            "feasible_window",
            "hoeffding_bound",
            "q_min",
            "required_copy_probability",
            "required_strength_hoeffding",
            "success_probability_bounds",
            "vote_answer_probability",
        ),
        "dr_smoothing.core": (
            "disrupt_delete_words",
            "disrupt_insert",
            "disrupt_mask_words",
            "disrupt_patch",
            "disrupt_random",
            "disrupt_swap",
            "majority",
            "mixture",
            "vote_threshold",
        ),
        "dr_smoothing.judges": (
            "LLMJudge",
            "PrefixJudge",
        ),
        "dr_smoothing.rectifiers": (
            "Chain",
            "LLMRectifier",
            "MaskFillRectifier",
            "SpellRectifier",
        ),
        "dr_smoothing.result": (
            "Copy",
            "SmoothedResponse",
            "SmoothingWarning",
        ),
        "dr_smoothing.smoothing": (
            "DRSmoothing",
            "SmoothLLM",
        ),
        "dr_smoothing.baselines": (
            "InContextDefence",
            "NoDefence",
            "Paraphrase",
            "RectifyOnly",
            "SelfReminder",
        ),
        "dr_smoothing.filters": (
            "EraseAndCheck",
            "ErasureCertificate",
            "GuardClassifier",
            "PerplexityFilter",
            "SelfFilter",
        ),
        "dr_smoothing.semantic_smooth": (
            "SelectorPolicy",
            "SemanticSmooth",
        ),
        "dr_smoothing.adaptive": (
            "AdaptiveReport",
            "Objective",
            "SuffixSearch",
            "adaptive_eval",
        ),
        "dr_smoothing.openai": ("SmoothingDefence",),
        "discrepancy.black_box": ("BlackBoxDiscrepancy",),
        "discrepancy.core": ("score_from_states",),
        "discrepancy.detector": ("EmbeddingDiscrepancy",),
        "discrepancy.lm_polygraph": ("PolygraphEstimator",),
        "discrepancy.openai": ("DiscrepancyDetector",),
        "discrepancy.sklearn": ("DiscrepancyEstimator",),
        "discrepancy.theory": ("detector_cost",),
    },
    extra="guard",
)
