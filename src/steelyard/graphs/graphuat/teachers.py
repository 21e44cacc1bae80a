"""Teachers: node classifiers of torch-geometric, built, trained, saved and read back; and checks of a user's own.

A teacher is any ``torch.nn.Module`` called as ``(x, edge_index[, edge_weight])`` that returns one row of logits (or of
log-probabilities) per node. Settings follow the reconstruction: width 64, Adam at 1e-2, 200 epochs, dropout .5, weight
decay 5e-4. torch-geometric takes seconds to import, so it loads when the first teacher is built or read.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require
from steelyard.models.paths import printable, usable_path
from steelyard.models.safefile import SafeFile, write_safe
from steelyard.rng import torch_generator

KINDS = {"gcn": "GCN", "gat": "GAT", "sage": "GraphSAGE"}
"""Name of an architecture here -> class of ``torch_geometric.nn``."""
FORMAT = "steelyard.graphs.teacher"
MAX_LAYERS, MAX_WIDTH, MAX_HEADS = 16, 8192, 64
"""Largest architecture that is read from a file."""
_MAX_FILE = 1 << 31  # bytes
_SPARSE_BELOW = 0.1  # share of nonzero features under which a sparse product is faster
_FLOATS = ("F32", "F64", "F16", "BF16")


class Labelled(Protocol):
    """What training reads of a graph."""

    @property
    def x(self) -> Tensor:
        """Features (N, F)."""

    @property
    def edge_index(self) -> Tensor:
        """Directed edges (2, E)."""

    @property
    def y(self) -> Tensor | None:
        """Labels (N,)."""

    @property
    def train_mask(self) -> Tensor | None:
        """Which nodes are trained on (N,)."""


class Architecture(NamedTuple):
    """What a teacher's network is made of; ``heads`` counts for ``gat`` only."""

    kind: str
    features: int
    classes: int
    hidden: int
    layers: int
    heads: int


@contextlib.contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Run the block with torch's global random state set from ``generator``, and put the state back afterwards.

    Modules and explainers of torch-geometric draw from the global state; nothing of it may leak out.
    """
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.random.get_rng_state())


def build_teacher(
    kind: str,
    num_features: int,
    num_classes: int,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 8,
    dropout: float = 0.5,
    seed: int = 0,
) -> nn.Module:
    """Return an untrained network of ``torch_geometric.nn``; equal seeds give equal weights.

    Args:
        kind: ``"gcn"``, ``"gat"`` or ``"sage"``.
        num_features: Features of a node, F.
        num_classes: Classes, C.
        hidden: Width of the hidden layers; of ``gat`` all heads together.
        layers: Message-passing layers.
        heads: Attention heads of ``gat``; must divide ``hidden``.
        dropout: Probability between layers (and on attention weights of ``gat``), in training only.
        seed: Of the initial weights.

    Raises:
        InputError: An argument is out of range.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, got '{kind}'.{did_you_mean(str(kind), KINDS)}")
    sizes = {"num_features": num_features, "num_classes": num_classes, "hidden": hidden, "layers": layers}
    for name, size in {**sizes, "heads": heads}.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{name} must be an integer of at least 1, got {size!r}")
    if kind == "gat" and layers > 1 and hidden % heads:
        raise InputError(f"hidden must be a multiple of heads for kind='gat', got {hidden} and {heads}")
    if not 0 <= dropout < 1:
        raise InputError(f"dropout must lie in [0, 1), got {dropout}")
    return _network(Architecture(kind, num_features, num_classes, hidden, layers, heads), dropout, seed)


def _network(made: Architecture, dropout: float, seed: int) -> nn.Module:
    library = require("torch_geometric.nn", "graphs")
    extra = {"heads": made.heads} if made.kind == "gat" else {}
    with seeded(torch_generator("graphuat", f"teacher {made.kind}", seed)):
        module = getattr(library, KINDS[made.kind])(
            made.features, made.hidden, made.layers, made.classes, dropout=dropout, **extra
        )
    return cast(nn.Module, module)


