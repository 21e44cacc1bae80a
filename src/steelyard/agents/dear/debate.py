"""A live debate: any models or functions answer, a controller says who reads whom and how, and the votes decide.

Reconstruction (the paper's engine is not described). The controller sees the same public state as in training; no label
reaches it. Names of agents and texts of answers, never their places, decide ties, orders and seeds: permuting agents or
options permutes the result.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.agents.dear.chat_agents import ChatAgent, Sampling, Tokens, as_agent, estimated, in_thread
from steelyard.agents.dear.core import GroupEvidence
from steelyard.agents.dear.episodes import BEHAVIOURS, State, StopRule, VoteRule, is_finished
from steelyard.agents.dear.extraction import MAX_REPLY
from steelyard.agents.dear.observation import observe
from steelyard.agents.dear.policies import FullyConnected, KeepAll
from steelyard.agents.dear.prompts import START, DebatePrompts
from steelyard.agents.dear.table import Table, Turn
from steelyard.errors import InputError, SteelyardError
from steelyard.models.paths import printable
from steelyard.rng import derive_seed, generator

_SEED_BITS = 0x7FFF_FFFF
_MAX_CONCURRENCY = 8


class DebateError(SteelyardError):
    """No agent gave an answer in a round; the message says what became of them."""


@dataclass(frozen=True)
class DebateResult:
    """What a debate came to.

    Attributes:
        answer: The group's answer, an option or the text of an open answer.
        transcript: Every call in order of rounds: who, how, whom it read, what it said.
        G_t: For each round after the first answers who read whom, int64 (N, N); G[i, j] = 1 when i read j.
        evidence_t: Group evidence after the first answers and each round.
        tokens: Read and written; ``exact`` when every agent counted its own.
        calls: Calls of agents, failed ones included.
        votes: Answer -> agents that give it at the end.
        rounds_run: Rounds after the first answers.
        stopped_by: "unanimous" or "stable" (the stop rule), or "rounds".
        unanswered: Agents without an answer at the end; they have no vote.
        failures: Kind of problem ("error", "timeout", "nonsense") -> calls.
        cost: Call-units: 1 a call and 1/2 each peer's message in it.
        behaviours_t: For each round each agent's behaviour.
    """

    answer: str
    transcript: tuple[Turn, ...]
    G_t: tuple[NDArray[np.int64], ...]
    evidence_t: tuple[GroupEvidence, ...]
    tokens: Tokens
    calls: int
    votes: Mapping[str, int]
    rounds_run: int
    stopped_by: str
    unanswered: int
    failures: Mapping[str, int]
    cost: float
    behaviours_t: tuple[tuple[str, ...], ...]


class Asking(NamedTuple):
    """One call that a round makes."""

    agent: int
    behaviour: str
    read: tuple[int, ...]


class Debate:
    """A debate among agents.

    Args:
        agents: Functions, language models or endpoints (see :func:`as_agent`); as a mapping from names, or a sequence,
            whose names are "agent-1", "agent-2", … Names seed an agent's draws and order ties.
        controller: Who reads whom and how: a `DEARController`, a fixed one of `policies`, anything with
            ``act(state) -> (G, behaviours)``, or a fixed graph (N, N) of 0 and 1. Default: all read all.
        rounds: Most rounds after the first answers; 0 is a vote.
        answer_extractor: ``(text) -> str | None`` in the place of `read_reply`; None is no answer. With options it
            returns a label or an option's text.
        canonicalise: ``(answer) -> str``: answers to open questions are one when this is equal.
        vote: "majority", "belief" or "reconcile" (which asks agents for a confidence); None: the controller's own rule,
            else "majority".
        early_stop: "never", "unanimous" or "stable"; None: the controller's own rule, else "unanimous".
        embedder: Of rationales, for controllers and evidence that use their similarity.
        max_concurrency: Most calls at a time; default: one per agent, at most 8.
        seed: Of sampling, orders and ties.
        timeout: Seconds for one call.
        max_new_tokens: Longest reply of a language model.
        prompts: Texts and temperatures.
        on_turn: Called after every call with its `Turn`.

    Raises:
        InputError: An argument that cannot be used; fewer than two agents for anything but a vote.
    """

    def __init__(
        self, agents: Mapping[str, Any] | Sequence[Any], controller: Any = None, *, rounds: int = 3,
        answer_extractor: Callable[[str], str | None] | None = None, canonicalise: Callable[[str], str] | None = None,
        vote: VoteRule | None = None, early_stop: StopRule | None = None, embedder: Any = None,
        max_concurrency: int | None = None, seed: int = 0, timeout: float = 120.0, max_new_tokens: int = 512,
        prompts: DebatePrompts | None = None, on_turn: Callable[[Turn], None] | None = None,
    ) -> None:  # fmt: skip
        named = _named(agents)
        self.names = tuple(named)
        self._agents: tuple[ChatAgent, ...] = tuple(as_agent(agent) for agent in named.values())
        self._controller = usable_controller(controller, len(named))
        _check_numbers(rounds, timeout, max_new_tokens, max_concurrency)
        if len(named) < 2 and rounds and not isinstance(self._controller, KeepAll):
            raise InputError("a debate needs at least 2 agents; with rounds=0 one agent's answer is taken as it is.")
        self._rounds, self._seed, self._timeout, self._length = rounds, int(seed), float(timeout), max_new_tokens
        self._vote: VoteRule = vote or getattr(self._controller, "vote_rule", None) or "majority"
        self._stop: StopRule = early_stop or getattr(self._controller, "early_stop", None) or "unanimous"
        if self._vote not in ("majority", "belief", "reconcile"):
            raise InputError(f"vote must be 'majority', 'belief' or 'reconcile', not {vote!r}.")
        if self._stop not in ("never", "unanimous", "stable"):
            raise InputError(f"early_stop must be 'never', 'unanimous' or 'stable', not {early_stop!r}.")
        self._slots = max_concurrency or min(len(named), _MAX_CONCURRENCY)
        self._extractor, self._canonicalise, self._on_turn = answer_extractor, canonicalise, on_turn
        self._prompts = prompts or DebatePrompts()
        self._encoder = _encoder(embedder)

    def run(self, question: str, options: Sequence[str] | None = None) -> DebateResult:
        """Debate a question; works where an event loop runs already, too, as in a notebook.

        Args:
            question: Its text.
            options: Possible answers, 2 to 26 different ones; None for an open question.

        Raises:
            InputError: A question or options that cannot be used, or actions of the controller that cannot.
            DebateError: No agent gave an answer in a round.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.arun(question, options))
        found: list[DebateResult | BaseException] = []

        def work() -> None:
            try:
                found.append(asyncio.run(self.arun(question, options)))
            except BaseException as error:  # handed to the thread that waits
                found.append(error)

        thread = threading.Thread(target=work, name="steelyard-debate", daemon=True)
        thread.start()
        thread.join()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    async def arun(self, question: str, options: Sequence[str] | None = None) -> DebateResult:
        """Do what :meth:`run` does without blocking the loop of the caller."""
        table = Table(
            self.names, question, options, prompts=self._prompts, seed=self._seed, extractor=self._extractor,
            canonicalise=self._canonicalise, confidence=self._vote == "reconcile",
        )  # fmt: skip
        slots = asyncio.Semaphore(self._slots)
        await self._round(table, [Asking(agent, START, ()) for agent in range(len(self.names))], slots)
        state = table.first()
        while state.t < self._rounds and not is_finished(state, self._stop)[0]:
            reads, behaviours = regulate(
                self._controller, state, rounds=self._rounds, question=question, seed=self._seed
            )
            asked = table.begin_round(reads, behaviours)
            await self._round(table, [Asking(*each) for each in asked], slots)
            state = table.end_round()
        stopped = self._stop if is_finished(state, self._stop)[0] else "rounds"
        return DebateResult(**table.outcome(self._vote), stopped_by=stopped)

    async def _round(self, table: Table, asked: Sequence[Asking], slots: asyncio.Semaphore) -> None:
        """Ask every agent of a round at once, then look at what they said together."""
        tasks = [asyncio.ensure_future(self._turn(table, asking, slots)) for asking in asked]
        try:
            turns = await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # those that still run when one of them raised, or the debate was cancelled
                task.cancel()
        table.heard(turns)
        if table.is_silent:
            told = "; ".join(f"{printable(turn.agent)[:50]}: {turn.problem}" for turn in turns[:3])
            raise DebateError(f"no agent has an answer in round {table.round} ({told}).")
        if self._encoder is not None:
            encode, arguments = self._encoder, table.arguments()
            table.embed(await in_thread(lambda: encode(arguments)))

    async def _turn(self, table: Table, asking: Asking, slots: asyncio.Semaphore) -> Turn:
        """Ask one agent; whatever goes wrong is noted in its turn."""
        chat = table.chat(*asking)
        agent, text, problem = self._agents[asking.agent], "", ""
        name = f"dear/agent/{self.names[asking.agent]}/{table.round}"
        sampling = Sampling(
            self._prompts.temperatures[asking.behaviour],
            derive_seed(name, table.question, self._seed) & _SEED_BITS,
            self._length,
        )
        async with slots:
            try:
                said = await asyncio.wait_for(agent.ask(chat, sampling), self._timeout)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the debate itself was cancelled
                    raise
                problem = "error: the agent was cancelled"
            except TimeoutError:
                problem = "timeout"
            except Exception as error:  # an agent is a stranger's code
                problem = f"error: {type(error).__name__}: {printable(str(error))[:200]}"
            else:
                problem = "" if isinstance(said, str) else f"nonsense: {type(said).__name__} instead of text"
                text = said[-MAX_REPLY:] if isinstance(said, str) else ""
        turn = table.turn(*asking, text=text, problem=problem, tokens=_counted(agent, chat, text))
        if self._on_turn is not None:
            self._on_turn(turn)
        return turn


