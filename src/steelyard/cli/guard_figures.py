"""``steelyard guard certify`` and ``score``: figures without a server."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import JsonOption, print_json
from steelyard.cli.local_model import local_model
from steelyard.cli.progress import counted
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

_CHUNK = 16  # answers scored between two steps of the progress bar


def certify(
    p: Annotated[
        float | None, typer.Option("--p", help="Probability that one copy is jailbroken, when it is known.")
    ] = None,
    jailbroken: Annotated[
        int | None, typer.Option("--jailbroken", min=0, help="How many sampled copies were jailbroken.")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many copies were sampled.")] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Copies of the vote.")] = 9,
    gamma: Annotated[float, typer.Option("--gamma", help="Vote threshold, at least 0 and below 1.")] = 0.5,
    delta: Annotated[float, typer.Option("--delta", help="Admissible probability of failure.")] = 0.05,
    confidence: Annotated[float, typer.Option("--confidence", help="Of a certificate from samples.")] = 0.99,
    json: JsonOption = False,
) -> None:
    """Say how safe a vote is: exactly for a known --p, with confidence for --jailbroken out of --samples.

    Sample copies afresh: those that chose q or another setting certify nothing. The bound speaks about the prompt that
    was sampled.
    """
    if (p is None) == (jailbroken is None):
        raise InputError("give either --p, or --jailbroken with --samples")
    if (jailbroken is None) != (samples is None):
        raise InputError("--jailbroken and --samples go together")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if p is not None:
            _print_exact(_exact(p, n, gamma, delta), json)
        else:
            assert jailbroken is not None
            assert samples is not None
            made = require("steelyard.guard.dr_smoothing.certificates", "guard").certify_from_samples(
                jailbroken, n=n, n_samples=samples, confidence=confidence, gamma=gamma
            )
            _print_sampled(made, json)
    for said in dict.fromkeys(str(warning.message) for warning in caught):
        typer.echo(f"note: {said}", err=True)


def _exact(p: float, n: int, gamma: float, delta: float) -> dict[str, Any]:
    theory = require("steelyard.guard.dr_smoothing.theory", "guard")
    low, high = theory.success_probability_bounds(p, n, gamma)
    return {
        "p": p,
        "n": n,
        "gamma": gamma,
        "delta": delta,
        "success": theory.defense_success_probability(p, n, gamma),
        "bounds": [low, high],
        "hoeffding": theory.hoeffding_bound(1 - p, n, gamma),
        "required_copy_probability": theory.required_copy_probability(n, delta, gamma),
        "copies_needed": theory.copies_needed(p, delta, gamma),
    }


def _print_exact(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json(found)
        return
    low, high = found["bounds"]
    typer.echo(f"a vote of {found['n']} copies, each jailbroken with probability {found['p']:g}")
    typer.echo(f"  is safe with probability   {found['success']:.6f} (exactly)")
    typer.echo(f"  Chernoff and matching bound [{low:.6f}, {high:.6f}]; Hoeffding's {found['hoeffding']:.6f}")
    typer.echo(
        f"  to fail at most {found['delta']:g}: p at most {found['required_copy_probability']:.4f} with these copies"
    )
    needed = found["copies_needed"]
    typer.echo(f"  or, with this p, {'no number of copies' if needed is None else f'{needed} copies (odd numbers)'}")


def _print_sampled(made: Any, json: bool) -> None:
    if json:
        print_json(asdict(made))
        return
    typer.echo(f"{made.jailbroken} of {made.n_samples} sampled copies were jailbroken ({made.p_hat:.3f})")
    typer.echo(
        f"  at {made.confidence:.0%} confidence one copy is jailbroken with probability at most {made.p_upper:.4f}"
    )
    least = math.floor(1e6 * made.success) / 1e6  # a lower bound is not rounded up
    typer.echo(f"  so a vote of {made.n} is safe with probability at least {least:.6f}")


def score(
    data: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON Lines: question, response, and if any context, answer, label."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="A Hugging Face folder or a .gguf file. Default: a small local model.")
    ] = None,
    layer: Annotated[str, typer.Option("--layer", help="Index of a layer, or a fraction of them.")] = "0.75",
    pool: Annotated[str, typer.Option("--pool", help="mean, last, or token (hardly depends on length).")] = "mean",
    black_box: Annotated[
        bool, typer.Option("--black-box", help="By a sentence encoder, for answers of a model that is elsewhere.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Score answers for being made up: higher = more likely. Rows without a response are answered by the model.

    With labels in the file the area under the curve is printed, beside that of the answer's length alone.
    """
    rows = require("steelyard.data", "guard").read_questions(data)
    scored = _score_rows(rows, model, layer, pool, black_box)
    areas = _areas(rows, scored)
    if json:
        print_json({"rows": scored, "auroc": areas})
        return
    for number, row in enumerate(scored, 1):
        value = "        -" if row["score"] is None else f"{row['score']:9.5f}"
        typer.echo(f"{value}  row {number}: {_short(row['question'])} -> {_short(row['response'])}")
    for name, area in (areas or {}).items():
        typer.echo(f"area under the curve, {name}: {area:.3f}")
    typer.echo("scores of different models, layers or pools cannot be compared", err=True)


