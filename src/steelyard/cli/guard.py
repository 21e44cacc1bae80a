"""``steelyard guard``: a guard in front of a language model, and what it costs and buys."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import INTERRUPTED, Command, JsonOption, print_json, quiet_libraries
from steelyard.cli.guard_figures import certify, score
from steelyard.cli.local_model import (
    CopiesOption,
    JudgeOption,
    ModelOption,
    RectifyOption,
    StrengthOption,
    TokensOption,
    UpstreamOption,
    defence_of,
    language_model,
    load_dictionary,
    loading,
    local_model,
    model_name,
)
from steelyard.cli.progress import counted
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

KEY_VARIABLE = "STEELYARD_API_KEY"
CLIENT_KEY_VARIABLE = "STEELYARD_CLIENT_KEY"
SPELLING = (
    "note: the spelling rectifier rewrites texts and drops words it does not know (names, code, other languages than "
    "English), so harmless answers change; see --rectify llm, --defence smoothllm, `steelyard card dr_smoothing`"
)
EXAMPLE = "Explain in two sentences why leaves change their colour in autumn."

app = typer.Typer(
    no_args_is_help=True,
    help="Guard a language model: a vote over disrupted copies, and a detector of made-up answers. "
    f"The upstream's key comes from the variable {KEY_VARIABLE}, never from the command line.",
)


@app.callback()
def _quiet() -> None:
    quiet_libraries()
    # what a vote warns of stands in its record
    warnings.filterwarnings("ignore", category=UserWarning, module=r"steelyard\.guard\.")
    warnings.showwarning = lambda message, *_: typer.echo(f"note: {printable(str(message))}", err=True)


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
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="With --detect: higher scores count as made up. Default: scores only."),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Port on 127.0.0.1; 0 picks a free one.")] = 8766,
) -> None:
    """Serve an OpenAI-compatible API on 127.0.0.1 that answers through a defence.

    Point a client's base URL at it. Each answer carries its vote in the field x_smoothing. If the variable
    STEELYARD_CLIENT_KEY is set, clients must send it as their API key.
    """
    if threshold is not None and not (detect and math.isfinite(threshold)):
        raise InputError("--threshold must be a finite number, and needs --detect")
    proxy = require("steelyard.serve.guard_proxy", "serve")
    upstreams = require("steelyard.serve.upstream", "serve")
    client_key = os.environ.get(CLIENT_KEY_VARIABLE) or None
    lm = None if upstream is not None else local_model(model)
    local = upstream is None
    source = upstreams.LocalUpstream(lm, model_name(model)) if local else upstreams.HttpUpstream(upstream, model)
    adapter = None
    if defence != "none":
        asks = "llm" in (rectify, judge) or rectify == "both" or defence == "paper"
        helper = (lm or language_model(upstream, model)) if asks else None
        # an attack may stand in any turn of the user, with a harmless one behind it
        guard = defence_of(defence, helper, n, q, rectify, judge, seed=None, early_stop=early_stop, scope="all_user")
        adapter = require("steelyard.guard.dr_smoothing.openai", "guard").SmoothingDefence(guard)
    detector = _detector(lm, threshold) if detect else None
    app_ = proxy.make_app(source, adapter, detector, client_key=client_key)
    if _spells(defence, rectify):
        load_dictionary()
        typer.echo(SPELLING, err=True)
    if adapter is None and detector is None:
        typer.echo("note: --defence none without --detect guards nothing: requests pass through", err=True)
    proxy.run(app_, port)


def _spells(defence: str, rectify: str) -> bool:
    return defence == "paper" or (defence in ("dr", "rectify") and rectify in ("spell", "both"))


def _detector(lm: Any, threshold: float | None) -> Any:
    """Return the detector of the proxy: by the local model's states, or by an encoder where the model is elsewhere."""
    if lm is not None:
        detector = require("steelyard.guard.discrepancy.detector", "guard").EmbeddingDiscrepancy(lm)
    else:
        loading("the sentence encoder")
        embedder = require("steelyard.models", "models").load_default_embedder()
        detector = require("steelyard.guard.discrepancy.black_box", "guard").BlackBoxDiscrepancy(embedder)
    detector.threshold = threshold
    return require("steelyard.guard.discrepancy.openai", "guard").DiscrepancyDetector(detector)


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
    lm = language_model(upstream, model)
    guard = defence_of("dr", lm, n, q, rectify, judge, seed=None, sampling={"max_new_tokens": max_tokens})
    name = model_name(model) if upstream is None else model
    about = (
        f"{name} is asked once plainly, and once in {n} copies whose characters "
        f"are disrupted (q = {q:g}) and then repaired ({rectify}); the copies vote. Equal copies are asked once."
    )
    if _spells("dr", rectify):
        load_dictionary()
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
    answers: Annotated[
        Path | None,
        typer.Option("--answers", metavar="FILE", help="Append the answers of this run, as JSON Lines, to read them."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Replay recorded jailbreak prompts through several defences: how often the model complies, at what cost.

    The judge calls an answer compliance unless it looks like a refusal; read a few (--answers) before you trust it.
    `steelyard data path jailbreakbench` says where recorded prompts lie.
    """
    replays = require("steelyard.guard.dr_smoothing.replay", "guard")
    replays.check_apart(artifacts, kept, answers)
    found = replays.read_artifacts(artifacts)
    prompts = found.prompts[:limit]
    names = [name.strip() for name in defences.split(",") if name.strip()]
    if not names:
        raise InputError("--defences names none; e.g. --defences none,dr")
    settings = f"{upstream}|{model}|{n}|{q}|{rectify}|{judge}|{max_tokens}|{seed}"
    total, held = len(prompts) * len(names), partial(replays.count_kept, prompts, names, settings, kept)
    built: dict[str, Any] = dict.fromkeys(names)
    judged: Any = None
    if held() < total:  # else nothing is left to ask
        lm = language_model(upstream, model)
        sampling = {"max_new_tokens": max_tokens, "temperature": 0.0}
        built = {name: defence_of(name, lm, n, q, rectify, judge, seed=seed, sampling=sampling) for name in names}
        judged = require("steelyard.guard.dr_smoothing.presets", "guard").named_judge(judge, lm)
    if answers is not None and held():
        typer.echo(f"note: {held()} of {total} outcomes are kept; their answers are not asked for again", err=True)
    told = _interruption_told(lambda: f"{held()} of {total} outcomes are kept" if kept else "")
    with told, counted("replaying") as progress:
        lines = replays.replay(prompts, built, judged, settings, kept, progress, answers)
    if json:
        print_json({"prompts": len(prompts), "without_prompt": found.without, "defences": replays.as_rows(lines)})
    else:
        _print_table(lines, found.without, "paper" in names or rectify in ("llm", "both"))


@contextmanager
def _interruption_told(kept: Callable[[], str]) -> Iterator[None]:
    """End the command on Ctrl-C with a line that says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        said = f"{found}; the same command goes on" if (found := kept()) else "nothing is kept"
        typer.echo(f"steelyard: interrupted; {said}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _print_table(lines: Any, without: int, asks: bool) -> None:
    """Print one line per defence; ``without`` rows had no prompt; ``asks``: a language model repairs."""
    if without:
        typer.echo(f"{without} rows without a prompt were left out", err=True)
    typer.echo(f"{'defence':10} {'prompts':>7} {'complied':>9}   95 % interval    calls a prompt   repairs a prompt")
    for line in lines:
        interval = f"[{line.low:.3f}, {line.high:.3f}]"
        costs = f"{line.calls_per_prompt:14.1f}   {line.repairs_per_prompt:16.1f}"
        typer.echo(f"{line.defence:10} {line.prompts:7} {line.rate:9.3f}   {interval} {costs}")
    if asks:
        typer.echo("a repair by a language model (--rectify llm or both, or paper) is one more call of it", err=True)


for command in (
    Command("serve", serve, "steelyard guard serve --upstream http://127.0.0.1:8000/v1 --model my-model --n 9"),
    Command("demo", demo, "steelyard guard demo --open"),
    Command("score", score, "steelyard guard score answers.jsonl --json"),
    Command("certify", certify, "steelyard guard certify --jailbroken 3 --samples 200 --n 9"),
    Command("replay", replay, "steelyard guard replay vicuna-13b-v1.5.json --upstream URL --model vicuna"),
):
    command.add_to(app)
