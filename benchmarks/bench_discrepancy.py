"""What a score of EmbeddingDiscrepancy costs beside answering, beside K more answers, and one by one; SmolLM2.

Run: ``python benchmarks/bench_discrepancy.py``. Processor time of one thread; arms take turns and are compared as
ratios of the same round. Every answer has exactly the stated number of tokens: the model is not let end one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import receipt
import torch

from steelyard.guard import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.passes import decoder
from steelyard.models import load_default_lm
from steelyard.timing import interleaved

PROMPTS = (150, 400)
NEW_TOKENS = (32, 64)
ANSWER_LENGTHS = (16, 32, 64, 128, 256)
SHORT, BATCH = (2, 4, 12), 16  # tokens of short answers, answers in a batch
STORY = "Write a very long story about a ship, its crew and a storm. Do not stop before a thousand words are written."
FILLER = "The sea was calm and the wind came from the west, as it had on every evening of that long summer. "
TARGETS = {
    "answer over score, states reused": 1 / 0.15,
    "10 samples over score, states reused": 20.0,
    "5 samples over score, states reused": 5.0,
    "5 samples over score, both passes": 2.5,
    "one by one over batch of 16": 5.0,
}


def chat(lm: Any, tokens: int) -> list[dict[str, str]]:
    """A chat whose rendered prompt has ``tokens`` tokens, or a few more."""
    words = FILLER.split() * 40

    def turns(count: int) -> list[dict[str, str]]:
        context = " ".join(words[:count])
        return [{"role": "system", "content": "Follow the user."}, {"role": "user", "content": f"{context}\n{STORY}"}]

    return turns(next(n for n in range(len(words)) if len(lm.prompt_ids(turns(n))) >= tokens))


def ratios(arms: dict[str, Callable[[], object]], repeats: int, pairs: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Median seconds of each arm, and the median and range of each ratio of two arms over the rounds."""
    seconds = interleaved(arms, repeats=repeats, warmup=1, clock=time.process_time)
    found: dict[str, Any] = {"seconds": {name: statistics.median(values) for name, values in seconds.items()}}
    for name, (over, under) in pairs.items():
        values = [a / b for a, b in zip(seconds[over], seconds[under], strict=True)]
        found[name] = {"ratio": statistics.median(values), "range": [min(values), max(values)]}
        if name in TARGETS:
            found[name]["target"] = TARGETS[name]
    return found


def against_sampling(lm: Any, det: EmbeddingDiscrepancy, prompt: int, T: int, repeats: int) -> dict[str, Any]:
    """One question: answering it, 5 and 10 samples with the shared prompt run once, and the score in both ways."""
    asked = chat(lm, prompt)

    def sample(n: int, temperature: float = 1.0, layers: Any = ()) -> Any:
        done = lm.generations([asked], n=n, temperature=temperature, max_new_tokens=T, seed=1, layers=layers)
        assert all(len(one.tokens) == T for one in done)
        return done

    done = sample(1, 0.0, det.layers)
    tokens = [done[0].tokens]
    arms = {
        "answer": lambda: sample(1, 0.0),
        "answer, states kept": lambda: sample(1, 0.0, det.layers),  # one more step, for the last token's
        "5 samples": lambda: sample(5),
        "10 samples": lambda: sample(10),
        "score, states reused": lambda: det.score_from_generate(done),
        "score, both passes": lambda: det.score(None, tokens, condition=[asked]),
    }
    pairs = {
        f"{over} over {under}": (over, under)
        for over in ("answer", "5 samples", "10 samples")
        for under in ("score, states reused", "score, both passes")
    }
    pairs["answer with its states kept over answer"] = ("answer, states kept", "answer")
    return {"prompt": len(lm.prompt_ids(asked)), "new_tokens": T, **ratios(arms, repeats, pairs)}


