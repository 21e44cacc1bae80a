"""What GraphUAT does, what it claims, and where each of its choices comes from."""

from __future__ import annotations

from steelyard.card import Card, Paper
from steelyard.graphs.graphuat.claims import CLAIMS
from steelyard.graphs.graphuat.config import Config
from steelyard.graphs.graphuat.ledger import DECISIONS

__all__ = ["CARD", "Config"]

CARD = Card(
    id="graphuat",
    name="GraphUAT",
    summary="Says why a graph network is unsure of a node: noisy features, conflicting neighbours, or thin labels.",
    does=(
        "A trained node classifier, the teacher, is distilled into a student whose Dirichlet outputs separate "
        "aleatoric from epistemic uncertainty: its evidence falls with the distance from labelled nodes. Three probes "
        "then edit the graph at a node: its harmful features are deleted, its harmful edges are deleted, and the "
        "epistemic part that stays without these is read. Compared with validation nodes, the largest names the "
        "source; the edges and features behind it are listed. The test is on the teacher itself: removing what was "
        "found must lower its entropy."
    ),
    use_when=(
        "A trained GCN, GAT, GraphSAGE or any module (x, edge_index) is unsure, and somebody has to act on it: clean "
        "features, cut wrong edges, or label more nodes.",
        "You want a check on your own model and not only a picture: removal_faithfulness shows what removal does.",
        "Nodes have up to some thousand neighbours: neighbourhoods are sampled, so a node's cost is bounded.",
    ),
    avoid_when=(
        "You need better uncertainty or calibration: this explains uncertainty and changes none.",
        "You want to know which edges made a prediction: use GNNExplainer or integrated gradients on the prediction.",
        "Only the harmful edges matter, not the source: the same probes on the teacher's own entropy (on='teacher') "
        "need no student; weigh both.",
        "Graphs are heterogeneous, or the task is on links or whole graphs: not supported.",
    ),
    cost=(
        "One distillation (300 epochs of a small GCN, about as long as training the teacher); then per node one pass "
        "with derivatives and as many small forward passes as it has tested edges, at most 32, batched."
    ),
    paper=Paper(
        title="GraphUAT: uncertainty attribution for graph neural networks (exact title not known)",
        authors="not known",
        identifier="not known",
        venue="not known",
        basis="The abstract only: teacher and student, the split into aleatoric and epistemic, the three sources and "
        "the removal test are the paper's; every formula, probe and threshold is a reconstruction. Not the method of "
        "the same name on class-imbalanced pseudo-labels.",
    ),
    usage=(
        "import numpy as np\n"
        "from steelyard.graphs import Graph, GraphUATStudent, attribute_uncertainty, removal_faithfulness\n"
        "from steelyard.graphs.graphuat.csbm import generate_csbm\n"
        "from steelyard.graphs.graphuat.tasks import as_graph\n"
        "from steelyard.graphs.graphuat.teachers import build_teacher, train_teacher\n"
        "graph = as_graph(generate_csbm(np.random.default_rng(0)), words=True)  # or your PyG Data\n"
        "teacher = train_teacher(build_teacher('gcn', graph.x.shape[1], graph.num_classes), graph)  # or yours\n"
        "student = GraphUATStudent(teacher).fit(graph)\n"
        "nodes = graph.test_mask.nonzero().flatten()[:5]\n"
        "found = attribute_uncertainty(teacher, graph, nodes, student=student)\n"
        "print(found.table())\n"
        "print(removal_faithfulness(teacher, graph, found, against=('random', 'saliency')).table())\n"
    ),
    claims=CLAIMS,
    limits=(
        "No figure of the paper is known, so nothing of it can be compared; the bars are the reconstruction's.",
        "Planted sources are easy to count: planted nodes have more words or edges than others, and the arm that "
        "counts them shows how far that alone goes. Real noise is not so kind. The acceptance test therefore gives "
        "clean nodes as many more words or edges, of their own class: a quarter of them were named for it, nine of ten "
        "by counting.",
        "With one source alone planted in generated graphs (five each, 200 planted nodes), extra words were named at "
        "79 %, wrong edges at 74 % and cut labels at 100 %.",
        "Planting chooses homophilous test nodes of degree 2 to 5. The class whose labels are cut is nearly always "
        "misclassified, so the coverage score may partly show that a class is missing.",
        "The reference for z-scores was changed after tuning seeds were seen, from confident validation nodes to all "
        "of them; confident ones stay an arm. So were the generated graph's words. No evaluation seed was used.",
        "The coverage score was changed from the plain epistemic part to what stays of it without hostile edges: "
        "chosen on tuning streams, after one quick weighing on evaluation seeds had been seen; the plain part is an "
        "arm.",
        "Cora's seeds 0 and 1 of an earlier prototype had decided on the feature probe; streams here are others.",
        "At k edges only nodes with k edges or more count, so the points of a curve are not of the same nodes; "
        "differences between methods at one k are.",
        "Removal takes the network to graphs that it was not trained on, as all such tests do, and removing an edge "
        "also changes the degrees that a convolution divides by.",
        "GNNExplainer (50 epochs; 200 in the long profile) and integrated gradients run on ten nodes a seed (three in "
        "the full profile): too dear for more. Removal on Actor is judged on 12 nodes a seed there, not 60.",
        "On heterophilous graphs neighbours disagree by nature: a conflict is one for the student, not with labels.",
        "In the full weighing the same probes on the model's own entropy, without a student, found better edges to "
        "remove on all eight graphs, and counting named sources as often on two of three; the student names sources "
        "far better than they do on Cora and CiteSeer. With five edges removed Cora's and CiteSeer's entropy rises.",
        "Where neighbours are drawn (more than the fanout), draws go by the node's number, so that renumbering a graph "
        "changes them; without draws attributions do not depend on the numbering.",
        "GAT and GraphSAGE run 1 seed in the full profile, which is shown without a verdict; the long one runs 10.",
    ),
    decisions=DECISIONS,
    contradictions=(
        "The reconstruction's recipe gave the three-way accuracy with planted clean nodes as reference, which a user "
        "does not have. With confident validation nodes, which it recommends instead, the accuracy is lower.",
        "It does not say that word features are divided by their number, but its reference figures (entropies, "
        "epistemic parts, falls) come out only then.",
    ),
    config=Config,
)
