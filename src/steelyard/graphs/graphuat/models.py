"""What the probes ask of a model, and the teacher's own entropy as such a model."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from steelyard.graphs.graphuat.core import logit_entropy
from steelyard.graphs.graphuat.networks import SparseGCN
from steelyard.graphs.graphuat.teachers import evaluating, refuse_cached, takes_edge_weight


class Reading(Protocol):
    """Uncertainties of some nodes, in nats."""

    @property
    def total(self) -> Tensor:
        """Total uncertainty, shape (nodes,)."""

    @property
    def epistemic(self) -> Tensor | None:
        """Its epistemic part, shape (nodes,), or None where the model has none."""


class UncertaintyModel(Protocol):
    """A model that the probes can question on any graph, differentiably in ``x`` and ``edge_weight``."""

    def evaluate(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, nodes: Tensor | None = None
    ) -> Reading:
        """Return the uncertainties of ``nodes`` (default all) of this graph."""


class TeacherReading(NamedTuple):
    """A teacher's entropy; a single network has no epistemic part."""

    total: Tensor
    epistemic: None = None


class TeacherEntropy:
    """The entropy of a node classifier's softmax, for probes that need no student.

    Args:
        teacher: Module ``(x, edge_index[, edge_weight])`` that returns logits or log-probabilities of shape (N, C).

    Raises:
        InputError: It keeps normalised edges of a graph between calls (``cached=True``).
    """

    def __init__(self, teacher: nn.Module) -> None:
        refuse_cached(teacher, "teacher")
        self.teacher = teacher
        self.takes_edge_weight = takes_edge_weight(teacher)
        self.hops = message_hops(teacher)

    def evaluate(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, nodes: Tensor | None = None
    ) -> TeacherReading:
        """Return the entropy in nats of ``nodes`` (default all), computed in evaluation mode.

        ``edge_weight`` is passed on only to a teacher that uses it.
        """
        weights = {"edge_weight": edge_weight} if edge_weight is not None and self.takes_edge_weight else {}
        with evaluating(self.teacher):
            logits = self.teacher(x, edge_index, **weights)
        if nodes is not None:
            logits = logits[nodes]
        return TeacherReading(logit_entropy(logits.double()))


def uses_weights(model: UncertaintyModel) -> bool:
    """Return whether ``model`` makes use of edge weights: it says so, or its backbone tells."""
    said = getattr(model, "takes_edge_weight", None)
    if isinstance(said, bool):
        return said
    backbone = getattr(model, "backbone", None)
    return takes_edge_weight(backbone) if isinstance(backbone, nn.Module) else True


def message_hops(model: Any) -> int | None:
    """Return how many hops ``model`` sees, or None if that cannot be told.

    It says so itself (``hops``), or its backbone does, or its message passing layers are counted, one of K steps
    (APPNP, SGConv, TAGConv, ARMAConv) as K; a larger ``num_layers`` counts. A layer that is called more than once
    counts once: such a model must say ``hops``.
    """
    if isinstance(model, SparseGCN):
        return len(model.weights)
    said = _count(model, "hops")
    if said:
        return said
    backbone = getattr(model, "backbone", None)
    if isinstance(backbone, nn.Module):
        return message_hops(backbone)
    parts = model.modules() if isinstance(model, nn.Module) else ()
    layers = [part for part in parts if callable(getattr(part, "propagate", None))]
    steps = sum(_count(layer, "K") or _count(layer, "num_layers") or 1 for layer in layers)
    return max(steps, _count(model, "num_layers")) or None


def _count(model: Any, name: str) -> int:
    """Return a whole number that ``model`` says of itself, 0 where it does not."""
    said = getattr(model, name, 0)
    return said if isinstance(said, int) and said > 0 else 0
