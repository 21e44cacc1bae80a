"""``steelyard guard``: a guard in front of a language model, and what it costs and buys."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import Command, JsonOption, print_json, quiet_libraries
from steelyard.cli.guard_figures import certify, score
from steelyard.cli.local_model import local_model
from steelyard.cli.progress import counted
from steelyard.errors import InputError
from steelyard.extras import require

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
KEY_VARIABLE = "STEELYARD_API_KEY"
CLIENT_KEY_VARIABLE = "STEELYARD_CLIENT_KEY"
EXAMPLE = "Explain in two sentences why leaves change their colour in autumn."

app = typer.Typer(
    no_args_is_help=True,
    help="Guard a language model: a vote over disrupted copies, and a detector of made-up answers. "
    f"The upstream's key comes from the variable {KEY_VARIABLE}, never from the command line.",
)


@app.callback()
def _quiet() -> None:
    quiet_libraries()
    warnings.filterwarnings("ignore", message="at least gamma of the copies")  # it stands in the record of each vote


def serve(
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    defence: Annotated[
        str, typer.Option("--defence", help="dr, smoothllm, rectify, paper, or none (requests pass through).")
    ] = "dr",
    n: CopiesOption = 9,
    q: StrengthOption = 0.10,
    rectify: RectifyOption = "spell",
    judge: JudgeOption = "strict",
    early_stop: Annotated[bool, typer.Option("--early-stop", help="Stop asking once the verdict is certain.")] = False,
    detect: Annotated[
        bool, typer.Option("--detect", help="Score every answer for being made up, in the field x_discrepancy.")
    ] = False,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 picks a free one.")] = 8766,
) -> None:
    """Serve an OpenAI-compatible API on 127.0.0.1 that answers through a defence.

    Point a client's base URL at it. Each answer carries its vote in the field x_smoothing. If the variable
    STEELYARD_CLIENT_KEY is set, clients must send it as their API key.
    """
    proxy = require("steelyard.serve.guard_proxy", "serve")
    upstreams = require("steelyard.serve.upstream", "serve")
    client_key = os.environ.get(CLIENT_KEY_VARIABLE) or None
    lm = None if upstream is not None else local_model(model)
    source = upstreams.LocalUpstream(lm, _name(model)) if lm is not None else upstreams.HttpUpstream(upstream, model)
    adapter = None
    if defence != "none":
        asks = "llm" in (rectify, judge) or rectify == "both" or defence == "paper"
        helper = (lm or _language_model(upstream, model)) if asks else None
        # an attack may stand in any turn of the user, with a harmless one behind it
        guard = _defence(defence, helper, n, q, rectify, judge, seed=None, early_stop=early_stop, scope="all_user")
        adapter = require("steelyard.guard.dr_smoothing.openai", "guard").SmoothingDefence(guard)
    detector = _detector(lm) if detect else None
    proxy.run(proxy.make_app(source, adapter, detector, client_key=client_key), port)


def _detector(lm: Any) -> Any:
    """Return the detector of the proxy: by the local model's states, or by an encoder where the model is elsewhere."""
    adapters = require("steelyard.guard.discrepancy.openai", "guard")
    if lm is not None:
        detector = require("steelyard.guard.discrepancy.detector", "guard").EmbeddingDiscrepancy(lm)
        return adapters.DiscrepancyDetector(detector)
    embedder = require("steelyard.models", "models").load_default_embedder()
    black_box = require("steelyard.guard.discrepancy.black_box", "guard").BlackBoxDiscrepancy(embedder)
    return adapters.DiscrepancyDetector(black_box)


def demo(
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    n: CopiesOption = 9,
    q: StrengthOption = 0.10,
    rectify: RectifyOption = "spell",
    judge: JudgeOption = "strict",
    max_tokens: TokensOption = 48,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 picks a free one.")] = 8767,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the default browser.")] = False,
) -> None:
    """Show a defence at work in a local page: a prompt, its copies and votes, the bound, the undefended answer."""
    page = require("steelyard.serve.guard_page", "serve")
    presets = require("steelyard.guard.dr_smoothing.presets", "guard")
    lm = _language_model(upstream, model)
    guard = _defence("dr", lm, n, q, rectify, judge, seed=None, sampling={"max_new_tokens": max_tokens})
    name = _name(model) if upstream is None else model
    about = (
        f"{name} is asked once plainly, and once in {n} copies whose characters "
        f"are disrupted (q = {q:g}) and then repaired ({rectify}); the copies vote."
    )
    page.run(page.make_page_app(lambda prompt: presets.side_by_side(guard, prompt), about, EXAMPLE), port, open_)


