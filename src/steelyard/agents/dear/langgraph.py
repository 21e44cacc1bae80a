"""A debate as a node of a LangGraph graph: a function from the graph's state to the part of it that changes.

LangGraph itself is not imported: a node is any function of the state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from steelyard.agents.dear.debate import Debate, DebateResult
from steelyard.errors import InputError

Update = dict[str, Any]


def debate_node(
    debate: Debate, *, question: str = "question", options: str = "options", answer: str = "answer"
) -> Callable[[Any], Update]:
    """Return a node that debates the state's question and writes the answer; ``graph.add_node("debate", node)``.

    Args:
        debate: The debate.
        question: Key of the question in the state (a mapping, dataclass or model).
        options: Key of the options; a state without it, or with None there, asks an open question.
        answer: Key that the answer is written to; ``answer + "_debate"`` gets the whole `DebateResult`.
    """

    def node(state: Any) -> Update:
        return _update(debate.run(*_asked(state, question, options)), answer)

    return node


def async_debate_node(
    debate: Debate, *, question: str = "question", options: str = "options", answer: str = "answer"
) -> Callable[[Any], Awaitable[Update]]:
    """Return the same node as a coroutine function, for graphs that are run with ``ainvoke``."""

    async def node(state: Any) -> Update:
        return _update(await debate.arun(*_asked(state, question, options)), answer)

    return node


def _asked(state: Any, question: str, options: str) -> tuple[str, Any]:
    def get(key: str) -> Any:
        return state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)

    if get(question) is None:
        raise InputError(f"the graph's state has no {question!r}, which the debate's node needs.")
    return get(question), get(options)


def _update(result: DebateResult, answer: str) -> Update:
    return {answer: result.answer, f"{answer}_debate": result}
