"""What the method is said to do, as sentences that paired seeds decide; fixed before any evaluation seed was run.

The thresholds are those of the reconstruction's recipe. A margin of 0 asks for a lower limit above the bar and no
more. Removal is judged on test nodes that nobody planted anything at, every method removing as many edges.
"""

from __future__ import annotations

from steelyard.card import Claim

_PLANTED = ("csbm", "cora", "citeseer", "cora_gat", "cora_sage", "citeseer_gat", "citeseer_sage")
_SOURCES = "the three sources are the paper's; no figure in its abstract"
_FAITHFUL = "removing what was identified consistently reduces the teacher's uncertainty (abstract, no figure)"
_OURS = "not of the paper"
_COMPARABLE = 0.01
_RIVALS = {
    "random": "of random edges",
    "saliency": "of the edges with the largest saliency for the prediction",
    "degree": "of the neighbours of highest degree",
}
_BARS = {"feature": (0.75, "extra words"), "structure": (0.85, "wrong edges"), "coverage": (0.85, "labels cut")}


def _recovered(source: str, bar: float, what: str) -> Claim:
    return Claim(
        id=f"auroc_{source}", text=f"The {source} score tells nodes with {what} from those of the other groups, the "
        f"clean one among them: AUROC above {bar:g}", metric=f"auroc_{source}", arm="graphuat", versus=bar,
        direction="higher", tasks=_PLANTED, paper=_SOURCES,
    )  # fmt: skip


def _faithful(k: int, arm: str, name: str) -> Claim:
    return Claim(
        id=f"drop_{k}_{arm}", text=f"Removing {k} edge{'s' if k > 1 else ''} of a node lowers the teacher's entropy "
        f"more than removing as many {name}", metric=f"drop_{k}", arm="graphuat", versus=arm, direction="higher",
        paper=_FAITHFUL,
    )  # fmt: skip


CLAIMS = (
    Claim(
        id="source_accuracy", text="Of the three planted sources the right one is named at 70 % of the nodes or more",
        metric="source_accuracy", arm="graphuat", versus=0.7, direction="higher", tasks=_PLANTED, paper=_SOURCES,
    ),
    *(_recovered(source, bar, what) for source, (bar, what) in _BARS.items()),
    *(
        Claim(
            id=f"drop_{k}_above_0", text=f"Removing {k} edge{'s' if k > 1 else ''} of a node lowers the teacher's "
            "entropy at all, on the average", metric=f"drop_{k}", arm="graphuat", versus=0.0, direction="higher",
            paper=_FAITHFUL,
        )
        for k in (1, 2, 3, 5)
    ),
    *(_faithful(k, arm, name) for arm, name in _RIVALS.items() for k in (1, 2, 3, 5)),
    Claim(
        id="drop_gnnexplainer", text="On the nodes that GNNExplainer explains, removal lowers the teacher's entropy "
        "more than removing as many of its edges", metric="few_drop", arm="graphuat", versus="gnnexplainer",
        direction="higher", paper=_FAITHFUL,
    ),
    Claim(
        id="drop_entropy_gradient", text="Removal lowers the teacher's entropy more than removing as many edges by "
        "that entropy's gradient", metric="drop_auc", arm="graphuat", versus="entropy_gradient", direction="higher",
        paper=_OURS,
    ),
    Claim(
        id="drop_teacher_entropy", text="Removal lowers the teacher's entropy more than the same probes do without a "
        "student, on that entropy itself", metric="drop_auc", arm="graphuat", versus="teacher_entropy",
        direction="higher", paper="not of the paper: the strongest direct baseline",
    ),
    Claim(
        id="drop_near_teacher_entropy", text="Removal lowers the teacher's entropy at most .01 nats less than the same "
        "probes do without a student", metric="drop_auc", arm="graphuat", versus="teacher_entropy", direction="higher",
        offset=-_COMPARABLE, paper="not of the paper: what the student costs in faithfulness",
    ),
    Claim(
        id="source_above_teacher_entropy", text="The student is worth having: the right source is named more often "
        "than by the same probes on the teacher's entropy, which itself stands for coverage", metric="source_accuracy",
        arm="graphuat", versus="teacher_entropy", direction="higher", tasks=_PLANTED, paper=_OURS,
    ),
    Claim(
        id="source_above_counting", text="The right source is named more often than by counting words, edges and "
        "labels near, which knows what was planted", metric="source_accuracy", arm="graphuat", versus="counting",
        direction="higher", tasks=_PLANTED, paper="not of the paper: a control",
    ),
    Claim(
        id="edges_above_random", text="More of the first four edges are planted ones than of four random edges",
        metric="edge_precision", arm="graphuat", versus="random", direction="higher", tasks=_PLANTED, paper=_SOURCES,
    ),
    Claim(
        id="words_above_random", text="More of the first twenty words are planted ones than of twenty random words",
        metric="feature_precision", arm="graphuat", versus="random", direction="higher", tasks=_PLANTED,
        paper=_SOURCES,
    ),
    Claim(
        id="z_scores_matter", text="z-scores name the right source more often than raw scores", arm="graphuat",
        metric="source_accuracy", versus="raw_scores", direction="higher", tasks=_PLANTED, paper=_OURS,
    ),
    Claim(
        id="left_beats_plain_epistemic", text="The epistemic part that stays without hostile edges names the right "
        "source more often than the plain epistemic part", metric="source_accuracy", arm="graphuat",
        versus="plain_epistemic", direction="higher", tasks=_PLANTED, paper=_OURS,
    ),
    Claim(
        id="deletion_beats_neighbour_mean", text="Deleting features by gradient x input tells extra words better than "
        "replacing them by the neighbours' mean", metric="auroc_feature", arm="graphuat", versus="neighbour_mean",
        direction="higher", tasks=_PLANTED, paper=_OURS,
    ),
    Claim(
        id="shuffled_is_chance", text="Against shuffled sources the accuracy is that of chance, 1/3, within .05",
        metric="source_accuracy", arm="shuffled", versus=1 / 3, direction="higher", kind="equivalence", margin=0.05,
        tasks=_PLANTED, paper="not of the paper: a control",
    ),
)  # fmt: skip
