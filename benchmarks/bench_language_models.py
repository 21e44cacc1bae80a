"""Time of batched text, scores and embeddings of the default models against one call, side by side.

Run: python benchmarks/bench_language_models.py [--full]. Processor time of one thread; ratios are medians over
interleaved rounds. SmolLM2 in float32, greedy, exactly so many new tokens. One call is the ceiling of what sharing can
reach, a loop over the prompts the floor. ``--full``: the whole grid, loading, tokens per second, MiniLM (10 minutes).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import receipt
import torch

from steelyard import rng
from steelyard.models import TransformersLM, estimate_cost, load_default_embedder, load_default_lm
from steelyard.models.batches import group
from steelyard.models.generation import Row, Sampling, decode, shared_start
from steelyard.timing import interleaved

# prompt, of which shared, new tokens, rows
QUICK = ((148, 123, 16, 8), (400, 360, 32, 8))
FULL = (
    *((148, 123, 16, rows) for rows in (2, 4, 8, 16)), (148, 123, 64, 8), (148, 123, 64, 16), (60, 10, 16, 8),
    (60, 10, 64, 8), (400, 360, 32, 8), (400, 320, 16, 8), (400, 320, 64, 8), (400, 200, 16, 8),
)  # fmt: skip
TARGETS = {
    "148/123/16 x8 batch": 4.2, "400/360/32 x8 shared": 2.4, "400/320/16 x8 shared": 2.7, "148/123/16 x16 shared": 3.5,
    "scoring 16 responses, at least": 5.0, "reload seconds": 1.0,
}  # fmt: skip
STOCK = (
    "The lighthouse keeper wrote down the weather every evening: wind from the west, a swell of two metres, rain "
    "before midnight. In the morning she compared her notes with those of the harbour, corrected the clock, trimmed "
    "the lamp and counted the boats that had come back. Nobody had asked her to do so. "
)


def prompts(lm: TransformersLM, length: int, shared: int, rows: int) -> list[list[int]]:
    """Return token rows of one length with a common start; the rest is drawn from the words of a text."""
    ids = lm.response_ids(STOCK * (2 + 2 * length // len(STOCK.split())))
    stream = rng.generator("bench", "language_models", length)
    start = ids[:shared]
    return [start + [int(token) for token in stream.choice(ids, length - shared)] for _ in range(rows)]


def write(lm: TransformersLM, rows: list[list[int]], new: int, share: bool) -> list[list[int]]:
    """Return ``new`` tokens per row, whatever they are: nothing ends a text."""
    work = [Row(ids, new) for ids in rows]
    with lm.exclusive():
        ((_, shared),) = group(rows, [len(ids) - 1 for ids in rows], share)
        start = shared_start(lm._decoder, rows[0][:shared])
        decode(lm._decoder, work, Sampling(), ends=(), start=start, shared=shared)
    return [row.tokens for row in work]


def generation(lm: TransformersLM, settings: Any, rounds: int) -> dict[str, Any]:
    """Return times over one call for every setting, and whether all arms wrote the same."""
    found = {}
    for length, shared, new, count in settings:
        rows = prompts(lm, length, shared, count)
        arms = {"one call": (rows[:1], False), "batch": (rows, False), "shared": (rows, True)}
        texts: dict[str, list[list[int]]] = {}

        def run(arm: str, arms: Any = arms, texts: Any = texts, new: int = new) -> None:
            texts[arm] = write(lm, arms[arm][0], new, arms[arm][1])

        calls: dict[str, Callable[[], object]] = {arm: functools.partial(run, arm) for arm in arms}
        if (length, new, count) == (148, 16, 8):
            calls["loop"] = lambda rows=rows, new=new: [write(lm, [row], new, False) for row in rows]
        seconds = interleaved(calls, repeats=rounds, warmup=0, clock=time.process_time)
        cost = estimate_cost(length, shared, count, new), estimate_cost(length, 0, 1, new)
        found[f"{length}/{shared}/{new} x{count}"] = {
            "one_call_seconds": statistics.median(seconds["one call"]),
            **{name: over(seconds[name], seconds["one call"]) for name in calls if name != "one call"},
            "flops_over_one_call": cost[0].flops / cost[1].flops,
            "same_texts": texts["batch"] == texts["shared"] and texts["batch"][:1] == texts["one call"],
        }
        print(length, shared, new, count, json.dumps(found[f"{length}/{shared}/{new} x{count}"]), flush=True)
    return found


def over(times: list[float], base: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, base, strict=True))


def scoring(lm: TransformersLM, rounds: int) -> dict[str, float]:
    """Return how much faster 16 short responses to one prompt are scored together than one by one."""
    prompt = prompts(lm, 148, 148, 1)[0]
    stream = rng.generator("bench", "responses", 0)
    responses = [[int(token) for token in stream.choice(prompt, 8)] for _ in range(16)]
    together, alone = TransformersLM(lm.model, lm.tokenizer), TransformersLM(lm.model, lm.tokenizer, share_prefix=False)
    calls: dict[str, Callable[[], object]] = {
        "shared": lambda: together.logprobs([prompt] * 16, responses),
        "batch": lambda: alone.logprobs([prompt] * 16, responses),
        "one by one": lambda: [alone.logprobs([prompt], [response]) for response in responses],
    }
    seconds = interleaved(calls, repeats=rounds, warmup=1, clock=time.process_time)
    return {f"one by one over {name}": over(seconds["one by one"], seconds[name]) for name in ("shared", "batch")}


def sampled_once(lm: TransformersLM) -> dict[str, float]:
    """Return 8 texts of one prompt over one call: the prompt runs once."""
    rows = prompts(lm, 148, 148, 1) * 8
    calls: dict[str, Callable[[], object]] = {
        "one call": lambda: write(lm, rows[:1], 16, False),
        "texts": lambda: write(lm, rows, 16, False),
    }
    seconds = interleaved(calls, repeats=3, warmup=0, clock=time.process_time)
    return {"8 texts of one prompt over one call": over(seconds["texts"], seconds["one call"])}


@contextlib.contextmanager
def empty_cache() -> Iterator[None]:
    before = os.environ.get("STEELYARD_DATA")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STEELYARD_DATA"] = folder
        yield
    if before is None:
        del os.environ["STEELYARD_DATA"]
    else:
        os.environ["STEELYARD_DATA"] = before


def timed(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def loading() -> dict[str, float]:
    """Return processor seconds of the load call: from GGUF, and again from the cache (imports not counted)."""
    with empty_cache():
        first = timed(load_default_lm)
        again = statistics.median(timed(load_default_lm) for _ in range(3))
        half = statistics.median(timed(lambda: load_default_lm(dtype="bfloat16")) for _ in range(3))
        script = "from steelyard.models import load_default_lm as f; f().generate(['Hello'], max_new_tokens=1)"
        fresh = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        fresh = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - fresh
    return {
        "gguf seconds": first, "reload seconds": again, "reload bfloat16 seconds": half,
        "process with imports and one token seconds": fresh,
    }  # fmt: skip


def speed(lm: TransformersLM) -> dict[str, float]:
    """Return tokens per wall second of one stream by threads, and MiniLM's texts per processor second by length."""
    found = {}
    row = prompts(lm, 16, 16, 1)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        start = time.perf_counter()
        write(lm, row, 48, False)
        found[f"tokens per second, {threads} threads"] = 48 / (time.perf_counter() - start)
    torch.set_num_threads(1)
    embedder = load_default_embedder()
    words = STOCK.split()
    for tokens in (16, 64, 256):
        texts = [" ".join(words[place % 7 :] * 8)[: tokens * 4] for place in range(128 * 16 // tokens)]
        found[f"MiniLM texts per second, {tokens} tokens"] = len(texts) / timed(
            lambda texts=texts: embedder.encode(texts)
        )
    return found


def half_precision(rows: list[list[int]]) -> dict[str, Any]:
    """Return how many texts a batch changes in bfloat16."""
    lm = load_default_lm(dtype="bfloat16")
    alone = [write(lm, [row], 16, False)[0] for row in rows]
    together = write(lm, rows, 16, False)
    return {"texts changed by batching": sum(a != b for a, b in zip(alone, together, strict=True)), "of": len(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the whole grid")
    full = parser.parse_args().full
    torch.set_num_threads(1)
    lm = load_default_lm()
    write(lm, prompts(lm, 32, 16, 2), 4, True)  # warm
    figures: dict[str, Any] = {
        "targets": TARGETS,
        "generation": generation(lm, FULL if full else QUICK, 3 if full else 1),
        "scoring 16 responses of 8 tokens": scoring(lm, 3 if full else 1),
    }
    if full:
        figures |= {"samples": sampled_once(lm), "loading": loading(), "speed": speed(lm)}
        figures["bfloat16"] = half_precision(prompts(lm, 148, 123, 8))
        figures["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures, indent=1))
    if full:
        print(receipt.write("speed_language_models", figures))


if __name__ == "__main__":
    main()
