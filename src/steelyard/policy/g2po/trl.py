"""G2PO inside TRL."""

from __future__ import annotations

from typing import Any

import numpy as np

from steelyard.policy.anchors import AnchorKey
from steelyard.policy.g2po.core import g2po_advantage
from steelyard.policy.groups import Floats
from steelyard.policy.steps import StepBatch
from steelyard.policy.trl import Candidates, EpisodeRollout, MakeEnv, TurnGRPOTrainer


class G2POTrainer(TurnGRPOTrainer):
    """TRL's GRPO trainer with G2PO's credit for every turn.

    Args:
        model: As in `GRPOTrainer`.
        make_env: Makes an episode's environment from its prompt.
        anchor: What counts as the same state: "state", "obs", "history" or a function; see `AnchorWrapper`.
        max_turns: Turns of an episode.
        turn_tokens: Most tokens of a written turn.
        candidates: Turns among which the model draws by likelihood; None: it writes freely.
        credit: Arguments of :func:`steelyard.policy.g2po_advantage`.
        **options: Of `GRPOTrainer`: ``args``, ``train_dataset`` with a column ``prompt`` of texts, ``peft_config`` …
    """

    def __init__(
        self,
        model: Any,
        make_env: MakeEnv,
        *,
        anchor: AnchorKey | str = "state",
        max_turns: int = 30,
        turn_tokens: int = 64,
        candidates: Candidates | None = None,
        credit: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.credit = dict(credit or {})
        rollout = EpisodeRollout(
            make_env, anchor=anchor, max_turns=max_turns, turn_tokens=turn_tokens, candidates=candidates
        )
        super().__init__(rollout, model, **options)

    def turn_advantages(self, batch: StepBatch) -> Floats:
        """Return G2PO's advantages, (S,)."""
        return np.asarray(g2po_advantage(batch, **self.credit))
