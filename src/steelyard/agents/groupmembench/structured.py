"""The structured memory: it keeps what ingestion erases - aliases, scope, speaker, reply links, supersession."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.bm25 import tokenize
from steelyard.agents.groupmembench import cues, replies
from steelyard.agents.groupmembench.alias import coreference_pairs, glossary_pairs, merged, table_pairs
from steelyard.agents.groupmembench.columns import Column, Ints
from steelyard.agents.groupmembench.core import conformal_abstain_threshold
from steelyard.agents.groupmembench.dense import Vectors
from steelyard.agents.groupmembench.lexical import TextIndex
from steelyard.agents.groupmembench.memory import Found, RankedMemory, Request
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.phrases import PhraseIndex
from steelyard.agents.groupmembench.table import NEVER, Mask
from steelyard.agents.groupmembench.threads import THREAD_WEIGHTS, ThreadWeights, anchored_scores
from steelyard.agents.ranking import top_k
from steelyard.errors import InputError

Floats = NDArray[np.float64]

_RRF_K = 60.0
_COREFERENCE_LIMIT = 50_000  # messages up to which aliases are learned from contexts
_RESTATED_AMONG = 50  # best hits among which restatements of a decision are looked for
_RESTATED = 0.6  # Jaccard index of the words of a decision and of a restatement
_NAME_BOOST = 1.5


class Structure(NamedTuple):
    """What a query asks of the structure; each part is None or False where it does not."""

    tokens: list[str]
    groups: list[tuple[str, ...]]
    phases: set[int]
    channels: set[int]
    first_person: bool
    roles: set[int]
    authors: set[int]
    current: bool


class StructuredGroupMemory(RankedMemory):
    """BM25 (fused with dense, given an embedder) re-ranked by the structure of the chat (a reconstruction).

    Steps: names of one thing count as one term; messages outside the phase or channel that the query names are
    scaled by ``scope_out``; for a query in the first person those of others by ``speaker_out``, otherwise those of a
    role or person that it names are raised; hits lend their scores to the replies below them; where the query asks
    for the current state, a change takes over the score of what it changes, which falls behind. Only messages that
    the asker may see take part in any step; document frequencies and the average length are of the whole store.

    Args:
        embedder: An Embedder or a function from texts to vectors; None: words only.
        aliases: Known names: name -> its other names. More are learned from glossary lines, and from phrases that
            different roles use in like contexts of the same threads (in stores up to 50,000 messages).
        alias_tau: Least cosine of those contexts, or None to learn from glossary lines only.
        scope_out: Factor outside the named phase or channel.
        speaker_out: Factor for others' messages.
        decay: Factor per reply.
        hops: Longest reply distance.
        change_boost: Factor of a change.
        superseded: Factor of a decision that was changed, and of its earlier restatements.
        top_m: Best hits that lend their scores.
        abstain: Return nothing unless the best score exceeds this; see :meth:`calibrate_abstention`.
        change_act: From a message to whether it changes a decision; None: by its wording.
        thread: Weights of the thread mode (``anchor``).
        use_alias: Whether names of one thing count as one term.
        use_scope: Whether phase and channel count.
        use_speaker: Whether the speaker counts.
        use_reply: Whether reply links count.
        use_supersession: Whether changes supersede decisions.
        use_abstain: Whether ``abstain`` counts.
        seed: See :class:`RankedMemory`.
        allow_unknown_asker: See :class:`RankedMemory`.

    Raises:
        InputError: An argument that cannot be used.
    """

    def __init__(
        self,
        embedder: Any = None,
        *,
        aliases: Mapping[str, Sequence[str]] | None = None,
        alias_tau: float | None = 0.5,
        scope_out: float = 0.05,
        speaker_out: float = 0.1,
        decay: float = 0.9,
        hops: int = 2,
        change_boost: float = 1.2,
        superseded: float = 0.6,
        top_m: int = 200,
        abstain: float | None = None,
        change_act: Callable[[Message], bool] | None = None,
        thread: ThreadWeights = THREAD_WEIGHTS,
        use_alias: bool = True,
        use_scope: bool = True,
        use_speaker: bool = True,
        use_reply: bool = True,
        use_supersession: bool = True,
        use_abstain: bool = True,
        seed: int = 0,
        allow_unknown_asker: bool = False,
    ) -> None:
        super().__init__(seed=seed, allow_unknown_asker=allow_unknown_asker)
        for name, value in (("scope_out", scope_out), ("speaker_out", speaker_out), ("superseded", superseded)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} must lie between 0 and 1, got {value!r}.")
        if not 0 <= decay <= 1 or hops < 0 or top_m < 1 or not change_boost >= 1:
            raise InputError(
                "decay must lie between 0 and 1, hops be at least 0, top_m at least 1 and change_boost at least 1; "
                f"got {decay!r}, {hops!r}, {top_m!r} and {change_boost!r}."
            )
        self.scope_out, self.speaker_out, self.decay, self.hops = scope_out, speaker_out, decay, hops
        self.change_boost, self.superseded, self.top_m, self.abstain = change_boost, superseded, top_m, abstain
        self.alias_tau, self.change_act, self.thread = alias_tau, change_act, thread
        self.use_alias, self.use_scope, self.use_speaker = use_alias, use_scope, use_speaker
        self.use_reply, self.use_supersession, self.use_abstain = use_reply, use_supersession, use_abstain
        self._given = table_pairs(aliases)
        self._vectors = None if embedder is None else Vectors(embedder)
        self._extra: list[tuple[str, str]] = []
        self._reset()

    def _reset(self) -> None:
        self._words = TextIndex(PhraseIndex())
        self._changes, self._decisions = Column(np.bool_), Column(np.bool_)
        self._glossary: list[tuple[int, str, str]] = []
        self._cache: dict[Any, Any] = {}

    def _prepare(self, messages: Sequence[Message]) -> tuple[Any, list[list[str]], list[bool]]:
        vectors = None if self._vectors is None else self._vectors.encode([one.content for one in messages])
        tokens, act = [tokenize(one.content) for one in messages], self.change_act
        if act is not None:
            return vectors, tokens, [bool(act(one)) for one in messages]
        pairs = zip(messages, tokens, strict=True)
        return vectors, tokens, [cues.is_change(one.content, words) for one, words in pairs]

    def _index(self, messages: Sequence[Message], prepared: Any) -> None:
        vectors, tokens, changes = prepared
        if self._vectors is not None:
            self._vectors.extend(vectors)
        self._changes.extend(changes)
        self._add_rows(len(self._table) - len(messages), [one.content for one in messages], tokens)

    def _keep(self, rows: Ints) -> None:
        changes = self._changes.values[rows]
        if self._vectors is not None:
            self._vectors.keep(rows)
        self._reset()
        self._changes.extend(changes)
        texts = [self._table.content(row) for row in range(len(self._table))]
        self._add_rows(0, texts, [tokenize(text) for text in texts])

    def _add_rows(self, first: int, texts: Sequence[str], tokens: Sequence[list[str]]) -> None:
        self._decisions.extend([cues.is_decision(text, words) for text, words in zip(texts, tokens, strict=True)])
        for row, (text, words) in enumerate(zip(texts, tokens, strict=True), first):
            self._glossary += [(row, one, two) for one, two in glossary_pairs(text, words)]
        written = self._table.written[first:].tolist()
        self._words.extend(words if one else None for words, one in zip(tokens, written, strict=True))

    def add_links(self, links: Iterable[tuple[str, str]]) -> None:
        """Take in (id, id) links beyond ``reply_to`` for the thread mode: a message may answer several ones."""
        with self._lock:
            self._extra += [(one, two) for one, two in links]

    def thread_of(self, id: str, *, asker: str | None = None, k: int = 10) -> list[Hit]:
        """Return the ``k`` messages that fit best into the thread of a message, which is itself left out.

        Raises:
            UnknownUserError: As for :meth:`search`.
            InputError: The asker sees no message with this id, or ``k`` is below 1.
        """
        row = self._table.row(id)
        return self._search(self._table.content(row) if row >= 0 else "", asker, k, None, id)

    def calibrate_abstention(self, unanswerable: Iterable[tuple[str, str | None]], alpha: float = 0.1) -> float:
        """Set ``abstain`` so that an unanswerable question is answered with probability at most ``alpha``.

        Args:
            unanswerable: (query, asker) pairs that the chat has no answer to, exchangeable with those to come.
            alpha: The share.

        Returns:
            The threshold.

        Raises:
            InputError: Too few questions for ``alpha``; the message says how many are needed.
        """
        kept, self.abstain = self.abstain, None
        try:
            tops = [self.search(query, asker=asker, k=1) for query, asker in unanswerable]
            kept = conformal_abstain_threshold([hits[0].score if hits else 0.0 for hits in tops], alpha)
        finally:
            self.abstain = kept
        return kept

    def _rank(self, request: Request) -> list[Found]:
        if request.anchor >= 0:
            return self._rank_thread(request)
        asked = self._structure(request)
        base = self._base(asked, request)
        scores = self._scaled(base, asked, request)
        found = self._re_ranked(asked, request, base, scores)
        if self.use_abstain and self.abstain is not None and (not found or found[0].score <= self.abstain):
            return []
        return found

    def _rank_thread(self, request: Request) -> list[Found]:
        words = self._words.scores(tokenize(request.query))
        links = self._links(request.seen) if self.use_reply else None
        extra = [(self._table.row(one), self._table.row(two)) for one, two in self._extra] if self.use_reply else []
        weights = self.thread if self.use_speaker else self.thread._replace(speaker=0.0)
        scores = anchored_scores(self._table, links, extra, words, request, weights)
        best = top_k(scores, request.k, self._table.keys, allowed=request.allowed)
        pairs = zip(best.tolist(), scores[best].tolist(), strict=True)
        return [Found(row, score, {"thread": score}) for row, score in pairs]

    def _structure(self, request: Request) -> Structure:
        """Return what the query asks of the structure, by names that occur in seen messages only."""
        table, tokens = self._table, tokenize(request.query)
        groups: list[tuple[str, ...]] = []
        rest = tokens
        if self.use_alias and (names := self._alias_names(request)):
            found, covered = names.find(tokens), [False] * len(tokens)
            for start, end, meanings in found:
                groups += sorted(meanings)
                covered[start:end] = [True] * (end - start)
            rest = [token for token, taken in zip(tokens, covered, strict=True) if not taken]
        phases: set[int] = set()
        channels: set[int] = set()
        if self.use_scope:
            phases = self._named("phases", tokens, request)
            channels = self._named("channels", tokens, request)
        first_person = self.use_speaker and request.asker is not None and cues.is_first_person(request.query)
        roles: set[int] = set()
        authors: set[int] = set()
        if self.use_speaker and not first_person:
            roles = self._named("roles", tokens, request)
            authors = self._named("authors", tokens, request) - {table.authors.code(request.asker or "")}
        current = self.use_supersession and cues.asks_for_current(request.query)
        return Structure(rest, groups, phases, channels, first_person, roles, authors, current)

    def _cached(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returned for ``name`` since messages were last added."""
        version, value = self._cache.get(name, (-1, None))
        if version != self._table.version:
            if len(self._cache) > 64:
                self._cache.clear()
            value = make()
            self._cache[name] = (self._table.version, value)
        return value

    def _named(self, column: str, tokens: list[str], request: Request) -> set[int]:
        codes = getattr(self._table, column)

        def make() -> cues.Names[int]:
            names = [(word, code) for code, word in enumerate(codes.words) if word]
            tails = [(word.split(":", 1)[1], code) for word, code in names if ":" in word]  # "Risk: Cutover"
            spaced = [(re.sub(r"(?<=[a-z])(?=[A-Z])", " ", word), code) for word, code in names]  # DataEngineer
            return cues.Names(names + tails + spaced)

        names = self._cached(column, make)
        seen = request.seen

        def known(code: int) -> bool:
            """Return whether a seen message bears a name; one that only hidden messages bear must change nothing."""
            return seen is None or bool((codes.codes[seen] == code).any())

        return set().union(*(meanings for _, _, meanings in names.find(tokens, known)))

    def _alias_names(self, request: Request) -> cues.Names[tuple[str, ...]]:
        """Return the groups of names that the asker's own view of the chat shows, found by any of their names."""
        seen = request.seen

        def make() -> cues.Names[tuple[str, ...]]:
            pairs = [*self._given, *((one, two) for row, one, two in self._glossary if seen is None or seen[row])]
            if self.alias_tau is not None:
                pairs += self._coreference(seen)
            return cues.Names((name, group) for group in merged(pairs) for name in group)

        names: cues.Names[tuple[str, ...]] = self._cached(("aliases", None if seen is None else _packed(seen)), make)
        return names

    def _coreference(self, seen: Mask | None) -> list[tuple[str, str]]:
        table = self._table
        rows = np.arange(len(table)) if seen is None else np.flatnonzero(seen)
        if not 0 < len(rows) <= _COREFERENCE_LIMIT or self.alias_tau is None:
            return []
        roots, parents = np.arange(len(table)), self._links(seen).parents
        above = np.where(parents >= 0, parents, roots)
        if seen is not None:
            above = np.where(seen[above], above, roots)
        for _ in range(len(roots).bit_length()):
            above = above[above]
        rows = rows[np.argsort(table.keys[rows])]  # whatever the order of arrival
        listed = rows.tolist()
        return coreference_pairs(
            [tokenize(table.content(row)) for row in listed],
            [table.roles[row] for row in listed],
            above[rows].tolist(),
            tau=self.alias_tau,
            vectors=None if self._vectors is None else self._vectors.rows[rows],
        )

    def _base(self, asked: Structure, request: Request) -> Floats:
        """Return the lexical score of every row, or its fusion with the dense one, shape (N,), none below 0."""
        scores, rows = self._words.scores(asked.tokens), self._words.rows
        seen = request.seen[rows] if asked.groups and request.seen is not None else None

        def text(document: int) -> str:
            return self._table.content(int(rows[document]))

        for group in asked.groups:
            documents, gained = self._words.bm25.group_scores(group, text, seen)
            scores[rows[documents]] += gained * max(len(name.split(" ")) for name in group)
        np.maximum(scores, 0.0, out=scores)
        if self._vectors is None:
            return scores
        fused = np.zeros(len(scores))
        cosine = self._vectors.scores(request.query).round(6)
        for ranking in (scores, cosine):
            best = top_k(ranking, max(self.top_m, request.k), self._table.keys, allowed=request.allowed)
            best = best[ranking[best] > 0]
            fused[best] += 1 / (_RRF_K + 1 + np.arange(len(best)))
        return fused

    def _scaled(self, base: Floats, asked: Structure, request: Request) -> Floats:
        """Return the base scores scaled by scope and speaker, shape (N,)."""
        table, scores = self._table, base.copy()
        for codes, wanted in ((table.phases.codes, asked.phases), (table.channels.codes, asked.channels)):
            if wanted:
                scores[~_among(codes, wanted)] *= self.scope_out
        if asked.first_person:
            scores[table.authors.codes != table.authors.code(request.asker or "")] *= self.speaker_out
        if asked.roles or asked.authors:
            named = _among(table.roles.codes, asked.roles) | _among(table.authors.codes, asked.authors)
            scores[named] *= _NAME_BOOST
        return scores

    def _re_ranked(self, asked: Structure, request: Request, base: Floats, scores: Floats) -> list[Found]:
        """Return the best rows after replies and supersession, which act on the ``top_m`` best and their relatives."""
        table = self._table
        top = top_k(scores, max(self.top_m, request.k), table.keys, allowed=request.allowed)
        if self.use_reply:
            lent = replies.lend(
                self._links(request.seen), top, scores,
                noise=table.noise, seen=request.seen, decay=self.decay, hops=self.hops,
            )  # fmt: skip
        else:
            rows = np.sort(top)
            lent = replies.Lent(rows, scores[rows], np.full(len(rows), -1))
        changed = replies.Changed(lent.rows, lent.scores, {}, {})
        if asked.current:
            changed = self._supersede(lent, scores, request)
        allowed = None if request.allowed is None else request.allowed[changed.rows]
        best = top_k(changed.scores, request.k, table.keys[changed.rows], allowed=allowed)
        found = []
        for place in best.tolist():
            row, score = int(changed.rows[place]), float(changed.scores[place])
            why: dict[str, Any] = {"base": float(base[row]), "scaled": float(scores[row])}
            for name, other in (
                ("lent_by", lent.origin_of(row)),
                ("supersedes", changed.decision_of.get(row, -1)),
                ("superseded_by", changed.change_of.get(row, -1)),
            ):
                if other >= 0:
                    why[name] = table.id(other)
            found.append(Found(row, score, why))
        return found

    def _supersede(self, lent: replies.Lent, scores: Floats, request: Request) -> replies.Changed:
        table = self._table
        acts = replies.Acts(self._changes.values, self._changes.values | self._decisions.values)
        changed = replies.supersede(
            self._links(request.seen), table, lent, scores, acts,
            seen=request.seen, boost=self.change_boost, factor=self.superseded,
        )  # fmt: skip
        best = changed.rows[top_k(changed.scores, _RESTATED_AMONG, table.keys[changed.rows])].tolist()
        instants, channels, scaled = table.instants, table.channels.codes, changed.scores.copy()
        words: dict[int, frozenset[str]] = {}
        for decision in sorted(changed.change_of.keys() & set(best)):
            change = changed.change_of[decision]
            for row in best:
                earlier = NEVER < instants[row] < instants[change] and channels[row] == channels[decision]
                if not earlier or row in changed.change_of or row in changed.decision_of:
                    continue
                for one in (row, decision):
                    if one not in words:
                        words[one] = frozenset(tokenize(table.content(one)))
                if len(words[row] & words[decision]) >= _RESTATED * len(words[row] | words[decision]):
                    scaled[np.searchsorted(changed.rows, row)] *= self.superseded
                    changed.change_of[row] = change
        return changed._replace(scores=scaled)

    def _links(self, seen: Mask | None) -> replies.Links:
        """Return the reply links; where replies run in circles, the view's, lest a hidden one closes a circle."""
        table, changes = self._table, self._changes.values
        links: replies.Links = self._cached("links", lambda: replies.Links(table, changes))
        if seen is None or not links.circular:
            return links
        of_view: replies.Links = self._cached(("links", _packed(seen)), lambda: replies.Links(table, changes, seen))
        return of_view


def _packed(mask: Mask) -> bytes:
    return np.packbits(mask).tobytes()


def _among(codes: NDArray[np.int32], wanted: set[int]) -> Mask:
    """Return which of ``codes`` are wanted, shape (N,)."""
    mask = np.zeros(len(codes), np.bool_)
    for code in sorted(wanted):
        mask |= codes == code
    return mask
