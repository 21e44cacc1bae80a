"""``steelyard guard certify`` and ``score``: figures without a server."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.command import JsonOption, print_json
from steelyard.cli.local_model import (
    JudgeOption,
    ModelOption,
    RectifyOption,
    StrengthOption,
    TokensOption,
    UpstreamOption,
    defence_of,
    language_model,
    loading,
    local_model,
    model_name,
)
from steelyard.cli.progress import counted
from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.models.paths import printable

_CHUNK = 16  # answers scored, or copies sampled, between two steps of the progress bar
_MOST_COPIES = 10_001  # that are tried
_BELOW_ONE = math.nextafter(1, 0)  # a failure too rare for a float can happen all the same
_BLANK = "the response is empty, so it has no score"


def certify(
    p: Annotated[
        float | None, typer.Option("--p", help="Probability that one copy is jailbroken, when it is known.")
    ] = None,
    jailbroken: Annotated[
        int | None, typer.Option("--jailbroken", min=0, help="How many sampled copies were jailbroken.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="How many copies were sampled, or are to be, of --prompt.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="Sample so many fresh copies of this prompt now.")
    ] = None,
    upstream: UpstreamOption = None,
    model: ModelOption = None,
    q: StrengthOption = 0.10,
    rectify: RectifyOption = "spell",
    judge: JudgeOption = "strict",
    max_tokens: TokensOption = 64,
    n: Annotated[int, typer.Option("--n", min=1, help="Copies of the vote.")] = 9,
    gamma: Annotated[float, typer.Option("--gamma", help="Vote threshold, at least 0 and below 1.")] = 0.5,
    delta: Annotated[float, typer.Option("--delta", help="Admissible probability of failure.")] = 0.05,
    confidence: Annotated[float, typer.Option("--confidence", help="Of a certificate from samples.")] = 0.99,
    json: JsonOption = False,
) -> None:
    """Say how safe a vote is: exactly for a known --p, with confidence from sampled copies.

    The copies are counted already (--jailbroken out of --samples), or asked now: --prompt with --samples disrupts,
    repairs, asks and judges that many fresh copies, at temperature 0, and certifies a vote of --n of them.
    Copies that chose q or another setting certify nothing. The bound speaks about the prompt that was sampled.
    """
    if [p, jailbroken, prompt].count(None) != 2:
        raise InputError("give either --p, or --jailbroken with --samples, or --prompt with --samples")
    if (samples is None) != (p is not None):
        raise InputError("--samples and one of --jailbroken and --prompt go together")
    if gamma == 0.5 and n % 2 == 0:
        typer.echo(f"note: a tie ({n // 2} of {n}) counts as a refusal; an odd --n leaves no ties", err=True)
    if prompt is not None:
        lm, sampling = language_model(upstream, model), {"max_new_tokens": max_tokens, "temperature": 0.0}
        guard = defence_of("dr", lm, n, q, rectify, judge, seed=None, sampling=sampling)
        jailbroken = _sampled(guard, prompt, int(samples or 0))
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


def _sampled(guard: Any, prompt: str, samples: int) -> int:
    """Return how many of ``samples`` fresh copies the model complied with; every chunk draws a seed of its own."""
    complied = 0
    with counted("sampling") as progress:
        for done in range(0, samples, _CHUNK):
            count = min(_CHUNK, samples - done)
            complied += sum(guard.sample([prompt], count)[0].votes)
            progress(done + count, samples, f"{complied} of {done + count} complied")
    return complied


def _chance(value: float, digits: int) -> str:
    """Return a probability with so many digits, or with an exponent where they would all be noughts."""
    return f"{value:.1e}" if 0 < value < 0.5 * 10**-digits else f"{value:.{digits}f}"


def _copies(n: int) -> str:
    return "1 copy" if n == 1 else f"{n} copies"


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
        "copies_needed": theory.copies_needed(p, delta, gamma, n_max=_MOST_COPIES),
    }


def _print_exact(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json(found)
        return
    low, high = found["bounds"]
    typer.echo(f"a vote of {_copies(found['n'])}, each jailbroken with probability {found['p']:g}")
    typer.echo(f"  is safe with probability   {_chance(found['success'], 6)} (exactly)")
    typer.echo(
        f"  textbook formulas put it between {low:.6f} and {high:.6f}; the simplest says {found['hoeffding']:.6f}"
    )
    most = _chance(found["required_copy_probability"], 4)
    typer.echo(f"  to fail at most {found['delta']:g}: p at most {most} with these copies")
    needed = found["copies_needed"]
    none = "no number of copies" if found["p"] >= found["gamma"] else f"more than {_MOST_COPIES} copies"
    typer.echo(f"  or, with this p, {none if needed is None else f'{_copies(needed)} (the least odd number)'}")


def _print_sampled(made: Any, json: bool) -> None:
    if json:
        print_json(asdict(made))
        return
    typer.echo(f"{made.jailbroken} of {made.n_samples} sampled copies were jailbroken ({_chance(made.p_hat, 3)})")
    upper = _chance(made.p_upper, 4)
    typer.echo(f"  at {made.confidence:.0%} confidence one copy is jailbroken with probability at most {upper}")
    least = math.floor(1e6 * min(made.success, _BELOW_ONE)) / 1e6  # a lower bound is not rounded up
    typer.echo(f"  so a vote of {_copies(made.n)} is safe with probability at least {least:.6f}")


def score(
    data: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="JSON Lines: question, response, and if any context, answer, label."),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="A Hugging Face folder or a .gguf file. Default: a small local model.")
    ] = None,
    layer: Annotated[str, typer.Option("--layer", help="Index of a layer, or a fraction of them.")] = "0.75",
    pool: Annotated[
        str,
        typer.Option(
            "--pool",
            help="Compare the mean state of the answer's tokens (mean), the last one (last), or token by token "
            "(token: hardly depends on the answer's length).",
        ),
    ] = "mean",
    black_box: Annotated[
        bool, typer.Option("--black-box", help="By a sentence encoder, for answers of a model that is elsewhere.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Score answers for being made up: higher = more likely. Rows without a response are answered by the model.

    With labels in the file the area under the curve is printed, beside that of the answer's length alone. An empty
    response has no score.
    """
    known = require("steelyard.guard.discrepancy.core", "guard").POOLS
    if pool not in known:
        raise InputError(f"--pool must be one of {', '.join(known)}, got {pool!r}")
    rows = require("steelyard.data", "guard").read_questions(data, blank_response=True)
    detector = _detector(rows, model, layer, pool, black_box)
    scored = _score_rows(detector, rows)
    areas = _areas(scored)
    if json:
        how = (
            {"model": "the sentence encoder", "layer": None, "pool": None}
            if black_box
            else {"model": model_name(model), "layer": list(detector.layers), "pool": pool}
        )
        print_json({**how, "rows": scored, "auroc": areas})
        return
    for number, row in enumerate(scored, 1):
        value = "        -" if row["score"] is None else f"{row['score']:9.5f}"
        typer.echo(f"{value}  row {number}: {_short(row['question'])} -> {_short(row['response'])}")
    blank = sum("note" in row for row in scored)
    if blank:
        typer.echo(f"note: {blank} empty response{'s have' if blank > 1 else ' has'} no score", err=True)
    if areas:
        labelled = len(_labelled(scored))
        typer.echo(f"area under the curve, {labelled} labelled rows (0.5 = guessing, 1 = perfect):")
        typer.echo(f"  the score                   {areas['score']:.3f}")
        typer.echo(f"  length of the answer alone  {areas['length']:.3f}")
    typer.echo("scores of different models, layers or pools cannot be compared", err=True)