def replay(
    artifacts: Annotated[
        Path, typer.Argument(metavar="FILE", help="A JailbreakBench artifact (JSON with a list 'jailbreaks').")
    ],
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    defences: Annotated[
        str, typer.Option("--defences", help="Which to compare: none, rectify, smoothllm, dr, paper.")
    ] = "none,rectify,smoothllm,dr",
    n: CopiesOption = 9,
    q: StrengthOption = 0.10,
    rectify: RectifyOption = "spell",
    judge: JudgeOption = "strict",
    max_tokens: TokensOption = 64,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many prompts.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the copies.")] = 0,
    kept: Annotated[
        Path | None, typer.Option("--kept", metavar="FILE", help="Outcomes are kept here; the same command goes on.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay recorded jailbreak prompts through several defences: how often the model complies, at what cost.

    The judge calls an answer compliance unless it looks like a refusal; read a few answers before you trust it.
    """
    replays = require("steelyard.guard.dr_smoothing.replay", "guard")
    found = replays.read_artifacts(artifacts)
    prompts = found.prompts[:limit]
    lm = _language_model(upstream, model)
    names = [name.strip() for name in defences.split(",") if name.strip()]
    if not names:
        raise InputError("--defences names none; e.g. --defences none,dr")
    sampling = {"max_new_tokens": max_tokens, "temperature": 0.0}
    built = {name: _defence(name, lm, n, q, rectify, judge, seed=seed, sampling=sampling) for name in names}
    settings = f"{upstream}|{model}|{n}|{q}|{rectify}|{judge}|{max_tokens}|{seed}"
    judged = require("steelyard.guard.dr_smoothing.presets", "guard").named_judge(judge, lm)
    with counted("replaying") as progress:
        lines = replays.replay(prompts, built, judged, settings, kept, progress)
    if json:
        print_json({"prompts": len(prompts), "without_prompt": found.without, "defences": replays.as_rows(lines)})
        return
    if found.without:
        typer.echo(f"{found.without} rows without a prompt were left out", err=True)
    typer.echo(f"{'defence':10} {'prompts':>7} {'complied':>9}   95 % interval    calls a prompt")
    for line in lines:
        interval = f"[{line.low:.3f}, {line.high:.3f}]"
        typer.echo(f"{line.defence:10} {line.prompts:7} {line.rate:9.3f}   {interval}   {line.calls_per_prompt:9.1f}")


def _defence(name: str, lm: Any, n: int, q: float, rectify: str, judge: str, **options: Any) -> Any:
    presets = require("steelyard.guard.dr_smoothing.presets", "guard")
    return presets.named_defence(name, lm, n=n, q=q, rectify=rectify, judge=judge, **options)


def _language_model(upstream: str | None, model: str | None) -> Any:
    """Return the model at an endpoint, or the local one."""
    if upstream is None:
        return local_model(model)
    if model is None:
        raise InputError("--upstream needs --model, the name that the server knows it by")
    models = require("steelyard.models", "models")
    return models.OpenAICompatibleLM(upstream, model)


def _name(model: str | None) -> str:
    return "SmolLM2-135M-Instruct" if model is None else Path(model).name


for command in (
    Command("serve", serve, "steelyard guard serve --upstream http://127.0.0.1:8000/v1 --model my-model --n 9"),
    Command("demo", demo, "steelyard guard demo --open"),
    Command("score", score, "steelyard guard score answers.jsonl --json"),
    Command("certify", certify, "steelyard guard certify --jailbroken 3 --samples 200 --n 9"),
    Command("replay", replay, "steelyard guard replay vicuna-13b-v1.5.json --upstream URL --model vicuna"),
):
    command.add_to(app)
