"""What a method hands to the weighing: tasks, arms, metrics, profiles, and one function that runs a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from steelyard import rng
from steelyard.card import Frozen

if TYPE_CHECKING:
    import numpy as np
    import torch

Arrays = Mapping[str, "np.ndarray"]
Role = Literal["method", "ablation", "baseline", "floor", "ceiling"]


class Metric(Frozen):
    """One number of a cell. ``worst`` is what a failed cell counts as (None: the worst value seen in the task)."""

    name: str
    label: str
    better: Literal["higher", "lower"]
    unit: str = ""
    worst: float | None = None
    chance: float | None = None  # drawn as a line in the report


class Arm(Frozen):
    """One contestant; ``config`` is handed to the cell and is part of its key."""

    name: str
    label: str
    role: Role
    config: dict[str, Any] = Field(default_factory=dict)
    derived: bool = False  # computed from other arms' cells by BenchSpec.derive, never run


class Trace(Frozen):
    """How to draw a curve that cells record under ``name``."""

    name: str
    label: str
    x_label: str
    y_label: str
    log_x: bool = False
    log_y: bool = False


class Node(Frozen):
    """A point of a diagram; ``x`` and ``y`` are its column and row, counted to the right and down.

    ``first``, ``second`` and ``third`` are classes none of which is better than another.
    """

    id: str
    label: str
    x: float = Field(ge=-1e6, le=1e6)
    y: float = Field(ge=-1e6, le=1e6)
    kind: Literal["plain", "main", "good", "bad", "muted", "first", "second", "third"] = "plain"
    note: str = ""  # shown when the point is pointed at


class Edge(Frozen):
    """An arrow of a diagram from node ``source`` to node ``target``."""

    source: str
    target: str
    kind: Literal["solid", "dashed", "good", "bad"] = "solid"
    label: str = ""
    strong: bool = False  # drawn thick


class Diagram(Frozen):
    """A picture of nodes and arrows, recorded by a cell and drawn in the report.

    ``columns`` are headings over x = 0, 1, 2 …; ``legend`` says what a kind of node or edge means.
    """

    name: str
    title: str
    caption: str = ""
    nodes: tuple[Node, ...] = Field(min_length=1, max_length=60)
    edges: tuple[Edge, ...] = Field(default=(), max_length=120)
    columns: tuple[str, ...] = ()
    legend: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _edges_join_known_nodes(self) -> Self:
        known = {node.id for node in self.nodes}
        if len(known) != len(self.nodes):
            raise ValueError(f"diagram {self.name}: node ids are not unique")
        for edge in self.edges:
            if not {edge.source, edge.target} <= known:
                raise ValueError(f"diagram {self.name}: the edge {edge.source} to {edge.target} leads nowhere")
        return self


class Grid(Frozen):
    """A picture of cells in rows and columns, recorded by a cell: a number each, drawn as a shade round a small image.

    ``marked`` are (row, column) of cells that stand out; ``images`` are PNG files in base64, row by row, or none.
    """

    name: str
    title: str
    caption: str = ""
    values: tuple[tuple[float, ...], ...] = Field(min_length=1, max_length=32)
    marked: tuple[tuple[int, int], ...] = ()
    images: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]+=*$", max_length=3000)], ...] = ()

    @model_validator(mode="after")
    def _cells_fit(self) -> Self:
        rows, columns = len(self.values), len(self.values[0])
        if not 1 <= columns <= 32 or any(len(row) != columns for row in self.values):
            raise ValueError(f"grid {self.name}: its rows must be equally long, of 1 to 32 cells")
        if self.images and len(self.images) != rows * columns:
            raise ValueError(f"grid {self.name}: it has {len(self.images)} images for {rows * columns} cells")
        if any(not (0 <= row < rows and 0 <= column < columns) for row, column in self.marked):
            raise ValueError(f"grid {self.name}: a marked cell is not on it")
        return self


Picture = Diagram | Grid


class Block(Frozen):
    """Tasks x arms that are run together; ``seeds`` below the profile's is shown without a verdict."""

    tasks: tuple[str, ...]
    arms: tuple[str, ...]
    seeds: int | None = None
    params: dict[str, Any] = Field(default_factory=dict)  # overrides the profile's


class Profile(Frozen):
    """How large a weighing is. ``work`` is the declared ceiling of the steps that all its cells may count."""

    name: str
    blocks: tuple[Block, ...]
    seeds: int
    work: int
    params: dict[str, Any] = Field(default_factory=dict)
    cell_seconds: float = 60.0
    cell_memory_mb: int = 4096
    exclusive: bool = False  # cells measure time: never two at once
    recipe: str | None = None  # set for a profile that is documented but not run here (gpu)


@dataclass(frozen=True)
class Task:
    """One data set with one question. ``load`` returns plain numeric or unicode arrays; their hash keys the cells.

    ``prepare`` adds derived arrays that cost time and are the same for every cell (an exact optimum); they are computed
    once per data set and are not hashed.
    """

    name: str
    label: str
    load: Callable[[], Arrays]
    source: str = "embedded"  # shown in the report: where the data come from
    prepare: Callable[[Arrays], Arrays] | None = None
    dataset: str | None = None  # name in steelyard.data, when the task needs a download