def train_teacher(
    module: nn.Module,
    graph: Labelled,
    *,
    epochs: int = 200,
    learning_rate: float = 1e-2,
    weight_decay: float = 5e-4,
    dropout: float | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> nn.Module:
    """Train in place with full-batch Adam on the cross entropy of the training nodes; returned in eval mode.

    Args:
        module: Called as ``(x, edge_index)``; returns logits (N, C).
        graph: With ``x``, ``edge_index``, ``y`` and ``train_mask``.
        epochs: Steps; no early stopping, so that validation labels stay unused.
        learning_rate: Of Adam.
        weight_decay: Of Adam, on all weights.
        dropout: Replaces every dropout probability of the module; None leaves them.
        seed: Of the dropout masks. torch's global random state is put back.
        progress: Called with (epochs done, epochs in all).

    Raises:
        InputError: There are no labels or no training nodes, a number is out of range, or training diverges.
    """
    if epochs < 1 or learning_rate <= 0 or weight_decay < 0:
        raise InputError(
            "epochs must be at least 1, learning_rate above 0 and weight_decay at least 0, "
            f"got {epochs}, {learning_rate}, {weight_decay}"
        )
    nodes, labels = _training_set(graph)
    if dropout is not None:
        _set_dropout(module, dropout)
    x, edges = _fast_inputs(module, graph)
    optimizer = torch.optim.Adam(module.parameters(), lr=learning_rate, weight_decay=weight_decay)
    module.train()
    with torch.enable_grad(), seeded(torch_generator("graphuat", "teacher training", seed)):
        for epoch in range(1, epochs + 1):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(x, edges)[nodes], labels)
            if not torch.isfinite(loss):
                raise InputError(f"training of the teacher diverged at epoch {epoch}: lower learning_rate")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if progress is not None:
                progress(epoch, epochs)
    return module.eval()


def _training_set(graph: Labelled) -> tuple[Tensor, Tensor]:
    if graph.y is None or graph.train_mask is None:
        raise InputError("graph needs y and train_mask to train a teacher; give labels, or a trained teacher")
    mask = torch.as_tensor(graph.train_mask)
    nodes = mask.nonzero().flatten() if mask.dtype == torch.bool else mask.flatten()
    if len(nodes) == 0:
        raise InputError("graph.train_mask selects no node; a teacher needs labelled nodes to train on")
    return nodes, graph.y[nodes]


def _set_dropout(module: nn.Module, probability: float) -> None:
    if not 0 <= probability < 1:
        raise InputError(f"dropout must lie in [0, 1), got {probability}")
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = probability
        elif isinstance(getattr(part, "dropout", None), float):  # attention weights of a GATConv
            cast(Any, part).dropout = probability


def _fast_inputs(module: nn.Module, graph: Labelled) -> tuple[Tensor, Tensor]:
    """Same function, less work: sparse features where the first layer multiplies them at once, else sparse sums."""
    library = require("torch_geometric.nn", "graphs")
    x, edges = graph.x, graph.edge_index
    if type(module) in (library.GCN, library.GAT) and torch.count_nonzero(x) < _SPARSE_BELOW * x.numel():
        return cast(Any, x).to_sparse_coo(), edges
    if type(module) is library.GraphSAGE:  # sums neighbours before it multiplies, F wide
        with warnings.catch_warnings():  # torch calls its CSR tensors a beta
            warnings.simplefilter("ignore", UserWarning)
            utils = require("torch_geometric.utils", "graphs")
            return x, cast(Tensor, utils.to_torch_csr_tensor(edges.flip(0), size=(len(x), len(x))))
    return x, edges


def takes_edge_weight(teacher: nn.Module) -> bool:
    """Return whether ``teacher`` makes use of a third argument ``edge_weight``.

    torch-geometric's ready-made networks all have the argument, and those without edge weights ignore it silently;
    they tell in ``supports_edge_weight``.
    """
    told = getattr(teacher, "supports_edge_weight", None)
    if isinstance(told, bool):
        return told
    try:
        return "edge_weight" in inspect.signature(teacher.forward).parameters
    except (TypeError, ValueError):
        return False


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run the block with ``module`` in eval mode; afterwards every part has its own mode again."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def refuse_cached(module: nn.Module, name: str) -> None:
    """Refuse a network that keeps the normalised edges of its first graph: it would never see an edge removed.

    Raises:
        InputError: A part of ``module``, which the message calls ``name``, has ``cached=True``.
    """
    if any(getattr(part, "cached", False) is True for part in module.modules()):
        raise InputError(
            f"{name} keeps normalised edges of its first graph (cached=True); build it with cached=False, then load "
            "its state_dict()"
        )