def _detector(rows: Any, model: str | None, layer: str, pool: str, black_box: bool) -> Any:
    if black_box:
        if any(row.response is None for row in rows):
            raise InputError("--black-box scores answers that are there; every row needs a 'response'")
        loading("the sentence encoder")
        embedder = require("steelyard.models", "models").load_default_embedder()
        return require("steelyard.guard.discrepancy.black_box", "guard").BlackBoxDiscrepancy(embedder)
    detectors = require("steelyard.guard.discrepancy.detector", "guard")
    return detectors.EmbeddingDiscrepancy(local_model(model), layer=layer, pool=pool)


def _score_rows(detector: Any, rows: Any) -> list[dict[str, Any]]:
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
    given = [index for index, row in enumerate(rows) if row.response]
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
            "label": row.hallucinated,
            **({"note": _BLANK} if not answer else {}),
        }
        for row, answer, value in zip(rows, answers, scores, strict=True)
    ]


def _labelled(scored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in scored if row["label"] is not None and row["score"] is not None]


def _areas(scored: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return the areas under the curve by the user's labels, where both labels occur; the controls beside the score."""
    labelled = _labelled(scored)
    wrong = [bool(row["label"]) for row in labelled]
    if len(set(wrong)) < 2:
        return None
    auroc = require("steelyard.guard.discrepancy.measure", "guard").auroc
    return {
        "score": float(auroc([row["score"] for row in labelled], wrong)),
        "length": float(auroc([len(row["response"]) for row in labelled], wrong)),
    }


def _short(text: str, longest: int = 48) -> str:
    shown = printable(" ".join(text[: 4 * longest].split()))
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
