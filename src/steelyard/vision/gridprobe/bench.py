"""How GridProbe is weighed: ten checkpoints of a small model, each with questions of its own, all arms on the same.

A seed is one checkpoint. Probes are read once a question; every other reading of them is computed from the same
confidences, and every selector gets as many frames as GridProbe took.
"""

from __future__ import annotations

from steelyard.contracts import BenchSpec, Block, Profile
from steelyard.vision.gridprobe import arms, cells, tasks

RECIPE = (
    "By hand, on a GPU of 80 GB: Qwen3-VL-2B-Instruct through steelyard.models.vision.HuggingFaceVLM in bfloat16 on "
    "Video-MME-v2 (8 options) and LongVideoBench, K = 12, alpha 3, at least 2 frames, probe_pixels of 0.07 to 0.4 of "
    "the answer's; the 2B model's frames answered by 4B and 8B models beside as many frames evenly apart."
)


def _profile(name: str, names: tuple[str, ...], seeds: int, questions: int, seconds: float) -> Profile:
    return Profile(
        name=name, blocks=(Block(tasks=names, arms=(*arms.RUN, *arms.DERIVED)),), seeds=seeds,
        work=seeds * len(names) * (questions + 1), params={"questions": questions}, cell_seconds=seconds,
    )  # fmt: skip


BENCH = BenchSpec(
    method="gridprobe",
    tasks=tasks.TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="accuracy",
    profiles={
        "quick": _profile("quick", ("videos64", "videos144"), 6, 150, 120.0),
        "full": _profile("full", ("videos64", "videos144"), 10, 300, 300.0),
        "long": _profile("long", ("videos64", "videos144", "videos256"), 10, 1000, 1800.0),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=cells.run,
    easy_task="videos64",
    cost="mflops",
    derive=arms.derive,
)
