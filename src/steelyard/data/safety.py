"""Prompts that guards are tested with: harmful requests, attacks on models, and harmless requests beside them.

They hold the text of harmful *requests* only, no answers to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from steelyard.data.cache import locate
from steelyard.data.records import parse_json, read_json_lines, read_lines, read_records, read_text, text_field
from steelyard.data.registry import JAILBREAK_ARTIFACTS, Progress
from steelyard.errors import InputError, did_you_mean

Split = Literal["train", "test"]


class ContrastPrompt(NamedTuple):
    """A prompt of XSTest, the kind of contrast it makes, and whether a model should answer it."""

    prompt: str
    type: str
    safe: bool


class Artifact(NamedTuple):
    """One attack on one behaviour.

    Attributes:
        goal: The harmful request itself.
        prompt: What was submitted for it, None where nothing was.
        jailbroken: Whether the model complied, as the artifact's authors judged.
        category: One of ten.
        behavior: Name of the behaviour, the same in all attacks.
    """

    goal: str
    prompt: str | None
    jailbroken: bool
    category: str
    behavior: str


class Suffix(NamedTuple):
    """A harmful goal and an optimised suffix, which an attack appends to it behind a space."""

    goal: str
    suffix: str


class Instruction(NamedTuple):
    """A prompt of IFEval with the constraints that a program can check: their names and the arguments of each."""

    key: int
    prompt: str
    constraints: tuple[str, ...]
    arguments: tuple[Mapping[str, Any], ...]


def harmful_prompts(split: Split = "train", progress: Progress | None = None) -> list[str]:
    """Return the harmful requests of erase-and-check, 395 for training and 118 for testing: the goals of AdvBench.

    Args:
        split: ``train`` or ``test``.
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another split.
        DataMissingError: No mirror folder that holds them.
        ChecksumError: The bytes are not the pinned ones.
    """
    return read_lines(_of_split(split, progress)[0])


def safe_prompts(split: Split = "train", progress: Progress | None = None) -> list[str]:
    """Return the harmless requests of erase-and-check, 400 for training and 120 for testing.

    Two of those for testing are among those for training as well, and five for training occur twice.

    Args and errors: as :func:`harmful_prompts`.
    """
    return read_lines(_of_split(split, progress)[1])


def xstest(progress: Progress | None = None) -> list[ContrastPrompt]:
    """Return the 450 prompts of XSTest: 250 that only sound harmful, 200 contrasts that are.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("xstest", progress).paths
    return [
        ContrastPrompt(row["prompt"], row["type"], row["label"] == "safe")
        for row in read_records(path, ("prompt", "type", "label"))
    ]


def advbench_goals(progress: Progress | None = None) -> list[str]:
    """Return 513 harmful goals of AdvBench.

    Raises:
        DataMissingError: No mirror folder that holds them.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("advbench", progress).paths
    return [row["goal"] for row in read_records(path, ("goal",))]


def jailbreak_artifacts(attack: str, model: str, progress: Progress | None = None) -> list[Artifact]:
    """Return what an attack of JailbreakBench submitted for each of 95 behaviours.

    Args:
        attack: ``GCG`` (optimised suffixes), ``PAIR`` (prompts written by a model) or ``JBC`` (a template by hand).
        model: The model attacked: ``vicuna-13b-v1.5``, ``llama-2-7b-chat-hf``, ``gpt-3.5-turbo-1106`` or
            ``gpt-4-0125-preview``.
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another attack or model.
        DataMissingError: No mirror folder that holds them.
        ChecksumError: The bytes are not the pinned ones.
    """
    models = JAILBREAK_ARTIFACTS[_one_of("attack", attack, JAILBREAK_ARTIFACTS)]
    file = models[_one_of("model", model, models)]
    (path,) = (path for path in locate("jailbreakbench", progress).paths if path.as_posix().endswith(f"/{file}"))
    rows = parse_json(read_text(path), str(path))["jailbreaks"]
    return [
        Artifact(row["goal"], row["prompt"], bool(row["jailbroken"]), row["category"], row["behavior"]) for row in rows
    ]


def gcg_suffixes(model: str, progress: Progress | None = None) -> list[Suffix]:
    """Return the GCG suffixes published with SmoothLLM.

    Args:
        model: The model that they were optimised on: ``vicuna`` (9 goals) or ``llama2`` (10).
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        InputError: Another model.
        DataMissingError: No mirror folder that holds them.
        ChecksumError: The bytes are not the pinned ones.
    """
    _one_of("model", model, ("vicuna", "llama2"))
    vicuna, llama2 = locate("smoothllm_gcg", progress).paths
    path = vicuna if model == "vicuna" else llama2
    return [Suffix(row["goal"], row["suffix"]) for row in parse_json(read_text(path), str(path))]


def ifeval_prompts(progress: Progress | None = None) -> list[Instruction]:
    """Return the 541 harmless prompts of IFEval, whose instructions a program can check.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("ifeval", progress).paths
    return [
        Instruction(
            int(row["key"]), text_field(row, "prompt", where), tuple(row["instruction_id_list"]), tuple(row["kwargs"])
        )
        for where, row in read_json_lines(path)
    ]


def _of_split(split: str, progress: Progress | None) -> tuple[Path, Path]:
    _one_of("split", split, ("train", "test"))
    harmful_train, harmful_test, safe_train, safe_test = locate("certified_llm_safety", progress).paths
    return (harmful_train, safe_train) if split == "train" else (harmful_test, safe_test)


def _one_of(argument: str, value: str, known: tuple[str, ...] | Mapping[str, Any]) -> str:
    if value not in known:
        choices = ", ".join(f"'{name}'" for name in known)
        raise InputError(f"{argument} must be one of {choices}, got {value!r}.{did_you_mean(str(value), known)}")
    return value
