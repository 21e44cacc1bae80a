"""The user's own questions, debated live by a model behind an OpenAI-compatible endpoint.

The controller is trained on the simulator, as a user's model has no labels to train on before it is weighed; its
rivals debate the same questions. Agents are one model under several system prompts. Identical calls are made once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from steelyard import rng
from steelyard.agents.dear.arms import flat
from steelyard.agents.dear.cells import fixed_policies, trained
from steelyard.agents.dear.chat_agents import Chat, ChatAgent, Sampling, Tokens, as_agent
from steelyard.agents.dear.debate import Debate, DebateError, DebateResult
from steelyard.agents.dear.policies import KeepAll
from steelyard.agents.dear.simulator import SimAgents
from steelyard.card import Frozen
from steelyard.contracts import CellInput, Measured, Task
from steelyard.data.records import read_json_lines
from steelyard.errors import InputError
from steelyard.models.endpoint import OpenAICompatibleLM

TASK = "user"
_SEEDS = 8  # of a weighing of one's own data: each has questions that no other seed asks
_ROLES = ("You answer questions with facts.", "You check every step before you answer.",
          "You look for what others overlook.", "You name the strongest objection first, then answer.",
          "You answer as an expert of the field in question.")  # fmt: skip
_POLICIES = ("vote", "mad_stop", "critique_stop", "ring")
_TEXT_LIMIT, _MOST_OPTIONS, _MOST_ROWS = 20_000, 26, 100_000


class Options(Frozen):
    """What the bench takes beside questions of your own. A key is read from STEELYARD_API_KEY and nowhere else."""

    endpoint: str = Field(description="URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1")
    model: str = Field(description="name of the model there")
    agents: int = Field(default=3, ge=2, le=5, description="agents, each the model under a system prompt of its own")
    rounds: int = Field(default=2, ge=1, le=5, description="most rounds of debate")
    questions: int = Field(default=5, ge=1, le=1000, description="most questions a seed; seeds share none")
    max_new_tokens: int = Field(default=256, ge=1, le=4096, description="tokens of a reply")
    timeout: float = Field(default=120.0, gt=0, le=3600, description="seconds that one call may take")


def user_task(data: Any, **options: Any) -> Task:
    """Return the task of a user's questions; one short question is asked to see that the model answers.

    Args:
        data: JSON Lines file, or a list, of {"question", "options", "answer"}: at least two different options, and the
            right one as its text or its place counted from 0.
        options: Fields of `Options`.

    Raises:
        InputError: A row or an option cannot be used, or there are fewer than eight questions.
        EndpointError: The endpoint does not answer.
    """
    chosen = Options(**options)
    if set("?@#") & set(chosen.endpoint):  # it is kept with the results, which are shown
        raise InputError("endpoint must be a URL without user, query or fragment; a key goes in STEELYARD_API_KEY")
    rows = read_rows(data)
    if len(rows) < _SEEDS:
        raise InputError(f"data has {len(rows)} questions; at least {_SEEDS} are needed, one a seed")
    with OpenAICompatibleLM(chosen.endpoint, chosen.model, timeout=chosen.timeout, retries=0) as lm:
        lm.generate(["Say yes."], max_new_tokens=1)  # a dead server is told of at once
    arrays = {"rows": np.array([json.dumps(row, sort_keys=True) for row in rows])}
    return Task(TASK, f"{chosen.model} on your {len(rows)} questions", lambda: arrays, "your own")


def read_rows(data: Any) -> list[dict[str, Any]]:
    """Return the questions, each with its text, its options and the place of the right one.

    Raises:
        InputError: Whatever is wrong, with its row.
    """
    if isinstance(data, str | Path):
        found = list(read_json_lines(Path(data)))
    elif isinstance(data, Sequence):
        found = [(f"data, row {number}", row) for number, row in enumerate(data, 1)]
    else:
        raise InputError(f"data must be a JSON Lines file or a list of rows, got {type(data).__name__}")
    if not 1 <= len(found) <= _MOST_ROWS:
        raise InputError(f"data has {len(found)} rows; 1 to {_MOST_ROWS} can be used")
    return [_row(row, where) for where, row in found]


def _row(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise InputError(f"{where}: must be a table with question, options and answer")
    question, options, answer = (row.get(name) for name in ("question", "options", "answer"))
    if not isinstance(question, str) or not 1 <= len(question.strip()) <= _TEXT_LIMIT:
        raise InputError(f"{where}: 'question' must be a text of at most {_TEXT_LIMIT} letters")
    if not isinstance(options, Sequence) or isinstance(options, str) or not 2 <= len(options) <= _MOST_OPTIONS:
        raise InputError(f"{where}: 'options' must be a list of 2 to {_MOST_OPTIONS} texts")
    texts = [option.strip() if isinstance(option, str) else "" for option in options]
    if len({text.casefold() for text in texts}) < len(texts) or not all(1 <= len(text) <= 1000 for text in texts):
        raise InputError(f"{where}: 'options' must be different texts of 1 to 1000 letters")
    if isinstance(answer, str) and answer.strip() in texts:
        place = texts.index(answer.strip())
    elif type(answer) is int and 0 <= answer < len(texts):
        place = answer
    else:
        raise InputError(f"{where}: 'answer' must be the text of one option, or its place from 0 to {len(texts) - 1}")
    return {"question": question.strip(), "options": texts, "answer": place}


def run(cell: CellInput) -> Measured:
    """Debate one seed's share of the questions under every controller."""
    options = Options(**cell.options)
    every = [json.loads(str(row)) for row in cell.data["rows"]]
    mixed = rng.generator("split", "dear/user", 0).permutation(len(every))
    asked = [every[place] for place in mixed[cell.seed % _SEEDS :: _SEEDS][: options.questions]]
    if cell.arm == "chance":
        share = float(np.mean([1 / len(row["options"]) for row in asked]))
        return Measured({"vote_accuracy": share, "calls": 0.0, "cost": 0.0}, steps=len(asked))
    controller, seconds = trained(cell, SimAgents(n_agents=options.agents))
    with OpenAICompatibleLM(options.endpoint, options.model, timeout=options.timeout) as lm:
        return debated(
            cell, asked, [Cached(as_agent(lm), role) for role in _ROLES[: options.agents]], controller, seconds
        )


