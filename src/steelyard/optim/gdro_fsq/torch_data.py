"""The q-player in a torch training loop: a batch sampler that draws groups, and the loss that closes each round."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, Sampler

from steelyard.errors import InputError
from steelyard.optim.gdro_fsq.player import (
    Floats,
    Gradient,
    Ints,
    PLAPlayer,
    Schedule,
    check_count,
    check_gradient,
    check_positive,
    gradient_weights,
    schedule,
)

assert "batch_sampler" in inspect.signature(DataLoader.__init__).parameters, "DataLoader no longer takes batch_sampler"
assert hasattr(torch.nn.Module, "set_extra_state"), "torch.nn.Module no longer stores extra state"


class FlexGroupBatchSampler(Sampler[list[int]]):
    """Batches for ``DataLoader(batch_sampler=...)`` whose groups the q-player chooses, r_t of them in step t.

    An epoch is ``batches`` batches, by default as many as draw the size of the data set in samples. Samples are drawn
    with replacement, uniformly within a group. Each new epoch drops rounds that an abandoned one left open. Use
    ``num_workers=0``: workers draw batches ahead, before the losses that should shape them are known.

    Args:
        groups: Group of every item of the data set, integers in 0..m-1, shape [n].
        r_schedule: Groups per batch: an integer, an iterable (continued by the next epoch), or a callable of t.
        player: The q-player, shared with ``FlexGroupDRO``.
        samples_per_group: Samples of each chosen group; their mean is the group's loss.
        rng: Source of the draws.
        batches: Batches per epoch.

    Raises:
        InputError: A group has no items or is out of range, or an argument is out of its range.

    Source: paper (flexible sample queries); reconstruction of the draw.
    """

    def __init__(
        self,
        groups: ArrayLike,
        r_schedule: Schedule,
        player: PLAPlayer,
        samples_per_group: int = 1,
        *,
        rng: np.random.Generator | None = None,
        batches: int | None = None,
    ) -> None:
        self._members = _members(np.asarray(groups), player.m)
        if player.mode == "observed":
            raise InputError("player has mode 'observed', which chooses no groups: use mode 'ix' or 'auto'.")
        if isinstance(r_schedule, int | np.integer):
            check_count(r_schedule, "r_schedule", 1, player.m)
        self._fixed = int(r_schedule) if isinstance(r_schedule, int | np.integer) else None
        self._stream = schedule(r_schedule)
        self._player = player
        self._per_group = check_count(samples_per_group, "samples_per_group", 1)
        self._rng = np.random.default_rng() if rng is None else rng
        self._batches = None if batches is None else check_count(batches, "batches", 1)
        self._items = int(sum(len(rows) for rows in self._members))

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of one epoch, proposing a round for each."""
        self._player.discard_open()
        count = drawn = 0
        for r in self._stream:
            _, chosen, _ = self._player.propose(r, self._rng)
            rows = [self._members[i][self._rng.integers(0, len(self._members[i]), self._per_group)] for i in chosen]
            yield np.concatenate(rows).tolist()
            count, drawn = count + 1, drawn + r * self._per_group
            if count == self._batches or (self._batches is None and drawn >= self._items):
                return

    def __len__(self) -> int:
        """Batches per epoch; raises TypeError when only the stream knows."""
        if self._batches is not None:
            return self._batches
        if self._fixed is None:
            raise TypeError("the number of batches depends on r_schedule: give batches=...")
        return math.ceil(self._items / (self._fixed * self._per_group))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the draws as plain values; the player has its own."""
        return {"rng": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state_dict()``."""
        self._rng.bit_generator.state = state["rng"]


