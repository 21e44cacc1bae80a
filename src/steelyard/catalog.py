"""The catalog: one row per method. Adding a method is adding a folder and a row here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from steelyard.errors import InputError, did_you_mean
from steelyard.extras import require

if TYPE_CHECKING:
    from steelyard.card import Card
    from steelyard.contracts import BenchSpec, Conformance


class Entry(NamedTuple):
    """One method: its folder is ``steelyard/<room>/<id>``, its dependencies come with ``steelyard[<extra>]``."""

    id: str
    room: str
    extra: str
    plugs_into: str
    summary: str


METHODS: tuple[Entry, ...] = (
    Entry(
        "greedy_momentum",
        "optim",
        "optim",
        "torch.optim",
        "SGD and AdamW that pick, at every step, the momentum best aligned with the gradient",
    ),
    Entry(
        "nfi",
        "optim",
        "optim",
        "nn.CrossEntropyLoss",
        "cross-entropy without low-precision collapse, guards, and a monitor for loss spikes",
    ),
    Entry(
        "gdro_fsq",
        "optim",
        "optim",
        "torch DataLoader",
        "group-robust training where the number of groups sampled per step may change at any time",
    ),
    Entry(
        "po2",
        "quant",
        "quant",
        "nn.Module, safetensors",
        "4-bit weights and activations where every group of 16 picks its grid at no extra size",
    ),
    Entry(
        "lattice",
        "nets",
        "nets",
        "nn.Module",
        "recurrent convolutional networks that learn their breadth, depth and time at a price each",
    ),
    Entry(
        "dr_smoothing",
        "guard",
        "guard",
        "OpenAI-compatible API",
        "a jailbreak defence that votes over disrupted and rectified prompts, with certificates",
    ),
    Entry(
        "discrepancy",
        "guard",
        "guard",
        "transformers, sklearn",
        "a hallucination score: how much its question changes the states of an answer's tokens",
    ),
    Entry(
        "groupmembench",
        "agents",
        "agents",
        "chat exports, MCP",
        "memory of a group chat that keeps who said what to whom, with a benchmark and a generator",
    ),
    Entry(
        "goskills",
        "agents",
        "agents",
        "SKILL.md folders, MCP",
        "skill retrieval that hands an agent a contract with roles, within a budget, not a list",
    ),
    Entry(
        "dear",
        "agents",
        "agents",
        "any chat callable",
        "debate among models with learned control of who reads whom and how each answers",
    ),
    Entry(
        "graphuat",
        "graphs",
        "graphs",
        "PyG Explainer",
        "why a graph network is unsure of a node: its features, its neighbours or thin labels",
    ),
    Entry(
        "gadaphead",
        "fed",
        "fed",
        "Flower Strategy",
        "with whom a federated learner shares its decision head, and how strongly, in closed form",
    ),
    Entry(
        "g2po",
        "policy",
        "policy",
        "plain arrays, TRL, verl",
        "credit for each step of an agent from the graph of states that its rollouts visited",
    ),
    Entry(
        "arc",
        "policy",
        "policy",
        "text environments, TRL",
        "an agent that states its progress and predicts what comes next, and is held to both",
    ),
    Entry(
        "gridprobe",
        "vision",
        "vision",
        "transformers, callables",
        "frame selection for long video by the confidence of the model that answers",
    ),
)


def entry(method: str) -> Entry:
    """Return the catalog row of ``method``; an unknown name raises InputError with the closest known one.

    A dotted name is a package of the user's own with the same files (``bench.py`` and ``card.py`` are needed).
    """
    for row in METHODS:
        if row.id == method:
            return row
    if "." in method:
        return Entry(method, "your own", "", "", "a bench of your own")
    known = [row.id for row in METHODS]
    raise InputError(f"unknown method '{method}'.{did_you_mean(method, known)} Known: {', '.join(known)}.")


def package(method: str) -> str:
    """Return the dotted package name of ``method``."""
    row = entry(method)
    return row.id if "." in row.id else f"steelyard.{row.room}.{row.id}"


def load_card(method: str) -> Card:
    """Return the card of ``method``; needs no extra."""
    card: Card = _import_part(method, "card").CARD
    return card


def load_bench(method: str) -> BenchSpec:
    """Return the bench of ``method``; raises MissingExtraError when its extra is not installed."""
    spec: BenchSpec = _import_part(method, "bench").BENCH
    if spec.method != method:  # cells find their bench by this name
        raise InputError(f"the bench of '{method}' says method='{spec.method}'; it must be '{method}'")
    return spec


def load_conformance(method: str) -> Conformance:
    """Return the probes of ``method`` for :mod:`steelyard.checks`."""
    probes: Conformance = _import_part(method, "conformance").CONFORMANCE
    return probes


def _import_part(method: str, part: str) -> Any:
    name = f"{package(method)}.{part}"
    if "." not in method:
        return require(name, entry(method).extra)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise
        raise InputError(f"no module {name}: a package of your own needs bench.py and card.py on the path") from None
