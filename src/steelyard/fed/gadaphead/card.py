"""What adaptive head sharing does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.fed.gadaphead.claims import CLAIMS
from steelyard.fed.gadaphead.config import Config
from steelyard.fed.gadaphead.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="gadaphead",
    name="GAdapHead",
    summary="Federated learners share a trunk and, within groups found from their updates, their linear heads, each as "
    "strongly as a closed form says; reconstructed from an abstract.",
    does=(
        "Clients with tasks of their own share models and never data. All share a trunk; each has a linear head. The "
        "server groups clients by the direction of their heads' updates and mixes each head with the mean of the "
        "others in its group. How strongly follows from how unsure the client is of its head and how far the others' "
        "mean lies from it: much where data are scarce, little where a client knows its own task. Each client sends "
        "its trunk, its head, its head's estimated variance and the second moment of its features."
    ),
    use_when=(
        "Clients have few data each and their tasks come in kinds that you do not know beforehand.",
        "Heads are linear and the distance between two of them means something: one trunk, or fixed features.",
        "You look for one rule between learning alone and averaging: near the first with many data, the second with "
        "few.",
    ),
    avoid_when=(
        "All clients have one task: FedAvg is simpler and as good.",
        "Each client has plenty of data: its own head is best, and the strength is near 0.",
        "You cannot estimate a head's variance: from the spread of an optimiser's iterates it is far too low, and "
        "nothing is shared.",
        "Clients have different numbers of actions: their heads cannot be averaged.",
    ),
    cost=(
        "What FedPer uploads, and of each client and round its head, its variance and, for distances in value space, "
        "the second moment of its features. The server needs the products of all pairs of heads "
        "and one weighted sum: time O(N^2 d), memory O(N d)."
    ),
    paper=Paper(
        title="GAdapHeadFRL: geometry-aware grouping and adaptive decision-layer task-head mixing for personalised "
        "multi-task federated reinforcement learning",
        authors="not known here",
        identifier="none known",
        venue="NeurIPS 2026",
        basis="The abstract alone: grouping by update geometry, group prototypes, a closed-form strength and proxies "
        "are the paper's; every formula, proxy and threshold is a reconstruction.",
    ),
    usage=(
        "import numpy as np\n"
        "from steelyard.fed import group_clients, mix_heads\n"
        "draws = np.random.default_rng(0)\n"
        "true = np.repeat(draws.normal(size=(2, 8)), 4, axis=0)  # two kinds of task, four clients each\n"
        "heads = true + 0.3 * draws.normal(size=true.shape)  # what each client estimated\n"
        "groups = group_clients(heads, threshold=0.6)\n"
        "mixed = mix_heads(heads, groups, variances=np.full(8, 8 * 0.3**2))\n"
        "print(mixed.lam, ((heads - true) ** 2).sum(), ((mixed.heads - true) ** 2).sum())\n"
    ),
    claims=CLAIMS,
    limits=(
        "Reconstructed from an abstract: what is weighed here is this reconstruction, not the authors' system.",
        "In the linear tasks features are shared and exact and values are linear in them; nothing there is learned "
        "but heads. They show that the closed form and its plug-in do what they should, not that deep learners gain.",
        "Groups come from noisy heads: with the fewest transitions clients that belong together are left alone, and "
        "on tuning streams the same rule with all clients in one group had about half of the error. Where groups are "
        "found, the plain mean of a group is nearly as good with few data.",
        "The planted groups of the learners on MiniGrid are pairs on one level, which their updates show. Groups "
        "planted across levels, by an order of the actions, are not found from updates: the adjusted Rand index is "
        "about 0 (-.22 to .31 over 25 rounds of a tuning stream).",
        "In the full weighing GAdapHead gained on MiniGrid over heads that are never shared (FedPer), while its groups "
        "were not found there; it was not shown to gain over training alone, over whole groups sharing one head, or on "
        "the pendulums. The linear tasks show why: sharing pays where groups are found and heads are still noisy.",
        "MiniGrid here is eight clients, two on each of four levels, and 6,250 steps a client, far fewer than "
        "published runs take; the pendulums stand in for MetaWorld and are no replacement of it.",
        "The learners are Q-learners everywhere, on the pendulums over five levels of force, where the paper's field "
        "would take an actor-critic; their networks are small, plain numpy and not torch, and for clients of one's "
        "own any framework will do.",
        "A learner that never met a reward fits it exactly, and its variance would be 0, as though it were sure. On "
        "MiniGrid one residual of the size of a reward is therefore added to the refit: without it clients that know "
        "nothing would not listen to those that do. It is a guess about rewards not seen yet.",
        "The variance of a learner's head is that of a fit on its whole replay, on features taken as fixed, and on a "
        "tuning stream it was 1 to 12 times the spread of heads after one more round (that of a fit on the minibatch "
        "alone: 10 to 100 times). Neither knows how much of a head is still bootstrap error.",
        "Settings were tuned little: for every arm five settings on two tuning streams, three learning rates and, at "
        "the best, two more rates or two values of its own knob. What long training alone reaches comes from one "
        "tuning stream, of 100 rounds of 250 steps.",
        "FedProx, FedRep and long training alone run with few seeds in the full profile: enough for an order of size, "
        "not for a verdict.",
        "Judged is what a client holds after its own training of a round, which is kind to FedAvg: it is tuned to the "
        "client's task each time. On a tuning stream its average as the server sends it reached .64 instead of .66 on "
        "MiniGrid, GAdapHead's heads .63 instead of .64.",
        "The share of converged tasks and the deviation over tasks are our definitions: the abstract has numbers of "
        "both and defines neither.",
        "The variance of a ridge fit leaves out the bias of its penalty: with fewer rows than features it is too low, "
        "and too little is shared. An output that no row trained adds nothing to it either.",
        "After rounds of mixing heads are no longer independent: the closed form takes their covariance for 0, and it "
        "was .04 to .06 of a head's variance.",
        "A table of one's own has no planted groups: whether those found are real is not judged, the error on the "
        "rows held back is.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "A share of converged tasks of 72.9 % cannot come from one run of 50 tasks, which moves in steps of 2 %: it "
        "is an average, over what the abstract does not say.",
        "A second-hand recipe takes V over the squared distance of head and prototype for the strength. Its mean "
        "denominator is right, yet it passes V / (V + V_g), beyond which no mismatch justifies it: two clients as "
        "unsure as each other may swap heads. Here the mismatch is debiased and at least 0; the recipe's rule is an "
        "arm.",
        "That recipe's worked example with V .5, three clients and a squared mismatch of 2 gives a mean plug-in "
        "strength of .188; recomputed it is .1845.",
        "Its second-hand figures call adaptive sharing best at every number of transitions. Recomputed in pairs it is "
        "not: with few, the plain mean of the group ties, and with the fewest one mean of all is not told apart from "
        "it.",
        "It takes the covariance of head and prototype for 0 when the client is left out. That holds for heads fitted "
        "once from data of their own; after repeated mixing it is .04 to .06 of the variance.",
        "The split of the Bellman residual is a bound only in a norm in which the operator contracts: under weights "
        "of states that are not stationary the batch's residual can pass it. Here the head's part of the residual is "
        "reported beside its part of the values, and with that the triangle inequality always holds.",
        "A cut at a cosine distance of 1 joins directions that are nearly orthogonal, which in high dimension are "
        "those of unrelated tasks; for heads themselves .6 is taken.",
        "The bipartition's bound on the mean update is a length in its source and depends on the scale of rewards; "
        "here it is a share of the longest update.",
    ),
    config=Config,
)
