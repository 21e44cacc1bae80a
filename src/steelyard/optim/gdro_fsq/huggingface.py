"""Group DRO for the Hugging Face Trainer: a mixin, since a callback sees neither batches nor losses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.optim.gdro_fsq.player import Schedule
from steelyard.optim.gdro_fsq.torch_data import FlexGroupBatchSampler, FlexGroupDRO

_trainer = require("transformers", "hf").Trainer
_parameters = list(inspect.signature(_trainer.compute_loss).parameters)
assert _parameters[:4] == ["self", "model", "inputs", "return_outputs"], "Trainer.compute_loss has other parameters"
assert hasattr(_trainer, "get_train_dataloader"), "Trainer no longer has get_train_dataloader"


class GroupDROTrainerMixin:
    """Trains for the worst group: ``class MyTrainer(GroupDROTrainerMixin, Trainer): pass``.

    The training data need an integer column with the group of every item; it is taken out of ``inputs`` before the
    model sees them. One process, no gradient accumulation, no loader workers: the player must see a batch's losses
    before it draws the next.

    Args:
        *args: Passed on to ``Trainer``.
        dro: The loss, with its player; without a ``model_loss`` of its own, cross-entropy of the logits is taken.
        group_column: Name of the column with the groups.
        label_column: Name of the labels in ``inputs``.
        r_schedule: Groups per batch: an integer, an iterable, or a callable of the step.
        samples_per_group: Samples of each chosen group.
        rng: Source of the draws; by default seeded with ``args.data_seed`` or ``args.seed``.
        batches: Batches per epoch, needed for a stream without a length.
        **kwargs: Passed on to ``Trainer``.

    Raises:
        InputError: A training argument contradicts the method, or the group column is missing.
    """

    def __init__(
        self,
        *args: Any,
        dro: FlexGroupDRO,
        group_column: str = "group",
        label_column: str = "labels",
        r_schedule: Schedule = 1,
        samples_per_group: int = 1,
        rng: np.random.Generator | None = None,
        batches: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        _check_arguments(self.args)  # type: ignore[attr-defined]
        self.dro = dro
        self.group_column, self.label_column = group_column, label_column
        self._r_schedule, self._samples_per_group, self._batches = r_schedule, samples_per_group, batches
        settings = self.args  # type: ignore[attr-defined]
        seed = settings.seed if settings.data_seed is None else settings.data_seed
        self._draws = np.random.default_rng(seed) if rng is None else rng

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader whose batches hold the groups that the player chose."""
        trainer: Any = self
        if trainer.train_dataset is None:
            raise InputError("train_dataset is missing: the trainer needs one to train.")
        sampler = FlexGroupBatchSampler(
            _column(trainer.train_dataset, self.group_column),
            self._r_schedule,
            self.dro.player,
            self._samples_per_group,
            rng=self._draws,
            batches=self._batches,
        )
        # Not through accelerate, whose loader draws one batch ahead; the trainer itself moves inputs to the device.
        return DataLoader(
            trainer.train_dataset,
            batch_sampler=sampler,
            collate_fn=trainer.data_collator,
            pin_memory=trainer.args.dataloader_pin_memory and torch.cuda.is_available(),
            generator=torch.Generator(),
        )

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss of a batch; in training it closes the player's round, in evaluation it is the plain mean."""
        if self.group_column not in inputs:
            raise InputError(
                f"inputs have no '{self.group_column}': add the column and keep it with remove_unused_columns=False."
            )
        if self.label_column not in inputs:
            raise InputError(f"inputs have no '{self.label_column}': name the labels with label_column=...")
        inputs = dict(inputs)
        groups, labels = inputs.pop(self.group_column), inputs[self.label_column]
        outputs = model(**inputs)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
        self.dro.train(model.training)
        if self.dro.model_loss is None:
            losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
            loss = self.dro(losses, groups)
        else:
            loss = self.dro.from_outputs(logits, labels, groups)
        return (loss, outputs) if return_outputs else loss


def _check_arguments(args: Any) -> None:
    if args.remove_unused_columns:
        raise InputError("remove_unused_columns must be False, or the trainer drops the group column.")
    if args.gradient_accumulation_steps != 1:
        raise InputError(
            "gradient_accumulation_steps must be 1: the player needs a batch's losses before the next draw."
        )
    if args.world_size > 1:
        raise InputError(f"world_size is {args.world_size}: the player runs in one process only.")


def _column(dataset: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the column ``name`` of a datasets.Dataset, or of any map-style data set of dictionaries."""
    columns = getattr(dataset, "column_names", None)
    if columns is not None and name in columns:
        return np.asarray(dataset[name])
    try:
        return np.asarray([dataset[i][name] for i in range(len(dataset))])
    except (KeyError, TypeError, IndexError):
        raise InputError(f"train_dataset has no column '{name}': name the groups with group_column=...") from None
