"""How GoSkills is weighed: recall of gold skills, must-hit and coverage within a budget, against rankings and PageRank.

A seed is a fold of tasks that no other seed has. Reading and linking the library is what costs, so one cell runs every
retriever on its fold, each on the same query strings; the arms are taken out of it (see
:mod:`steelyard.agents.goskills.arms`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from steelyard.agents.embedding import Encoder
from steelyard.agents.goskills import arms, diagrams, measure, tasks, user
from steelyard.agents.goskills.arms import BUDGET, BUDGETS, RUN_NAMES, flat
from steelyard.agents.goskills.baselines import RETRIEVERS, RandomRetriever, VanillaRetriever
from steelyard.agents.goskills.contract import ExecutionContract
from steelyard.agents.goskills.core import visible_requirement_coverage
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.names import NameIndex
from steelyard.agents.goskills.queries import Query
from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.agents.goskills.shelf import Shelf
from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task, Trace


class Retrieves(Protocol):
    """What every arm offers."""

    def retrieve(self, task: str) -> ExecutionContract:
        """Return the contract for a task."""
        ...


Maker = Callable[[int], Retrieves]
"""From a budget of skills to a retriever."""


class Judged(NamedTuple):
    """A query with all that its contracts are judged by; no retriever sees more of it than ``query.text``."""

    query: Query
    named: list[str]
    cover: Any = None  # (skills, required features), by GoSkills' schema


def run(cell: CellInput) -> Measured:
    """Compute one cell: all retrievers on a fold (``goskills``), or a line to compare with."""
    fold = tasks.fold_of(cell)
    names = NameIndex(fold.skills)
    judged = [Judged(query, tasks.named_gold(query, fold.skills, names)) for query in fold.queries]
    if cell.arm == "gold":
        return _gold(judged, fold.must_hit)
    embedder = tasks.embedder_of(cell.data)
    library = tasks.linked(fold.skills, embedder if cell.arm == "goskills" else None)
    if cell.arm == "random":
        shelf = Shelf(library)
        return _random(shelf, judged, cell.seed, fold.must_hit)
    shelf = Shelf(library, embedder)
    retriever = GoSkillsRetriever(library, budget=BUDGET, embedder=embedder)
    judged = [one._replace(cover=retriever.read(one.query.text).cover) for one in judged]
    metrics: dict[str, float] = {"queries": float(len(judged))}
    recalls: dict[str, list[float]] = {}
    for name, maker in makers(shelf, tasks.linked(fold.skills, embedder, 0), embedder).items():
        ready = {budget: maker(budget) for budget in BUDGETS}
        rows = [_row(ready, one, library) for one in judged]
        recalls[name] = [row["gold_recall"] for row in rows]
        metrics |= flat(name, _mean(rows, judged, fold.must_hit))
    metrics |= flat("vanilla", {"tokens": float(VanillaRetriever(shelf).tokens())})
    numbers = [float(number) for number in _numbers(cell)]
    return Measured(
        metrics,
        steps=len(judged) * len(recalls) * (len(BUDGETS) + 1),
        traces={name: (numbers, values) for name, values in recalls.items()},
        diagrams=(diagrams.of_task(library, retriever, judged[0].query),) if cell.seed == 0 else (),
    )


def makers(shelf: Shelf, anchors: SkillLibrary, embedder: Encoder | None) -> dict[str, Maker]:
    """Return arm -> maker of its retriever; ``anchors`` is the library with groups of one."""

    def ours(library: SkillLibrary, backfill: bool = True, expand: bool = True) -> Maker:
        return lambda budget: GoSkillsRetriever(
            library, budget=budget, embedder=embedder, backfill=backfill, expand=expand
        )

    found: dict[str, Maker] = {
        "goskills": ours(shelf.library),
        "no_backfill": ours(shelf.library, backfill=False),
        "no_expansion": ours(shelf.library, expand=False),
        "no_groups": ours(anchors),
        "anchor_group": ours(shelf.library, backfill=False, expand=False),
    }
    for kind in RETRIEVERS:
        found[kind.name] = lambda budget, kind=kind: kind(shelf, budget=budget)  # type: ignore[misc]
    return found


def _row(ready: Mapping[int, Retrieves], one: Judged, library: SkillLibrary) -> dict[str, float]:
    """Return the figures of one arm on one query, at every budget."""
    text = one.query.text
    row: dict[str, float] = {}
    for budget, retriever in ready.items():
        contract = retriever.retrieve(text)
        chosen = measure.selection(contract.names, one.query, one.named, budget)
        if budget != BUDGET:
            row |= {f"recall_{budget}": chosen["gold_recall"], f"must_hit_{budget}": chosen["must_hit"]}
            continue
        row |= chosen | measure.presentation(contract, one.query, budget)
        places = [library.index(name) for name in contract.names]
        row["vrc"] = visible_requirement_coverage(places, None, one.cover).value
        start = time.process_time()  # a second call: what is encoded once is at hand
        retriever.retrieve(text)
        row["latency"] = 1e3 * (time.process_time() - start)
    return row


def _mean(rows: Sequence[Mapping[str, float]], judged: Sequence[Judged], must_hit: bool) -> dict[str, float]:
    found = measure.over_clusters(rows, [one.query.cluster for one in judged])
    return {name: value for name, value in found.items() if must_hit or not name.startswith("must_hit")}


def _gold(judged: Sequence[Judged], must_hit: bool) -> Measured:
    """Return what the gold skills themselves reach, those that the query names first."""
    rows = []
    for one in judged:
        rest = [name for name in one.query.gold if name not in one.named]
        rows.append(_selected([*one.named, *rest], one))
    return Measured(_mean(rows, judged, must_hit), steps=len(rows))


def _random(shelf: Shelf, judged: Sequence[Judged], seed: int, must_hit: bool) -> Measured:
    retriever = RandomRetriever(shelf, budget=BUDGET, seed=seed)
    rows = [_selected(retriever.retrieve(one.query.text).names, one) for one in judged]
    return Measured(_mean(rows, judged, must_hit), steps=len(rows))


def _selected(names: Sequence[str], one: Judged) -> dict[str, float]:
    row = measure.selection(names[:BUDGET], one.query, one.named, BUDGET)
    for budget in BUDGETS[:-1]:
        chosen = measure.selection(names[:budget], one.query, one.named, budget)
        row |= {f"recall_{budget}": chosen["gold_recall"], f"must_hit_{budget}": chosen["must_hit"]}
    return row


def _numbers(cell: CellInput) -> list[int]:
    return [number for number, fold in enumerate(cell.data["fold"].tolist()) if fold == cell.seed]


_KDENSE = "K-Dense scientific skills, MIT (skills: MIT, BSD, Apache-2.0), wshobson/agents, MIT, and anthropics/skills, "
LIBRARY = f"{_KDENSE}Apache-2.0: 287 skills"
TASKS = (
    Task("toy", "60 generated skills, 36 tasks; easy", tasks.toy, "embedded"),
    Task("kdense_full", "23 worked examples, whole text", tasks.kdense_full, LIBRARY, tasks.prepare, "kdense_skills"),
    Task("kdense_first", "23 worked examples, first lines of their steps", tasks.kdense_first, LIBRARY, tasks.prepare,
         "kdense_skills"),
    Task("kdense_steps", "98 steps, every skill's name masked", tasks.kdense_steps, LIBRARY, tasks.prepare,
         "kdense_skills"),
    Task("wshobson", "165 commands and agents of 42 plugins (weak labels)", tasks.wshobson, LIBRARY, tasks.prepare,
         "wshobson_skills"),
)  # fmt: skip
RECIPE = (
    "By hand with an endpoint: SkillsBench (GitHub benchflow-ai/skillsbench, run through Harbor) with the contract of "
    "GoSkillsRetriever(library, budget=5 to 8) in the prompt, against all skills, VectorRetriever and "
    "GraphOfSkillsRetriever of steelyard.agents.goskills.baselines; three models, reward and the agent's own "
    "running time."
)

BENCH = BenchSpec(
    method="goskills",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="gold_recall",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(Block(tasks=("toy",), arms=RUN_NAMES),),
            seeds=6,
            work=18 * 400,
            cell_seconds=120.0,
        ),
        "full": Profile(
            name="full",
            blocks=(Block(tasks=("kdense_full", "kdense_first", "kdense_steps", "wshobson"), arms=RUN_NAMES),),
            seeds=tasks.FOLDS,
            work=4 * 10 * 2000,
            cell_seconds=300.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="toy",
    traces=(
        Trace(name="goskills", label="Recall of each query's gold skills, 8 skills", x_label="query", y_label="recall"),
    ),
    cost="tokens",
    derive=arms.derive,
    user_task=user.user_task,
    options=user.Options,
    true_ceiling="gold",
)  # fmt: skip