def check_teacher(teacher: Any, graph: Labelled) -> Tensor:
    """Return the teacher's outputs (N, C) on ``graph`` once they are known to be logits or log-probabilities.

    Edge weights of the graph go to a teacher that takes them.

    Raises:
        InputError: It is no module, cannot be called on the graph, returns another shape than one row of at least
            two classes per node, values that are not finite, or probabilities.
    """
    if not isinstance(teacher, nn.Module):
        raise InputError(f"teacher must be a torch.nn.Module called as (x, edge_index), got {type(teacher).__name__}")
    weight = getattr(graph, "edge_weight", None) if takes_edge_weight(teacher) else None
    x, edges = graph.x.clone(), graph.edge_index.clone()
    try:
        with evaluating(teacher), torch.no_grad():
            out = teacher(x, edges, **({} if weight is None else {"edge_weight": weight}))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        told = printable(str(error).splitlines()[0][:160]) if str(error) else type(error).__name__
        raise InputError(f"teacher cannot be called as (x, edge_index) on this graph: {told}") from None
    if not (torch.equal(x, graph.x) and torch.equal(edges, graph.edge_index)):
        raise InputError("teacher changes x or edge_index in place when it is called; let it work on copies")
    return check_outputs(out, len(graph.x))


def check_outputs(out: Any, num_nodes: int) -> Tensor:
    """Return ``out`` once it is known to be finite logits or log-probabilities (N, C), C at least 2.

    Raises:
        InputError: It is not.
    """
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != num_nodes or out.shape[1] < 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"teacher must return one row of at least two logits per node, ({num_nodes}, C); got {shape}")
    if not torch.isfinite(out).all():
        node = int((~torch.isfinite(out)).any(dim=1).nonzero()[0])
        raise InputError(f"teacher returns a value that is not finite for node {node}")
    if bool((out >= 0).all()) and bool(((out.double().sum(dim=1) - 1).abs() < 1e-3).all()):
        raise InputError(
            "teacher returns probabilities (return_type 'probs'); it must return logits ('raw') or log-probabilities "
            "('log_probs'): drop its softmax"
        )
    return out


def save_teacher(teacher: nn.Module, path: str | Path) -> None:
    """Write a teacher made by :func:`build_teacher` as safetensors, its architecture in the file's metadata.

    Raises:
        InputError: The network is none of the architectures that are read back, or the disk refuses.
    """
    tensors = {name: tensor.detach() for name, tensor in teacher.state_dict().items()}
    made = _inferred({name: tuple(tensor.shape) for name, tensor in tensors.items()}, "teacher")
    with torch.device("meta"):
        wanted = _network(made, 0.0, 0)
    same = {name: tensor.shape for name, tensor in wanted.state_dict().items()}
    if type(teacher) is not type(wanted) or same != {name: tensor.shape for name, tensor in tensors.items()}:
        raise InputError(f"teacher is not one of build_teacher ({', '.join(KINDS)}); save its state_dict() yourself")
    about = {"format": FORMAT, **{name: str(value) for name, value in made._asdict().items()}}
    write_safe(usable_path(path), tensors, about)


def load_teacher(path: str | Path, graph: Any = None) -> nn.Module:
    """Read a teacher from a safetensors file, which may come from anywhere.

    The architecture follows from the names and shapes of the tensors, as ``GCN``, ``GAT`` and ``GraphSAGE`` of
    ``torch_geometric.nn`` name them (``convs.0.lin.weight``, ``convs.0.att_src``, ``convs.0.lin_l.weight``). What
    leaves no trace there is taken as torch-geometric has it by default: ReLU between layers, mean aggregation of
    ``sage``, self-loops added by ``gcn`` and ``gat``. Metadata of :func:`save_teacher` must agree.

    Args:
        path: The file.
        graph: Where the teacher is to work; its numbers of features and classes must fit. None: not checked.

    Returns:
        The network in eval mode, float32.

    Raises:
        InputError: The file is damaged, too large, of another architecture, or does not fit the graph.
    """
    file = _opened(path)
    made = _inferred({name: span.shape for name, span in file.spans.items()}, str(file.path))
    if file.metadata.get("format") == FORMAT:
        for name, value in made._asdict().items():
            told = file.metadata.get(name)
            if told is not None and told != str(value):
                raise InputError(f"{file.path}: its metadata say {name}={told[:40]!r}, its tensors {value!r}")
    if graph is not None:
        _check_fit(made, graph, file.path)
    with torch.device("meta"):  # a small file may ask for a large network: nothing is allocated before they agree
        module = _network(made, 0.5, 0)
    module.load_state_dict(_checked_tensors(file, module.state_dict(), made), assign=True)
    return module.requires_grad_(True).eval()


