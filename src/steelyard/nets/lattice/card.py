"""What the lattice claims, where its choices come from, and what speaks against it."""

from __future__ import annotations

import math
from typing import Literal

from steelyard.card import Card, Claim, Frozen, Paper, knob
from steelyard.nets.lattice.ledger import CONTRADICTIONS, DECISIONS, LIMITS


class Config(Frozen):
    """The network, its costs, its training and how results are read. Each field names its decision."""

    channels: int = knob("L-20", 8, ge=1)
    layers: int = knob("L-20", 3, ge=1)
    steps: int = knob("L-20", 8, ge=1)
    stride: int = knob("L-2", 1, ge=1)
    pool: int = knob("L-3", 2, ge=1)
    readout_scale: float = knob("L-3", 3.0, gt=0)
    time_selection: Literal["adaptive", "fixed"] = knob("L-4", "adaptive")
    state_term: bool = knob("L-4", False)
    halting_bound: float | None = knob("L-5", 6.0, gt=0)
    halting_start: float = knob("L-5", -1.5)
    breadth: float = knob("L-19", 0.0, ge=0)
    depth: float = knob("L-19", 0.0, ge=0)
    time: float = knob("L-19", 0.0, ge=0)
    breadth_weight: Literal["linear", "uniform"] = knob("L-6", "linear")
    q: Literal[1, 2] = knob("L-7", 1)
    depth_weight: Literal["linear", "uniform"] = knob("L-8", "linear")
    time_prior: float | None = knob("L-9", None, gt=0, lt=1)
    task_loss: Literal["steps", "mixture"] = knob("L-10", "steps")
    deep_supervision: float = knob("L-11", 0.1, ge=0)
    ramp: float = knob("L-12", 0.4, ge=0, le=1)
    used_threshold: float = knob("L-13", 0.05, ge=0, lt=1)
    readout_in_norms: bool = knob("L-14", True)
    readout_decay: float = knob("L-14", 0.0, ge=0)
    occlusion_share: float = knob("L-15", 8 / 14, ge=0, le=1)
    fill: float = knob("L-15", 0.5)
    lr: float = knob("L-16", 4e-3, gt=0)
    halting_lr: float = knob("L-16", 2e-2, gt=0)
    batch_size: int = knob("L-16", 64, ge=1)
    grad_clip: float = knob("L-16", 5.0, gt=0)
    rt_trials: Literal["all", "correct"] = knob("L-18", "all")
    rt_least_accuracy: float = knob("L-18", 0.45, ge=0, lt=1)
    stop_threshold: float = knob("L-21", 0.5, gt=0, le=1)


QUALITATIVE = "stated in the abstract without a number"
OURS = "not of the paper: "


def _time_claims() -> tuple[Claim, ...]:
    return (
        Claim(
            id="time_price_saves_steps",
            text="Tripling the price of time (.03 to .1) lowers the expected time by more than a quarter of a step",
            metric="time",
            arm="time_high",
            versus="time",
            direction="lower",
            margin=0.25,
            paper=QUALITATIVE,
        ),
        Claim(
            id="time_price_costs_little",
            text="Tripling the price of time costs at most one point of accuracy (all steps mixed)",
            metric="accuracy_all_steps",
            arm="time_high",
            versus="time",
            direction="higher",
            offset=-1.0,
            paper=OURS + "a criterion of the reconstruction",
        ),
        Claim(
            id="time_level_1",
            text="The first level of the price of time (.01 to .03) lowers the expected time",
            metric="time",
            arm="time",
            versus="time_low",
            direction="lower",
            paper=QUALITATIVE,
        ),
    )


def _trade_claims() -> tuple[Claim, ...]:
    return (
        Claim(
            id="breadth_raises_time",
            text="A price of breadth raises the expected time",
            metric="time",
            arm="breadth",
            versus="time",
            direction="higher",
            margin=0.05,
            paper=QUALITATIVE,
        ),
        Claim(
            id="depth_raises_time",
            text="A price of depth raises the expected time",
            metric="time",
            arm="depth",
            versus="time",
            direction="higher",
            margin=0.05,
            paper=QUALITATIVE,
        ),
        Claim(
            id="time_price_raises_weights",
            text="A higher price of time raises the weights (their breadth term, which is not priced there)",
            metric="breadth_cost",
            arm="time_high",
            versus="time",
            direction="higher",
            scale="log_ratio",
            paper=QUALITATIVE + " (the three trade off)",
        ),
    )


