"""Parts for training agents: credit for the steps of long episodes, games to train on, adapters for trainers."""

from __future__ import annotations

from steelyard.extras import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "steps": ("StepBatch",),
        "groups": ("coupled", "decoupled"),
        "advantages": ("dr_grpo", "gigpo", "grpo", "rloo"),
        "tokens": ("broadcast_to_tokens",),
        "trajectories": ("read_trajectories",),
        "anchors": ("AliasReport", "AnchorWrapper", "alias_report"),
        "environment": ("TextEnv",),
        "household.env": ("HouseholdEnv",),
        "household.vector": ("HouseholdVectorEnv",),
        "household.game": ("HouseholdGame",),
        "household.games": ("load_household_games",),
        "household.generate": ("generate_games",),
        "chain": ("KeyDoorChain",),
        "loglinear": ("LogLinearPolicy",),
        "transformer": ("TransformerPolicy",),
        "rollouts": ("run_policy",),
        "training": ("TrainingLog", "train_household"),
        "g2po.core": ("g2po",),
        "g2po.theory": ("edge_variance_bound",),
        "g2po.graph": ("TransitionGraph",),
        "g2po.trl": ("G2POTrainer",),
        "arc.core": ("ArcAdvantage", "arc"),
        "arc.format": ("Commitment", "CommitmentFormat"),
        "arc.commitment": ("CommitmentWrapper",),
        "arc.heads": ("CommitmentPolicy",),
        "arc.verifiers": ("EmbeddingVerifier", "JudgeVerifier", "LexicalVerifier", "RuleVerifier"),
        "arc.report": ("InconsistencyReport", "inconsistency_report"),
        "arc.trl": ("ARCTrainer",),
        "verl": ("patch_verl",),
    },
    extra="policy",
    apart=("g2po.trl", "arc.trl", "transformer"),
)
