"""GraphUAT as an algorithm of ``torch_geometric.explain.Explainer``.

    explainer = Explainer(
        model, algorithm=UATExplainer(data), explanation_type="model",
        node_mask_type="attributes", edge_mask_type="object",
        model_config=ModelConfig(mode="multiclass_classification", task_level="node", return_type="raw"),
    )
    explainer(data.x, data.edge_index, index=7).dominant_source

This module imports torch-geometric, which takes seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.explain import ExplainerAlgorithm
from torch_geometric.explain.config import ExplanationType, MaskType, ModelMode, ModelReturnType, ModelTaskLevel

from steelyard.errors import InputError, UnsupportedError
from steelyard.graphs.graph import Graph, check_graph
from steelyard.graphs.graphuat.attribution import Attributor, CoverageMethod, Settings, node_numbers
from steelyard.graphs.graphuat.core import SOURCES
from steelyard.graphs.graphuat.explanation import UncertaintyAttribution
from steelyard.graphs.graphuat.probes import FeatureMethod
from steelyard.graphs.graphuat.pyg_explanation import UncertaintyExplanation, edge_mask, from_attribution
from steelyard.graphs.graphuat.student import GraphUATStudent

_SEAM = ("self", "model", "x", "edge_index", "target", "index", "kwargs")


def check_seam(algorithm: type) -> None:
    """Refuse a torch-geometric whose explanation algorithms are called in another way than is known here.

    Raises:
        UnsupportedError: ``forward`` has other arguments, or ``supports`` or ``connect`` is missing.
    """
    names = tuple(inspect.signature(algorithm.forward).parameters) if hasattr(algorithm, "forward") else ()
    if names != _SEAM or not (hasattr(algorithm, "supports") and hasattr(algorithm, "connect")):
        raise UnsupportedError(
            "this version of torch-geometric calls its explanation algorithms in another way than 2.8 does; "
            "install torch-geometric 2.8, or use attribute_uncertainty, which needs no Explainer"
        )


check_seam(ExplainerAlgorithm)


class UATExplainer(ExplainerAlgorithm):  # type: ignore[misc]  # torch-geometric is not typed
    """Explains why the model is uncertain of some nodes, within ``torch_geometric.explain.Explainer``.

    Masks hold falls of uncertainty as shares of the largest one, 0 where there is none or where removal would raise
    uncertainty; the node mask is 0 outside the rows of the explained nodes. The explanation further carries
    ``uncertainty``, ``source_scores``, ``source_z``, ``dominant_source``, ``shares``, ``evidence``, ``ranked_edges``
    and ``ranked_features`` (in nats), and ``attribution`` with everything. With several nodes each of them is a
    dictionary by node.

    Student and reference are made at the first call and kept while model and graph stay as they are.

    Args:
        data: The graph with ``y``, ``train_mask`` and ``val_mask``, which the student is fitted on and the reference
            nodes are taken from; an ``Explainer`` hands on features and edges only. Not needed with a fitted
            ``student`` or with ``on="teacher"``; the reference is then drawn from all nodes unless given.
        student: A fitted student of the model.
        reference: As in :func:`attribute_uncertainty`, and so are the others.
        probes: Which of feature, structure, coverage.
        hops: Edges to test.
        fanout: Neighbours drawn per hop; None is exact.
        max_edges: Edges tested at most per node.
        feature_method: How features are attributed.
        threshold: Fall from which an edge counts as harmful, nats.
        coverage: ``"left"`` or ``"epistemic"``; see :func:`attribute_uncertainty`.
        on: ``"student"``, or ``"teacher"`` for the model's own entropy.
        seed: Of draws and student.

    Raises:
        InputError: A setting is out of range, or there is nothing to fit a student on.
    """

    def __init__(
        self,
        data: Any = None,
        *,
        student: GraphUATStudent | None = None,
        reference: Any = None,
        probes: Sequence[str] = SOURCES,
        hops: int = 1,
        fanout: Sequence[int] | None = (32, 16),
        max_edges: int = 32,
        feature_method: FeatureMethod = "gradient",
        threshold: float = 1e-3,
        coverage: CoverageMethod = "left",
        on: Literal["student", "teacher"] = "student",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if on == "student" and student is None and data is None:
            raise InputError("UATExplainer needs data (with y and train_mask) or a fitted student, or on='teacher'")
        depths = None if fanout is None else tuple(fanout)
        self.settings = Settings(tuple(probes), hops, depths, max_edges, feature_method, threshold, seed, coverage)
        self.data = None if data is None else check_graph(data)
        self.student, self.reference, self.on = student, reference, on
        self._kept: tuple[Any, ...] = ()
        self._attributor: Attributor | None = None

    def supports(self) -> bool:
        """Return whether the connected settings can be served."""
        return self._refusal() is None

    def connect(self, explainer_config: Any, model_config: Any) -> None:
        """Take the explainer's settings.

        Raises:
            InputError: They are not supported; the message says which.
        """
        try:
            super().connect(explainer_config, model_config)
        except ValueError:
            raise InputError(f"UATExplainer: {self._refusal()}") from None

    def _refusal(self) -> str | None:
        model, explainer = self.model_config, self.explainer_config
        if model.task_level != ModelTaskLevel.node:
            return f"task_level='{model.task_level.value}' is not supported; only node classifiers are explained"
        if model.mode != ModelMode.multiclass_classification:
            return f"mode='{model.mode.value}' is not supported; use 'multiclass_classification' (two logits for two)"
        if model.return_type == ModelReturnType.probs:
            return "return_type='probs' is not supported; let the model return logits ('raw') or 'log_probs'"
        if explainer.explanation_type != ExplanationType.model:
            return "explanation_type='phenomenon' is not supported; uncertainty is the model's, use 'model'"
        if explainer.node_mask_type not in (None, MaskType.attributes):
            return f"node_mask_type='{explainer.node_mask_type.value}' is not supported; use 'attributes' or None"
        return None

    def forward(
        self,
        model: nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,
    ) -> UncertaintyExplanation:
        """Return the explanation of the nodes of ``index`` (None: of all nodes, which takes a while).

        Args:
            model: The teacher.
            x: Features (N, F).
            edge_index: Edges (2, E).
            target: Predicted classes; not used.
            index: A node, several, or a mask.
            kwargs: ``edge_weight``; other arguments of a model are not supported.

        Raises:
            InputError: The graph is heterogeneous, an argument is not known, or the model cannot be used.
        """
        if not (isinstance(x, Tensor) and isinstance(edge_index, Tensor)):
            raise InputError("UATExplainer: heterogeneous graphs are not supported; use data.to_homogeneous()")
        other = [name for name, value in kwargs.items() if name != "edge_weight" and value is not None]
        if other:
            raise InputError(f"UATExplainer: the model argument '{other[0]}' is not supported; only edge_weight is")
        with torch.enable_grad():
            attributor = self._ready(model, x, edge_index, kwargs.get("edge_weight"))
            nodes = list(range(len(x))) if index is None else node_numbers(index, len(x), "index")
            found = attributor.attribute(nodes)
        return self._explanation(found, Graph(x, edge_index))

    def _ready(self, model: nn.Module, x: Tensor, edge_index: Tensor, weight: Tensor | None) -> Attributor:
        """Return the attributor of this model and graph; versions tell whether a tensor was written to."""
        tensors = [x, edge_index, *([] if weight is None else [weight]), *model.state_dict(keep_vars=True).values()]
        seen = (model, *tensors)
        same = len(seen) == len(self._kept) and all(one is two for (one, _), two in zip(self._kept, seen, strict=True))
        versions = [0, *(tensor._version for tensor in tensors)]
        if self._attributor is None or not same or versions != [version for _, version in self._kept]:
            self._attributor = self._made(model, x, edge_index, weight)
            self._kept = tuple(zip(seen, versions, strict=True))
        return self._attributor

    def _made(self, model: nn.Module, x: Tensor, edge_index: Tensor, weight: Tensor | None) -> Attributor:
        known = self.data
        if known is not None and (known.num_nodes != len(x) or known.x.shape[1] != x.shape[1]):
            raise InputError(
                f"UATExplainer: data has features of shape {tuple(known.x.shape)}, the explained graph {tuple(x.shape)}"
            )
        labels = {} if known is None else {name: getattr(known, name) for name in ("y", "train_mask", "val_mask")}
        graph = Graph(x, edge_index, edge_weight=weight, **labels)
        return Attributor(
            model, graph, student=self.student, reference=self.reference, on=self.on, settings=self.settings
        )

    def _explanation(self, found: UncertaintyAttribution, graph: Graph) -> UncertaintyExplanation:
        parts = [from_attribution(item, graph) for item in found]
        if len(parts) == 1:
            (whole,) = parts
        else:
            whole = UncertaintyExplanation(**{name: {} for name in _PER_NODE})
            for name in _PER_NODE:
                whole[name] = {item.node: part[name] for item, part in zip(found, parts, strict=True)}
        by_node, by_edge = torch.zeros_like(graph.x), torch.zeros(graph.num_edges, dtype=graph.x.dtype)
        for item in found:
            for feature, score in item.features:
                by_node[item.node, feature] = max(score, 0.0)
            by_edge = by_edge.maximum(edge_mask(item, graph.edge_index).to(by_edge.dtype))
        explainer = self.explainer_config
        whole.node_mask = None if explainer.node_mask_type is None else _as_shares(by_node)
        whole.edge_mask = None if explainer.edge_mask_type is None else _as_shares(by_edge)
        whole.attribution = found
        return whole


_PER_NODE = (
    "uncertainty", "source_scores", "source_z", "dominant_source", "shares", "evidence", "ranked_edges",
    "ranked_features",
)  # fmt: skip


def _as_shares(mask: Tensor) -> Tensor:
    """Return a mask of falls divided by the largest, in [0, 1]."""
    largest = float(mask.max()) if mask.numel() else 0.0
    return mask / largest if largest > 0 else mask