def debated(
    cell: CellInput, asked: Sequence[Mapping[str, Any]], agents: Sequence[ChatAgent], controller: Any, seconds: float
) -> Measured:
    """Return the figures of DEAR and its rivals on ``asked``; self-consistency spends DEAR's calls."""
    options = Options(**cell.options)
    fixed = fixed_policies(cell.params["fixed"], len(agents))
    arms = {"dear": controller, **{name: fixed[name] for name in _POLICIES}}

    def held(policy: Any, team: Sequence[ChatAgent], row: Mapping[str, Any], rounds: int) -> DebateResult | None:
        debate = Debate(
            list(team), policy, rounds=rounds, seed=cell.seed, timeout=options.timeout,
            max_new_tokens=options.max_new_tokens,
        )  # fmt: skip
        try:
            return debate.run(str(row["question"]), list(row["options"]))
        except DebateError:  # nobody answered: a wrong vote, with the calls made
            return None

    metrics: dict[str, float] = {}
    made: list[DebateResult | None] = []
    for name, policy in arms.items():
        results = [held(policy, agents, row, options.rounds) for row in asked]
        made = results if name == "dear" else made
        metrics |= flat(name, _figures(asked, results, len(agents)))
    samples = []
    for number, (row, result) in enumerate(zip(asked, made, strict=True)):
        calls = len(agents) if result is None else result.calls
        left_over = [agents[(place + number) % len(agents)] for place in range(calls - len(agents))]
        team = [*agents, *left_over]  # of samples left over each question gives the first one to another agent
        samples.append(held(KeepAll(), team, row, 0))
    metrics |= flat("self_consistency", _figures(asked, samples, len(agents)))
    metrics["train_cpu"] = seconds
    return Measured(metrics, steps=len(asked) * (len(arms) + 1))


def _figures(
    asked: Sequence[Mapping[str, Any]], results: Sequence[DebateResult | None], agents: int
) -> dict[str, float]:
    pairs = list(zip(asked, results, strict=True))
    right = [result is not None and result.answer == row["options"][row["answer"]] for row, result in pairs]

    def mean(read: Callable[[DebateResult], float], failed: float) -> float:
        return float(np.mean([failed if result is None else read(result) for _, result in pairs]))

    return {
        "vote_accuracy": float(np.mean(right)),
        "calls": mean(lambda result: result.calls, agents),
        "cost": mean(lambda result: result.cost, agents),
        "tokens": mean(lambda result: result.tokens.total, 0.0),
    }


class Cached:
    """An agent under a system prompt of its own that makes each call once: arms share their first answers.

    Args:
        agent: Who is asked.
        role: Put before the system turn.
    """

    def __init__(self, agent: ChatAgent, role: str) -> None:
        self._agent, self._role = agent, role
        self._said: dict[str, object] = {}

    async def ask(self, chat: Chat, sampling: Sampling) -> object:
        """Return what was said to the same words under the same seed, else ask."""
        asked = self._with_role(chat)
        key = hashlib.sha256(json.dumps([asked, list(sampling)]).encode()).hexdigest()
        if key not in self._said:
            self._said[key] = await self._agent.ask(asked, sampling)
        return self._said[key]

    def count(self, chat: Chat, text: str) -> Tokens:
        """Return the tokens of a call, cached or not: every arm pays for its own."""
        return self._agent.count(self._with_role(chat), text)

    def _with_role(self, chat: Chat) -> list[dict[str, str]]:
        turns = [dict(turn) for turn in chat]
        if turns and turns[0]["role"] == "system":
            turns[0]["content"] = f"{self._role} {turns[0]['content']}"
            return turns
        return [{"role": "system", "content": self._role}, *turns]
