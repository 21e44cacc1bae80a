"""The uncertainty-aware student of GraphUAT: it imitates a trained classifier and says how far it is from its labels.

The teacher is queried on all nodes and its labels stay unused; the labelled nodes tell only where there is evidence.
The scheme is the paper's, the form ``alpha = 1 + s pi`` of the student a reconstruction: because one is added to every
class, its total uncertainty lies above the teacher's entropy. Compare changes, not levels.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.graphs.graph import Graph, check_graph
from steelyard.graphs.graphuat.core import (
    Coverage,
    Uncertainty,
    dirichlet_uncertainty,
    fit_coverage,
    strength_from,
    uce_loss,
)
from steelyard.graphs.graphuat.networks import SparseGCN, check_sizes, normalised, sparse_features
from steelyard.graphs.graphuat.teachers import check_teacher, refuse_cached, seeded, takes_edge_weight
from steelyard.models.paths import usable_path
from steelyard.models.safefile import SafeFile, write_safe
from steelyard.rng import torch_generator

STRENGTHS = {"gaussian": 0, "knn": 5}
"""Name of a strength -> labelled neighbours that it looks at; 0 for the Gaussian."""
FORMAT = "steelyard.graphs.student"
_COVERAGE = ("centre", "whitening", "anchors", "log_weights", "median")
_SETTINGS: dict[str, Callable[[str], Any]] = {
    "hidden": int, "layers": int, "strength": str, "tau": float, "budget": float
}  # fmt: skip
_TRUSTED = 0.9  # agreement below which the attribution is not about the teacher


class AgreementWarning(UserWarning):
    """The student predicts other classes than its teacher: what it explains is not the teacher."""


class GraphUATStudent:
    """A Dirichlet student distilled from a trained node classifier.

    Args:
        teacher: Any module called as ``(x, edge_index[, edge_weight])`` that returns logits (N, C).
        backbone: ``"gcn"``, or a module of your own, called like the teacher and trained further from its present
            weights on a copy. Its representation is what ``represent(x, edge_index, edge_weight)`` returns first, or
            its logits where it has no such method.
        hidden: Width of the GCN.
        layers: Convolutions of the GCN.
        strength: ``"gaussian"``, or ``"knn"``: mean squared distance to the five nearest labelled nodes.
        tau: Sharpness of the strength.
        budget: Evidence of the median labelled node, about the labels per class.
        epochs: Full-batch steps of Adam.
        learning_rate: Of Adam.
        dropout: Of the GCN.
        loss: ``"kl"``, or ``"uce"``: the uncertain cross-entropy of ``1 + budget pi``.
        lambda_h: Weight of the Dirichlet's entropy in ``"uce"``.
        seed: Of initial weights and dropout; torch's global random state stays as it is.

    Attributes:
        final_loss: Distillation loss of the last epoch, after :meth:`fit`.
        fit_agreement: Share of nodes on which student and teacher agreed after :meth:`fit`.

    Raises:
        InputError: An argument is out of range.
    """

    def __init__(
        self,
        teacher: nn.Module,
        *,
        backbone: str | nn.Module = "gcn",
        hidden: int = 64,
        layers: int = 2,
        strength: str = "gaussian",
        tau: float = 8.0,
        budget: float = 20.0,
        epochs: int = 300,
        learning_rate: float = 1e-2,
        dropout: float = 0.2,
        loss: Literal["kl", "uce"] = "kl",
        lambda_h: float = 1e-4,
        seed: int = 0,
    ) -> None:
        if not isinstance(teacher, nn.Module):
            raise InputError(f"teacher must be a torch module called as (x, edge_index), not {type(teacher).__name__}")
        if not (backbone == "gcn" or isinstance(backbone, nn.Module)):
            raise InputError(f"backbone must be 'gcn' or a torch module, not {backbone!r}")
        if isinstance(backbone, nn.Module):
            refuse_cached(backbone, "backbone")
        if strength not in STRENGTHS:
            raise InputError(f"strength must be one of {', '.join(STRENGTHS)}, not {strength!r}")
        if loss not in ("kl", "uce"):
            raise InputError(f"loss must be 'kl' or 'uce', not {loss!r}")
        for name, value in (("tau", tau), ("budget", budget), ("learning_rate", learning_rate)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be positive, not {value}")
        if not (math.isfinite(lambda_h) and lambda_h >= 0):
            raise InputError(f"lambda_h must be 0 or more, not {lambda_h}")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise InputError(f"epochs must be a whole number of at least 1, not {epochs!r}")
        check_sizes(hidden=hidden, layers=layers, dropout=dropout)
        self.teacher, self.backbone_kind = teacher, backbone
        self.hidden, self.layers, self.dropout = hidden, layers, dropout
        self.strength, self.tau, self.budget = strength, tau, budget
        self.epochs, self.learning_rate, self.loss, self.lambda_h, self.seed = (
            epochs, learning_rate, loss, lambda_h, seed
        )  # fmt: skip
        self.backbone: nn.Module | None = None
        self.coverage: Coverage | None = None
        self.final_loss = self.fit_agreement = math.nan

    def fit(self, data: Any, train_mask: Any = None, progress: Callable[[int, int], None] | None = None) -> Self:
        """Distil the teacher on all nodes of ``data`` and measure the coverage of its labelled nodes.

        Args:
            data: A graph that :func:`steelyard.graphs.check_graph` accepts, with ``y``.
            train_mask: The labelled nodes, a mask (N,) or indices; by default ``data.train_mask``.
            progress: Called with (epochs done, epochs in all).

        Raises:
            InputError: The graph cannot be used, there are no labelled nodes, or the teacher returns anything but
                finite logits of two classes or more.
        """
        graph = check_graph(data)
        target = self._teacher_log_probabilities(graph)
        classes = target.shape[1]
        nodes = _labelled(graph, train_mask, classes)
        backbone = self._initial_backbone(graph.x, classes)
        self.final_loss = self._distil(backbone, graph, target, progress)
        backbone.requires_grad_(False).eval()
        with torch.no_grad():
            h, logits = _represent(backbone, graph.x, graph.edge_index, graph.edge_weight)
        assert graph.y is not None  # _labelled has seen it
        self.coverage = fit_coverage(
            h[nodes], graph.y[nodes], tau=self.tau, num_classes=classes, neighbours=STRENGTHS[self.strength]
        )
        self.backbone = backbone
        self.fit_agreement = share_of_agreement(logits, target)
        warn_unless_trusted(
            self.fit_agreement, "train longer (epochs) or use the teacher's architecture (backbone)", stacklevel=3
        )
        return self

    def evaluate(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, nodes: Tensor | None = None
    ) -> Uncertainty:
        """Return the uncertainties on any graph or part of one, differentiable in ``x`` and ``edge_weight``.

        Args:
            x: Features (n, F); sparse COO is taken too by the GCN, see :func:`networks.sparse_features`.
            edge_index: Directed edges (2, e) without self loops.
            edge_weight: (e,), or (B, e): B weightings of the same edges in one call, which then lead the results. An
                edge of weight 0 is removed. None means 1.
            nodes: Indices of the nodes to return, or one index; None means all.

        Raises:
            InputError: The student is not fitted, or has a backbone without edge weights and is given some that are
                neither 0 nor 1.
        """
        if self.backbone is None or self.coverage is None:
            raise InputError("the student is not fitted yet: call fit(data) first")
        h, logits = _represent(self.backbone, x, edge_index, edge_weight)
        if nodes is not None:
            h, logits = h[..., nodes, :], logits[..., nodes, :]
        s = strength_from(self.coverage, h, tau=self.tau, n_budget=self.budget)
        return dirichlet_uncertainty(1.0 + s.unsqueeze(-1) * torch.softmax(logits, -1))

    def whitened(self, graph: Graph) -> Tensor:
        """Return the representations (N, d), float64, in which the labelled nodes' covariance is of unit size.

        Raises:
            InputError: The student is not fitted.
        """
        if self.backbone is None or self.coverage is None:
            raise InputError("the student is not fitted yet: call fit(data) first")
        with torch.no_grad():
            h, _ = _represent(self.backbone, graph.x, graph.edge_index, graph.edge_weight)
        return (h.double() - self.coverage.centre) @ self.coverage.whitening

    def uncertainty(self, data: Any) -> Uncertainty:
        """Return the uncertainties (N,) of all nodes of a graph, and ``alpha`` (N, C)."""
        graph = check_graph(data)
        with torch.no_grad():
            return self.evaluate(graph.x, graph.edge_index, graph.edge_weight)

    def agreement(self, data: Any) -> float:
        """Return the share of nodes whose class the student predicts as the teacher does (any of those that tie)."""
        graph = check_graph(data)
        return share_of_agreement(self.uncertainty(graph).alpha, self._teacher_log_probabilities(graph))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the fitted tensors: ``backbone.*`` and ``coverage.*``.

        Raises:
            InputError: The student is not fitted.
        """
        if self.backbone is None or self.coverage is None:
            raise InputError("the student is not fitted yet, so there is nothing to save: call fit(data) first")
        state = {f"backbone.{name}": tensor.detach() for name, tensor in self.backbone.state_dict().items()}
        return state | {f"coverage.{name}": getattr(self.coverage, name) for name in _COVERAGE}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> Self:
        """Take over the tensors of :meth:`state_dict` of a student with the same settings.

        Raises:
            InputError: Tensors are missing, too many, of wrong shapes or not finite; the student stays as it was.
        """
        for name, tensor in state.items():
            if not (tensor.is_floating_point() and bool(torch.isfinite(tensor).all())):
                raise InputError(f"state: '{name[:80]}' must hold finite floating-point numbers")
        coverage = _read_coverage(state, STRENGTHS[self.strength])
        weights = {name[9:]: tensor for name, tensor in state.items() if name.startswith("backbone.")}
        odd = sorted(set(state) - {f"backbone.{name}" for name in weights} - {f"coverage.{name}" for name in _COVERAGE})
        if odd:
            raise InputError(f"state: '{odd[0][:80]}' belongs to no student")
        own = self.backbone_kind
        backbone = copy.deepcopy(own) if isinstance(own, nn.Module) else _empty_gcn(weights, self.hidden, self.layers)
        try:
            backbone.load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(f"state does not fit the backbone: {' '.join(str(error).split())[:200]}") from None
        if isinstance(backbone, SparseGCN) and len(coverage.centre) != self.hidden:
            raise InputError(f"state: the coverage has width {len(coverage.centre)}, the backbone {self.hidden}")
        self.backbone, self.coverage = backbone.requires_grad_(False).eval(), coverage
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted student, without its teacher, as a safetensors file.

        Raises:
            InputError: It is not fitted, or the disk refuses.
        """
        about = {name: str(getattr(self, name)) for name in _SETTINGS}
        write_safe(usable_path(path), self.state_dict(), {"format": FORMAT, **about})

    @classmethod
    def load(cls, path: str | Path, teacher: nn.Module, *, backbone: str | nn.Module = "gcn") -> Self:
        """Read a student that :meth:`save` wrote; the file may come from anywhere.

        Args:
            path: The file.
            teacher: The teacher that it was distilled from.
            backbone: As it was given to the student that was saved.

        Raises:
            InputError: The file is damaged, is no student, or does not fit the backbone.
        """
        file = SafeFile(usable_path(path))
        if file.metadata.get("format") != FORMAT:
            raise InputError(f"{file.path} holds no student: its metadata do not say format={FORMAT}")
        try:
            settings = {name: read(file.metadata[name]) for name, read in _SETTINGS.items()}
        except (KeyError, ValueError):
            raise InputError(f"{file.path} is damaged: its metadata must hold {', '.join(_SETTINGS)}") from None
        if settings["layers"] > len(file.spans):  # before names of that many are made
            raise InputError(f"{file.path} is damaged: it speaks of {settings['layers']} layers and does not hold them")
        student = cls(teacher, backbone=backbone, **settings)
        return student.load_state_dict({name: file.read(name).clone() for name in file.spans})

    def _teacher_log_probabilities(self, graph: Graph) -> Tensor:
        return torch.log_softmax(check_teacher(self.teacher, graph), -1)

    def _initial_backbone(self, x: Tensor, classes: int) -> nn.Module:
        if isinstance(self.backbone_kind, nn.Module):
            return copy.deepcopy(self.backbone_kind).requires_grad_(True)
        drawn = torch_generator("graphuat", "student weights", self.seed)
        network = SparseGCN(
            x.shape[1], classes, hidden=self.hidden, layers=self.layers, dropout=self.dropout, generator=drawn
        )
        return network.to(x.device, x.dtype)

    def _distil(
        self, backbone: nn.Module, graph: Graph, target: Tensor, progress: Callable[[int, int], None] | None
    ) -> float:
        optimizer = torch.optim.Adam(backbone.parameters(), lr=self.learning_rate)
        forward = self._training_forward(backbone, graph)
        backbone.train()
        value = math.nan
        with torch.enable_grad():
            for epoch in range(1, self.epochs + 1):
                optimizer.zero_grad()
                loss = self._loss(forward(), target)
                if not torch.isfinite(loss):
                    raise InputError(f"the student diverged at epoch {epoch}: lower learning_rate")
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                value = float(loss.detach())
                if progress is not None:
                    progress(epoch, self.epochs)
        return value

    def _training_forward(self, backbone: nn.Module, graph: Graph) -> Callable[[], Tensor]:
        drawn = torch_generator("graphuat", "student dropout", self.seed)
        if isinstance(backbone, SparseGCN):
            x = sparse_features(graph.x)
            adjacency = normalised(graph.edge_index, graph.edge_weight, graph.num_nodes, graph.x.dtype)
            return lambda: backbone.represent_on(x, adjacency, drawn)[1]

        def forward() -> Tensor:
            with seeded(drawn):
                return _call(backbone, graph.x, graph.edge_index, graph.edge_weight)

        return forward

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        if self.loss == "uce":
            return uce_loss(1.0 + self.budget * torch.softmax(logits, -1), target.exp(), self.lambda_h)
        return functional.kl_div(torch.log_softmax(logits, -1), target, reduction="batchmean", log_target=True)


def _read_coverage(state: Mapping[str, Tensor], neighbours: int) -> Coverage:
    missing = [name for name in _COVERAGE if f"coverage.{name}" not in state]
    if missing:
        raise InputError(f"state lacks 'coverage.{missing[0]}'")
    parts = {name: state[f"coverage.{name}"].double() for name in _COVERAGE}
    anchors, width = parts["anchors"].shape if parts["anchors"].ndim == 2 else (0, 0)
    wanted = {
        "centre": (width,), "whitening": (width, width), "anchors": (anchors, width), "log_weights": (anchors,),
        "median": (),
    }  # fmt: skip
    for name, shape in wanted.items():
        if tuple(parts[name].shape) != shape or 0 in shape:
            raise InputError(
                f"state: 'coverage.{name}' has shape {tuple(parts[name].shape)}, which does not fit the rest"
            )
    return Coverage(**parts, neighbours=neighbours)


def _empty_gcn(weights: Mapping[str, Tensor], hidden: int, layers: int) -> SparseGCN:
    """Return a network that exactly these tensors fill; nothing is allocated before that is known."""
    first, last = weights.get("weights.0"), weights.get(f"weights.{layers - 1}")
    if first is None or last is None or first.ndim != 2 or last.ndim != 2:
        raise InputError(f"state holds no GCN of {layers} layers")
    sizes = [first.shape[0], *[hidden] * (layers - 1), last.shape[1]]
    wanted: dict[str, tuple[int, ...]] = {f"weights.{i}": pair for i, pair in enumerate(itertools.pairwise(sizes))}
    wanted |= {f"biases.{i}": (size,) for i, size in enumerate(sizes[1:])}
    if wanted != {name: tuple(tensor.shape) for name, tensor in weights.items()}:
        raise InputError(f"state does not fit a GCN of {layers} layers, {hidden} wide, for {sizes[0]} features")
    return SparseGCN(sizes[0], sizes[-1], hidden=hidden, layers=layers).to(first.dtype)


def _labelled(graph: Graph, train_mask: Any, classes: int) -> Tensor:
    """Return the indices of the labelled nodes, sorted."""
    chosen = graph.train_mask if train_mask is None else torch.as_tensor(train_mask)
    if graph.y is None or chosen is None:
        raise InputError("data has no labelled nodes: it needs y and train_mask, or pass train_mask to fit")
    if chosen.dtype == torch.bool:
        if chosen.shape != (graph.num_nodes,):
            raise InputError(f"train_mask must have shape ({graph.num_nodes},), not {tuple(chosen.shape)}")
        chosen = chosen.nonzero()
    elif chosen.is_floating_point():
        raise InputError(f"train_mask must be a bool mask or node indices, not {chosen.dtype}")
    nodes: Tensor = torch.unique(chosen.long())
    if len(nodes) == 0:
        raise InputError("train_mask selects no node; the student needs labelled nodes to know where evidence is")
    if int(nodes[0]) < 0 or int(nodes[-1]) >= graph.num_nodes:
        raise InputError(f"train_mask names nodes outside 0 to {graph.num_nodes - 1}")
    y = graph.y[nodes]
    if bool(((y < 0) | (y >= classes)).any()):
        node = int(nodes[(y < 0) | (y >= classes)][0])
        raise InputError(
            f"y is {int(graph.y[node])} at the labelled node {node}; the teacher knows classes 0 to {classes - 1}"
        )
    return nodes


def _call(module: nn.Module, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """Call a user's module; one without edge weights gets the edges of weight 1, and those of weight 0 are dropped."""
    named = {}
    if edge_weight is not None and takes_edge_weight(module):
        named["edge_weight"] = edge_weight
    elif edge_weight is not None:
        kept = edge_weight != 0
        if not bool((edge_weight[kept] == 1).all()):
            raise InputError(f"{type(module).__name__} takes no edge weights, so edge_weight may hold 0 and 1 only")
        edge_index = edge_index[:, kept]
    out: Tensor = module(x, edge_index, **named)
    return out


