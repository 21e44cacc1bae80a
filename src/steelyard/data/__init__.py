"""Data sets with pinned checksums and one cache, and safe loaders for what the user brings."""

from __future__ import annotations

import os
from pathlib import Path

from steelyard.data.cache import Located, find_local, locate, missing, state_of
from steelyard.data.census import adult
from steelyard.data.embedded import breast_cancer, digits
from steelyard.data.encode import Encoded, encode_features
from steelyard.data.graphs import graph_arrays, read_graph
from steelyard.data.humans import human_contrast
from steelyard.data.images import mnist_t10k
from steelyard.data.irc import IrcLog, irc_logs
from steelyard.data.jsonl import PromptRow, QARow, read_prompts, read_questions
from steelyard.data.pictures import Pictures, read_pictures
from steelyard.data.questions import (
    ContextQuestion,
    KnowledgeQuestion,
    OpenQuestion,
    TruthfulQuestion,
    halueval,
    nq_open,
    truthfulqa,
    xquad,
)
from steelyard.data.registry import DATASETS, Dataset, Origin, Progress, lookup
from steelyard.data.safety import (
    Artifact,
    ContrastPrompt,
    Instruction,
    Suffix,
    advbench_goals,
    gcg_suffixes,
    harmful_prompts,
    ifeval_prompts,
    jailbreak_artifacts,
    safe_prompts,
    xstest,
)
from steelyard.data.skills import (
    SkillPlugin,
    SkillStep,
    SkillTask,
    skill_library_folder,
    skill_plugins,
    skill_tasks,
)
from steelyard.data.table import Table
from steelyard.data.tables import read_table
from steelyard.data.text import plain_wikitext, wikitext2

__all__ = [
    "Artifact",
    "ContextQuestion",
    "ContrastPrompt",
    "Dataset",
    "Encoded",
    "Instruction",
    "IrcLog",
    "KnowledgeQuestion",
    "Located",
    "OpenQuestion",
    "Origin",
    "Pictures",
    "Progress",
    "PromptRow",
    "QARow",
    "SkillPlugin",
    "SkillStep",
    "SkillTask",
    "Suffix",
    "Table",
    "TruthfulQuestion",
    "adult",
    "advbench_goals",
    "breast_cancer",
    "datasets",
    "digits",
    "encode_features",
    "fetch",
    "gcg_suffixes",
    "graph_arrays",
    "halueval",
    "harmful_prompts",
    "human_contrast",
    "ifeval_prompts",
    "irc_logs",
    "jailbreak_artifacts",
    "locate",
    "mnist_t10k",
    "nq_open",
    "path",
    "plain_wikitext",
    "read_graph",
    "read_pictures",
    "read_prompts",
    "read_questions",
    "read_table",
    "safe_prompts",
    "skill_library_folder",
    "skill_plugins",
    "skill_tasks",
    "truthfulqa",
    "wikitext2",
    "xquad",
    "xstest",
]


def datasets() -> tuple[tuple[Dataset, Origin], ...]:
    """Return every registered data set with where it lies now; nothing is fetched, a damaged mirror shows as such."""
    return tuple((dataset, state_of(dataset)) for dataset in DATASETS.values())


def fetch(name: str, progress: Progress | None = None) -> Located:
    """Make the files of a data set present and checked, downloading them if need be; see :func:`locate`.

    Embedded data sets have no files: for them the result is empty.
    """
    return Located("embedded", ()) if lookup(name).embedded else locate(name, progress)


def path(name: str) -> Path:
    """Return the folder where a data set's checked files lie, without fetching.

    Raises:
        InputError: No such data set, or it is embedded.
        DataMissingError: It is not here yet.
        ChecksumError: Its mirrored copy is damaged.
    """
    dataset = lookup(name)
    found = find_local(dataset)
    if found is None:
        raise missing(dataset)
    return Path(os.path.commonpath([file.parent for file in found.paths]))
