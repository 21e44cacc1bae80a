"""A small graph convolutional network (Kipf and Welling, 2017) that is differentiable in the weight of every edge.

Degrees are weighted, so that an edge of weight 0 is an edge that is not there, exactly. Products with the normalised
adjacency and with sparse features are sparse: memory is O(edges + nodes x width), and a convolution keeps no message
per edge.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from steelyard.errors import InputError

_SPARSE_BELOW = 0.1  # share of nonzero features below which a sparse product is the faster one
_EDGES_AT_ONCE = 1 << 17  # in the gradient of edge weights, which needs edges x width numbers


class Adjacency(NamedTuple):
    """A normalised adjacency with self loops, ``D^-1/2 (A + I) D^-1/2`` with weighted degrees D.

    Attributes:
        indices: (2, E) int64: targets, sources.
        values: (E,) or (B, E), the normalised weights of the edges.
        own: (N,) or (B, N), those of the self loops.
    """

    indices: Tensor
    values: Tensor
    own: Tensor


def normalised(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, dtype: torch.dtype) -> Adjacency:
    """Return the normalised adjacency of edges (2, E) without self loops, differentiable in the weights.

    Args:
        edge_index: Row 0 sends to row 1.
        edge_weight: (E,), or (B, E) for B weightings of the same edges at once; None means 1.
        num_nodes: N.
        dtype: Of the values.
    """
    source, target = edge_index
    if edge_weight is None:
        edge_weight = torch.ones(edge_index.shape[1], dtype=dtype, device=edge_index.device)
    weight = edge_weight.to(dtype)
    degree = torch.ones(*weight.shape[:-1], num_nodes, dtype=dtype, device=weight.device)
    scale = degree.index_add(-1, target, weight).rsqrt()
    values = weight * scale.index_select(-1, source) * scale.index_select(-1, target)
    return Adjacency(edge_index.flip(0), values, scale * scale)


class _SparseProduct(torch.autograd.Function):
    """``A @ h`` for A given by indices and values; the gradient of the values is taken in blocks of edges."""

    @staticmethod
    def forward(ctx: Any, indices: Tensor, values: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(indices, values, h)
        product: Tensor = torch.sparse.mm(_coo(indices, values, len(h)), h)
        return product

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        indices, values, h = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        for_values = for_h = None
        if ctx.needs_input_grad[1]:
            blocks = indices.split(_EDGES_AT_ONCE, dim=1)
            for_values = torch.cat([(gradient[target] * h[source]).sum(-1) for target, source in blocks])
        if ctx.needs_input_grad[2]:
            for_h = torch.sparse.mm(_coo(indices.flip(0), values, len(h)), gradient)
        return None, for_values, for_h


def _coo(indices: Tensor, values: Tensor, nodes: int) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, (nodes, nodes), check_invariants=False)


def propagate(adjacency: Adjacency, h: Tensor) -> Tensor:
    """Return ``A @ h``: (N, d), or (B, N, d) where the adjacency holds B weightings (``h`` may be shared by them)."""
    indices, values, own = adjacency
    if values.ndim == 1:
        return _multiply(indices, values, h) + own[:, None] * h
    copies, nodes = own.shape
    shifts = nodes * torch.arange(copies, device=indices.device)
    many = (indices[:, None, :] + shifts[:, None]).reshape(2, -1)
    stacked = h.expand(copies, nodes, h.shape[-1])
    product = _multiply(many, values.reshape(-1), stacked.reshape(copies * nodes, -1))
    return product.view_as(stacked) + own[..., None] * stacked


def _multiply(indices: Tensor, values: Tensor, h: Tensor) -> Tensor:
    product: Tensor = _SparseProduct.apply(indices, values, h.contiguous())  # type: ignore[no-untyped-call]
    return product


def sparse_features(x: Tensor) -> Tensor:
    """Return features (N, F) in the form that multiplies faster: COO where few are nonzero, else ``x`` itself.

    The conversion costs about one dense product, so it pays where the same features are used again, as in training.
    """
    if x.layout != torch.strided or torch.count_nonzero(x) >= _SPARSE_BELOW * x.numel():
        return x
    sparse: Tensor = x.detach().to_sparse()
    return sparse


class SparseGCN(nn.Module):
    """A graph convolutional network: ``h_1 = relu(A x W_1 + b_1)``, …, logits ``= (A h_(L-1)) W_L + b_L``.

    ``A h_(L-1)``, the propagated hidden representation, is what the strength of evidence is measured on.

    Args:
        features: Features per node, F.
        classes: Classes, C.
        hidden: Width of the hidden layers.
        layers: Convolutions L, two or more.
        dropout: Probability on hidden values, in training only.
        generator: Draws the initial weights (Glorot uniform); torch's global random state is never used.

    Raises:
        InputError: A size or probability out of range.
    """

    def __init__(
        self,
        features: int,
        classes: int,
        *,
        hidden: int = 64,
        layers: int = 2,
        dropout: float = 0.2,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_sizes(features, classes, hidden=hidden, layers=layers, dropout=dropout)
        self.dropout = dropout
        sizes = [features, *[hidden] * (layers - 1), classes]
        drawn = generator if generator is not None else torch.Generator().manual_seed(0)
        self.weights = nn.ParameterList(_glorot(a, b, drawn) for a, b in itertools.pairwise(sizes))
        self.biases = nn.ParameterList(torch.zeros(size) for size in sizes[1:])

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return the logits (N, C), or (B, N, C) for edge weights (B, E); see :meth:`represent`."""
        return self.represent(x, edge_index, edge_weight)[1]

    def represent(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the propagated hidden representation (N, d) and the logits (N, C), without dropout.

        Args:
            x: Features (N, F), dense or sparse COO.
            edge_index: Directed edges (2, E) without self loops.
            edge_weight: (E,), or (B, E) for B weightings of the edges, which then lead both results; None means 1.
        """
        dtype = self.weights[0].dtype
        return self.represent_on(x.to(dtype), normalised(edge_index, edge_weight, x.shape[0], dtype))

    def represent_on(
        self, x: Tensor, adjacency: Adjacency, dropout: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`represent`, on a prepared adjacency; with dropout drawn from the generator where one is given."""
        h = x
        for weight, bias in list(zip(self.weights, self.biases, strict=True))[:-1]:
            h = torch.relu(_convolve(adjacency, h, weight) + bias)
            if dropout is not None and self.dropout:
                kept = torch.rand(h.shape, generator=dropout) >= self.dropout
                h = h * kept.to(h) / (1.0 - self.dropout)
        h = propagate(adjacency, h)
        return h, h @ self.weights[-1] + self.biases[-1]


def _convolve(adjacency: Adjacency, h: Tensor, weight: Tensor) -> Tensor:
    """``A h W``: propagated on its narrower side."""
    if h.layout != torch.strided:
        return propagate(adjacency, torch.sparse.mm(h, weight))
    if h.shape[-1] < weight.shape[1]:
        return propagate(adjacency, h) @ weight
    return propagate(adjacency, h @ weight)


def check_sizes(features: int = 1, classes: int = 1, *, hidden: int, layers: int, dropout: float) -> None:
    """Raise InputError if a :class:`SparseGCN` cannot have these sizes."""
    sizes = {"features": (features, 1), "classes": (classes, 1), "hidden": (hidden, 1), "layers": (layers, 2)}
    for name, (size, least) in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise InputError(f"{name} must be a whole number of at least {least}, not {size!r}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must be at least 0 and below 1, not {dropout}")


def _glorot(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    bound = (6.0 / (rows + columns)) ** 0.5
    return torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)
