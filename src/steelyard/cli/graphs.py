"""``steelyard graphs``: why a trained graph network is unsure of some nodes."""

from __future__ import annotations

import json as jsonlib
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, quiet_libraries
from steelyard.cli.graphs_answer import DIGITS, PICKLED, PICTURES, OpenedGraph, lines, write_page
from steelyard.cli.progress import counted
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

_DEFAULT = 10  # nodes that are looked at when none is named

DataOption = Annotated[
    str,
    typer.Option(
        "--data", metavar="GRAPH", help="A .npz file, a CSV of edges, a folder of tables, or a known name (texas)."
    ),
]
FeaturesOption = Annotated[
    Path | None, typer.Option("--features", metavar="CSV", help="Features of the nodes, beside a CSV of edges.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE",
        help="State of torch_geometric.nn.GCN, GAT or GraphSAGE, .safetensors. Default: train a GCN.",
    ),
]
NodesOption = Annotated[
    str | None, typer.Option("--nodes", metavar="LIST", help="Nodes by number, or name in a CSV: 10,42.")
]
MostOption = Annotated[
    int | None,
    typer.Option("--most-uncertain", min=1, help="So many nodes of which the model is least sure. Default: 10."),
]
FanoutOption = Annotated[
    str, typer.Option("--fanout", help="Neighbours drawn per hop: 32,16; or all (exact, slow on large graphs).")
]
EdgesOption = Annotated[int, typer.Option("--max-edges", min=1, help="Edges of a node that are tested at most.")]
RemoveOption = Annotated[
    int, typer.Option("--remove", min=0, help="Edges removed for the check on the model itself; 0: no check.")
]
SplitOption = Annotated[int, typer.Option("--split", min=0, help="Which split, of a graph with several; from 0.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of training and of the draws.")]
SaveOption = Annotated[
    Path | None, typer.Option("--save-model", metavar="FILE", help="Keep the GCN that was trained here.")
]
PageOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a picture per node.")
]

app = typer.Typer(no_args_is_help=True, help="Why a graph network is unsure of a node: features, neighbours, labels.")


@app.callback()
def _quiet() -> None:
    quiet_libraries()
    warnings.showwarning = lambda message, *_: typer.echo(f"note: {printable(str(message))}", err=True)


def attribute(
    data: DataOption,
    features: FeaturesOption = None,
    model: ModelOption = None,
    nodes: NodesOption = None,
    most_uncertain: MostOption = None,
    fanout: FanoutOption = "32,16",
    max_edges: EdgesOption = 32,
    remove: RemoveOption = 3,
    split: SplitOption = 0,
    seed: SeedOption = 0,
    save_model: SaveOption = None,
    html: PageOption = None,
    json: JsonOption = False,
) -> None:
    """Say of each node whether its features, its neighbours or thin labels make the model unsure, and check it.

    The check removes the edges that were named from the graph and asks the model itself again, beside as many edges
    drawn at random: where its entropy does not fall further, the explanation does not hold for this model.
    """
    opened = OpenedGraph(data, features, split)
    named = _named(opened, nodes, most_uncertain)
    drawn = _fanout(fanout)
    _check_labels(opened.graph)
    teacher = _teacher(opened.graph, model, seed, save_model)
    chosen = named or _least_sure(opened, teacher, most_uncertain or _DEFAULT)
    made = _attributor(teacher, opened.graph, drawn, max_edges, seed)
    with counted("attributing") as progress:
        found = made.attribute(chosen, progress=lambda done, total: progress(done, total, "nodes"))
    curve = _removal(teacher, opened.graph, found, remove, seed) if remove else None
    if html is not None:
        around = made.attribute(_neighbours(found))
        typer.echo(f"page: {write_page(html, opened, found, curve, around).resolve()}", err=True)
    if json:
        names = {str(item.node): opened.node(item.node) for item in found} if opened.ids else {}
        removal = None if curve is None else jsonlib.loads(curve.to_json())
        print_json({**jsonlib.loads(found.to_json()), "names": names, "removal": removal})
        return
    for line in lines(opened, found, curve):
        typer.echo(line)


