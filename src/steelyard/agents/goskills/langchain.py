"""The retriever as a LangChain retriever, by shape: it works with LangChain and does not need it."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.agents.goskills.retriever import GoSkillsRetriever
from steelyard.errors import InputError


@dataclass
class SkillDocument:
    """What LangChain's ``Document`` is, for when LangChain is not installed."""

    page_content: str
    metadata: dict[str, Any] = field(default_factory=dict)


class SkillsRetriever:
    """Answers ``invoke`` and ``ainvoke`` with documents, as a LangChain ``BaseRetriever`` does.

    Args:
        retriever: The retriever.
        documents: ``"contract"``: one document, the rendered contract, skills included; ``"skills"``: one a chosen
            skill, its text cut at the retriever's characters per skill, its place and role in the metadata.

    Raises:
        InputError: Other ``documents``.
    """

    def __init__(self, retriever: GoSkillsRetriever, documents: Literal["contract", "skills"] = "contract") -> None:
        if documents not in ("contract", "skills"):
            raise InputError(f"documents must be 'contract' or 'skills', got {documents!r}")
        self._retriever, self._documents = retriever, documents

    def invoke(self, input: str, config: Any = None, **_: Any) -> list[Any]:
        """Return the documents for a task; ``config`` is LangChain's and not used."""
        contract = self._retriever.retrieve(input)
        debt = [one._asdict() for one in contract.debt]
        if self._documents == "contract":
            return [_document(contract.render(), {"skills": list(contract.names), "debt": debt})]
        roles = {one.skill: one.role for one in contract.support}
        return [
            _document(
                skill.body[: contract.chars_per_skill],
                {
                    "name": skill.name,
                    "description": skill.description,
                    "place": place,
                    "role": roles.get(skill.name, "start"),
                },
            )
            for place, skill in enumerate(contract.payloads)
        ]

    async def ainvoke(self, input: str, config: Any = None, **options: Any) -> list[Any]:
        """Return what :meth:`invoke` returns, from a thread of its own."""
        return await asyncio.to_thread(self.invoke, input, config, **options)


def _document(text: str, metadata: dict[str, Any]) -> Any:
    try:
        kind = importlib.import_module("langchain_core.documents").Document
    except ModuleNotFoundError:
        kind = SkillDocument
    return kind(page_content=text, metadata=metadata)
