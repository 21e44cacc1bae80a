"""The decision ledger: every choice that the paper's abstract does not settle, and the setting that changes it."""

from __future__ import annotations

from steelyard.card import Decision, Source

DECISIONS = (
    Decision(
        id="d1", what="Form of the student", chosen="a Dirichlet alpha = 1 + s * pi: pi the distilled mean, s the "
        "evidence", source=Source.RECON, why="the abstract has a student distilled from the network that separates "
        "aleatoric from epistemic uncertainty; a Dirichlet does so in closed form",
        alternatives=("posterior networks with flows", "an ensemble", "no student: the teacher's own entropy (on)"),
        knob="student",
    ),
    Decision(
        id="d2", what="Distillation loss", chosen="mean over all nodes of KL(teacher || pi)", source=Source.RECON,
        why="the teacher can be asked about any node; labels are not needed", alternatives=("uce",), knob="loss",
    ),
    Decision(
        id="d3", what="Evidence", chosen="class-conditional Gaussians of tied, shrunk covariance on the propagated "
        "hidden representation of the labelled nodes; tau 8, 20 for the median labelled node, clipped at (-8, 3)",
        source=Source.RECON, why="epistemic uncertainty then means far from labelled data; tau/d tempers a density "
        "that collapses in many dimensions", alternatives=("knn: distance to the nearest labelled nodes", "a flow"),
        knob="strength",
    ),
    Decision(
        id="d4", what="Split of the uncertainty", chosen="entropy of the mean, expected entropy, mutual information",
        source=Source.SECOND_HAND, why="the published split of a Dirichlet's uncertainty; vacuity and dissonance of "
        "subjective logic are reported beside it",
    ),
    Decision(
        id="d5", what="Feature probe", chosen="gradient x input; the features with a positive product are deleted",
        source=Source.RECON, why="replacing a node's features by its neighbours' mean found planted words less well "
        "in a first measurement", alternatives=("integrated: 16 steps from 0", "neighbour_mean"),
        knob="feature_method",
    ),
    Decision(
        id="d6", what="Structure probe", chosen="each incident edge is deleted, both directions together; the score "
        "is the largest fall while the harmful ones go one after the other, the worst first", source=Source.RECON,
        why="the abstract has counterfactual probes; a deletion needs no further model. The last edges may undo what "
        "the first did. The degrees' normalisation changes with a deletion: part of the effect",
        alternatives=("two hops",), knob="hops",
    ),
    Decision(
        id="d7", what="Harmful edges", chosen="those whose deletion lowers the uncertainty by more than .001",
        source=Source.RECON, why="else rounding decides", alternatives=("any threshold",), knob="threshold",
    ),
    Decision(
        id="d8", what="Coverage probe", chosen="the epistemic part that stays without the hostile edges of the "
        "structure probe", source=Source.RECON, why="hostile edges carry a node away from the labelled ones of its "
        "class: conflict, and no lack of labels. On tuning streams of the generated graph, Cora and CiteSeer it named "
        "82.9 % of the planted sources, the plain part 80.8 %, without harmful features too 82.5 %, without those "
        "alone 81.0 %. The nearest labelled node and the labels' PageRank mass are given as evidence",
        alternatives=("epistemic: the plain part", "the fall with a pseudo-label: not built"), knob="coverage",
    ),
    Decision(
        id="d9", what="Which source a node gets", chosen="the largest of the three scores in standard deviations from "
        "up to 200 validation nodes; a tie has none", source=Source.RECON, why="the scores have different scales. On "
        "tuning seeds all validation nodes named the right source more often than the confident half of them, whose "
        "scores hardly spread, so that everything looks uncovered; both, raw scores, and planted clean nodes (a leak) "
        "are arms", alternatives=("confident validation nodes, the first reconstruction's", "raw scores"),
        knob="reference",
    ),
    Decision(
        id="d10", what="What removal must lower", chosen="the teacher's entropy", source=Source.PAPER,
        why="the abstract: removing what was found should reduce the teacher's uncertainty", knob="target",
    ),
    Decision(
        id="d11", what="How much is removed", chosen="k edges of a node by every method; nodes with fewer do not "
        "count at k", source=Source.RECON, why="removing only what helps would flatter a method that may stop; that "
        "variant is an arm", alternatives=("positive only",), knob="equal_counts",
    ),
    Decision(
        id="d12", what="Student's network", chosen="a GCN of width 64, 300 epochs of Adam at .01, dropout .2",
        source=Source.RECON, why="as large as the usual teacher", alternatives=("any module: backbone=",),
        knob="backbone",
    ),
    Decision(
        id="d13", what="Large degree, large graph", chosen="neighbourhoods of at most 32 and 16 edges per hop; the 32 "
        "edges with the largest gradient are tested", source=Source.RECON, why="the cost must not grow with the graph",
        alternatives=("None: exact",), knob="fanout",
    ),
    Decision(
        id="d14", what="Planted sources", chosen="40 nodes with 60 words more, 40 with 4 edges to other classes, 40 "
        "of a class whose labels are cut to 2, 40 clean; all test nodes of degree 2 to 5 with more than 80 % of "
        "neighbours of their class", source=Source.RECON, why="ground truth that the network is trained with",
        alternatives=("any counts",), knob="per_group",
    ),
    Decision(
        id="d15", what="Teacher", chosen="GCN, GAT or GraphSAGE of torch-geometric, width 64, two layers, 200 epochs "
        "of Adam at .01, weight decay 5e-4, dropout .5", source=Source.RECON,
        why="the networks and settings that most node classifiers are compared with", knob="teacher",
    ),
    Decision(
        id="d16", what="Generated graph", chosen="a contextual block model: 1,000 nodes of 4 classes, mean degree 4, "
        "85 % of edges within a class, 18 words of 600 a node", source=Source.RECON,
        why="like a citation network in degree, homophily and words, and of no licence", knob="generated_nodes",
    ),
    Decision(
        id="d17", what="Nodes that removal is judged on", chosen="60 test nodes drawn at random of those that have an "
        "edge, none of them planted", source=Source.DEFAULT, why="planted nodes would favour whoever finds planted "
        "edges; their drop is given apart",
    ),
    Decision(
        id="d18", what="Word features", chosen="each node's are divided by their number, after planting",
        source=Source.RECON, why="usual on citation networks; without it planted words make a node large, most nodes' "
        "evidence is clipped at nothing, and probes find no slope", alternatives=("0 and 1 as they are",),
        knob="words_sum_to_one",
    ),
)  # fmt: skip