def _represent(module: nn.Module, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    if isinstance(module, SparseGCN):
        return module.represent(x, edge_index, edge_weight)
    if edge_weight is not None and edge_weight.ndim == 2:
        each = [_represent(module, x, edge_index, weight) for weight in edge_weight]
        return torch.stack([h for h, _ in each]), torch.stack([logits for _, logits in each])
    own = getattr(module, "represent", None)
    if callable(own):
        h, own_logits = own(x, edge_index, edge_weight)
        return h, own_logits
    logits = _call(module, x, edge_index, edge_weight)
    return logits, logits


def share_of_agreement(scores: Tensor, target: Tensor) -> float:
    """Return the share of rows in which the class of the highest score is one of the target's highest, both (N, C)."""
    chosen = scores.argmax(-1, keepdim=True)
    return float((target.gather(-1, chosen).squeeze(-1) == target.max(-1).values).double().mean())


def warn_unless_trusted(share: float, remedy: str, stacklevel: int) -> None:
    """Warn that an attribution is not about the teacher where it agrees with the student on too few nodes."""
    if share < _TRUSTED:
        warnings.warn(
            f"student and teacher agree on {share:.0%} of the nodes, less than {_TRUSTED:.0%}: the attribution is "
            f"about the student; {remedy}",
            AgreementWarning,
            stacklevel=stacklevel,
        )
