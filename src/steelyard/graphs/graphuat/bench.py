"""How uncertainty attribution is weighed: planted sources, and the removal of what was found.

A seed draws (or splits) a graph, plants sources, trains a teacher and a student, and lets every explainer work on the
same nodes; the arms are taken out of that cell (see :mod:`steelyard.graphs.graphuat.arms`), so differences pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task, Trace
from steelyard.extras import require
from steelyard.graphs.graphuat import arms, cells, tasks, user
from steelyard.graphs.graphuat.core import SOURCES

require("torch_geometric.nn", "graphs")  # before workers fork: each cell would pay seconds for it

_CONSTANT = {"chance": (1 / 3, 0.5), "planted": (1.0, 1.0)}


def run(cell: CellInput) -> Measured:
    """Compute one cell: all explainers on one graph (``graphuat``), or a line to compare with."""
    if cell.arm in _CONSTANT:
        if cell.task not in tasks.PLANTED:
            return Measured({}, steps=1)  # nothing is planted there, so there is nothing to name
        named, area = _CONSTANT[cell.arm]
        metrics = {"source_accuracy": named, **{f"auroc_{name}": area for name in SOURCES}}
        return Measured(metrics, steps=1)
    return user.run(cell) if cell.task == user.TASK else cells.run_planted_or_removal(cell)


_PLANETOID = "Planetoid (MIT)"
_HETEROPHILOUS = "heterophilous-graphs (MIT)"
TASKS = (
    Task("csbm", "Generated graph, planted sources", tasks.generated, "generated: contextual block model with words"),
    Task("cora", "Cora, planted sources", tasks.public("cora"), _PLANETOID, dataset="cora"),
    Task("citeseer", "CiteSeer, planted sources", tasks.public("citeseer"), _PLANETOID, dataset="citeseer"),
    *(
        Task(f"{name}_{kind}", f"{label}, planted sources, {teacher}", tasks.public(name), _PLANETOID, dataset=name)
        for name, label in (("cora", "Cora"), ("citeseer", "CiteSeer"))
        for kind, teacher in (("gat", "GAT"), ("sage", "GraphSAGE"))
    ),
    *(
        Task(name, f"{name.capitalize()}, removal", tasks.public(name), _HETEROPHILOUS, dataset=name)
        for name in tasks.REMOVAL
    ),
)
PARAMS: Mapping[str, Any] = {
    "judged": 60,
    "epochs": 300,
    "teacher_epochs": 200,
    "few": 10,
    "integrated": True,
    "gnnexplainer_epochs": 50,
}
RECIPE = (
    "By hand on a GPU, as weighings run on the processor: for GCN, GAT and GraphSAGE teachers and each of the ten "
    "graphs of steelyard.graphs.load_graph, ten seeds: train_teacher, GraphUATStudent(teacher).fit, "
    "attribute_uncertainty on all test nodes, removal_faithfulness against every baseline with GNNExplainer at 200 "
    "epochs; on your own graphs the same with your teacher."
)
_GCN = ("cora", "citeseer")
_LIGHT = tuple(name for name in tasks.REMOVAL if name != "actor")  # whose neighbourhoods are as large as the graph
_OTHERS = ("cora_gat", "cora_sage", "citeseer_gat", "citeseer_sage")
_STEPS = 220 * 20  # nodes times arms of a planted cell, at most

BENCH = BenchSpec(
    method="graphuat",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="source_accuracy",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(Block(tasks=("csbm",), arms=arms.PLANTED_ARMS),),
            seeds=6,
            work=6 * (_STEPS + 2),
            params=PARAMS,
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("csbm", *_GCN), arms=arms.PLANTED_ARMS),
                Block(tasks=_LIGHT, arms=arms.REMOVAL_ARMS),
                Block(tasks=("actor",), arms=arms.REMOVAL_ARMS, params={"judged": 12, "few": 1}),
                Block(tasks=_OTHERS, arms=arms.PLANTED_ARMS, seeds=1, params={"judged": 30, "few": 0}),
            ),
            seeds=10,
            work=(30 + 4) * (_STEPS + 2) + 50 * 60 * 20,
            params={**PARAMS, "few": 3, "integrated": False},
            cell_seconds=300.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("csbm", *_GCN, *_OTHERS), arms=arms.PLANTED_ARMS),
                Block(tasks=tasks.REMOVAL, arms=arms.REMOVAL_ARMS),
            ),
            seeds=10,
            work=70 * (_STEPS + 2) + 50 * 60 * 20,
            params={**PARAMS, "gnnexplainer_epochs": 200},
            cell_seconds=900.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="csbm",
    traces=(
        Trace(name="removal_graphuat", label="Removal by GraphUAT", x_label="edges removed",
              y_label="fall of the teacher's entropy (nats)"),
        Trace(name="removal_teacher_entropy", label="Removal by the same probes without a student",
              x_label="edges removed", y_label="fall of the teacher's entropy (nats)"),
        Trace(name="removal_saliency", label="Removal by saliency of the prediction", x_label="edges removed",
              y_label="fall of the teacher's entropy (nats)"),
        Trace(name="removal_random", label="Removal of random edges", x_label="edges removed",
              y_label="fall of the teacher's entropy (nats)"),
    ),
    cost="cpu_node",
    derive=arms.derive,
    user_task=user.user_task,
    options=user.Options,
    true_ceiling="planted",
)  # fmt: skip
