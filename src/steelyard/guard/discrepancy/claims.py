"""What the method is said to do, as sentences that paired seeds decide. A seed is a subset of questions.

Fixed before any evaluation subset was scored. The bar of .05 under a rival is what "comparable" is taken to mean; a
margin of 0 asks for a lower limit above the bar and no more.
"""

from __future__ import annotations

import math

from steelyard.card import Claim

_COMPARABLE = 0.05
_ABSTRACT = "consistently superior or comparable detection (abstract; no table available)"
_CHEAPER = "lower cost than methods that draw several responses (abstract; no number available)"
_OURS = "not of the paper: a control"
_MULTI = {
    "ln_entropy": "length-normalised entropy",
    "lexical": "lexical similarity",
    "selfcheck": "SelfCheckGPT",
    "semantic_entropy": "semantic entropy",
    "eigenscore": "EigenScore",
}


def _comparable(arm: str, name: str) -> Claim:
    return Claim(
        id=f"comparable_to_{arm}",
        text=f"On answers just given, D's AUROC is at most .05 below that of {name}, which draws several answers",
        metric="auroc",
        arm="discrepancy",
        versus=arm,
        direction="higher",
        offset=-_COMPARABLE,
        paper=_ABSTRACT,
    )


def _above(arm: str, name: str, why: str) -> Claim:
    return Claim(
        id=f"above_{arm}",
        text=f"On answers just given, D's AUROC is above that of {name}",
        metric="auroc",
        arm="discrepancy",
        versus=arm,
        direction="higher",
        paper=why,
    )


CLAIMS = (
    Claim(
        id="above_chance",
        text="On answers just given, D tells wrong from right ones: AUROC above .5 (gold text in the answer)",
        metric="auroc", arm="discrepancy", versus=0.5, direction="higher", paper=_ABSTRACT,
    ),
    Claim(
        id="above_chance_rouge",
        text="The same when ROUGE-L above .5 decides what is right",
        metric="auroc_rouge", arm="discrepancy", versus=0.5, direction="higher", paper=_ABSTRACT,
    ),
    Claim(
        id="above_chance_within_lengths",
        text="The same among answers of like length",
        metric="auroc_stratified", arm="discrepancy", versus=0.5, direction="higher",
        paper="not of the paper: D falls with the length of an answer, and wrong answers may be longer",
    ),
    *(_comparable(arm, name) for arm, name in _MULTI.items()),
    Claim(
        id="a_fifth_of_the_cost",
        text="With states kept from generation, D takes at most a fifth of the processor time of the cheapest method "
        "that draws ten answers (measured at fewer draws, scaled to ten)",
        metric="cpu_k10", arm="discrepancy", versus="cheapest_multi", direction="lower", scale="log_ratio",
        offset=math.log(5), paper=_CHEAPER,
    ),
    Claim(
        id="a_fifth_of_the_cost_both_passes",
        text="With both passes computed anew, D takes at most a fifth of the processor time of the cheapest method "
        "that draws ten answers (scaled likewise)",
        metric="cpu_k10", arm="two_passes", versus="cheapest_multi", direction="lower", scale="log_ratio",
        offset=math.log(5), paper=_CHEAPER,
    ),
    _above("max_nll", "the largest token NLL, which costs nothing", "not of the paper: the free baselines"),
    _above("nll", "the mean token NLL, which costs nothing", "not of the paper: the free baselines"),
    _above("pmi", "PMI, the same two passes read at the output", "not of the paper: the nearest free relative"),
    _above("length", "the answer's length", _OURS),
    _above("text_similarity", "the similarity of the answer's text to the question's", _OURS),
    Claim(
        id="planted",
        text="At equal length, D tells an answer copied from the passage from one unrelated to it: AUROC above .6",
        metric="auroc", arm="planted", versus=0.6, direction="higher",
        paper="not of the paper: that the detector measures an influence at all",
    ),
    Claim(
        id="length_explains_made_up_pairs",
        text="On made-up pairs of right and wrong answers, length alone is at most .05 below D",
        metric="auroc_given", arm="length", versus="discrepancy", direction="higher", offset=-_COMPARABLE,
        tasks=("halueval_pairs",), paper="not of the paper: PARALLAX warns of such benchmarks",
    ),
)  # fmt: skip
