"""The language model that a guard command asks: one in its own process, or one at an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

UpstreamOption = Annotated[
    str | None,
    typer.Option("--upstream", metavar="URL", help="An OpenAI-compatible server. Default: a small local model."),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="The upstream's model; without one a Hugging Face folder or a .gguf file.")
]
CopiesOption = Annotated[int, typer.Option("--n", min=1, max=255, help="Copies that vote; odd leaves no ties.")]
StrengthOption = Annotated[float, typer.Option("--q", help="Share of the characters disrupted, from 0 to 1.")]
RectifyOption = Annotated[str, typer.Option("--rectify", help="What repairs a copy: spell, llm or both.")]
JudgeOption = Annotated[str, typer.Option("--judge", help="What judges an answer: strict, smoothllm or llm.")]
TokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of an answer.")]


def local_model(model: str | None) -> Any:
    """Return the language model in a Hugging Face folder or a GGUF file; without a name the small default one."""
    models = require("steelyard.models", "models")
    loading(model_name(model))
    if model is None:
        return models.load_default_lm()
    path = Path(model)
    if path.suffix == ".gguf":
        return models.TransformersLM.from_pretrained(path.parent, gguf_file=path.name)
    return models.TransformersLM.from_pretrained(path)


def language_model(upstream: str | None, model: str | None) -> Any:
    """Return the model at an endpoint, or the local one.

    Raises:
        InputError: An upstream without the name of a model.
    """
    if upstream is None:
        return local_model(model)
    if model is None:
        raise InputError("--upstream needs --model, the name that the server knows it by")
    return require("steelyard.models", "models").OpenAICompatibleLM(upstream, model)


def model_name(model: str | None) -> str:
    """Return what a local model is called."""
    return "SmolLM2-135M-Instruct" if model is None else Path(model).name


def load_dictionary() -> None:
    """Read the dictionary of the spelling rectifier now, not at the first prompt."""
    loading("the dictionary of the spelling rectifier")
    require("steelyard.guard.dr_smoothing.spelling", "guard").lexicon()


def loading(what: str) -> None:
    """Say on standard error what is being loaded."""
    typer.echo(f"loading {printable(what)} …", err=True)


def defence_of(name: str, lm: Any, n: int, q: float, rectify: str, judge: str, **options: Any) -> Any:
    """Return the defence ``name`` round ``lm``; see :func:`steelyard.guard.dr_smoothing.presets.named_defence`."""
    presets = require("steelyard.guard.dr_smoothing.presets", "guard")
    return presets.named_defence(name, lm, n=n, q=q, rectify=rectify, judge=judge, **options)
