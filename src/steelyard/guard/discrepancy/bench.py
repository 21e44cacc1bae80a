"""How the detector is weighed: answers given live, made-up pairs beside their controls, planted answers, and cost.

A seed is a subset of questions that no other seed has. Answering is what costs, so one cell answers its subset once
and computes every score on these answers; the arms are taken out of it (see :mod:`steelyard.guard.discrepancy.arms`).
Cells repeat no work, and all arms see the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from steelyard.contracts import BenchSpec, Block, CellInput, Measured, Profile, Task, Trace
from steelyard.errors import InputError
from steelyard.guard.discrepancy import answering, arms, scoring, tasks
from steelyard.guard.discrepancy.answering import Answers
from steelyard.guard.discrepancy.arms import LIVE_ARMS, PLANTED_ARMS, flat
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.measure import auroc, auroc_within_lengths
from steelyard.guard.discrepancy.scoring import Scored
from steelyard.models.default import load_default_embedder
from steelyard.models.hugging_face import import_transformers
from steelyard.rng import derive_seed

for _module in ("bert.modeling_bert", "llama.modeling_llama"):  # before workers fork: each cell would pay 2 s for them
    import_transformers(f"transformers.models.{_module}")

GIVEN = ("halueval_pairs", "truthfulqa_pairs")
_CONSTANT = {"chance": 0.5, "labels": 1.0}
_TRACED = (
    "discrepancy", "d_token", "max_nll", "nll", "pmi", "length", "text_similarity", *arms.MULTI_NAMES,
)  # fmt: skip


def run(cell: CellInput) -> Measured:
    """Compute one cell: all scores of a subset (``discrepancy``), D on planted answers, or a line to compare with."""
    given = cell.task in GIVEN
    if cell.arm in _CONSTANT:
        value = _CONSTANT[cell.arm]
        names = ("auroc_given", "auroc_given_stratified") if given else ("auroc", "auroc_rouge", "auroc_stratified")
        return Measured(dict.fromkeys(names, value), steps=1)
    lm = answering.open_model(cell)
    detector = EmbeddingDiscrepancy(lm, **settings(cell))
    if cell.arm == "planted":
        return run_planted(cell, detector)
    if "response" in cell.data:
        answers, cpu = answering.given_answers(tasks.pairs_of(cell, tasks.wanted(cell)[0]), lm), 0.0
        answers = both_classes(cell, answers)
    else:
        answers, cpu = scoring.timed(lambda: answering.live_answers(cell, lm, detector.layers), 1)
        cpu /= answers.asked
    return measured(cell, detector, answers, cpu, given)


def settings(cell: CellInput) -> dict[str, Any]:
    """Return the detector's settings: its defaults, fixed without labels, or those that the user asked for."""
    asked = {name: cell.options[name] for name in ("layer", "pool", "dist") if name in cell.options}
    return {**asked, "batch_size": int(cell.params.get("batch_size", 16))}


def both_classes(cell: CellInput, answers: Answers) -> Answers:
    """Return ``answers`` unless one class is missing.

    Raises:
        InputError: It is.
    """
    if answers.wrong.all() or not answers.wrong.any():
        raise InputError(f"task '{cell.task}', seed {cell.seed}: all its answers are of one class; give more questions")
    return answers


def run_planted(cell: CellInput, detector: EmbeddingDiscrepancy) -> Measured:
    """Score answers copied from the passage beside unrelated ones of equal length."""
    every = tasks.all_questions(cell.data)
    lengths = [len(detector.lm.response_ids(question.golds[0])) for question in every]
    asked = tasks.questions_of(cell)[: int(cell.params["planted"])]
    answers = answering.given_answers(tasks.planted_pairs(asked, every, lengths, cell.rng("planted")), detector.lm)
    scores = detector.score(answers.questions, answers.responses, answers.contexts)
    tokens = [len(ids) for ids in answers.tokens]
    metrics = {
        "auroc": auroc(scores, answers.wrong),
        "auroc_stratified": auroc_within_lengths(scores, answers.wrong, tokens),
        "answers": float(len(scores)),
        "answer_tokens": float(np.mean(tokens)),
    }
    return Measured(metrics, steps=len(scores))