def _score_rows(rows: Any, model: str | None, layer: str, pool: str, black_box: bool) -> list[dict[str, Any]]:
    lm = None
    if black_box:
        if any(row.response is None for row in rows):
            raise InputError("--black-box scores answers that are there; every row needs a 'response'")
        embedder = require("steelyard.models", "models").load_default_embedder()
        detector = require("steelyard.guard.discrepancy.black_box", "guard").BlackBoxDiscrepancy(embedder)
    else:
        lm = local_model(model)
        detector = require("steelyard.guard.discrepancy.detector", "guard").EmbeddingDiscrepancy(
            lm, layer=layer, pool=pool
        )
    scored: list[dict[str, Any]] = []
    with counted("scoring") as progress:
        for start in range(0, len(rows), _CHUNK):
            scored += _score_chunk(detector, rows[start : start + _CHUNK])
            progress(len(scored), len(rows), f"row {len(scored)}")
    return scored


def _score_chunk(detector: Any, rows: Any) -> list[dict[str, Any]]:
    answers = [row.response for row in rows]
    scores: list[float | None] = [None] * len(rows)
    missing = [index for index, row in enumerate(rows) if row.response is None]
    if missing:
        made = detector.answer_and_score([rows[i].question for i in missing], [rows[i].context for i in missing])
        for index, found in zip(missing, made, strict=True):
            answers[index], scores[index] = found.answer, float(found.score)
    given = [index for index in range(len(rows)) if scores[index] is None]
    if given:
        values = detector.score(
            [rows[i].question for i in given], [answers[i] for i in given], [rows[i].context for i in given]
        )
        for index, value in zip(given, values, strict=True):
            scores[index] = float(value)
    return [
        {
            "question": row.question,
            "response": answer,
            "score": None if value is None or math.isnan(value) else value,  # the model gave an empty answer
            "hallucinated": row.hallucinated,
        }
        for row, answer, value in zip(rows, answers, scores, strict=True)
    ]


def _areas(rows: Any, scored: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the areas under the curve by the user's labels, where both labels occur; the controls beside the score."""
    labelled = [
        (row.hallucinated, made)
        for row, made in zip(rows, scored, strict=True)
        if row.hallucinated is not None and made["score"] is not None
    ]
    wrong = [bool(label) for label, _ in labelled]
    if len(set(wrong)) < 2:
        return None
    auroc = require("steelyard.guard.discrepancy.measure", "guard").auroc
    lengths = [len(made["response"]) for _, made in labelled]
    return {
        "the score": float(auroc([made["score"] for _, made in labelled], wrong)),
        "length of the answer alone": float(auroc(lengths, wrong)),
    }


def _short(text: str, longest: int = 48) -> str:
    shown = printable(" ".join(text[: 4 * longest].split()))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
