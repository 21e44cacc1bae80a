"""The user's own prompts and model: a JSON Lines file against an OpenAI-compatible endpoint."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from steelyard import rng
from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.data.jsonl import read_prompts
from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing.config import Config
from steelyard.guard.dr_smoothing.core import majority
from steelyard.guard.dr_smoothing.defences import smoothing
from steelyard.guard.dr_smoothing.guard_data import share_of_seed
from steelyard.guard.dr_smoothing.presets import named_judge
from steelyard.guard.dr_smoothing.rates import Verdicts, both_sides
from steelyard.guard.dr_smoothing.result import SmoothingWarning
from steelyard.models.endpoint import OpenAICompatibleLM

_SEEDS = 8  # of a weighing of one's own data: each has prompts that no other seed asks


class Options(Frozen):
    """What the bench takes beside prompts of your own. A key is read from STEELYARD_API_KEY and from nowhere else."""

    endpoint: str = Field(description="URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    model: str = Field(description="name of the model there")
    judge: Literal["strict", "smoothllm", "llm"] = Field(
        default="strict", description="phrases of refusal, SmoothLLM's list, or a model that is asked"
    )
    judge_model: str | None = Field(default=None, description="name of the judging model there; the target by default")
    rectify: Literal["spell", "llm", "both"] = Field(
        default="spell", description="rectifier of the DR arms: spelling, the model itself, or both"
    )
    disrupt: Literal["swap", "insert", "patch", "random"] = Field(default="swap", description="noise of all arms")
    n: int = Field(default=5, ge=1, le=100, description="copies; an odd number leaves no ties")
    q: float = Field(default=0.10, ge=0, le=1, description="share of the characters that are disrupted")
    alphabet: str = Field(default="safe", description="safe, printable, letters, or the characters themselves")
    prompts: int = Field(default=8, ge=1, le=1000, description="most prompts a seed, of each kind; seeds share none")
    max_new_tokens: int = Field(default=64, ge=1, le=4096, description="tokens of an answer")
    timeout: float = Field(default=60.0, gt=0, le=3600, description="seconds that one request may take")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's prompts on a user's model; one short question is asked to see that it answers.

    Args:
        data: JSON Lines file, or a list, of {"prompt" or "messages", "label"?}; the label is harmful or safe, prompts
            without one count as harmful.
        options: Fields of ``Options``.

    Raises:
        InputError: A row or an option cannot be used, or there are fewer than eight prompts of a kind.
        EndpointError: The endpoint does not answer.
    """
    chosen = Options(**options)
    if set("?@#") & set(chosen.endpoint):  # it is kept with the results, which are shown
        raise InputError("endpoint must be a URL without user, query or fragment; a key goes in STEELYARD_API_KEY")
    rows = read_prompts(data)
    safe = [row.label == "safe" for row in rows]
    _check_enough(harmful=len(rows) - sum(safe), safe=sum(safe))
    with _model(chosen, chosen.model, retries=0) as lm:  # a dead server is told of at once
        lm.generate(["Say yes."], max_new_tokens=1)
    arrays = {
        "prompts": np.array([json.dumps(row.prompt) for row in rows]),
        "safe": np.array(safe),
    }
    label = f"{chosen.model} on your prompts ({len(rows) - sum(safe)} harmful or unlabelled, {sum(safe)} safe)"
    return Task("user", label, lambda: arrays, "your own")


def run(cell: CellInput) -> Measured:
    """Measure one arm on one seed's share of the prompts."""
    options = Options(**cell.options)
    wished = {name: getattr(options, name) for name in ("judge", "rectify", "disrupt", "n", "q", "alphabet")}
    config = Config(**{**wished, **cell.config})
    harmful, safe = (_share(cell, kind, options.prompts) for kind in (False, True))
    with _model(options, options.model) as lm, _model(options, options.judge_model or options.model) as judge_lm:
        judge = named_judge(options.judge, judge_lm)
        found, counts = _verdicts(cell, config, options, [*harmful, *safe], lm, judge)
    metrics = {**both_sides(found[: len(harmful)], found[len(harmful) :], config.gamma), **counts}
    return Measured(metrics, steps=sum(len(votes) for votes, _ in found))


def _check_enough(**counts: int) -> None:
    few = [f"{count} {kind}" for kind, count in counts.items() if 0 < count < _SEEDS]
    if few:
        raise InputError(
            f"data: {' and '.join(few)} prompts are too few (prompts without a label count as harmful); give at least "
            f"{_SEEDS} of a kind, so that each of the {_SEEDS} seeds has prompts of its own, or leave the kind out"
        )


def _model(options: Options, name: str, retries: int = 2) -> OpenAICompatibleLM:
    return OpenAICompatibleLM(options.endpoint, name, timeout=options.timeout, retries=retries)


def _share(cell: CellInput, safe: bool, wanted: int) -> list[Any]:
    """Return the seed's share of one kind of prompts, in an order that is the same for all seeds."""
    rows = np.flatnonzero(cell.data["safe"] == safe)
    rows = rng.generator("split", "dr_smoothing/user", 0).permutation(rows)
    chosen = share_of_seed(cell.seed, min(wanted, max(1, len(rows) // _SEEDS)), len(rows))
    return [json.loads(str(cell.data["prompts"][rows[index]])) for index in chosen]


def _verdicts(
    cell: CellInput, config: Config, options: Options, prompts: list[Any], lm: OpenAICompatibleLM, judge: Any
) -> tuple[Verdicts, dict[str, float]]:
    """Return votes and verdict of each prompt, and what they cost."""
    if config.kind in ("block_all", "pass_all"):
        complied = config.kind == "pass_all"
        return [((int(complied),), complied)] * len(prompts), {"calls": 0.0, "rectifier_calls": 0.0}
    plain = config.model_copy(update={"kind": "none"})
    asked = plain if config.kind == "coin" else config
    defence = smoothing(
        asked, lm, judge, cell.seed, lm, sampling={"max_new_tokens": options.max_new_tokens}, on_judge_error="safe"
    )
    with warnings.catch_warnings():
        # That a vote harms, or a short prompt stays as it is, is measured here instead of warned about.
        warnings.simplefilter("ignore", SmoothingWarning)
        warnings.simplefilter("ignore", NoEffectWarning)
        found = defence.batch(prompts)
    calls = {
        "calls": float(np.mean([one.calls for one in found])),
        "rectifier_calls": float(np.mean([one.counts["rectifier_calls"] for one in found])),
    }
    if config.kind != "coin":
        return [(one.votes, one.jailbroken) for one in found], calls
    complied_share = float(np.mean([one.jailbroken for one in found]))
    coins = cell.rng("coins").random((len(prompts), config.n)) < complied_share
    return [(tuple(map(int, row)), majority(row.tolist(), config.gamma)) for row in coins], calls


def derive(arms: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the arm half-way between the answers to DR's noise alone and undisturbed ones, for one task and seed."""
    ends = [arms.get(name, {}).get("qa_accuracy") for name in ("none", "unrectified")]
    if any(end is None for end in ends):
        return {}
    return {"halfway": {"qa_accuracy": float(np.mean([end for end in ends if end is not None]))}}