def regulate(
    controller: Any, state: State, *, rounds: int, question: str, seed: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return what a controller wants in one live debate: reads (1, N, N) and behaviours (1, N), not yet checked.

    Args:
        controller: With ``act(state)``, or with ``decide`` as the fixed ones have it.
        state: The debate's public state.
        rounds: Most rounds of the debate.
        question: Its text, which seeds what the controller draws.
        seed: For the same.

    Raises:
        InputError: ``act`` names an unknown behaviour.
    """
    if hasattr(controller, "act"):
        graph, names = controller.act(state)
        unknown = [name for name in names if name not in BEHAVIOURS]
        if unknown:
            raise InputError(f"the controller asks for {unknown[0]!r}; behaviours are {', '.join(BEHAVIOURS)}.")
        return np.asarray(graph)[None], np.array([[BEHAVIOURS.index(name) for name in names]], dtype=np.int64)
    seen = observe(state, rounds, identity=controller.identity, evidence=controller.evidence is not False)
    stream = generator(f"dear/live/{question}", f"round/{state.t}", seed)
    decided: tuple[NDArray[Any], NDArray[np.int64]] = controller.decide(seen, state, stream)
    return decided


class FixedGraph:
    """Everybody revises, reading along a graph that the user gave; what is wrong with it is told at the first round.

    Args:
        graph: (N, N), 1 where the row's agent reads the column's.
    """

    def __init__(self, graph: NDArray[Any]) -> None:
        self._graph = graph

    def act(self, state: State) -> tuple[NDArray[Any], list[str]]:
        """Return the graph and "revise" for all."""
        return self._graph, ["revise"] * state.n_agents


def _named(agents: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    if isinstance(agents, Mapping):
        named = {str(name): agent for name, agent in agents.items()}
    elif isinstance(agents, Sequence) and not isinstance(agents, str):
        named = {f"agent-{number}": agent for number, agent in enumerate(agents, 1)}
    else:
        raise InputError(f"agents must be a list or a mapping from names, got {type(agents).__name__}.")
    if not 1 <= len(named) <= 256 or len(named) != len(agents):
        raise InputError(f"agents must be 1 to 256 with different names, got {len(agents)}.")
    return named


def usable_controller(controller: Any, agents: int) -> Any:
    """Return something with ``act`` or ``decide``: None is all read all, an array a fixed graph.

    Raises:
        InputError: It is none of these, or a graph of a wrong shape or with values other than 0 and 1.
    """
    if controller is None:
        return FullyConnected(early_stop="unanimous")
    if callable(getattr(controller, "act", None)) or callable(getattr(controller, "decide", None)):
        return controller
    graph = np.asarray(controller)
    if graph.shape != (agents, agents) or graph.dtype.kind not in "biuf" or not np.isin(graph, (0, 1)).all():
        raise InputError(
            f"controller must have act or decide, or be a graph of shape ({agents}, {agents}) of 0 and 1, got "
            f"{type(controller).__name__} of shape {graph.shape}."
        )
    return FixedGraph(graph.astype(bool))


def _check_numbers(rounds: int, timeout: float, max_new_tokens: int, max_concurrency: int | None) -> None:
    if not isinstance(rounds, int) or not 0 <= rounds <= 100:
        raise InputError(f"rounds must be an integer from 0 to 100, got {rounds!r}.")
    if not 0 < timeout < float("inf"):
        raise InputError(f"timeout must be a positive number of seconds, got {timeout!r}.")
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be at least 1, got {max_new_tokens!r}.")
    if max_concurrency is not None and max_concurrency < 1:
        raise InputError(f"max_concurrency must be at least 1, got {max_concurrency!r}.")


def _encoder(embedder: Any) -> Callable[[Sequence[str]], NDArray[np.float32]] | None:
    if embedder is None:
        return None
    from steelyard.agents.embedding import as_encoder

    return as_encoder(embedder)


def _counted(agent: ChatAgent, chat: Sequence[Mapping[str, str]], text: str) -> Tokens:
    try:
        return agent.count(chat, text)
    except Exception:  # a tokenizer that refuses what an agent wrote
        return estimated(chat, text)
