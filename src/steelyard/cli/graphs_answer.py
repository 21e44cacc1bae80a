"""A graph as the user knows it, and what was found about its nodes: as lines, and as a page with pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.cli.command import several
from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require
from steelyard.models.paths import printable

PICTURES = 12  # nodes with a picture on the page
CHECK = "Check on the model itself: change of its entropy in nats without the edges named, and without random ones"
PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")
_CHECK_HEAD = ("edges removed", "nodes", "named", "random", "difference", "what it says")
_SHOWN = 3  # edges and features named per node
DIGITS = 9  # of a number on the command line
_ENOUGH = 6  # nodes from which an interval over nodes says anything
_SURE = 0.05  # share of the largest entropy below which the model is not unsure of a node
_LEAST = 0.0005  # nats below which an edge's effect would be printed as 0
_WIDTH = 40  # characters of a name on a terminal


class OpenedGraph:
    """A graph from a file or by name, with the names of its nodes and features where it has any."""

    def __init__(self, data: str, features: Path | None, split: int) -> None:
        graphs = require("steelyard.graphs.graph", "graphs")
        reader = require("steelyard.data.graphs", "graphs")
        known = data in reader.GRAPHS and not Path(data).exists()
        if not known and not Path(data).exists():
            hint = did_you_mean(data, reader.GRAPHS)
            raise InputError(f"--data: there is no file or folder {data!r} and no graph of that name.{hint}")
        if not known:
            _check_file(Path(data), features)
        arrays = reader.graph_arrays(data, split) if known else reader.read_graph(data, features, split=split)
        self.ids = [printable(str(name)) for name in arrays.get("ids", ())]
        self.feature_names = [printable(str(name)) for name in arrays.get("feature_names", ())]
        self.graph = graphs.check_graph(graphs.from_arrays(arrays, Path(data).name), self_loops="remove")
        self._number = {name: number for number, name in enumerate(self.ids)}

    @property
    def most_entropy(self) -> float:
        """Entropy of a model that knows nothing, in nats."""
        return math.log(max(self.graph.num_classes, 2))

    def number(self, name: str) -> int:
        """Return the number of the node that the user calls ``name``."""
        if self.ids:
            if name not in self._number:
                raise InputError(f"--nodes: there is no node '{name}'.{did_you_mean(name, self._number)}")
            return self._number[name]
        if not name.isdecimal() or len(name) > DIGITS or int(name) >= self.graph.num_nodes:
            raise InputError(
                f"--nodes: '{name[:_WIDTH]}' is no node; they are numbered 0 to {self.graph.num_nodes - 1}"
            )
        return int(name)

    def node(self, number: int) -> str:
        """Return what the user calls a node."""
        return self.ids[number] if self.ids else str(number)

    def feature(self, number: int) -> str:
        """Return what the user calls a feature."""
        return self.feature_names[number] if self.feature_names else str(number)


def _check_file(path: Path, features: Path | None) -> None:
    """Say what to do with a file that is no graph by itself."""
    suffix = path.suffix.lower()
    if path.is_dir() or suffix == ".npz":
        return
    if suffix in PICKLED:
        raise InputError(
            f"--data: {printable(path.name)} may be a pickle, which is not opened; write numpy.savez('graph.npz', "
            "x=data.x, edge_index=data.edge_index, y=data.y, train_mask=data.train_mask, val_mask=data.val_mask)"
        )
    if features is None:
        raise InputError(
            f"--data: {printable(path.name)} is read as a table of edges; name the table of its nodes with --features"
        )


def lines(opened: OpenedGraph, found: Any, curve: Any) -> Iterator[str]:
    """Yield the answer as lines for a terminal: one or two a node, then the check."""
    for item in found:
        sure = ", so it is hardly unsure" if item.teacher_entropy < _SURE * opened.most_entropy else ""
        yield (
            f"node {opened.node(item.node)[:_WIDTH]}: {_words(item)} "
            f"({_scores(item)}); the model's entropy is {item.teacher_entropy:.2f} "
            f"of {opened.most_entropy:.2f} nats{sure}" + (", no edges" if item.isolated else "")
        )
        if _harmful(item):
            yield "  edges that hurt: " + ", ".join(_edges(opened, item))
        if item.z.get("feature", 0) > 0 and item.top_features(_SHOWN):
            yield "  features that hurt: " + ", ".join(_features(opened, item))
        if item.edges_left_out:
            yield f"  {several(item.edges_left_out, 'edge')} not tested (--max-edges)"
    yield lead(found)
    yield _scale(found)
    if curve is not None:
        yield CHECK
        for k, count, named, random, difference, said in check(curve):
            told = f"{named} named, {random} random; difference {difference}: {said}"
            yield f"  {k} removed at {several(int(count), 'node')}: {told}"


def lead(found: Any) -> str:
    """Return how the nodes divide among the sources, and how well the student stands for the model."""
    counts = Counter(_words(item) for item in found).most_common()
    told = ", ".join(f"{words} {count / len(found):.0%}" for words, count in counts)
    agreement = found.settings.get("agreement")
    stands = "" if agreement is None else f" Student and model agree on {agreement:.0%} of all nodes."
    return f"What makes {several(len(found), 'node')} unsure: {told}.{stands}"


def _scale(found: Any) -> str:
    """Return what the numbers of the answer are measured in."""
    beside = several(int(found.settings.get("reference_nodes", 0)), "other node")
    return (
        f"Scores are in standard deviations from {beside}, of the validation part where there is one; "
        "of an edge, the change of the student's uncertainty in nats without it."
    )


def check(curve: Any) -> list[tuple[str, ...]]:
    """Return what the removal of the named edges did to the model itself, a row for each number of edges.

    Columns: edges removed, nodes that have so many, change of the model's entropy in nats without the named edges,
    without as many random ones, the difference with its interval over nodes, and what that says.
    """
    ours = curve.methods[0]
    rows: list[tuple[str, ...]] = []
    for k, count in zip(curve.ks, curve.counts().tolist(), strict=True):
        if not count:
            rows.append((str(k), "0", "–", "–", "–", "no node has so many edges"))
            continue
        named, random, more = (curve.interval(*of) for of in ((ours, k), ("random", k), (ours, k, "random")))
        said = "the explanation holds" if more.low > 0 else "not shown to be better than random"
        change = f"{-more.mean:+.3f}"
        if count < _ENOUGH:
            said = "too few nodes to tell"
        else:
            change += f" [{-more.high:+.3f}, {-more.low:+.3f}]"
        rows.append((str(k), str(count), f"{-named.mean:+.3f}", f"{-random.mean:+.3f}", change, said))
    return rows


def write_page(path: Path, opened: OpenedGraph, found: Any, curve: Any, around: Any) -> Path:
    """Write the answer as one HTML file: all nodes in a table, then a picture for each of the first."""
    from steelyard.report.answer import Part, Table, write_answer

    pictures = require("steelyard.graphs.graphuat.pictures", "graphs")
    head = (
        "node",
        "source",
        "scores: features, neighbours, labels",
        "student's uncertainty",
        "epistemic part",
        "model's entropy",
        "edges that hurt",
    )
    table = Table("Nodes", head, tuple(_row(opened, item) for item in found))
    tables = [table, _worst(opened, found)]
    if curve is not None:
        tables.insert(1, Table(CHECK, _CHECK_HEAD, tuple(check(curve))))
    parts = [Part("All nodes", _scale(found), tuple(tables))]
    known = {item.node: item for item in (*around, *found)}
    for item in list(found)[:PICTURES]:
        named = Table(
            "Features that raise the uncertainty most", ("feature", "x times gradient"), _feature_rows(opened, item)
        )
        diagram = pictures.neighbourhood(item, known, opened.node)
        parts.append(Part(f"Node {opened.node(item.node)}", "", (named,) if named.rows else (), (diagram,)))
    return write_answer(path, f"Why {several(len(found), 'node')} are unsure", lead(found), parts)


def _row(opened: OpenedGraph, item: Any) -> tuple[str, ...]:
    epistemic = "–" if item.epistemic is None else f"{item.epistemic:.3f}"
    return (
        opened.node(item.node),
        _words(item),
        ", ".join(f"{value:+.1f}" for value in item.z.values()),
        f"{item.total:.3f}",
        epistemic,
        f"{item.teacher_entropy:.3f}",
        ", ".join(_edges(opened, item)) or "–",
    )


def _worst(opened: OpenedGraph, found: Any) -> Any:
    from steelyard.report.answer import Table

    rows = tuple(
        (f"{opened.node(edge['u'])} – {opened.node(edge['v'])}", f"{edge['fall']:.3f}", str(edge["nodes"]))
        for edge in found.summary()["harmful_edges"]
    )
    return Table("Edges that hurt most, over all nodes", ("edge", "fall without it, nats", "found at nodes"), rows)


def _harmful(item: Any) -> list[tuple[int, float]]:
    """Return neighbour and fall of the most harmful edges, without those whose effect would be printed as nothing."""
    return [(other, fall) for other, fall in item.neighbours()[:_SHOWN] if fall >= _LEAST]


def _edges(opened: OpenedGraph, item: Any) -> list[str]:
    return [f"to {opened.node(other)[:_WIDTH]} ({-fall:+.3f})" for other, fall in _harmful(item)]


def _features(opened: OpenedGraph, item: Any) -> list[str]:
    return [f"{opened.feature(index)[:_WIDTH]} ({score:.3f})" for index, score in item.top_features(_SHOWN)]


def _feature_rows(opened: OpenedGraph, item: Any) -> tuple[tuple[str, ...], ...]:
    return tuple((opened.feature(index), f"{score:.4f}") for index, score in item.top_features(10))


def _scores(item: Any) -> str:
    return ", ".join(f"{source} {value:+.1f}" for source, value in item.z.items())


def _words(item: Any) -> str:
    pictures = require("steelyard.graphs.graphuat.pictures", "graphs")
    words: str = pictures.WORDS.get(pictures.source(item), pictures.CALM)
    return words
