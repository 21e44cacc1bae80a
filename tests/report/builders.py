"""Synthetic weighings for the report's tests: three realistic methods, and hostile, empty and unfinished ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from steelyard.bench.results import Results, Row, TaskInfo
from steelyard.bench.verdicts import judge
from steelyard.card import Claim
from steelyard.contracts import Arm, Diagram, Edge, Metric, Node, Trace

HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=1">{{7*7}}${alert(1)}\'"&'


@dataclass
class Plan:
    """What a synthetic weighing looks like; ``skill`` maps an arm to its true mean on the first task."""

    method: str
    name: str
    summary: str
    tasks: dict[str, str]
    arms: list[tuple[str, str, str, float]]  # name, label, role, true mean
    primary: Metric
    claims: list[Claim]
    noise: float
    decay: float = 0.0  # how fast curves fall
    seeds: int = 10
    failures: dict[tuple[str, str], int] = field(default_factory=dict)  # (task, arm) -> failed seeds
    trace: Trace | None = None


def card(plan: Plan) -> dict:
    sources = ["paper", "paper", "reconstruction", "default", "second hand", "code"]
    decisions = [
        {
            "id": f"{plan.method[0].upper()}{index + 1}",
            "what": ["step size", "candidate set", "exploration in every round", "ties", "averaging", "warm-up"][index],
            "chosen": ["c_w = 3", "{0, .5, .9, .99}", "gamma = eta / 2", "largest", "uniform", "none"][index],
            "source": sources[index],
            "why": "The paper states the schedule up to a constant; a grid on tuning seeds gave this one.",
            "alternatives": ["c_w = 1", "c_w = .3"] if index % 2 == 0 else [],
            "knob": "c_w" if sources[index] == "reconstruction" else None,
        }
        for index in range(6)
    ]
    return {
        "id": plan.method,
        "name": plan.name,
        "summary": plan.summary,
        "does": plan.summary + " It keeps the training loop as it is: one object is exchanged and everything else, "
        "from the schedule to the checkpoint format, stays as its user wrote it.",
        "use_when": ["the number of groups you can query changes from step to step", "you need an anytime guarantee"],
        "avoid_when": ["all groups are cheap: query them all", "the worst group is known beforehand"],
        "cost": "One softmax over the groups a round; 0.1 ms at m = 1000.",
        "paper": {
            "title": f"{plan.name}: a paper",
            "authors": "A. Author, B. Author",
            "identifier": "arXiv 2605.06152v2",
            "venue": "NeurIPS 2026",
            "basis": "Read from the abstract and a README; the full text was not available.",
        },
        "usage": "from steelyard.optim import Thing\n\nthing = Thing(model.parameters())\nfor batch in loader:\n"
        "    thing.step(batch)",
        "claims": [claim.model_dump(mode="json") for claim in plan.claims],
        "limits": ["No table of the paper was obtained.", "CPU only; the paper trained on eight GPUs."],
        "decisions": decisions,
        "contradictions": ["Equation 7 lacks a factor m; checked numerically and corrected."],
    }


def weighing(plan: Plan, root: int = 0, finished: bool = True) -> Results:
    rng = np.random.default_rng(root)
    rows = []
    for index, task in enumerate(plan.tasks):
        easy = 1 + 0.4 * index
        for arm, _, role, mean in plan.arms:
            failing = plan.failures.get((task, arm), 0)
            for seed in range(plan.seeds):
                shared = np.random.default_rng(1000 * index + seed).normal() * plan.noise
                score = mean / easy + shared + rng.normal() * plan.noise * 0.6
                rows.append(_row(plan, task, arm, role, seed, abs(score), seed < failing))
    metrics = _metrics(plan)
    verdicts = judge(plan.claims, rows, metrics, frozenset()) if finished else ()
    if not finished:
        rows = [row if number % 3 else _unfinished(row, number) for number, row in enumerate(rows)]
    return Results(
        id=f"{plan.method}-20261130-{root:04d}",
        method=plan.method,
        profile="full" if plan.seeds >= 10 else "quick",
        created="2026-11-30T15:04:05+00:00",
        finished=finished,
        seeds=tuple(range(plan.seeds)),
        options={"rounds": 2000},
        card=card(plan),
        tasks=tuple(
            TaskInfo(name=n, label=label, source="embedded", data_hash="9f2c" * 16, shapes={"x": (1797, 64)})
            for n, label in plan.tasks.items()
        ),
        arms=tuple(Arm(name=n, label=label, role=role) for n, label, role, _ in plan.arms),  # type: ignore[arg-type]
        metrics=metrics,
        traces=(plan.trace,) if plan.trace else (),
        primary=plan.primary.name,
        cost="cpu_s",
        rows=tuple(rows),
        verdicts=verdicts,
        environment={
            "python": "3.11.9",
            "platform": "Linux x86_64",
            "cpu": "AMD EPYC 7B13, 2 cores",
            "threads": 1,
            "commit": "ca1b9f7",
            "packages": {"numpy": "2.3.1", "torch": "2.13.0+cpu", "scipy": "1.17.1", "scikit-learn": "1.9.1"},
        },
    )


def _row(plan: Plan, task: str, arm: str, role: str, seed: int, score: float, failed: bool) -> Row:
    speed = 0.5 + 0.13 * (hash_(arm) % 17)
    base = {"key": f"{task}{arm}{seed}", "task": task, "arm": arm, "seed": seed, "attempts": 3 if failed else 1}
    if failed:
        error = f'Traceback (most recent call last):\n  File "cell.py", line 12, in run\nRuntimeError: {HOSTILE}'
        return Row(**base, state="failed", error=error)
    curve_rng = np.random.default_rng(hash_(arm) + seed)
    xs = np.linspace(1, 2000, 80)
    ys = score + (1.5 - score) * np.exp(-xs / (150 + hash_(arm) % 500)) + curve_rng.normal(size=80) * plan.noise * 0.3
    values = [None if arm == "one" and i > 60 and seed == 0 else float(y) for i, y in enumerate(ys)]
    return Row(
        **base,
        state="done",
        config={"c_w": 3.0, "c_q": 4.0},
        metrics={
            plan.primary.name: float(score),
            "steps_to_target": float(int(300 + 40 * score)) if role != "floor" else None,
            "test_accuracy": 100 / (1 + float(score)),
        },
        traces={plan.trace.name: (tuple(map(float, xs)), tuple(values))} if plan.trace else {},
        notes={"clips": seed % 3},
        steps=2000,
        wall_s=speed + 0.01 * seed,
        cpu_s=speed,
        rss_mb=310.0,
    )


def _unfinished(row: Row, number: int) -> Row:
    state = "running" if number < 6 else "waiting"
    return Row(key=row.key, task=row.task, arm=row.arm, seed=row.seed, state=state)


def hash_(text: str) -> int:
    return sum(ord(letter) * (index + 3) for index, letter in enumerate(text))


def _metrics(plan: Plan) -> tuple[Metric, ...]:
    return (
        plan.primary,
        Metric(name="steps_to_target", label="steps to target", better="lower"),
        Metric(name="test_accuracy", label="test accuracy", better="higher", unit="%", worst=10.0, chance=10.0),
    )


def _claim(name: str, text: str, metric: str, arm: str, versus: str | float, **more: object) -> Claim:
    fields = {"direction": "lower", "margin": 0.05, "scale": "log_ratio", "paper": "no table available"}
    return Claim(id=name, text=text, metric=metric, arm=arm, versus=versus, **{**fields, **more})  # type: ignore[arg-type]


def gdro_plan(tasks: int = 6) -> Plan:
    gap = Metric(name="gap", label="optimality gap", better="lower", worst=0.35)
    names = {
        "digits10": "Digits, 10 classes as groups",
        "synthetic20": "Synthetic, 20 groups",
        "adult6": "Adult, race x sex (6 groups)",
        "adult18": "Adult, race x sex x age (18 groups)",
        "mnist10": "MNIST test images, 10 classes",
        "synthetic20_skew": "Synthetic, skewed query budget",
    }
    arms = [
        ("fsq_samples", "FSQ, rounds weighted by samples", "method", 0.06),
        ("fsq", "FSQ, uniform rounds", "method", 0.13),
        ("fsq_single", "FSQ, single gradient", "ablation", 0.16),
        ("one", "One query a round", "baseline", 0.25),
        ("smd_wait", "SMD that waits for all groups", "baseline", 0.12),
        ("sagawa", "Online group DRO", "baseline", 0.19),
        ("erm", "Plain average risk", "baseline", 0.28),
        ("erm_groups", "Group-reweighted average risk", "baseline", 0.26),
        ("start", "No learning", "floor", 0.35),
        ("all_groups", "All groups every round", "ceiling", 0.05),
    ]
    claims = [
        _claim("anytime", "A flexible budget beats one query a round at equal rounds.", "gap", "fsq", "one"),
        _claim("wait", "A flexible budget beats waiting for all groups.", "gap", "fsq", "smd_wait"),
        _claim("weighted", "Weighting rounds by their samples helps further.", "gap", "fsq_samples", "fsq"),
        _claim(
            "oracle", "Not worse than querying all groups by more than a factor 1.1.", "gap", "fsq", "all_groups",
            offset=-math.log(1.1), margin=0.0,
        ),
        _claim(
            "rb", "The averaged gradient equals the single one in the end.", "gap", "fsq", "fsq_single",
            kind="equivalence", margin=0.5,
        ),
        _claim(
            "multi", "Converges faster on real multi-class data at paper scale.", "gap", "fsq", "one",
            paper_scale_only=True, paper="faster convergence under dynamic sampling; no table",
        ),
    ]  # fmt: skip
    trace = Trace(name="gap", label="Gap over rounds", x_label="rounds", y_label="gap", log_x=False, log_y=True)
    return Plan(
        "gdro_fsq", "Group DRO with flexible sample queries",
        "Group-robust training where the number of groups sampled per step may change at any time.",
        dict(list(names.items())[:tasks]), arms, gap, claims, noise=0.012, trace=trace,
        failures={("digits10", "sagawa"): 2, ("adult6", "one"): 4},
    )  # fmt: skip


def nfi_plan(tasks: int = 6) -> Plan:
    metric = Metric(name="spikes", label="loss spikes", better="lower", worst=40.0)
    arms = [
        ("exact", "Exact cross-entropy", "method", 0.4),
        ("zero_sum", "Zero-sum gradient hook", "method", 0.5),
        ("center", "Centred head", "ablation", 0.6),
        ("f32", "float32 cross-entropy", "baseline", 6.0),
        ("f64", "float64 cross-entropy", "baseline", 0.4),
        ("eps", "Adam, eps 1e-5", "baseline", 0.5),
        ("bn", "Batch normalisation", "baseline", 2.4),
        ("stablemax", "StableMax", "baseline", 3.1),
        ("random", "Random logits", "floor", 9.0),
    ]
    claims = [
        _claim("cure", "The exact loss removes spikes.", "spikes", "exact", "f32", scale="difference", margin=1.0),
        _claim("hook", "The hook removes spikes.", "spikes", "zero_sum", "f32", scale="difference", margin=1.0),
        _claim(
            "same", "Exact and float64 losses agree.", "spikes", "exact", "f64", scale="difference", margin=0.6,
            kind="equivalence",
        ),
        _claim("llm", "Removing the mean helps a 110M language model.", "spikes", "center", "f32",
               paper_scale_only=True, paper="mean logit 183 against 498"),
    ]  # fmt: skip
    names = {f"n{n}": f"Digits, {n} training images" for n in (50, 100, 200, 400, 800, 1000)}
    trace = Trace(name="loss", label="Training loss", x_label="step", y_label="loss", log_x=True, log_y=True)
    return Plan(
        "nfi", "Numerical feature inflation", "Cross-entropy without low-precision collapse, and a monitor for spikes.",
        dict(list(names.items())[:tasks]), arms, metric, claims, noise=0.25, trace=trace,
    )  # fmt: skip


def momentum_plan(tasks: int = 6) -> Plan:
    loss = Metric(name="loss", label="final test loss", better="lower")
    arms = [
        ("greedy_paper", "Greedy SGD, paper preset", "method", 0.42),
        ("greedy_robust", "Greedy SGD, robust preset", "method", 0.35),
        ("fixed9", "SGD, momentum 0.9", "baseline", 0.38),
        ("fixed0", "SGD, no momentum", "baseline", 0.55),
        ("tuned", "SGD, tuned momentum", "baseline", 0.345),
        ("adamw", "AdamW", "baseline", 0.37),
        ("random_m", "Random momentum", "ablation", 0.47),
        ("lr0", "No learning", "floor", 2.3),
        ("hindsight", "Best fixed momentum with hindsight", "ceiling", 0.33),
    ]
    claims = [
        _claim("beats9", "Greedy momentum beats the default 0.9.", "loss", "greedy_paper", "fixed9",
               scale="difference", margin=0.01, paper="1.2 points on ImageNet, ResNet-50, 90 epochs"),
        _claim("robust", "The robust preset beats the default 0.9.", "loss", "greedy_robust", "fixed9",
               scale="difference", margin=0.01),
        _claim("tuned", "No worse than a tuned momentum.", "loss", "greedy_robust", "tuned", scale="difference",
               margin=0.0, offset=-0.005),
        _claim("below1", "Reaches a loss below one.", "loss", "greedy_robust", 1.0, scale="difference", margin=0.0),
    ]  # fmt: skip
    names = {
        "digits_mlp": "Digits, small network", "digits_logreg": "Digits, logistic regression",
        "cancer": "Breast cancer", "mnist_cnn": "MNIST test images, small CNN",
        "quadratic": "Noisy quadratic", "rosenbrock": "Rosenbrock valley",
    }  # fmt: skip
    trace = Trace(name="loss", label="Loss over steps", x_label="step", y_label="loss")
    return Plan(
        "greedy_momentum", "Dynamic momentum",
        "SGD and AdamW that pick, at every step, the momentum best aligned with the gradient.",
        dict(list(names.items())[:tasks]), arms, loss, claims, noise=0.02, trace=trace,
    )  # fmt: skip


def debate_diagram(text: str = "") -> Diagram:
    """Three agents over three rounds: one reads two others and changes its answer."""
    nodes = [
        Node(id=f"{agent}{step}", label=f"agent {agent}: B{text}", x=step, y=agent, kind=kind, note=f"says B{text}")
        for agent in range(3)
        for step, kind in enumerate(("bad" if agent == 2 else "good", "plain", "main" if agent else "muted"))
    ]
    edges = [
        Edge(source="00", target="21", kind="good", label=f"read{text}"),
        Edge(source="10", target="21", kind="dashed"),
        Edge(source="20", target="21"),
        Edge(source="21", target="22", kind="bad"),
        Edge(source="00", target="10"),
        Edge(source="10", target="00"),
    ]
    return Diagram(
        name="rounds",
        title=f"Who read whom{text}",
        caption=f"A question that the vote won.{text}",
        nodes=nodes,
        edges=edges,
        columns=("alone", "round 1", f"round 2{text}"),
        legend={"good": f"right{text}", "bad": "wrong", "dashed": "read, not followed", "unheard": "of"},
    )


def with_diagrams(results: Results, diagrams: tuple[Diagram, ...], rows: int = 1) -> Results:
    """Return ``results`` whose first finished rows hold ``diagrams``."""
    done = [row.key for row in results.rows if row.state == "done"][:rows]
    changed = [row.model_copy(update={"diagrams": diagrams}) if row.key in done else row for row in results.rows]
    return results.model_copy(update={"rows": tuple(changed)})


def three_methods(tasks: int = 6) -> list[Results]:
    """The size that the 500 KB limit is stated for: 3 methods, 6 tasks, about 10 arms, 10 seeds."""
    plans = [gdro_plan(tasks), nfi_plan(tasks), momentum_plan(tasks)]
    first, *others = [weighing(plan, root) for root, plan in enumerate(plans)]
    return [with_diagrams(first, (debate_diagram(),)), *others]


def unfinished() -> Results:
    return weighing(nfi_plan(2), root=7, finished=False)


def no_rows() -> Results:
    return weighing(nfi_plan(2)).model_copy(update={"rows": (), "verdicts": (), "finished": False})


def hostile() -> Results:
    """Every string that a model, a user or a file may have written is hostile; names are very long."""
    long = "very-long-name-without-a-break-" * 12
    plan = gdro_plan(2)
    plan.name, plan.summary = f"{HOSTILE}{long}", HOSTILE
    plan.tasks = {f"t{HOSTILE}": f"{HOSTILE}{long}", "digits10": "税 \ud800 \x00 \x1b[31m $\\frac{1$ \u202etxt"}
    results = with_diagrams(weighing(plan), (debate_diagram(HOSTILE + long),), 2)
    rows = tuple(
        row.model_copy(
            update={
                "notes": {"reply": HOSTILE, HOSTILE: long * 40, "=cmd|' /C calc'!A0": "=1+1"},
                "config": {HOSTILE: [HOSTILE]},
                "error": row.error and row.error + "\n" + long * 200,
                "metrics": {**row.metrics, "gap": math.nan if row.seed == 1 else row.metrics.get("gap")},
            }
        )
        for row in results.rows
    )
    arms = tuple(arm.model_copy(update={"label": f"{HOSTILE}{arm.label}{long}"}) for arm in results.arms)
    verdicts = tuple(v.model_copy(update={"sentence": HOSTILE, "note": HOSTILE}) for v in results.verdicts)
    metrics = tuple(m.model_copy(update={"label": f"{m.label}{HOSTILE}", "unit": HOSTILE}) for m in results.metrics)
    return results.model_copy(
        update={
            "id": "hostile",
            "rows": rows,
            "arms": arms,
            "verdicts": verdicts,
            "metrics": metrics,
            "environment": {HOSTILE: {HOSTILE: HOSTILE}, "list": [1, HOSTILE]},
            "options": {HOSTILE: HOSTILE},
            "created": HOSTILE,
            "profile": HOSTILE,
        }
    )
