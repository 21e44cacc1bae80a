"""A callback for the Hugging Face ``Trainer`` that runs an :class:`NFIMonitor` and logs what it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.optim.nfi.monitor import NFIMonitor

_transformers = require("transformers", "hf")
if TYPE_CHECKING:
    Base = object
else:
    Base = _transformers.TrainerCallback

# The seams: events of the callback that this one overrides.
assert all(callable(getattr(_transformers.TrainerCallback, name)) for name in ("on_train_begin", "on_log"))
assert callable(_transformers.TrainerCallback.on_train_end)

LOGGED = ("sc_frac", "zero_sum_defect", "eps", "w_norm", "mu_norm", "cosine", "effective_lr", "update_ratio")


class NFICallback(Base):
    """Attach an NFIMonitor when training begins, add its last record to every log, detach at the end.

    Args:
        head: The classifier; by default the model's output embeddings, else its ``classifier``, ``score``, ``lm_head``
            or ``head``.
        every: Record every so many optimizer steps.
        options: Further arguments of :class:`NFIMonitor` (``rule``, ``watch``, ``on_alarm``, ...).

    Attributes:
        monitor: The monitor, once training has begun; its history stays after training.
    """

    def __init__(self, head: nn.Module | None = None, every: int = 10, **options: Any) -> None:
        self._head, self._every, self._options = head, every, options
        self.monitor: NFIMonitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the classifier and attach the monitor to it and to the optimizer."""
        head = self._head if self._head is not None else find_head(kwargs["model"])
        self.monitor = NFIMonitor(head, kwargs.get("optimizer"), every=self._every, **self._options)
        self.monitor.__enter__()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Add ``nfi/...`` entries to the log that is being written, and to the trainer's history."""
        if self.monitor is None or not self.monitor.history or logs is None:
            return
        record = self.monitor.history[-1]
        entries: dict[str, Any] = {f"nfi/{name}": getattr(record, name) for name in LOGGED}
        entries["nfi/alarm"] = ", ".join(record.alarms)
        logs.update(entries)
        if state.log_history:
            state.log_history[-1].update(entries)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach the monitor; its history stays readable."""
        if self.monitor is not None:
            self.monitor.__exit__(None, None, None)


def find_head(model: nn.Module) -> nn.Module:
    """Return the classifier of a transformers model.

    Raises:
        InputError: None was found; pass ``head``.
    """
    output = getattr(model, "get_output_embeddings", lambda: None)()
    for candidate in (output, *(getattr(model, name, None) for name in ("classifier", "score", "lm_head", "head"))):
        if isinstance(candidate, nn.Module) and getattr(candidate, "weight", None) is not None:
            return candidate
    raise InputError(f"head was not found in {type(model).__name__}; pass NFICallback(head=...).")
