"""What GridProbe is said to do, as sentences that paired checkpoints decide; fixed before the full weighing.

One checkpoint with its own questions is a seed. Two points of accuracy are what the paper gives up against all frames,
five points the smallest gain over another selector worth having.
"""

from __future__ import annotations

import math
from typing import Any

from steelyard.card import Claim

_LONG = ("videos144",)
_BOTH = ("videos64", "videos144", "videos256")
_NONE = "not of the paper"
_HEADLINE = "21.5 against 23.2 % at 245 against 820 TFLOP on Video-MME-v2, Qwen3-VL-2B, K = 12"
_MOTIVE = "answer-space probing is said to beat encoders on negation and counting; no table at hand"


def _claim(
    name: str,
    text: str,
    metric: str,
    arm: str,
    versus: str | float,
    paper: str = _NONE,
    direction: Any = "higher",
    **more: Any,
) -> Claim:
    return Claim(id=name, text=text, metric=metric, arm=arm, versus=versus, direction=direction, paper=paper,
                 **{"tasks": _BOTH, **more})  # fmt: skip


CLAIMS = (
    _claim("near_all", "With K = 12 at most 2 points fewer right answers than with all frames at full resolution",
           "accuracy", "gridprobe", "monolithic", _HEADLINE, offset=-0.02, tasks=_LONG),
    _claim("saves", "and costs at most .6 of the operations, probes included", "mflops", "gridprobe", "monolithic",
           _HEADLINE, "lower", scale="log_ratio", offset=math.log(1 / 0.6), tasks=_LONG),
    _claim("near_all_8", "The same accuracy with K = 8: at most 2 points fewer", "accuracy", "gridprobe", "monolithic",
           "1.4 to 2.1 times fewer operations at K = 6 and 8", offset=-0.02, tasks=("videos64",)),
    _claim("saves_fine", "It still saves operations when its probes have full resolution", "fine_saving", "gridprobe",
           1.0, "not claimed: the release leaves open which resolution its headline had"),
    _claim("near_low", "At most 2 points fewer than all frames at the probes' own resolution", "accuracy", "gridprobe",
           "monolithic_low", offset=-0.02),
    _claim("specific_uniform", "5 points more than as many frames evenly apart where the question is specific",
           "accuracy_specific", "gridprobe", "uniform", _HEADLINE, margin=0.05),
    _claim("specific_random", "5 points more than as many frames at random where the question is specific",
           "accuracy_specific", "gridprobe", "random_frames", margin=0.05),
    _claim("uniform", "More right answers than as many frames evenly apart", "accuracy", "gridprobe", "uniform",
           "26.7 against no number of the matched control"),
    _claim("negation_words", "5 points more than similarity to the words on negation", "accuracy_negation", "gridprobe",
           "similarity", _MOTIVE, margin=0.05),
    _claim("negation_detector", "5 points more than a supervised detector on negation", "accuracy_negation",
           "gridprobe", "detector", _MOTIVE, margin=0.05),
    _claim("count_words", "5 points more than similarity to the words on counting", "accuracy_count", "gridprobe",
           "similarity", _MOTIVE, margin=0.05),
    _claim("words", "More right answers than similarity to the words", "accuracy", "gridprobe", "similarity", _MOTIVE),
    _claim("mdp3", "More right answers than MDP3 on the same embeddings", "accuracy", "gridprobe", "mdp3",
           "MDP3 with 8 frames misses two of three worked examples"),
    _claim("second_pass", "The second pass is worth it: more right answers than the probes' own vote", "accuracy",
           "gridprobe", "ensemble"),
    _claim("product", "Rows times columns is at least as good as rows plus columns, within a point", "accuracy",
           "gridprobe", "sum_map", "the paper's choice", offset=-0.01),
    _claim("tracking", "The budget goes with difficulty: it correlates with errors on all frames", "tracking",
           "gridprobe", 0.0, "budgets of 110 at no skew, where answers are worst, 40 and less at a skew of 1"),
    _claim("count_longer", "Counting gets more frames than what is specific", "count_specific", "gridprobe", 0.0,
           "a worked example each"),
    _claim("order_longer", "Ordering gets more frames than what is specific", "order_specific", "gridprobe", 0.0,
           "a worked example each"),
    _claim("hits", "Nine in ten of the frames that a specific question needs are selected", "hit_rate", "gridprobe",
           0.9, "a worked example"),
    _claim("paper_scale", "Within 1.6 points of all frames at 3.36 times fewer operations on Video-MME-v2", "accuracy",
           "gridprobe", "monolithic", _HEADLINE, paper_scale_only=True, tasks=None),
    _claim("cross_model", "Frames chosen by a 2B model for a larger one: up to 4 points above the 2B model alone",
           "accuracy", "gridprobe", "monolithic", "up to +4.0 points at .52 of the operations", paper_scale_only=True,
           tasks=None),
)  # fmt: skip