def _level_claims(resource: str) -> tuple[Claim, ...]:
    """Each level of a price lowers its own cost term."""
    levels = (("low", "time", "0", ".003"), ("", "low", ".003", ".01"), ("high", "", ".01", ".03"))
    return tuple(
        Claim(
            id=f"{resource}_level_{number}",
            text=f"Raising the price of {resource} from {before} to {after} lowers its own term",
            metric=f"{resource}_cost",
            arm=f"{resource}_{name}".rstrip("_"),
            versus=other if other == "time" else f"{resource}_{other}".rstrip("_"),
            direction="lower",
            scale="log_ratio",
            paper=QUALITATIVE,
        )
        for number, (name, other, before, after) in enumerate(levels, start=1)
    )


def _occlusion_claims() -> tuple[Claim, ...]:
    return tuple(
        claim
        for arm, price in (("time", ".03"), ("time_high", ".1"))
        for claim in (
            Claim(
                id=f"occlusion_{arm}",
                text=f"Price of time {price}: a square of half the side adds more than a tenth of a step",
                metric="rise",
                arm=arm,
                versus=0.0,
                direction="higher",
                margin=0.1,
                paper="more recurrent steps under occlusion, without being told to; no number",
            ),
            Claim(
                id=f"occlusion_monotone_{arm}",
                text=f"Price of time {price}: every larger occluder takes more steps (the smallest of the four rises)",
                metric="least_rise",
                arm=arm,
                versus=0.0,
                direction="higher",
                paper="more recurrent steps under occlusion; a curve is not described",
            ),
        )
    )


def _baseline_claims() -> tuple[Claim, ...]:
    sized, own = "Sized for the same multiply-adds,", "With multiply-adds of its own,"
    rivals = (
        ("fixed_steps", f"{sized} the recurrent network of a fixed number of steps"),
        ("feed_forward", f"{sized} the feed-forward network"),
        ("entropy", f"{sized} the network without costs that stops at an entropy threshold"),
        ("blt", f"{sized} the BLT network that stops at an entropy threshold"),
        ("act", f"{own} adaptive computation time (ACT)"),
        ("pruned", f"{own} the network pruned by norm and trained on"),
        ("ponder", f"{own} the geometric prior of PonderNet"),
    )
    not_below = tuple(
        Claim(
            id=f"not_below_{arm}",
            text=f"{name} is at most half a point more accurate",
            metric="accuracy",
            arm="time_high",
            versus=arm,
            direction="higher",
            offset=-0.5,
            paper=OURS + "learned networks should lie on or above the line of fixed ones",
        )
        for arm, name in rivals
    )
    rank = Claim(
        id="rank_concentrates",
        text="Rank-weighted decay (.03) leaves fewer channels (participation ratio) than uniform decay of equal price",
        metric="participation",
        arm="breadth_high",
        versus="uniform",
        direction="lower",
        scale="log_ratio",
        margin=math.log(1.05),
        paper=OURS + "what the rank in the weights is for",
    )
    return (*not_below, rank)


def _complexity_claims() -> tuple[Claim, ...]:
    grows = tuple(
        Claim(
            id=f"complexity_{metric}",
            text=f"Ten classes take more {name} than two, at the same prices",
            metric=metric,
            arm="classes_10",
            versus="classes_2",
            direction="higher",
            scale="difference" if metric == "time" else "log_ratio",
            tasks=("mnist_classes",),
            paper="networks grow in all three dimensions with task complexity; no number",
        )
        for metric, name in (("participation", "breadth"), ("depth", "depth (centre of mass)"), ("time", "time"))
    )
    two_of_three = Claim(
        id="complexity_two_of_three",
        text="From 2 to 5 to 10 classes at least two of breadth, depth and time do not fall (mean count above 1.5)",
        metric="grown",
        arm="classes_10",
        versus=2.0,
        direction="higher",
        offset=-0.5,
        tasks=("mnist_classes",),
        paper=OURS + "a criterion of the reconstruction",
    )
    return (*grows, two_of_three)


