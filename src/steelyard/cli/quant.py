"""``steelyard quant``: convert a checkpoint to 4 bits, look into the result, measure what it lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import INTERRUPTED, Command, JsonOption, print_json, quiet_libraries
from steelyard.cli.progress import counted
from steelyard.extras import require

_MB = 1e6

Converted = Annotated[Path, typer.Argument(metavar="OUT", help="A converted folder.", show_default=False)]

app = typer.Typer(no_args_is_help=True, help="Convert checkpoints to 4-bit grids (PO2), inspect and evaluate them.")


app.callback()(quiet_libraries)


def convert(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A .safetensors file, a Hugging Face folder or a .gguf file."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The folder to write: new, or begun by the same call.")
    ],
    family: Annotated[
        str, typer.Option("--family", help="Grids: mpo2, po2_nf4, sfp4, nvfp4, …; a wrong one lists all.")
    ] = "mpo2",
    group_size: Annotated[
        int | None, typer.Option("--group-size", min=1, help="Weights that share a scale. Default: the family's.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", help="Format of the group scales: e4m3, e3m3, … Default: the family's.")
    ] = None,
    search: Annotated[
        str, typer.Option("--search", help="Scales tried for every group: none, 4o6, sweep (15, slower), window (9).")
    ] = "none",
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="REGEX", help="Quantise only linear weights whose name it is in.")
    ] = None,
    keep: Annotated[
        str, typer.Option("--keep", help="Dtype of embeddings, norms and the output layer: same, float32, bfloat16.")
    ] = "same",
    force: Annotated[bool, typer.Option("--force", help="Replace another conversion in OUT.")] = False,
    json: JsonOption = False,
) -> None:
    """Convert a checkpoint to 4 bits a weight, tensor by tensor, into a Hugging Face folder.

    Memory grows with the largest tensor, not with the model. After an interruption the same command goes on where it
    stopped.
    """
    run = require("steelyard.quant.po2.convert", "quant").convert
    try:
        with counted("converting") as progress:
            done = run(
                checkpoint, output, family, group_size, scale, search, filter_, keep, force=force, progress=progress
            )
    except KeyboardInterrupt:
        typer.echo("steelyard: interrupted; finished shards are kept, the same command goes on with the rest", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _print_conversion(done, json)


def inspect(out: Converted, json: JsonOption = False) -> None:
    """Show what a converted folder (or a saved file) holds: grids, bits and errors, layer by layer.

    The columns after "bits" say how many groups in a hundred chose the first grid, the second, …
    """
    files = require("steelyard.quant.po2.packed_files", "quant").packed_files(out)
    for file in files:
        file.check()
    summary = require("steelyard.quant.po2.summary", "quant").summarize(files)
    if json:
        print_json({"path": str(out), **_totals(summary), "layers": [asdict(layer) for layer in summary.layers]})
        return
    _print_layers(summary.layers)
    _print_totals(summary)


def evaluate(
    out: Converted,
    text: Annotated[Path, typer.Option("--text", metavar="FILE", help="A UTF-8 text.", show_default=False)],
    reference: Annotated[
        Path | None,
        typer.Option("--reference", metavar="CHECKPOINT", help="What it was made from: a folder or a .gguf file."),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Tokens of the text to use.")] = 2048,
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens of a window.")] = 512,
    json: JsonOption = False,
) -> None:
    """Measure a converted language model on a text: perplexity, and against a reference KL and top-1 agreement."""
    found = require("steelyard.quant.po2.text_eval", "quant").evaluate_text(out, text, reference, tokens, window)
    if json:
        print_json(asdict(found))
        return
    typer.echo(f"{found.tokens} tokens in windows of {found.window}")
    typer.echo(f"perplexity          {found.perplexity:.3f}")
    if found.kl is None:
        return
    typer.echo(f"  of the reference  {found.reference_perplexity:.3f}")
    typer.echo(f"KL(reference||it)   {found.kl:.5f} nats a token")
    typer.echo(f"top-1 agreement     {found.top1:.4f}")
    if reference is not None and reference.suffix == ".gguf":
        typer.echo("note: a GGUF reference is itself quantised, as its file says; the loss is against that", err=True)


def _print_conversion(done: Any, json: bool) -> None:
    summary = done.summary
    memory = {
        "peak_bytes": done.memory_peak,
        "start_bytes": done.memory_start,
        "bound_bytes": 2 * done.largest_bytes + 500_000_000,
    }
    if json:
        print_json({
            "output": str(done.output), **_totals(summary), "shards": done.shards, "reused_shards": done.reused,
            "seconds": round(done.seconds, 3), "memory": memory, "notes": list(done.notes),
            "layers": [asdict(layer) for layer in summary.layers],
        })  # fmt: skip
        return
    _print_layers(summary.layers)
    _print_totals(summary)
    again = f", {done.reused} of them there already" if done.reused else ""
    typer.echo(f"{done.output}: {done.shards} shards{again}, {done.seconds:.1f} s")
    if done.memory_peak is not None:
        typer.echo(
            f"memory beside mapped files: {done.memory_peak / _MB:.0f} MB at most, {memory['start_bytes'] / _MB:.0f} "
            f"MB at the start; bound {memory['bound_bytes'] / _MB:.0f} MB"
        )
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)


def _totals(summary: Any) -> dict[str, Any]:
    return {
        "families": sorted({layer.family for layer in summary.layers}),
        "quantized_weights": summary.weights,
        "relative_mse": summary.relative_mse,
        "bits_per_weight": summary.bits_per_weight,
        "stored_bits_per_weight": summary.stored_bits_per_weight,
        "file_bytes": summary.file_bytes,
        "kept": list(summary.kept),
    }


def _print_layers(layers: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    most = max((len(layer.histogram) for layer in layers), default=0)
    grids = [Column(f"grid {number} %", justify="right") for number in range(most)]
    right = [Column(name, justify="right", no_wrap=True) for name in ("shape", "rel. error", "bits")]
    table = Table(Column("layer", no_wrap=True), "family", *right, *grids, box=None, header_style="bold")
    for layer in layers:
        groups = sum(layer.histogram)
        shares = [f"{100 * count / groups:.1f}" for count in layer.histogram]
        error = "?" if layer.relative_mse is None else f"{layer.relative_mse:.5f}{'!' if layer.raised else ''}"
        shape = "x".join(str(length) for length in layer.shape)
        family = f"{layer.family} g{layer.group_size}"
        table.add_row(
            *(Text(word) for word in (layer.name, family, shape, error, f"{layer.bits_per_weight:g}", *shares))
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if any(layer.raised for layer in layers):
        typer.echo("!: an outlier sets this tensor's scale; its smallest groups lost precision (try --scale fp32)")


def _print_totals(summary: Any) -> None:
    error = "unknown" if summary.relative_mse is None else f"{summary.relative_mse:.5f}"
    typer.echo(
        f"{len(summary.layers)} layers, {summary.weights:,} weights: {summary.bits_per_weight:g} bits a weight "
        f"({summary.stored_bits_per_weight:.5g} stored), relative squared error {error}"
    )
    typer.echo(f"{len(summary.kept)} other tensors as they were; {summary.file_bytes / _MB:.1f} MB in all")


for command in (
    Command("convert", convert, "steelyard quant convert model.gguf --family mpo2 -o model-mpo2"),
    Command("inspect", inspect, "steelyard quant inspect model-mpo2"),
    Command("eval", evaluate, "steelyard quant eval model-mpo2 --text wiki.txt --reference model.gguf"),
):
    command.add_to(app)
