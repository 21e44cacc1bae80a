"""ARC inside TRL: turns in the form of commitments, whose tokens get the credit of what they commit to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from steelyard.policy.anchors import AnchorKey
from steelyard.policy.arc.commitment import CommitmentWrapper, Tracker
from steelyard.policy.arc.core import arc_advantage
from steelyard.policy.arc.format import SEGMENTS, CommitmentFormat
from steelyard.policy.arc.verifiers import Verifier
from steelyard.policy.groups import Floats
from steelyard.policy.steps import StepBatch
from steelyard.policy.trl import Candidates, EpisodeRollout, MakeEnv, TurnGRPOTrainer


class ARCTrainer(TurnGRPOTrainer):
    """TRL's GRPO trainer whose turns state, act and predict, with ARC's advantages by segment.

    Args:
        model: As in `GRPOTrainer`.
        make_env: Makes an episode's environment from its prompt; it is wrapped in `CommitmentWrapper`.
        verifiers: Of "progress" and "prediction".
        tracker: As in `CommitmentWrapper`.
        form: The tags of a turn.
        anchor: What counts as the same state, for ``credit={"group": "anchor"}``.
        max_turns: Turns of an episode.
        turn_tokens: Most tokens of a written turn.
        candidates: Turns among which the model draws by likelihood; None: it writes freely.
        credit: Arguments of :func:`steelyard.policy.arc_advantage`.
        **options: Of `GRPOTrainer`.
    """

    def __init__(
        self,
        model: Any,
        make_env: MakeEnv,
        verifiers: Mapping[str, Verifier],
        *,
        tracker: Callable[[str], Tracker] | None = None,
        form: CommitmentFormat | None = None,
        anchor: AnchorKey | str = "state",
        max_turns: int = 30,
        turn_tokens: int = 160,
        candidates: Candidates | None = None,
        credit: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        chosen = form or CommitmentFormat()
        self.credit = dict(credit or {})

        def committed(prompt: str) -> CommitmentWrapper:
            return CommitmentWrapper(make_env(prompt), verifiers, tracker=tracker, form=chosen)

        rollout = EpisodeRollout(
            committed, anchor=anchor, max_turns=max_turns, turn_tokens=turn_tokens, candidates=candidates,
            stop=f"</{chosen.tags['predict']}>", segments=chosen.segment_mask,
        )  # fmt: skip
        super().__init__(rollout, model, **options)

    def turn_advantages(self, batch: StepBatch) -> dict[str, Floats]:
        """Return ARC's advantages by segment, (S,) each."""
        found = arc_advantage(batch, **self.credit)
        return {segment: np.asarray(found.for_segment(segment)) for segment in SEGMENTS}
