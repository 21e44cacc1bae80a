"""How the memories are weighed: six types of questions on generated chats, and threads of real IRC logs.

A seed is a chat of its own (generated, or two IRC logs). One cell builds it, runs every memory on it, and the arms are
taken out of the cell (see :mod:`steelyard.agents.groupmembench.arms`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from steelyard.agents.groupmembench import arms, diagrams, tasks
from steelyard.agents.groupmembench.arms import MEMORIES, RUN_ARMS, GoldMemory, RandomMemory, flat_names
from steelyard.agents.groupmembench.asking import TYPES
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.chats import unlabelled
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.protocol import GroupMemBench, Reader
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.reading import FormReader
from steelyard.agents.groupmembench.report import GroupMemReport
from steelyard.agents.groupmembench.thread_recall import THREAD_ARMS, find_threads, finders, link_quality
from steelyard.agents.groupmembench.user import Options, user_task
from steelyard.contracts import BenchSpec, Block, CellInput, Diagram, Measured, Profile, Task

GENERATED = ("six_types", "circular")
_HARD_TYPES = ("knowledge_update", "term_ambiguity")


def run(cell: CellInput) -> Measured:
    """Compute one cell: every memory on a chat (``structured``), chance, or the ceiling."""
    if cell.task == "irc" or "since" in cell.data:  # threads, real or the user's own
        return run_threads(cell)
    if cell.task in GENERATED:
        made = tasks.chat_of(cell)
        return run_questions(cell, unlabelled(made.chat.messages), made.questions, FormReader())
    return run_questions(cell, *tasks.own_questions(cell), None)


def run_questions(
    cell: CellInput, messages: Sequence[Message], questions: Sequence[Question], reader: Reader | None
) -> Measured:
    """Put the questions to the memories that belong to the cell's arm."""
    bench = GroupMemBench(GroupChat(messages, on_bad_reply="ignore"), questions, reader=reader)
    if cell.arm == "gold_evidence" and not any(one.gold_ids for one in questions):
        return Measured({"micro": 1.0, "macro": 1.0}, 1, notes={"gold": "unknown; every answer counted as right"})
    makers: dict[str, Callable[[], Any]] = {
        "random": lambda: RandomMemory(cell.rng("random")),
        "gold_evidence": lambda: GoldMemory({bench.query(one): one.gold_ids for one in questions}),
    }
    names = tuple(MEMORIES) if cell.arm == "structured" else (cell.arm,)
    metrics: dict[str, float] = {}
    reports: dict[str, GroupMemReport] = {}
    for name in names:
        memory = (MEMORIES | makers)[name]()
        memory.add_many(bench.chat.messages)
        began = time.process_time()
        reports[name] = bench.run(memory)
        figures = {**_figures(reports[name]), "query_ms": 1e3 * (time.process_time() - began) / len(questions)}
        metrics |= figures if name == cell.arm else flat_names(name, figures)
    pictures: tuple[Diagram, ...] = ()
    if cell.arm == "structured" and cell.seed == 0:
        pictures = diagrams.of_questions(bench.chat, questions, reports)
    return Measured(metrics, len(questions) * len(names), diagrams=pictures)


def _figures(report: GroupMemReport) -> dict[str, float]:
    """Return a report's figures; what is not known is left out."""
    found = {"micro": report.micro.estimate, "macro": report.macro, "queries": float(len(report.rows))}
    found |= {kind: share.estimate for kind, share in report.accuracy.items()}
    if report.recall is not None:
        found["recall"] = report.recall
    if set(TYPES) <= set(report.accuracy):
        hard = max(found[kind] for kind in _HARD_TYPES)
        found["others_above"] = min(found[kind] for kind in TYPES if kind not in _HARD_TYPES) - hard
    return found


def run_threads(cell: CellInput) -> Measured:
    """Ask every arm for the threads of the cell's chats."""
    chats = tasks.thread_chats(cell)
    asked = sum(len(one.threads) for one in chats)
    if cell.arm == "gold_evidence":
        return Measured({"recall": 1.0, "queries": float(asked)}, asked)
    recalls: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    right = predicted = linked = 0
    pictures: tuple[Diagram, ...] = ()
    for one in chats:
        wanted = ("random",) if cell.arm == "random" else THREAD_ARMS
        found = find_threads(finders(one.bare, one.links, cell.rng("random"), wanted), one.chat, one.threads)
        for name, values in found.recalls.items():
            recalls.setdefault(name, []).extend(values)
            seconds[name] = seconds.get(name, 0.0) + found.seconds[name]
        if cell.arm == "structured":
            quality = link_quality(one.chat, one.links, one.since)
            right, predicted, linked = right + quality.right, predicted + quality.predicted, linked + quality.linked
            if cell.seed == 0 and not pictures:
                pictures = diagrams.of_threads(one.chat, one.links, one.threads, found.ids)
    metrics: dict[str, float] = {}
    for name, values in recalls.items():
        figures = {"recall": math.fsum(values) / len(values), "query_ms": 1e3 * seconds[name] / asked}
        figures["queries"] = float(asked)
        metrics |= figures if name == cell.arm else flat_names(name, figures)
    if cell.arm == "structured":
        metrics |= {"link_precision": right / predicted, "link_recall": right / linked}
    return Measured(metrics, asked * len(recalls), diagrams=pictures)


IRC_SOURCE = "Ubuntu IRC, Kummerfeld et al. 2019, CC BY 4.0"
OWN_GENERATOR = "generated for this library"
TASKS = (
    Task("six_types", "Six types of questions, frozen generator", tasks.shipped, OWN_GENERATOR),
    Task("circular", "CIRCULAR, no evidence: chats with the cues that the memory looks for", tasks.circular,
         OWN_GENERATOR),
    Task("irc", "Threads of real IRC logs, from their first message", tasks.irc, IRC_SOURCE,
         dataset="irc_disentanglement"),
)  # fmt: skip
RECIPE = (
    "By hand: the release of GroupMemBench in a folder, a reader and a judge behind an OpenAI-compatible endpoint: "
    "GroupMemBench.from_release(FOLDER, 'Finance', reader=LMReader(OpenAICompatibleLM(URL, MODEL)), "
    "judge=LMJudge(...)).run(BM25Memory()), and the same for every other memory; compare with BM25 in the same "
    "harness only. steelyard weigh groupmembench --data FOLDER --domain Finance weighs it with the reader that needs "
    "no model, whose absolute figures mean little."
)
_QUESTIONS = 24 * 6

BENCH = BenchSpec(
    method="groupmembench",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="recall",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(Block(tasks=GENERATED, arms=RUN_ARMS),),
            seeds=6,
            work=2 * 6 * _QUESTIONS * (len(MEMORIES) + 2),
            params={"threads": 60},
            cell_seconds=300.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("six_types",), arms=RUN_ARMS),
                Block(tasks=("irc",), arms=RUN_ARMS),
                Block(tasks=("circular",), arms=RUN_ARMS, seeds=3),
            ),
            seeds=10,
            work=13 * _QUESTIONS * (len(MEMORIES) + 2) + 422 * 13,
            params={"threads": 60},
            cell_seconds=600.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="circular",
    cost="query_ms",
    derive=arms.derive,
    user_task=user_task,
    options=Options,
    true_ceiling="gold_evidence",
)