def measured(
    cell: CellInput, detector: EmbeddingDiscrepancy, answers: Answers, answer_cpu: float, given: bool
) -> Measured:
    """Score ``answers`` in every way and return the figures of all arms."""
    embedder = load_default_embedder()
    scored = scoring.single_columns(detector, embedder, answers, bool(cell.params["p_true"]))
    columns, k = dict(scored.columns), samples_of(cell, given)
    if k:
        drawn = scoring.draw_samples(
            detector.lm, answers.prompts, k, float(cell.options.get("temperature") or cell.params["temperature"]),
            answering.new_tokens(cell), derive_seed(cell.root, f"{cell.task}/samples", cell.seed),
            bool(cell.params["ln_entropy"]),
        )  # fmt: skip
        columns |= scoring.multi_columns(drawn, embedder, answers)
    areas, by_layer = _areas(Scored(columns, scored.by_layer), answers, given)
    metrics: dict[str, float] = {}
    for arm, column in columns.items():
        cpu_k10, tokens_k10 = column.scaled(10 / k if arm in arms.MULTI_NAMES else 1.0)
        cost = {"cpu": 1e3 * column.cpu, "tokens": column.tokens, "cpu_k10": 1e3 * cpu_k10, "tokens_k10": tokens_k10}
        metrics |= flat(arm, {**areas[arm], **cost})
    metrics |= flat("best_layer", areas["best_layer"])
    metrics |= _about(answers, answer_cpu)
    numbers = answers.groups.astype(float).tolist()
    traces = {arm: (numbers, columns[arm].scores.tolist()) for arm in _TRACED if arm in columns}
    traces["wrong"] = (numbers, answers.wrong.astype(float).tolist())
    traces["by_layer"] = ([float(layer) for layer in range(1, len(by_layer) + 1)], by_layer)
    return Measured(metrics, steps=len(answers.responses) * (1 + k), traces=traces, notes={"samples": k})


def samples_of(cell: CellInput, given: bool) -> int:
    """Return how many further answers are drawn per question; none where the answers are not the model's own."""
    if given or "response" in cell.data:
        return 0
    wished = cell.options.get("samples")
    k = int(cell.params["samples"] if wished is None else wished)
    if k == 1:
        raise InputError("samples must be 0, or at least 2: one answer cannot disagree with itself")
    return k


def _areas(scored: Scored, answers: Answers, given: bool) -> tuple[dict[str, dict[str, float]], list[float]]:
    """Return the areas of every arm, and D's by layer."""
    name = "auroc_given" if given else "auroc"
    lengths = [len(ids) for ids in answers.tokens]
    rouge = answers.wrong_rouge
    both = rouge is not None and rouge.any() and not rouge.all()
    by_layer = [auroc(scores, answers.wrong) for scores in scored.by_layer]
    every = {arm: column.scores for arm, column in scored.columns.items()}
    every["best_layer"] = scored.by_layer[int(np.argmax(by_layer))]
    found = {}
    for arm, scores in every.items():
        found[arm] = {
            name: auroc(scores, answers.wrong),
            f"{name}_stratified": auroc_within_lengths(scores, answers.wrong, lengths),
        }
        if both:
            found[arm]["auroc_rouge"] = auroc(scores, rouge)
    return found, by_layer


def _about(answers: Answers, cpu: float) -> dict[str, float]:
    """Return what is said of the answers themselves."""
    wrong, wrong_rouge = answers.rates or (float(answers.wrong.mean()), None)
    found = {
        "wrong": wrong,
        "answers": float(len(answers.responses)),
        "answer_tokens": float(np.mean([len(ids) for ids in answers.tokens])),
        "unanswered": float(answers.unanswered),
    }
    if wrong_rouge is not None:
        found |= {"wrong_rouge": wrong_rouge, "answer_cpu": 1e3 * cpu}
    return found


