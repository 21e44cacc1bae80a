"""GoSkills' retriever: a task in, an execution contract within a budget out, without any model call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import BM25Index
from steelyard.agents.goskills import writing
from steelyard.agents.goskills.contract import ExecutionContract, check_limits
from steelyard.agents.goskills.contract import count_tokens as default_counter
from steelyard.agents.goskills.core import Weights, anchor_score, coverage_debt, visible_requirement_coverage
from steelyard.agents.goskills.cover import CueIndex, inverted
from steelyard.agents.goskills.groups import Group, GroupRows
from steelyard.agents.goskills.library import SkillLibrary
from steelyard.agents.goskills.schema import (
    DEFAULT_CONFIDENCES,
    Confidences,
    Feature,
    Schema,
    SchemaReader,
    check_task,
    clauses_of,
    query_schema,
)
from steelyard.agents.goskills.selection import Step, Stop, grow_plan, squeeze
from steelyard.agents.goskills.stopwords import content_words
from steelyard.agents.goskills.vectors import CardVectors
from steelyard.agents.goskills.words import ARTIFACTS, VERBS
from steelyard.errors import InputError

Array = NDArray[np.float64]

BACKFILL_POOL = 40  # best skills by A(g|q) that backfill may take from
BODY = 4000  # characters of a body that BM25 reads
DEFAULT_FLOOR = 0.3


@dataclass(frozen=True)
class Reading:
    """Everything that one task's retrieval computed, by place in the library.

    Attributes:
        schema: The query schema.
        required: Its required features.
        cover: How well each skill covers each of them, shape (skills, required).
        terms: The terms of A(g|q) by name, each of shape (skills,).
        scores: A(g|q), shape (skills,).
        fits: Which skills pass the floor, shape (skills,).
        plan: The anchor group and the support groups; empty when nothing fits.
        steps: The payloads in the order of choice.
        debt: Required features that they do not cover.
    """

    schema: Schema
    required: tuple[Feature, ...]
    cover: Array
    terms: Mapping[str, Array]
    scores: Array
    fits: NDArray[np.bool_]
    plan: tuple[Group, ...]
    steps: tuple[Step, ...]
    debt: tuple[Feature, ...]


class GoSkillsRetriever:
    """Retrieves an execution contract for a task; the same library and task give the same contract, byte for byte.

    A library without graph or groups is given both here, by rules, with semantic edges when there is an embedder.

    Args:
        library: The skills.
        budget: Most skills in a contract, at least 1; with 1 it is the anchor alone.
        max_tokens: Most tokens of the rendered contract; None: no such limit.
        max_chars: Most characters of the rendered contract, headings and skills included.
        chars_per_skill: Most characters of one skill's text.
        embedder: An Embedder or a function from texts to vectors; None: TF-IDF over the cards.
        schema: Reads a task's schema in place of the rules: a function from the task to a ``Schema``.
        weights: Weights of the three scores.
        theta_cov: Cover from which on a required feature counts as covered.
        floor: Cosine below which a skill without a telling word in common with the task does not fit: no bare verb, and
            no word of more than a fifth of the skills. When none fits, the contract is empty. None: .3.
        count_tokens: Counts the tokens of a text; None: characters / 4, rounded up.
        backfill: Also take skills outside the plan: skills that the task names, that cover a debt, the best scored.
        expand: Add support groups.
        max_support: Most support groups.
        confidences: Confidences of the features, by how they were found.
        cover: ``"cosine"``, or ``"literal"`` for literal hits only.
        stop: What ends the growth of a plan: too little new ``"coverage"``, or too little of the ``"whole score"``.
        cost: What a payload costs in the bottleneck: 1 a ``"skill"``, or its share of ``"tokens"``.

    Raises:
        InputError: An empty library, or an argument out of range; the message names it.
    """

    def __init__(
        self,
        library: SkillLibrary,
        *,
        budget: int = 8,
        max_tokens: int | None = None,
        max_chars: int = 12_000,
        chars_per_skill: int = 2_400,
        embedder: Any = None,
        schema: SchemaReader | None = None,
        weights: Weights | Mapping[str, float] | None = None,
        theta_cov: float = 0.5,
        floor: float | None = None,
        count_tokens: Callable[[str], int] | None = None,
        backfill: bool = True,
        expand: bool = True,
        max_support: int = 2,
        confidences: Confidences = DEFAULT_CONFIDENCES,
        cover: Literal["cosine", "literal"] = "cosine",
        stop: Stop = "coverage",
        cost: Literal["skill", "tokens"] = "skill",
    ) -> None:
        _check_numbers(budget, theta_cov, floor, max_support)
        check_limits(max_chars, chars_per_skill, max_tokens)
        if (
            cover not in ("cosine", "literal")
            or stop not in ("coverage", "whole score")
            or cost not in ("skill", "tokens")
        ):
            raise InputError(
                "cover is 'cosine' or 'literal', stop 'coverage' or 'whole score', cost 'skill' or 'tokens'"
            )
        if not len(library):
            raise InputError("library is empty; read a folder that holds skills")
        self.library, self.budget, self.backfill = library, budget, backfill
        self._limits: dict[str, Any] = {
            "max_chars": max_chars, "chars_per_skill": chars_per_skill, "max_tokens": max_tokens,
            "counter": count_tokens or default_counter,
        }  # fmt: skip
        self._schema, self._sure, self._weights = schema, confidences, _weights(weights)
        self._theta, self._floor = theta_cov, DEFAULT_FLOOR if floor is None else floor
        self._max_support = max_support if expand else 0
        self._by_cosine, self._stop, self._by_tokens = cover == "cosine", stop, cost == "tokens"
        self._index(embedder)

    def _index(self, embedder: Any) -> None:
        library = self.library
        if library.graph is None:
            library.build_graph(embedder=embedder)
        if not library.groups:
            library.build_groups()
        assert library.graph is not None
        assert library.group_graph is not None
        self._graph, self._links = library.graph, library.group_graph
        self._profiles = library.profiles
        self._groups, self._rows = library.groups, GroupRows(library.groups)
        self._cues = CueIndex(self._profiles)
        self._vectors = CardVectors(library.skills, embedder)
        texts = [
            content_words(f"{f'{skill.name} ' * 4}{f'{skill.description} ' * 2}{skill.body[:BODY]}")
            for skill in library.skills
        ]
        self._words = BM25Index()
        self._words.add_many(texts)
        self._holders = inverted([set(words) for words in texts])
        degrees = self._graph.degrees().astype(np.float64)
        self._centrality = degrees / max(degrees.max(), 1.0)
        self._takes = {
            name: np.array([float(name in cues.reads) for cues in self._profiles])
            for name in sorted({name for cues in self._profiles for name in cues.reads})
        }
        self._entry = np.array([float(cues.entry) for cues in self._profiles])

    def retrieve(self, task: str) -> ExecutionContract:
        """Return the contract for a task.

        Raises:
            InputError: The task is empty or too long, a callable gave something unusable, or ``max_chars`` or
                ``max_tokens`` is below the smallest possible contract.
        """
        return self._contract(self.read(task))

    def explain(self, task: str) -> dict[str, Any]:
        """Return what a retrieval rests on: schema, scores, plan, chosen skills with reasons, debt, and the contract.

        Raises:
            InputError: As in :meth:`retrieve`.
        """
        reading = self.read(task)
        return writing.explanation(reading, self.library.skills, self._contract(reading), self._vrc(reading))

    def read(self, task: str) -> Reading:
        """Return everything that a retrieval computes, before it is put into words.

        Raises:
            InputError: As in :meth:`retrieve`.
        """
        check_task(task)
        schema = query_schema(task, self._graph.names, self._sure) if self._schema is None else self._schema(task)
        if not isinstance(schema, Schema):
            raise InputError(f"schema must return a Schema, got {type(schema).__name__}")
        required = tuple(feature for feature in schema.features if feature.conf >= self._sure.required)
        clauses = list(schema.clauses) or clauses_of(task) or [task]
        cosines = self._vectors.cosines([*clauses, *(feature.value for feature in required)])
        cos = np.clip(cosines[: len(clauses)].max(axis=0), 0.0, 1.0)
        cover = self._cues.cover(required, cosines[len(clauses) :] if self._by_cosine else None)
        words = content_words(task)
        lexical = np.maximum(self._words.scores(words), 0.0)
        terms = self._terms(lexical, cos, cover, required)
        scores = anchor_score(**terms, weights=self._weights)
        named = {place for feature in required for place in feature.skills}
        fits = cos >= self._floor
        fits[sorted(named)] = True
        rare = max(2, len(fits) // 5)  # a word of more skills than this, or a bare verb, says nothing of any of them
        for word in set(words) - (VERBS - ARTIFACTS):  # not by score: Okapi's is 0 or less in a small library
            if len(holders := self._holders.get(word, [])) <= rare:
                fits[holders] = True
        plan, steps = self._plan(cover, scores, fits, required, named)
        debt = coverage_debt([step.skill for step in steps], None, cover, self._theta)
        return Reading(schema, required, cover, terms, scores, fits, plan, steps, tuple(required[at] for at in debt))

    def _terms(self, lexical: Array, cos: Array, cover: Array, required: tuple[Feature, ...]) -> dict[str, Array]:
        """Return the terms of A(g|q), each in [0, 1] and of shape (skills,)."""
        lex = lexical / lexical.max() if lexical.max() > 0 else lexical
        cov = self._rows.cover(cover).mean(axis=1) if required else np.zeros(len(lex))
        wanted = {name for feature in required if feature.dimension == "artifacts" for name in feature.phrases}
        takes = np.max([self._takes[name] for name in sorted(wanted & set(self._takes))], axis=0, initial=0.0)
        unfit = self._cues.unfit(required)
        for named in sorted({place for feature in required for place in feature.skills}):
            table = self._links.tables["incompatibility"]
            unfit[table.indices[table.indptr[named] : table.indptr[named + 1]]] = True
        return {
            "lex": lex, "cos": cos, "cov": cov, "role_fit": (self._entry + takes) / 2, "centrality": self._centrality,
            "group_bonus": self._rows.mean((lex + cos) / 2), "incompat": unfit.astype(np.float64),
        }  # fmt: skip

    def _plan(
        self, cover: Array, scores: Array, fits: NDArray[np.bool_], required: tuple[Feature, ...], named: set[int]
    ) -> tuple[tuple[Group, ...], tuple[Step, ...]]:
        if not fits.any():
            return (), ()
        anchor = int(np.argmax(np.where(fits, scores, -np.inf)))
        grown = grow_plan(
            anchor,
            self._rows,
            self._links,
            cover,
            np.where(fits, scores, 0.0),
            self._weights,
            self._max_support,
            self._stop,
        )
        plan = tuple(self._groups[group] for group in grown)
        pool = {skill for group in plan for skill in group.skills}
        if self.backfill:
            pool |= named | set(self._best(scores, fits)) | self._cheapest_cover(cover)
        literal = np.array([feature.conf >= self._sure.literal for feature in required], dtype=np.bool_)
        costs = self._costs() if self._by_tokens else None
        steps = squeeze(anchor, pool, cover, literal, scores, self._weights, self.budget, self._theta, costs)
        return plan, tuple(steps)

    def _best(self, scores: Array, fits: NDArray[np.bool_]) -> list[int]:
        order = np.lexsort((np.arange(len(scores)), -scores))
        return [int(place) for place in order if fits[place]][:BACKFILL_POOL]

    def _cheapest_cover(self, cover: Array) -> set[int]:
        """Return, for each required feature that some skill covers, the first skill that covers it best."""
        if not cover.shape[1]:
            return set()
        best = cover.argmax(axis=0)
        return {int(place) for column, place in enumerate(best) if cover[place, column] >= self._theta}

    def _costs(self) -> Array:
        """Return each skill's tokens over those of a full share, at least .1."""
        share = self._limits["chars_per_skill"]
        return np.array([max(min(len(skill.body), share) / share, 0.1) for skill in self.library.skills])

    def _vrc(self, reading: Reading) -> Any:
        return visible_requirement_coverage([step.skill for step in reading.steps], None, reading.cover, self._theta)

    def _contract(self, reading: Reading) -> ExecutionContract:
        places = [step.skill for step in reading.steps]
        contract = ExecutionContract(
            **writing.fields(reading, self.library.skills, self._graph, self._profiles),
            payloads=tuple(self.library.skills[place] for place in places),
            **self._limits,
        )
        contract.refuse_small_limits()
        return contract


def _check_numbers(budget: int, theta_cov: float, floor: float | None, max_support: int) -> None:
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise InputError(f"budget must be a whole number of at least 1, got {budget!r}")
    if isinstance(max_support, bool) or not isinstance(max_support, int) or max_support < 0:
        raise InputError(f"max_support must be a whole number of at least 0, got {max_support!r}")
    if not 0 < theta_cov <= 1:
        raise InputError(f"theta_cov must lie in (0, 1], got {theta_cov}")
    if floor is not None and not 0 <= floor <= 1:
        raise InputError(f"floor must lie in [0, 1], got {floor}")


def _weights(weights: Weights | Mapping[str, float] | None) -> Weights:
    if weights is None or isinstance(weights, Weights):
        return weights or Weights()
    known = {entry.name for entry in dataclasses.fields(Weights)}
    unknown = sorted(set(weights) - known)
    if unknown:
        raise InputError(f"weights has no field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    return Weights(**weights)