class FlexGroupDRO(torch.nn.Module):
    """Turns per-sample losses into the loss to differentiate, and tells the q-player what its groups cost.

    ``dro(losses, groups)`` is the mean loss of every group weighted by the player's gradient estimator; in evaluation
    mode it is the plain mean and the player is left alone. The player's state is part of ``state_dict()``.

    Args:
        model_loss: Per-sample loss (outputs, targets) -> [n], for ``from_outputs``; None when losses are passed.
        m: Number of groups.
        player: The q-player, by default ``PLAPlayer(m)``; share it with ``FlexGroupBatchSampler``.
        loss_range: Range B of the loss; what the player sees is loss/B clipped to [0, 1], and clips are counted
            (with a warning when their number reaches 1, 10, 100, ...).
        gradient: ``"rb"``, ``"single"`` or ``"iw"``; mode ``"observed"`` needs ``"iw"``, which it takes by default.

    Raises:
        InputError: An argument is out of its range, a loss is negative or NaN, or the batch holds other groups than the
            player chose.

    Source: reconstruction; the w-player is whatever torch optimizer follows.
    """

    def __init__(
        self,
        model_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
        m: int,
        *,
        player: PLAPlayer | None = None,
        loss_range: float = 1.0,
        gradient: Gradient | None = None,
    ) -> None:
        super().__init__()
        self.player = PLAPlayer(m) if player is None else player
        if self.player.m != m:
            raise InputError(f"m = {m}, but the player has {self.player.m} groups.")
        self.model_loss = model_loss
        self.loss_range = check_positive(loss_range, "loss_range")
        chosen = gradient or ("iw" if self.player.mode == "observed" else "rb")
        self.gradient = check_gradient(chosen, self.player.mode, self.player.query)
        self.clipped = 0
        self._next_warning = 1

    def from_outputs(
        self,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        groups: torch.Tensor,
        inclusion_probs: ArrayLike | None = None,
    ) -> torch.Tensor:
        """Return ``self(model_loss(outputs, targets), groups)``."""
        if self.model_loss is None:
            raise InputError("model_loss is None: give FlexGroupDRO a per-sample loss, or pass the losses themselves.")
        loss: torch.Tensor = self(self.model_loss(outputs, targets), groups, inclusion_probs)
        return loss

    def forward(
        self, losses: torch.Tensor, groups: torch.Tensor, inclusion_probs: ArrayLike | None = None
    ) -> torch.Tensor:
        """Return the scalar loss of a batch and close the player's oldest open round.

        Args:
            losses: Per-sample losses, shape [n], non-negative.
            groups: Group of every sample, integers, shape [n].
            inclusion_probs: In mode ``"observed"``: for each of the m groups the probability of being in the batch.
        """
        values, codes = self._checked(losses, groups)
        if not self.training:
            return losses.mean()
        present, position = np.unique(codes, return_inverse=True)
        if self.player.mode == "observed":
            if inclusion_probs is None:
                raise InputError("inclusion_probs are needed in mode 'observed': one probability per group.")
            self.player.observe(present, inclusion_probs)
        proposal = self._matching_round(present, inclusion_probs)
        place = np.empty(self.player.m, dtype=np.int64)
        place[proposal.indices] = np.arange(len(proposal.indices))
        slots = place[present][position]  # every sample's place in the proposal
        counts = np.bincount(slots, minlength=len(proposal.indices))
        self.player.update(np.bincount(slots, self._scaled(values), len(counts)) / counts)
        factors = proposal.omega * gradient_weights(proposal, self.gradient) / counts
        return (losses * torch.as_tensor(factors[slots], dtype=losses.dtype, device=losses.device)).sum()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the player's state and the clip count, for ``state_dict``."""
        return {"player": self.player.state_dict(), "clipped": self.clipped}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_extra_state`` returned."""
        self.player.load_state_dict(state["player"])
        self.clipped = int(state["clipped"])

    def _checked(self, losses: torch.Tensor, groups: torch.Tensor) -> tuple[Floats, Ints]:
        values = losses.detach().double().cpu().numpy()
        codes = groups.detach().cpu().numpy()
        if values.ndim != 1 or values.size == 0:
            raise InputError(f"losses must be per sample, shape [n], got {values.shape}: use reduction='none'.")
        if codes.shape != values.shape or codes.dtype.kind not in "iu":
            raise InputError(f"groups must hold {len(values)} integers, one per loss, got {codes.dtype} {codes.shape}.")
        if not (values.min() >= 0 and values.max() < math.inf):  # false for NaN too
            bad = int(np.flatnonzero(~((values >= 0) & (values < math.inf)))[0])
            raise InputError(
                f"losses: sample {bad} (group {codes[bad]}) has {values[bad]}: losses must be finite, >= 0."
            )
        if codes.min() < 0 or codes.max() >= self.player.m:
            raise InputError(f"groups must lie in 0..{self.player.m - 1}, got {codes.min()}..{codes.max()}.")
        return values, codes

    def _matching_round(self, present: Ints, inclusion_probs: ArrayLike | None) -> Any:
        advice = "batches from elsewhere need PLAPlayer(m, mode='observed') and inclusion_probs"
        if inclusion_probs is not None and self.player.mode != "observed":
            raise InputError(f"inclusion_probs were given, but the player has mode '{self.player.mode}': {advice}.")
        if not self.player.open_proposals:
            raise InputError(f"groups {present.tolist()} were not chosen by the player: {advice}.")
        proposal = self.player.open_proposals[0]
        wanted = np.sort(proposal.indices)
        if not np.array_equal(wanted, present):
            raise InputError(
                f"groups: the batch holds {present.tolist()}, the player chose {wanted.tolist()}: {advice}."
            )
        return proposal

    def _scaled(self, values: Floats) -> Floats:
        scaled = values / self.loss_range
        over = int((scaled > 1).sum())
        if over:
            self.clipped += over
            if self.clipped >= self._next_warning:
                self._next_warning = 10 ** (len(str(self.clipped)))
                warnings.warn(
                    f"losses above loss_range = {self.loss_range:g} were clipped for the q-player, {self.clipped} so "
                    "far: raise loss_range.",
                    stacklevel=3,
                )
        return np.minimum(scaled, 1.0)


def _members(groups: np.ndarray[Any, Any], m: int) -> list[Ints]:
    if groups.ndim != 1 or groups.dtype.kind not in "iu":
        raise InputError(f"groups must be a one-dimensional array of integers, got {groups.dtype} {groups.shape}.")
    if groups.size and (groups.min() < 0 or groups.max() >= m):
        raise InputError(f"groups must lie in 0..{m - 1}, got {groups.min()}..{groups.max()}.")
    sizes = np.bincount(groups, minlength=m)
    if sizes.min() == 0:
        raise InputError(f"groups: group {int(sizes.argmin())} has no items: remove it or give it data.")
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.cumsum(sizes)[:-1])
