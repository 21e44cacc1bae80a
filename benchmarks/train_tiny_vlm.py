"""Train the checkpoints of TinyVLM: ten seeds, float16, and a receipt of what each one learned.

By hand, about five minutes of one core a seed; the same seed gives the same weights on one machine and thread.

Run: python benchmarks/train_tiny_vlm.py [--seeds 0 1 …] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import receipt
import torch

from steelyard.data.cache import file_sha256
from steelyard.models.safefile import write_safe
from steelyard.models.vision.tiny_training import Recipe, accuracy, train
from steelyard.models.vision.tiny_vlm import CHECKPOINTS, FULL, LOW, SEEDS, TinyVLM


def trained(seed: int, folder: Path) -> dict[str, object]:
    """Train one seed, write its checkpoint, and return what it learned, measured on the file."""
    start = time.process_time()
    shown = {"pictures": 0, "visible": 0, "parts": 0, "contrast": 0}

    def progress(phase: str, step: int, steps: int) -> None:
        if step - shown[phase] >= 500 or step == steps:
            shown[phase] = step
            print(f"seed {seed}: {phase} {step} of {steps}, {time.process_time() - start:.0f} s", flush=True)

    model, history = train(seed, Recipe(), progress)
    path = folder / f"tiny_vlm_{seed}.safetensors"
    weights = {name: value.half() for name, value in model.state_dict().items()}
    write_safe(path, weights, {"seed": str(seed), "model": "steelyard TinyVLM"})
    kept = TinyVLM.load(path)
    return {
        "sha256": file_sha256(path),
        "cpu_seconds": round(time.process_time() - start, 1),
        "last losses": {phase: round(losses[-1], 4) for phase, losses in history.losses.items()},
        "accuracy": {
            f"{length} frames, {pixels} pixels": accuracy(kept, length, resolution=pixels, questions=500)
            for length in (64, 144)
            for pixels in (LOW, FULL)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(SEEDS)))
    parser.add_argument("--out", type=Path, default=CHECKPOINTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        figures = trained(seed, args.out)
        (args.out / f"tiny_vlm_{seed}.json").write_text(json.dumps(figures, indent=1) + "\n")
    found = {path.stem: json.loads(path.read_text()) for path in sorted(args.out.glob("tiny_vlm_*.json"))}
    print(receipt.write("tiny_vlm_training", {"recipe": dataclasses.asdict(Recipe()), **found}))


if __name__ == "__main__":
    main()
