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
        "trajectories": ("batch_of", "read_trajectories"),
        "anchors": ("AliasReport", "AnchorWrapper", "alias_report"),
        "environment": ("TextEnv",),
        "household.env": ("HouseholdEnv",),
        "household.vector": ("HouseholdVectorEnv",),
        "household.game": ("HouseholdGame",),
        "household.games": ("load_household_games",),
        "household.tracker": ("HouseholdTracker",),
        "household.generate": ("generate_games",),
        "chain": ("KeyDoorChain",),
        "loglinear": ("LogLinearPolicy",),
        "transformer": ("TransformerPolicy",),
        "rollouts": ("Policy", "Turn", "collect", "run_policy"),
        "training": ("TrainingLog", "evaluate", "train_household"),
        "g2po.core": ("G2POInfo", "g2po_advantage"),
        "g2po.theory": ("edge_variance_bound",),
        "g2po.graph": ("TransitionGraph",),
        "g2po.trl": ("G2POTrainer",),
        "arc.core": ("ArcAdvantage", "arc_advantage"),
        "arc.format": ("Commitment", "CommitmentFormat"),
        "arc.commitment": ("CommitmentWrapper",),
        "arc.heads": ("CommitmentPolicy",),
        "arc.verifiers": ("EmbeddingVerifier", "Evidence", "JudgeVerifier", "LexicalVerifier", "RuleVerifier"),
        "arc.report": ("InconsistencyReport", "inconsistency_report"),
        "arc.trl": ("ARCTrainer",),
        "verl": ("patch_verl", "side_table_estimator"),
    },
    extra="policy",
    apart=("g2po.trl", "arc.trl", "transformer"),
)