def _opened(path: str | Path) -> SafeFile:
    path = usable_path(path)
    if not path.is_file():
        raise InputError(f"path {path} is not a file; a teacher is one .safetensors file")
    if path.stat().st_size > _MAX_FILE:
        raise InputError(f"{path} has more than {_MAX_FILE} bytes, too many for a teacher")
    return SafeFile(path)


def _inferred(shapes: Mapping[str, tuple[int, ...]], where: str) -> Architecture:
    layers = 1 + max((int(found[1]) for name in shapes if (found := re.match(r"convs\.(\d{1,2})\.", name))), default=-1)
    if not layers:
        raise InputError(
            f"{where} holds no tensor 'convs.0.…': only GCN, GAT and GraphSAGE of torch_geometric.nn are known by "
            "their tensors; pass the network itself (a torch.nn.Module) instead"
        )
    if "convs.0.att_src" in shapes:
        kind, weight = "gat", "lin.weight"
    elif "convs.0.lin_l.weight" in shapes:
        kind, weight = "sage", "lin_l.weight"
    else:
        kind, weight = "gcn", "lin.weight"
    first = _dims(shapes, "convs.0." + weight, 2, where)
    last = _dims(shapes, f"convs.{layers - 1}.{weight}", 2, where)
    heads = _dims(shapes, "convs.0.att_src", 3, where)[1] if kind == "gat" else 1
    made = Architecture(kind, first[1], last[0] // heads, first[0] if layers > 1 else last[0] // heads, layers, heads)
    limits = {"layers": MAX_LAYERS, "hidden": MAX_WIDTH, "classes": MAX_WIDTH, "heads": MAX_HEADS}
    for name, limit in limits.items():
        size = getattr(made, name)
        if not 1 <= size <= limit:
            raise InputError(f"{where}: {size} {name} by its tensors; from 1 to {limit} can be read")
    if kind == "gat" and layers > 1 and made.hidden % heads:
        raise InputError(f"{where}: a hidden width of {made.hidden} is no multiple of its {heads} heads")
    return made


def _dims(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int, where: str) -> tuple[int, ...]:
    shape = shapes.get(name, ())
    if len(shape) != rank or min(shape) < 1:
        raise InputError(f"{where}: '{name}' must be a tensor of {rank} dimensions, none of them 0; it is {shape}")
    return shape


def _check_fit(made: Architecture, graph: Any, path: Path) -> None:
    features = int(graph.x.shape[1])
    if made.features != features:
        raise InputError(f"{path}: the teacher takes {made.features} features a node, the graph has {features}")
    classes = 0 if getattr(graph, "y", None) is None else int(graph.y.max()) + 1
    if classes > made.classes:
        raise InputError(f"{path}: the teacher tells {made.classes} classes apart, the graph has labels of {classes}")


def _checked_tensors(file: SafeFile, wanted: Mapping[str, Tensor], made: Architecture) -> dict[str, Tensor]:
    """Return float32 copies of the file's tensors, which must be exactly those of the architecture."""
    if set(file.spans) != set(wanted):
        odd = sorted(set(file.spans) ^ set(wanted))[0][:80]
        state = "is missing" if odd in wanted else "does not belong there"
        raise InputError(
            f"{file.path}: looks like a {KINDS[made.kind]} of {made.layers} layers, but '{odd}' {state}; pass the "
            "network itself (a torch.nn.Module) if it has other parts"
        )
    read = {}
    for name, tensor in wanted.items():
        span = file.spans[name]
        if span.dtype not in _FLOATS or span.shape != tuple(tensor.shape):
            raise InputError(
                f"{file.path}: '{name}' is {span.dtype} {span.shape}, a {KINDS[made.kind]} of these sizes has floats "
                f"{tuple(tensor.shape)}"
            )
        read[name] = file.read(name).to(torch.float32, copy=True)
        if not torch.isfinite(read[name]).all():
            raise InputError(f"{file.path}: '{name}' holds a value that is not finite")
    return read
