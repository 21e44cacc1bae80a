"""The decision ledger: the abstract names grouping, prototypes and a closed-form strength; the formulas are ours."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="d1", what="What is mixed", chosen="the linear head alone", source=Source.PAPER,
        why="the abstract mixes decision-layer task heads", alternatives=("the last layer of the trunk as well",),
        knob="part",
    ),
    Decision(
        id="d2", what="Prototype of a client", chosen="the mean of the other heads of its group", source=Source.RECON,
        why="independent of the client's own error, so no covariance is needed; the mean of all describes the same "
        "line with the same least risk", alternatives=("inclusive: the mean of all, the client too",),
        knob="prototype",
    ),
    Decision(
        id="d3", what="Strength of sharing", chosen="V / (V + V_g + D^2) with D^2 the squared distance of head and "
        "prototype less V and V_g, at least 0", source=Source.RECON,
        why="the closed form with its mismatch debiased; V over the squared distance has the same mean denominator but "
        "lets two unsure clients swap heads, and had an eighth more error with 60 transitions on tuning streams; the "
        "abstract has the idea of a closed form of mismatch and uncertainty",
        alternatives=("plugin: V / squared distance, at most 1", "fixed: one strength for all",
                      "oracle: against known heads"), knob="strength",
    ),
    Decision(
        id="d4", what="Distance of heads", chosen="in value space: by the features' second moment",
        source=Source.RECON, why="what a head does to values is what counts, and scales of features drop out",
        alternatives=("euclidean",), knob="metric",
    ),
    Decision(
        id="d5", what="Variance of a head", chosen="refit: the sandwich of a linear fit on replayed data",
        source=Source.RECON, why="the abstract says lightweight practical proxies and names none; the spread of "
        "Adam's iterates gave strengths near 0 in a second-hand trial",
        alternatives=("split: two halves", "iterates: the spread within a round"), knob="variance",
    ),
    Decision(
        id="d6", what="Smoothing of the strength", chosen="moving average .9, no mixing in the first two rounds",
        source=Source.RECON, why="early variances are noise", alternatives=("other numbers", "none"), knob="ema",
    ),
    Decision(
        id="d7", what="What tells groups", chosen="the head's accumulated update, moving average .7; in the linear "
        "tasks, which have one round, the heads", source=Source.RECON,
        why="the abstract says the geometry of local updates and no more",
        alternatives=("head: the heads themselves",), knob="signal",
    ),
    Decision(
        id="d8", what="Clustering", chosen="average linkage of 1 - cosine, cut at 1.0; at .6 in the linear tasks, in "
        "the others where tuning streams had it",
        source=Source.RECON, why="no number of groups to choose; a cosine below 0 pulls in opposite directions",
        alternatives=("sattler: bipartition", "another threshold"), knob="linkage",
    ),
    Decision(
        id="d9", what="How often groups change", chosen="every round, a client moves once two in a row say so",
        source=Source.RECON, why="a client that hops gets another prototype each time",
        alternatives=("every R rounds", "no hysteresis: 1"), knob="hysteresis",
    ),
    Decision(
        id="d10", what="Trunk", chosen="averaged over all clients", source=Source.RECON,
        why="as FedPer does, so that heads are the only difference to it", alternatives=("within a group",),
        knob="trunk",
    ),
    Decision(
        id="d11", what="Optimiser after mixing", chosen="the head's moments start afresh, the target network is "
        "synchronised, in every arm alike", source=Source.RECON, why="both belong to a head that is no longer there",
        alternatives=("keep both",), knob="optimiser",
    ),
    Decision(
        id="d12", what="Absent clients", chosen="their last head counts, less with every round missed",
        source=Source.RECON, why="a prototype should not jump when a client drops out",
        alternatives=("1: in full",), knob="staleness",
    ),
    Decision(
        id="d13", what="Evaluation", chosen="greedy episodes apart from training, mean and worst client",
        source=Source.RECON, why="returns while training hold exploration; a mean hides who was harmed",
        alternatives=("returns of training episodes",), knob="evaluation",
    ),
    Decision(
        id="d14", what="Residual split", chosen="representation and head terms over a batch, of which a bound holds "
        "only in a norm in which the Bellman operator contracts", source=Source.RECON,
        why="the abstract has the split and no norm; a sample's norm is what a batch can show",
        alternatives=("sup norm", "weights of the on-policy states"), knob="residual_norm",
    ),
)  # fmt: skip
