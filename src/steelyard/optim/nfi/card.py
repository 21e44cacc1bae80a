"""The card of numerical feature inflation: claims, limits and the decision ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Card, Claim, Decision, Frozen, Paper, Source, knob


class Config(Frozen):
    """What a bench arm trains with, and the thresholds that results are read by."""

    loss: Literal["exact", "f32", "f64", "stablemax"] = knob("N1", "exact")
    guard: Literal["none", "zero_sum", "centering", "batch_norm", "perpgrad"] = knob("N3", "none")
    label_smoothing: float = knob("N6", 0.0, ge=0, le=1)
    lr: float = knob("N12", 1e-3, gt=0)
    beta2: float = knob("N12", 0.95, ge=0, lt=1)
    adam_eps: float = knob("N12", 1e-8, gt=0)
    spike_low: float = knob("N13", 1e-4, gt=0)
    spike_high: float = knob("N13", 1e-2, gt=0)
    growth_from: Literal["small_loss", "collapse"] = knob("N14", "small_loss")
    alarm_sc_frac: float = knob("N8", 0.5, ge=0, le=1)
    alarm_cosine: float = knob("N8", -0.5, ge=-1, le=1)
    alarm_growth: float = knob("N8", 2.0, gt=0)
    alarm_window: int = knob("N8", 200, ge=1)


_PAPER_DIGITS = "no number available: the paper trains on CIFAR-10 and modular arithmetic, this task is ours"
_GUARDED = (
    ("exact", "exact cross-entropy"),
    ("f64", "float64 loss"),
    ("zero_sum", "zero-sum gradient"),
    ("centering", "centred head"),
)


def _f32_claims() -> tuple[Claim, ...]:
    return (
        Claim(
            id="f32_spikes",
            text="plain float32 cross-entropy spikes more than 2.5 times a run on average",
            metric="spikes",
            arm="f32",
            versus=2.5,
            direction="higher",
            paper="MLP, VGG11 and ViT spike at every sample count on CIFAR-10 (full batch), ResNet18 at none",
        ),
        Claim(
            id="f32_growth",
            text="under plain float32 cross-entropy the feature mean grows at least fivefold after fit",
            metric="growth",
            arm="f32",
            versus=5.0,
            direction="higher",
            scale="log_ratio",
            paper="second hand: norm about 564 (float32) against 83 (float64 loss), division modulo 97, 20,000 steps",
        ),
        Claim(
            id="f32_cosine",
            text="under plain float32 cross-entropy classifier mean and feature mean end up opposite (cos <= -0.8)",
            metric="cosine",
            arm="f32",
            versus=-0.8,
            direction="lower",
            paper="cos -> -1 (theorem 3.7); second hand: -0.92 on division modulo 97",
        ),
    )


def _guard_claims(arm: str, name: str) -> tuple[Claim, ...]:
    return (
        Claim(
            id=f"{arm}_spikes",
            text=f"{name}: fewer than one spike in two runs on average",
            metric="spikes",
            arm=arm,
            versus=0.5,
            direction="lower",
            paper=_PAPER_DIGITS,
        ),
        Claim(
            id=f"{arm}_growth",
            text=f"{name}: the feature mean at most doubles after fit",
            metric="growth",
            arm=arm,
            versus=2.0,
            direction="lower",
            scale="log_ratio",
            paper=_PAPER_DIGITS,
        ),
        Claim(
            id=f"{arm}_cosine",
            text=f"{name}: classifier mean and feature mean do not line up (|cos| <= 0.6)",
            metric="abs_cosine",
            arm=arm,
            versus=0.6,
            direction="lower",
            paper=_PAPER_DIGITS,
        ),
    )


_PAPER_SCALE = (
    Claim(
        id="cifar10",
        text="on CIFAR-10 at the paper's size float32 cross-entropy spikes and the guarded arm does not",
        metric="spikes",
        arm="exact",
        versus="f32",
        direction="lower",
        paper="MLP 5x512, VGG11, VGG11-BN and ViT spike at N = 200 to 50,000, full batch, 10,000 epochs",
        paper_scale_only=True,
    ),
    Claim(
        id="language_model",
        text="in a 110M language model a float64 loss does NOT keep the logits down; removing the mean row does",
        metric="max_logit",
        arm="centering",
        versus="f64",
        direction="lower",
        paper="FineWeb, bfloat16, 1e5 steps: mean logit 183 with the loss in float32, 498 with it in float64",
        paper_scale_only=True,
    ),
    Claim(
        id="minibatch",
        text="with batches of 256 half the samples collapse after 1e6 steps and the feature mean grows without a spike",
        metric="sc_frac",
        arm="f32",
        versus=0.5,
        direction="higher",
        paper="VGG11 on CIFAR-10, batch 256, 1e6 steps",
        paper_scale_only=True,
    ),
)

_DECISIONS = (
    Decision(
        id="N1",
        what="default guard of the loss",
        chosen="exact cross-entropy",
        source=Source.DEFAULT,
        why="it removes the defect itself, at the speed of the reference and without float64 logits",
        alternatives=("zero-sum hook", "float64 loss", "StableMax"),
        knob="loss",
    ),
    Decision(
        id="N2",
        what="how a collapsed sample is recognised",
        chosen="from the gradient: no negative entry beside a positive one",
        source=Source.DEFAULT,
        why="the margin at which it happens depends on dtype, class count and the processor's order of adding",
    ),
    Decision(
        id="N3",
        what="remedy for the drift of the mean row",
        chosen="centering as a separate tool, off by default",
        source=Source.PAPER,
        why="the only one found to help the paper's language model; it moves tied embeddings, so it must be asked for",
        alternatives=("zero-sum hook", "BatchNorm before the head", "perpGrad"),
        knob="guard",
    ),
    Decision(
        id="N4",
        what="collapse threshold",
        chosen="p ln 2 for one competitor, up to p ln 2 + ln(K - 1); arguments dtype and K",
        source=Source.DEFAULT,
        why="measured on a CPU; the paper's (p - 1) ln 2 is of the right order only",
    ),
    Decision(
        id="N5",
        what="second derivative",
        chosen="softmax and logsumexp of the wrong logits, by ordinary operations, when a graph is asked for",
        source=Source.DEFAULT,
        why="first derivatives keep the two-buffer path",
    ),
    Decision(
        id="N6",
        what="label smoothing",
        chosen="standard cross-entropy",
        source=Source.DEFAULT,
        why="a smoothed target is never 1, so the true-class gradient is not rounded away",
        knob="label_smoothing",
    ),
    Decision(
        id="N7",
        what="soft targets",
        chosen="refused",
        source=Source.DEFAULT,
        why="there is no one true class to protect",
    ),
    Decision(
        id="N8",
        what="alarm rule of the monitor",
        chosen="active: collapsed > 0.5, cos < -0.5, growth > 2x over 200 records; imminent: update > 10x its median",
        source=Source.DEFAULT,
        why="thresholds are arguments of AlarmRule; the window length is our choice",
        alternatives=("any other threshold",),
        knob="alarm_sc_frac",
    ),
    Decision(
        id="N9",
        what="binary cross-entropy",
        chosen="-logsigmoid(x s) with s = 2 target - 1, hard targets only",
        source=Source.DEFAULT,
        why="torch's softplus is linear above 20, so it is not used",
    ),
    Decision(
        id="N10",
        what="spikes of AdamW with weight decay",
        chosen="out of scope",
        source=Source.SECOND_HAND,
        why="a different failure (v decays while weight decay erodes the weights); no loss guard fixes it",
    ),
    Decision(
        id="N11",
        what="StableMax and perpGrad",
        chosen="baselines only",
        source=Source.SECOND_HAND,
        why="both change the objective or the optimizer",
    ),
    Decision(
        id="N12",
        what="optimizer of the bench",
        chosen="Adam, lr 1e-3, betas (.9, .95), eps 1e-8, no weight decay",
        source=Source.PAPER,
        why="the paper's CIFAR-10 setting",
        alternatives=("eps 1e-5 or 1e-6 as a guard",),
        knob="adam_eps",
    ),
    Decision(
        id="N13",
        what="what counts as a spike",
        chosen="float64 cross-entropy of the logits rises from < 1e-4 to > 1e-2; again only after < 1e-4",
        source=Source.RECON,
        why="the paper shows curves; a count needs a rule that is the same for every arm",
        alternatives=("other limits",),
        knob="spike_low",
    ),
    Decision(
        id="N14",
        what="where growth of the feature mean is counted from",
        chosen="the first step with a loss below 1e-4 (the smallest loss where there is none)",
        source=Source.RECON,
        why="collapse reaches 90 % only after the first spikes, and guarded arms never show it",
        alternatives=("first step with 90 % of the samples collapsed",),
        knob="growth_from",
    ),
    Decision(
        id="N15",
        what="predicted growth in the monitor",
        chosen="1 + lr eps / sqrt(K) with eps over the collapsed samples only",
        source=Source.DEFAULT,
        why="theorem 3.7 assumes that every sample is collapsed; the others' gradients sum to zero and drift nothing",
    ),
)

_USAGE = """\
import torch
from steelyard.optim import ExactCrossEntropyLoss, NFIMonitor, center_head_

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loss_of = ExactCrossEntropyLoss()
optimizer.register_step_post_hook(lambda *_: center_head_(model[-1]))  # optional
x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))
with NFIMonitor(model[-1], optimizer) as monitor:
    for _ in range(10):
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()
print(monitor.history[-1].sc_frac, monitor.alarms)
"""

CARD = Card(
    id="nfi",
    name="Numerical feature inflation",
    summary="Cross-entropy whose gradient survives high confidence, guards against loss spikes, and a monitor.",
    does=(
        "When a classifier is very sure, softmax cross-entropy in low precision rounds the true class's gradient to "
        "exactly zero while the wrong classes keep theirs. The gradients no longer cancel over the classes, so the "
        "mean of the classifier's rows drifts against the mean feature, both grow exponentially, and in the end the "
        "loss spikes. The exact cross-entropy computes the same loss without the subtraction that loses the term. The "
        "paper's own guards are here as well (zero-sum gradient, centering of the classifier), and a monitor that "
        "reads the collapse from the gradient and says when the inflation runs or a spike is near."
    ),
    use_when=(
        "training continues long after the training set is fitted (grokking studies, small data, many epochs)",
        "the loss spikes without weight decay and for no reason in the data",
        "small losses or their gradients are read off (bfloat16, float16, float32)",
        "you want to know whether inflation is on: NFIMonitor changes nothing",
    ),
    avoid_when=(
        "spikes come with AdamW and weight decay: a different failure that no loss guard fixes",
        "targets are soft or smoothed: nothing collapses there",
        "a language model's logits drift: the paper found a more precise loss no help; center the head instead",
        "a fused cross-entropy kernel is a must: it bypasses loss and hooks",
    ),
    cost=(
        "Two buffers of the logits' size beside them, where F.cross_entropy needs three (float32, K >= 256); time "
        "about that of F.cross_entropy for K >= 1000, several times more for tiny batches, where it is a fraction of "
        "a millisecond. float16 and bfloat16 are computed in float32: 1.1 to 1.5 times the reference's memory."
    ),
    paper=Paper(
        title="Grokking or Glitching? How Low-Precision Drives Slingshot Loss Spikes",
        authors="Liu Hanqing, Cao, Li, Zhou",
        identifier="arXiv 2605.06152v2",
        venue="NeurIPS 2026",
        basis="full text with proofs and tables; exact cross-entropy and the small-data task are this library's own",
    ),
    usage=_USAGE,
    claims=(*_f32_claims(), *(claim for arm, name in _GUARDED for claim in _guard_claims(arm, name)), *_PAPER_SCALE),
    limits=(
        "In the paper's 110M language model a float64 loss made the logits larger, not smaller (498 against 183): a "
        "better loss, the exact one included, is not the cure there; centering the head is.",
        "Spikes of AdamW with weight decay are another failure and out of scope.",
        "Zero-sum and centering keep the float32 loss: they stop the spikes, but the loss reaches exactly 0 and "
        "learning stops. Adam eps 1e-5 freezes as well.",
        "No spike does not mean no inflation: BatchNorm leaves the cosine near -0.9, StableMax lets the feature mean "
        "grow to more than ten thousand.",
        "Label smoothing and perpGrad never get below a loss of 1e-4 within the bench's 3000 steps, so their spike "
        "counts say nothing.",
        "A float64 loss only moves the threshold, to a margin of about 37: at the end of the bench's runs a tenth or "
        "more of its samples have collapsed again.",
        "StableMax and BatchNorm change the objective or the model; compare accuracies with that in mind.",
        "With batches the loss is the batch's own, so a hard sample in it can count as a spike in any arm; read the "
        "collapsed share and the growth there.",
        "Not every task inflates: with few classes or few steps plain float32 may never spike; then the guards have "
        "nothing to show.",
        "Training at the edge of rounding is chaotic: spike counts and times vary with the number of threads.",
        "In float32 gradients underflow beyond a margin of about 87 to 103; float16 gradients of the wrong classes do "
        "so much earlier, so use a gradient scaler there.",
        "Collapse thresholds and speed were measured on CPUs only.",
        "The bars of the claims were set by the reconstruction after runs of this same task: the verdicts say that "
        "fresh seeds repeat it, not that it was predicted.",
        "The alarm asks for a doubling of the feature mean within its window: it never fired on the division run, "
        "which spiked four times, nor with batches.",
        "On division the same optimizer and a network of 2 x 128 are used; the paper has betas (.9, .999), a warmup of "
        "10 and 5 x 512.",
    ),
    decisions=_DECISIONS,
    contradictions=(
        "The paper puts the collapse margin at (p - 1) ln 2. With round-to-nearest it is p ln 2 for one competitor, "
        "and up to p ln 2 + ln(K - 1) for K classes; measured for float32, float64, bfloat16 and float16.",
        "The paper's toy spike is called about 50 times a normal update; its own numbers (steady gradient 3e-9, "
        "update about 4e-4 with eps 1e-8 in the denominator) give less than a factor of 2. Nothing is built on it.",
        "Growth counted from 90 % collapse, as first proposed, has no reference in guarded runs and starts after the "
        "first spikes in plain ones; it is counted from the first loss below 1e-4.",
    ),
    config=Config,
)
