"""The table that agents of a live debate sit around: what was said, what it means, and what each is told next.

Nothing here calls an agent. Options are numbered by their texts' order, open answers by what was said, and every order
and tie comes from names and texts, so the places of agents and options carry nothing.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.chat_agents import Tokens
from steelyard.agents.dear.core import GroupEvidence, group_evidence
from steelyard.agents.dear.episodes import (
    BEHAVIOURS,
    KEEP,
    NO_ANSWER,
    Bools,
    Episodes,
    Ints,
    State,
    VoteRule,
    checked_actions,
    settle,
    vote,
)
from steelyard.agents.dear.extraction import MAX_ANSWER, Clusters, match_option, read_reply
from steelyard.agents.dear.prompts import Asked, DebatePrompts, Heard, messages, spelt_out
from steelyard.errors import InputError
from steelyard.rng import derive_seed

MAX_QUESTION = 100_000
MAX_OPTIONS = 26
UNANSWERED = "∅"


@dataclass(frozen=True)
class Turn:
    """One call of an agent.

    Attributes:
        round: 0 for first answers.
        agent: Its name.
        behaviour: "start", "revise", "critique" or "explore".
        read: Names of the peers that it read.
        text: What it wrote, its last 20,000 characters; foreign text, to be escaped where it is shown.
        answer: Its answer, an option or as it wrote it; None without one.
        problem: "error: …", "timeout", "nonsense: …", or empty.
        tokens: Of the call.
        argument: The text without the answer, with letters of options spelt out.
        confidence: As stated, or None.
    """

    round: int
    agent: str
    behaviour: str
    read: tuple[str, ...]
    text: str
    answer: str | None
    problem: str
    tokens: Tokens
    argument: str = ""
    confidence: float | None = None


class Table:
    """One debate's public state.

    Args:
        names: Of the agents.
        question: Its text.
        options: Possible answers, or None.
        prompts: What agents are told.
        seed: Of orders and ties.
        extractor: From a text to the answer as written.
        canonicalise: For open answers.
        confidence: Whether agents are asked to state one.
    """

    def __init__(
        self, names: Sequence[str], question: str, options: Sequence[str] | None, *, prompts: DebatePrompts, seed: int,
        extractor: Callable[[str], str | None] | None, canonicalise: Callable[[str], str] | None, confidence: bool,
    ) -> None:  # fmt: skip
        if not isinstance(question, str) or not question.strip() or len(question) > MAX_QUESTION:
            raise InputError(f"question must be text of 1 to {MAX_QUESTION:,} characters.")
        self.question, self.names, self.round = question, tuple(names), 0
        self.options = None if options is None else _checked_options(options)
        self._prompts, self._seed, self._confidence, self._extractor = prompts, seed, confidence, extractor
        self._clusters = Clusters(canonicalise)
        self._said: list[collections.Counter[str]] = []  # by cluster: how it was written
        self._shown = [self._order(f"shown/{name}", self.options or ()) for name in self.names]
        self._last: list[Turn | None] = [None] * len(self.names)
        self._turns: list[Turn] = []
        self._graphs: list[NDArray[np.int64]] = []
        self._behaviours: list[tuple[str, ...]] = []
        self._evidence: list[GroupEvidence] = []
        self._vectors: NDArray[np.float32] | None = None
        self._state: State | None = None
        self._plan: tuple[Bools, Ints] | None = None

    def _order(self, what: str, texts: Sequence[str]) -> list[str]:
        """Return ``texts`` in an order that their content and the seed decide, not the order given."""
        root = f"dear/table/{self.question}"
        return sorted(texts, key=lambda text: (derive_seed(root, f"{what}/{text}", self._seed), text))

    def chat(self, agent: int, behaviour: str, read: Sequence[int]) -> list[dict[str, str]]:
        """Return what an agent is asked now."""
        own, peers = self._last[agent], []
        names = {self.names[peer]: peer for peer in read}
        for name in self._order(f"read/{self.round}/{self.names[agent]}", list(names)):
            turn = self._last[names[name]]
            assert turn is not None  # the first round reads nobody
            peers.append(Heard(turn.argument, turn.answer))
        before = None if own is None else Heard(own.argument, own.answer)
        asked = Asked(self.question, self._shown[agent], before, peers, self._confidence)
        return messages(asked, behaviour, self._prompts)

    def turn(self, agent: int, behaviour: str, read: Sequence[int], *, text: str, problem: str, tokens: Tokens) -> Turn:
        """Return what an agent said, understood as far as it can be."""
        reply = read_reply(text)
        said = reply.answer
        if self._extractor is not None and not problem:
            try:
                said = self._extractor(text)
            except Exception as error:  # the user's function meets a stranger's text
                said, problem = None, f"nonsense: the extractor raised {type(error).__name__}"
        said = said[:MAX_ANSWER] if isinstance(said, str) and said.strip() else None
        if said is not None and self.options is not None:
            place = match_option(said, self._shown[agent])
            said = None if place is None else self._shown[agent][place]
        if said is None and not problem:
            problem = "nonsense: no answer found"
        return Turn(
            self.round, self.names[agent], behaviour, tuple(self.names[peer] for peer in read), text,
            None if problem else said, problem, tokens, spelt_out(reply.argument, self._shown[agent]),
            reply.confidence,
        )  # fmt: skip

    def heard(self, turns: Sequence[Turn]) -> None:
        """Take in the turns of a round."""
        places = {name: place for place, name in enumerate(self.names)}
        for turn in turns:
            self._last[places[turn.agent]] = turn
        self._turns += sorted(turns, key=lambda turn: places[turn.agent])

    @property
    def is_silent(self) -> bool:
        """Whether no agent has an answer."""
        return all(turn is None or turn.answer is None for turn in self._last)

    def arguments(self) -> list[str]:
        """Return each agent's last argument."""
        return [(turn.argument or turn.answer or UNANSWERED) if turn else UNANSWERED for turn in self._last]

    def embed(self, vectors: NDArray[np.float32]) -> None:
        """Take in unit vectors of the arguments, float32 (N, d)."""
        self._vectors = vectors

    def first(self) -> State:
        """Return the state after the first answers."""
        answers = self._answers()
        agents = len(self.names)
        self._state = State(
            answers=answers,
            options=self._size(),
            tie=self._ties(),
            agent_tie=_places(self._order("agents", self.names), self.names),
            flips=np.zeros_like(answers),
            history=(answers,),
            t=0,
            cost=np.ones((1, agents)),
            calls=np.ones_like(answers),
            active=np.ones(1, dtype=bool),
            confidence=self._stated(),
            similarity=self._similarity(),
            tokens=self._tokens(self._turns),
        )
        self._note()
        return self._state

    def begin_round(self, reads: NDArray[Any], behaviours: NDArray[Any]) -> list[tuple[int, str, tuple[int, ...]]]:
        """Check what the controller wants; return the calls to make: agent, behaviour, whom it reads.

        Raises:
            InputError: A graph of a wrong shape or with values other than 0 and 1, or behaviours that cannot be used.
        """
        state = self._now()
        reads, behaviours = checked_actions(state, reads, behaviours)
        reads = reads & (state.answers != NO_ANSWER)[:, None, :]  # who has no answer has nothing to be read
        self._plan, self.round = (reads, behaviours), state.t + 1
        self._graphs.append(reads[0].astype(np.int64))
        self._behaviours.append(tuple(BEHAVIOURS[index] for index in behaviours[0]))
        return [
            (agent, BEHAVIOURS[index], tuple(np.flatnonzero(reads[0, agent]).tolist()))
            for agent, index in enumerate(behaviours[0].tolist())
            if index != KEEP
        ]

    def end_round(self) -> State:
        """Return the state after a round."""
        assert self._plan is not None  # begin_round comes first
        reads, behaviours = self._plan
        answers = self._answers()  # before the ties: it may find new answers
        now = [turn for turn in self._turns if turn.round == self.round]
        played: State = settle(
            cast(Episodes, self._now()), answers, reads, behaviours, self._stated(), self._tokens(now)
        )  # it changes nothing but what a State has
        self._state = replace(played, options=self._size(), tie=self._ties(), similarity=self._similarity())
        self._note()
        return self._state

    def outcome(self, rule: VoteRule) -> dict[str, Any]:
        """Return the fields of a result that the table knows."""
        state = self._now()
        counts = collections.Counter(int(answer) for answer in state.answers[0] if answer != NO_ANSWER)
        kinds = collections.Counter(turn.problem.partition(":")[0] for turn in self._turns if turn.problem)
        spent = [turn.tokens for turn in self._turns]
        return {
            "answer": self._text(int(vote(state, rule)[0])),
            "transcript": tuple(self._turns),
            "G_t": tuple(self._graphs),
            "evidence_t": tuple(self._evidence),
            "tokens": Tokens(
                sum(one.prompt for one in spent), sum(one.completion for one in spent), all(one.exact for one in spent)
            ),
            "calls": int(state.calls.sum()),
            "votes": {self._text(place): count for place, count in sorted(counts.items())},
            "rounds_run": state.t,
            "unanswered": int((state.answers == NO_ANSWER).sum()),
            "failures": dict(sorted(kinds.items())),
            "cost": float(state.cost.sum()),
            "behaviours_t": tuple(self._behaviours),
        }

    def _now(self) -> State:
        assert self._state is not None  # first() comes first
        return self._state

    def _answers(self) -> Ints:
        """Return int64 (1, N), what every agent's last turn says; open answers are put together here."""
        said = [None if turn is None else turn.answer for turn in self._last]
        if self.options is not None:
            return np.array([[NO_ANSWER if one is None else self.options.index(one) for one in said]])
        places = self._clusters.place(said)
        self._said += [collections.Counter() for _ in range(self._size() - len(self._said))]
        for place, one in zip(places, said, strict=True):
            if one is not None:
                self._said[place][one] += 1
        return np.array([places])

    def _text(self, place: int) -> str:
        """Return an answer as it is shown: of the ways to write an open one the most frequent, then the shortest."""
        if self.options is not None:
            return self.options[place]
        return min(self._said[place].items(), key=lambda item: (-item[1], len(item[0]), item[0]))[0]

    def _size(self) -> int:
        return len(self._clusters.texts if self.options is None else self.options)

    def _ties(self) -> Ints:
        texts = self._clusters.texts if self.options is None else self.options
        return _places(self._order("ties", texts), texts)

    def _stated(self) -> NDArray[np.float64] | None:
        if not self._confidence:
            return None
        return np.array([[(turn.confidence or 0.0) if turn else 0.0 for turn in self._last]])

    def _similarity(self) -> NDArray[np.float64] | None:
        if self._vectors is None:
            return None
        vectors = self._vectors.astype(np.float64)
        return (vectors @ vectors.T)[None]

    def _tokens(self, turns: Sequence[Turn]) -> Ints:
        spent = dict.fromkeys(self.names, 0) | {turn.agent: turn.tokens.total for turn in turns}
        return np.array([[spent[name] for name in self.names]])

    def _note(self) -> None:
        """Add the group evidence of the state."""
        rounds = [[None if one == NO_ANSWER else int(one) for one in row[0]] for row in self._now().history]
        self._evidence.append(
            group_evidence(rounds[-1], history=rounds[:-1], embeddings=self._vectors, n_options=self._size())
        )


def _places(ordered: Sequence[str], texts: Sequence[str]) -> Ints:
    """Return int64 (1, len(texts)): the place of each text in ``ordered``."""
    place: Mapping[str, int] = {text: index for index, text in enumerate(ordered)}
    return np.array([[place[text] for text in texts]], dtype=np.int64)


def _checked_options(options: Sequence[str]) -> tuple[str, ...]:
    if isinstance(options, str) or not all(isinstance(option, str) and option.strip() for option in options):
        raise InputError("options must be a list of non-empty texts.")
    if not 2 <= len(options) <= MAX_OPTIONS or len({option.strip().casefold() for option in options}) != len(options):
        raise InputError(f"options must be 2 to {MAX_OPTIONS} different texts, got {len(options)}.")
    if any(len(option) > MAX_ANSWER for option in options):
        raise InputError(f"options may have at most {MAX_ANSWER} characters each.")
    return tuple(options)