def batching(lm: Any, short: int, repeats: int) -> dict[str, Any]:
    """Sixteen answers of ``short`` tokens, one by one against one batch: with states at hand, and with both passes."""
    ids = [lm.response_ids(FILLER)[:short]] * BATCH
    asked = [[{"role": "user", "content": f"Number {n}: how was the sea?"}] for n in range(BATCH)]
    single, batch = (EmbeddingDiscrepancy(lm, batch_size=size) for size in (1, BATCH))
    states = [pair.context.states for pair in batch.passes(None, ids, condition=asked)]
    arms = {
        "states reused, one by one": lambda: single.score_states(states, ids),
        "states reused, batch": lambda: batch.score_states(states, ids),
        "both passes, one by one": lambda: single.score(None, ids, condition=asked),
        "both passes, batch": lambda: batch.score(None, ids, condition=asked),
    }
    pairs = {
        "one by one over batch of 16": ("states reused, one by one", "states reused, batch"),
        "one by one over batch of 16, both passes": ("both passes, one by one", "both passes, batch"),
    }
    return {"answers": BATCH, "tokens": short, **ratios(arms, repeats, pairs)}


def head(lm: Any, det: EmbeddingDiscrepancy, repeats: int) -> dict[str, Any]:
    """The same passes with and without token statistics, which need the output head."""
    ids = [lm.response_ids(FILLER * 4)[:64]] * 4
    asked = [chat(lm, PROMPTS[0])] * 4
    arms = {
        "states only": lambda: det.passes(None, ids, condition=asked),
        "with logits": lambda: det.passes(None, ids, condition=asked, logits=True),
    }
    return ratios(arms, repeats, {"with logits over states only": ("with logits", "states only")})


def kept_bytes(lm: Any, det: EmbeddingDiscrepancy, rows: int = 16, width: int = 256) -> dict[str, int]:
    """Bytes of hidden states that one batch holds on to: the detector's layer, and all of them."""
    found = {}
    for name, layers in (("detector", list(det.layers)), ("all layers", True)):
        with torch.inference_mode():
            out = decoder(lm.model)(
                torch.ones(rows, width, dtype=torch.long), output_hidden_states=layers, use_cache=False
            )
        found[name] = sum(state.numel() * state.element_size() for state in out.hidden_states if state is not None)
    return found


def scaling(lm: Any, det: EmbeddingDiscrepancy, repeats: int) -> dict[str, Any]:
    """Seconds a score by the answer's length, the context states being there."""
    every = lm.response_ids(FILLER * 20)
    width = lm.model.config.hidden_size
    arms = {}
    for T in ANSWER_LENGTHS:
        states = torch.zeros(len(det.layers), T, width).add_(1.0).numpy()
        arms[str(T)] = lambda T=T, states=states: det.score_states([states], [every[:T]])
    seconds = interleaved(arms, repeats=repeats, warmup=1, clock=time.process_time)
    return {
        "score with reused states, one thread": {
            "x": list(ANSWER_LENGTHS),
            "y": {"score_states": [statistics.median(seconds[str(T)]) for T in ANSWER_LENGTHS]},
            "x_label": "tokens of the answer",
            "y_label": "CPU s",
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds")
    parser.add_argument("--dry", action="store_true", help="print the figures, write no receipt")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lm = load_default_lm()
    lm._ends = frozenset()
    det = EmbeddingDiscrepancy(lm)
    figures = {
        "against sampling": [
            against_sampling(lm, det, prompt, T, arguments.repeats) for prompt in PROMPTS for T in NEW_TOKENS
        ],
        "batching": [batching(lm, short, arguments.repeats) for short in SHORT],
        "output head": head(lm, det, arguments.repeats),
        "bytes of states, 16 rows of 256": kept_bytes(lm, det),
        "targets": TARGETS,
        "scaling": scaling(lm, det, arguments.repeats),
    }
    print(json.dumps(figures, indent=1))
    if not arguments.dry:
        print(receipt.write("speed_discrepancy", figures))


if __name__ == "__main__":
    main()