def _teacher(graph: Any, model: Path | None, seed: int, save: Path | None) -> Any:
    """Return the model of the file, or a GCN trained on the graph's labels."""
    teachers = require("steelyard.graphs.graphuat.teachers", "graphs")
    if model is not None:
        if save is not None:
            raise InputError("--save-model keeps a model that is trained here; leave --model out")
        return _loaded(teachers, model, graph)
    made = teachers.build_teacher("gcn", graph.x.shape[1], graph.num_classes, seed=seed)
    with counted("training a GCN") as progress:
        teachers.train_teacher(made, graph, seed=seed, progress=lambda done, total: progress(done, total, "epochs"))
    if save is not None:
        teachers.save_teacher(made, save)
        typer.echo(f"model: {save.resolve()}", err=True)
    return made


def _attributor(teacher: Any, graph: Any, fanout: tuple[int, ...] | None, max_edges: int, seed: int) -> Any:
    """Return what attributes nodes by a student fitted to the model; it reads the reference nodes once."""
    student = require("steelyard.graphs", "graphs").GraphUATStudent(teacher, seed=seed)
    with counted("fitting the student") as progress:
        student.fit(graph, progress=lambda done, total: progress(done, total, "student"))
    home = require("steelyard.graphs.graphuat.attribution", "graphs")
    settings = home.Settings(fanout=fanout, max_edges=max_edges, seed=seed)
    return home.Attributor(teacher, graph, student=student, settings=settings)


def _check_labels(graph: Any) -> None:
    """Say what is missing, in the words of files: the student needs labelled nodes, whoever trained the model."""
    if graph.y is None:
        raise InputError(
            "--data has no labels (an array 'y' or a column 'label'); they are needed beside a trained model too, "
            "to tell where labels are thin"
        )
    if graph.train_mask is None:
        raise InputError(
            "--data does not say which nodes the model learns from; add an array 'train_mask' "
            "(true or false for each node) or a column 'split' with train, val, test"
        )


def _loaded(teachers: Any, path: Path, graph: Any) -> Any:
    if path.suffix.lower() in PICKLED:
        raise InputError(
            f"--model: {printable(path.name)} may be a pickle, which is not opened; write "
            "safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
        )
    return teachers.load_teacher(path, graph)


def _named(opened: OpenedGraph, nodes: str | None, most_uncertain: int | None) -> list[int]:
    """Return the numbers of the nodes that --nodes names, none without it."""
    if nodes is None:
        return []
    if most_uncertain is not None:
        raise InputError("--nodes and --most-uncertain exclude each other")
    names = [name.strip() for name in nodes.split(",") if name.strip()]
    if not names:
        raise InputError("--nodes names no node")
    return list(dict.fromkeys(opened.number(name) for name in names))


def _least_sure(opened: OpenedGraph, teacher: Any, count: int) -> list[int]:
    """Return the nodes where the model's entropy is largest."""
    model = require("steelyard.graphs.graphuat.models", "graphs").TeacherEntropy(teacher)
    entropy = model.evaluate(opened.graph.x, opened.graph.edge_index).total.tolist()
    return sorted(range(len(entropy)), key=lambda node: (-entropy[node], node))[:count]


def _fanout(text: str) -> tuple[int, ...] | None:
    if text == "all":
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) <= DIGITS and int(part) > 0 for part in parts):
        raise InputError(f"--fanout must be all, or neighbours per hop such as 32,16, got {text!r}")
    return tuple(int(part) for part in parts)


def _neighbours(found: Any) -> list[int]:
    """Return the neighbours that the page draws and that are not attributed yet."""
    most = require("steelyard.graphs.graphuat.pictures", "graphs").MOST
    drawn = {other for item in list(found)[:PICTURES] for other, _ in item.neighbours()[:most]}
    return sorted(drawn - {item.node for item in found})


def _removal(teacher: Any, graph: Any, found: Any, remove: int, seed: int) -> Any:
    check = require("steelyard.graphs", "graphs").removal_faithfulness
    with counted("checking on the model") as progress:
        return check(
            teacher,
            graph,
            found,
            ks=tuple(range(1, remove + 1)),
            against=("random",),
            seed=seed,
            progress=lambda done, total: progress(done, total, "nodes"),
        )


COMMANDS = (
    Command(
        "attribute",
        attribute,
        "steelyard graphs attribute --data graph.npz --model model.safetensors --nodes 10,42 --html why.html",
    ),
)
for command in COMMANDS:
    command.add_to(app)
