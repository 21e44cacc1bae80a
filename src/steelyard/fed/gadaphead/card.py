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
        "In the linear tasks features are shared and exact and values are linear in them; nothing there is learned but "
        "heads. They show that the closed form and its plug-in do what they should, not that deep learners gain.",
        "The plain mean of a group is as good with few data, and with the fewest one mean of all is not told apart.",
        "The planted groups of the learners on MiniGrid are pairs on one level, which their updates show; on tuning "
        "streams an order of the actions did not show in them where levels differed too.",
        "MiniGrid here is eight clients, two on each of four levels, and 6,250 steps a client, far fewer than "
        "published runs take; the pendulums stand in for MetaWorld and are no replacement of it. Settings were chosen "
        "among three for every arm on one tuning stream.",
        "Judged is what a client holds after its own training of a round, which is kind to FedAvg: it is tuned to the "
        "client's task each time.",
        "The share of converged tasks and the deviation over tasks are our definitions: the abstract has numbers of "
        "both and defines neither.",
        "The variance of a ridge fit leaves out the bias of its penalty: with fewer rows than features it is too low, "
        "and too little is shared.",
        "A table of one's own has no planted groups: whether those found are real is not judged, the error on the rows "
        "held back is.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "A share of converged tasks of 72.9 % cannot come from one run of 50 tasks, which moves in steps of 2 %: it is "
        "an average, over what the abstract does not say.",
    ),
    config=Config,
)