@dataclass(frozen=True)
class CellInput:
    """All that a cell may depend on. Streams depend on task, name and seed only: arms get the same random numbers."""

    task: str
    arm: str
    config: Mapping[str, Any]
    params: Mapping[str, Any]
    options: Mapping[str, Any]
    seed: int
    data: Arrays
    root: str = "evaluation"  # "tuning" gives seeds that no verdict is read from

    def rng(self, name: str) -> np.random.Generator:
        """Return the numpy generator of this cell's stream ``name``."""
        return rng.generator(self.root, f"{self.task}/{name}", self.seed)

    def torch_rng(self, name: str) -> torch.Generator:
        """Return the torch generator of this cell's stream ``name``."""
        return rng.torch_generator(self.root, f"{self.task}/{name}", self.seed)


@dataclass(frozen=True)
class Measured:
    """What a cell returns. ``steps`` counts its work (updates, rounds); a curve is a pair of equally long lists."""

    metrics: dict[str, float]
    steps: int
    traces: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    notes: dict[str, str | float | int] = field(default_factory=dict)
    diagrams: tuple[Picture, ...] = ()


Derive = Callable[[Mapping[str, Mapping[str, float]]], dict[str, dict[str, float]]]


SEPARATOR = ":"


def carried(carrier: str, arm: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return an arm's figures under the names that they have in the cell of ``carrier``, which ran that arm too."""
    return {name if arm == carrier else f"{arm}{SEPARATOR}{name}": value for name, value in values.items()}


def carried_arms(carrier: str, arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of every other arm that the cell of ``carrier`` ran; the inverse of :func:`carried`."""
    found: dict[str, dict[str, float]] = {}
    for name, value in arms.get(carrier, {}).items():
        arm, separator, metric = name.partition(SEPARATOR)
        if separator:
            found.setdefault(arm, {})[metric] = value
    return found


@dataclass(frozen=True)
class BenchSpec:
    """How a method is weighed.

    ``run`` computes one cell. ``derive`` gets every arm's metrics of one (task, seed) and returns further metrics, for
    existing arms or for arms marked ``derived`` (an oracle with hindsight). ``user_task(data, **options)`` turns the
    user's own data into a task; ``options`` is the pydantic model of what it takes beside the data. ``user_arms`` and
    ``user_primary`` take the place of arms and primary metric there, where others are measured. ``tuned`` maps
    task -> arm -> config found on tuning seeds; ``grid`` maps arm -> the configs that a tuning run tries.
    """

    method: str
    tasks: tuple[Task, ...]
    arms: tuple[Arm, ...]
    metrics: tuple[Metric, ...]
    primary: str
    profiles: Mapping[str, Profile]
    run: Callable[[CellInput], Measured]
    easy_task: str
    traces: tuple[Trace, ...] = ()
    cost: str = "cpu_s"  # metric on the x axis of the cost/quality scatter; "cpu_s" is recorded for every cell
    resources: tuple[str, ...] = ()  # metrics that get a scatter of their own beside that of the cost (a Pareto plot)
    derive: Derive | None = None
    user_task: Callable[..., Task] | None = None
    user_arms: tuple[Arm, ...] = ()
    user_primary: str | None = None
    options: type[BaseModel] | None = None
    tuned: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    tuning_tasks: tuple[str, ...] = ()
    tuning_params: Mapping[str, Any] = field(default_factory=dict)
    true_ceiling: str | None = None  # an arm that bounds the method for certain (an exact optimum)

    def task(self, name: str) -> Task:
        """Return the task called ``name``."""
        return next(task for task in self.tasks if task.name == name)

    def arm(self, name: str) -> Arm:
        """Return the arm called ``name``."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class BadInput:
    """A call that must raise InputError with ``names`` (the argument, column or value at fault) in its message."""

    label: str
    call: Callable[[], object]
    names: str


@dataclass(frozen=True)
class Conformance:
    """Small probes through which ``steelyard.checks`` puts a method, the same for every method.

    Attributes:
        run: (seed, dtype name) -> named outputs of a small run; equal seeds must give equal outputs.
        dtypes: Dtype names that outputs must keep, e.g. ("float32", "float64").
        bad_inputs: Calls that must be refused.
        noop: Returns (method at its no-op setting, baseline); they must be equal bit for bit.
        effect: Returns (method at a non-trivial setting, baseline); they must differ.
        resumed: Returns (uninterrupted run, run saved and restored half way); they must be equal bit for bit.
        untouched: Returns (inputs before, inputs after) of a call; they must be equal.
        implementation: The method, in the form that ``acceptance`` takes.
        acceptance: Raises AssertionError unless the implementation does what the method is for, on real data.
        dummies: A constant, a random and an identity stand-in; each must fail ``acceptance``.
    """

    run: Callable[[int, str], Arrays]
    dtypes: tuple[str, ...]
    bad_inputs: tuple[BadInput, ...]
    noop: Callable[[], tuple[Arrays, Arrays]]
    effect: Callable[[], tuple[Arrays, Arrays]]
    resumed: Callable[[], tuple[Arrays, Arrays]]
    untouched: Callable[[], tuple[Arrays, Arrays]]
    implementation: Any
    acceptance: Callable[[Any], None]
    dummies: Mapping[str, Any]