OWN, SMOLLM2 = "96 questions of the project's own", "answers of SmolLM2-135M"
HALUEVAL, NQ = "HaluEval QA, MIT (questions: HotpotQA, CC BY-SA 4.0)", "NQ-open, CC BY-SA 3.0"
XQUAD, TRUTHFUL = "XQuAD, CC BY-SA 4.0", "TruthfulQA, Apache-2.0"
TASKS = (
    Task("planted", "Copied against planted answers, equal length", tasks.own_questions, OWN),
    Task("questions", "Own questions on passages, answered live", tasks.own_questions, f"{OWN}, {SMOLLM2}"),
    Task("xquad", "XQuAD (paragraphs up to 700 letters), answered live", tasks.xquad, f"{XQUAD}; {SMOLLM2}",
         dataset="xquad_en"),
    Task("halueval", "HaluEval with knowledge, answered live", tasks.halueval, f"{HALUEVAL}; {SMOLLM2}",
         dataset="halueval_qa"),
    Task("nq_open", "NQ-open without a text, answered live", tasks.nq_open, f"{NQ}; {SMOLLM2}", dataset="nq_open"),
    Task("halueval_pairs", "MADE-UP PAIRS, mind the controls: HaluEval", tasks.halueval_pairs, HALUEVAL,
         dataset="halueval_qa"),
    Task("truthfulqa_pairs", "MADE-UP PAIRS, mind the controls: TruthfulQA", tasks.truthfulqa_pairs, TRUTHFUL,
         dataset="truthfulqa"),
)  # fmt: skip
PARAMS: Mapping[str, Any] = {
    "answers": 30,
    "least": 5,
    "own_answers": 30,
    "own_least": 2,
    "max_new_tokens": 16,
    "samples": 5,
    "temperature": 1.0,
    "planted": 16,
    "batch_size": 16,
    "p_true": True,
    "ln_entropy": True,
}
RECIPE = (
    "By hand on a GPU with 24 GB or more, as weighings run on the processor: an instruction-tuned model of 7 billion "
    "parameters or more as TransformersLM.from_pretrained(FOLDER, device='cuda', dtype='bfloat16'), 1,000 questions or "
    "more of TriviaQA, CoQA, TruthfulQA or NQ; answer_and_score of EmbeddingDiscrepancy, sample_answers with k=10 for "
    "the rivals in steelyard.guard.discrepancy.multi_response, label_answers, pooled_auroc; choose the layer on other "
    "questions first. With time and 30 GB of memory a worker, steelyard weigh discrepancy --data questions.jsonl "
    "--model FOLDER --samples 10 weighs 8 subsets of 30 in float32."
)

BENCH = BenchSpec(
    method="discrepancy",
    tasks=TASKS,
    arms=arms.ARMS,
    metrics=arms.METRICS,
    primary="auroc",
    profiles={
        "quick": Profile(
            name="quick",
            blocks=(
                Block(tasks=("questions",), arms=LIVE_ARMS),
                Block(tasks=("planted",), arms=PLANTED_ARMS),
            ),
            seeds=6,
            work=6 * 6 * (2 * 13 + 2),
            params={**PARAMS, "answers": 6, "least": 2, "samples": 0, "planted": 4, "p_true": False},
            cell_seconds=300.0,
        ),
        "full": Profile(
            name="full",
            blocks=(
                Block(tasks=("xquad",), arms=LIVE_ARMS),
                Block(tasks=("halueval_pairs",), arms=LIVE_ARMS, seeds=3, params={"answers": 5}),
            ),
            seeds=10,
            work=10 * (30 * 6 + 2) + 3 * 22,
            params={**PARAMS, "p_true": False, "ln_entropy": False},  # each reads every prompt once more
            cell_seconds=600.0,
        ),
        "long": Profile(
            name="long",
            blocks=(
                Block(tasks=("xquad", "halueval"), arms=LIVE_ARMS),
                Block(tasks=("nq_open",), arms=LIVE_ARMS, params={"samples": 10}),
                Block(tasks=GIVEN, arms=LIVE_ARMS, params={"answers": 12}),
                Block(tasks=("planted",), arms=PLANTED_ARMS, seeds=6),
            ),
            seeds=10,
            work=10 * (2 * 45 * 6 + 45 * 11 + 2 * 40 + 10) + 6 * 34,
            params={**PARAMS, "answers": 45},
            cell_seconds=1200.0,
        ),
        "gpu": Profile(name="gpu", blocks=(), seeds=10, work=0, recipe=RECIPE),
    },
    run=run,
    easy_task="planted",
    traces=(
        Trace(name="by_layer", label="D by layer, read with labels: to look at, not to choose by", x_label="layer",
              y_label="AUROC"),
    ),
    cost="cpu_k10",
    derive=arms.derive,
    user_task=tasks.user_task,
    options=tasks.Options,
    true_ceiling="labels",
)  # fmt: skip