def _people_claims() -> tuple[Claim, ...]:
    return (
        Claim(
            id="people",
            text="Expected time and people's median reaction time rank six contrasts alike (proxy, weak evidence)",
            metric="rt_spearman",
            arm="contrast",
            versus=0.0,
            direction="higher",
            margin=0.5,
            tasks=("mnist_contrast",),
            paper="time correlates with human reaction time in object recognition; images and numbers unknown",
        ),
        Claim(
            id="people_beyond_control",
            text="The learned time ranks the contrasts better than an entropy threshold on a network without costs",
            metric="rt_spearman",
            arm="contrast",
            versus="contrast_entropy",
            direction="higher",
            margin=0.05,
            tasks=("mnist_contrast",),
            paper=OURS + "the control that the proxy needs",
        ),
        Claim(
            id="people_beyond_blt",
            text="The learned time ranks the contrasts better than an entropy threshold on a BLT network",
            metric="rt_spearman",
            arm="contrast",
            versus="contrast_blt",
            direction="higher",
            margin=0.05,
            tasks=("mnist_contrast",),
            paper=OURS + "the standard model of reaction times",
        ),
        Claim(
            id="people_by_image",
            text="Expected time correlates with people's reaction times image by image",
            metric="rt_spearman",
            arm="contrast",
            versus=0.0,
            direction="higher",
            paper="the abstract's claim",
            paper_scale_only=True,
        ),
    )


CARD = Card(
    id="lattice",
    name="Lattice network",
    summary="Recurrent convolutional networks that learn how many channels, layers and steps to use, at a price each.",
    does="Trains a box of units (channel, layer, time step) together with three differentiable prices: rank-weighted "
    "decay of channels (breadth), norms weighted by layer index (depth), and the expected number of recurrent steps "
    "(time). What is not worth its price shrinks to nothing and can be deleted; a halting probability that follows the "
    "network's own certainty lets easy images stop early. The prices are plain tensors for any torch training loop.",
    use_when=(
        "You train a small recurrent or convolutional classifier and want training to choose its width, depth and "
        "number of steps.",
        "Inputs differ in difficulty and computation should follow: easy images stop early.",
        "You model reaction times and want a time that is learned with the task, next to an entropy threshold.",
    ),
    avoid_when=(
        "Accuracy per multiply-add is all that counts: weigh it first against a fixed network of the same compute.",
        "The network has batch norm: costs on norms mean nothing there, and are refused.",
    ),
    cost="Training runs all steps of the box for every image, so it costs as much as the largest network that might "
    "result; the cost terms add little. Savings come at inference only, from early stopping and from `shrink`.",
    paper=Paper(
        title="Growing a Neural Network in Breadth, Depth, and Time",
        authors="E. Butkus, K. Garzon Gupta, N. Kriegeskorte",
        identifier="arXiv 2605.25174",
        venue="q-bio.NC, May 2026",
        basis="Abstract and the first lines of the introduction; the rest second hand from one digest, or "
        "reconstructed. No code of the authors is known.",
    ),
    usage="import torch\n"
    "from steelyard.nets import LatticeRCNN, ResourceCost, shrink, train_lattice, used_resources\n"
    "x, y = torch.rand(64, 1, 8, 8), torch.arange(64) % 4\n"
    "model = LatticeRCNN(in_channels=1, n_classes=4, max_channels=6, max_layers=2, max_steps=4)\n"
    "train_lattice(model, (x, y), ResourceCost(breadth=0.01, depth=0.01, time=0.03), epochs=1, batch_size=32)\n"
    "print(used_resources(model), model(x).expected_time.mean())\n"
    "small = shrink(model, threshold=0.05)  # dead channels, layers and steps are gone\n"
    "# your own images, a folder per class: steelyard weigh lattice --data images/ --size 14",
    claims=(
        *_time_claims(),
        *_trade_claims(),
        *_level_claims("breadth"),
        *_level_claims("depth"),
        *_occlusion_claims(),
        *_baseline_claims(),
        *_complexity_claims(),
        *_people_claims(),
    ),
    limits=LIMITS,
    decisions=DECISIONS,
    contradictions=CONTRADICTIONS,
    config=Config,
)
