import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.nn import GCNConv

from steelyard.errors import InputError
from steelyard.graphs.graphuat import networks
from steelyard.graphs.graphuat.networks import SparseGCN


def random_graph(seed=0, nodes=12, edges=40, features=6, dtype=torch.float64):
    """Features, directed edges without self loops, positive weights."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randperm(nodes * nodes, generator=generator)[: edges + nodes]
    edge_index = torch.stack([codes // nodes, codes % nodes])
    edge_index = edge_index[:, edge_index[0] != edge_index[1]][:, :edges]
    x = torch.randn(nodes, features, generator=generator, dtype=dtype)
    return x, edge_index, 0.1 + torch.rand(edge_index.shape[1], generator=generator, dtype=dtype)


def network(features=6, classes=3, dtype=torch.float64, **sizes):
    made = SparseGCN(features, classes, hidden=8, generator=torch.Generator().manual_seed(1), **sizes).to(dtype)
    for bias in made.biases:
        bias.data.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(2))
    return made


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("features", [6, 20])
def test_the_network_is_the_convolution_of_torch_geometric(layers, weighted, features):
    x, edge_index, weight = random_graph(features=features, dtype=torch.float32)
    weight = weight if weighted else None
    ours = network(features, layers=layers, dtype=torch.float32)
    h = x
    for number, (matrix, bias) in enumerate(zip(ours.weights, ours.biases, strict=True)):
        peer = GCNConv(*matrix.shape)
        peer.load_state_dict({"lin.weight": matrix.T, "bias": bias})
        h = peer(h if number == 0 else torch.relu(h), edge_index, weight)
    assert torch.allclose(ours(x, edge_index, weight), h, rtol=0, atol=1e-6)


def test_the_propagated_hidden_representation_is_what_the_last_layer_reads():
    x, edge_index, weight = random_graph()
    ours = network()
    h, logits = ours.represent(x, edge_index, weight)
    assert h.shape == (12, 8)
    assert torch.equal(logits, h @ ours.weights[-1] + ours.biases[-1])
    dense = torch.zeros(12, 12, dtype=x.dtype).index_put((edge_index[1], edge_index[0]), weight) + torch.eye(12)
    scale = dense.sum(1).rsqrt()
    dense = scale[:, None] * dense * scale
    assert torch.allclose(h, dense @ torch.relu(dense @ x @ ours.weights[0] + ours.biases[0]))


@given(st.integers(0, 1000), st.sampled_from([6, 20]))
def test_an_edge_of_weight_zero_is_an_edge_that_is_not_there(seed, features):
    x, edge_index, weight = random_graph(seed, features=features)
    gone = torch.rand(len(weight), generator=torch.Generator().manual_seed(seed)) < 0.4
    without = network(features)(x, edge_index[:, ~gone], weight[~gone])
    assert torch.equal(network(features)(x, edge_index, weight.masked_fill(gone, 0.0)), without)


@given(st.integers(0, 1000))
def test_renaming_the_nodes_renames_the_results(seed):
    x, edge_index, weight = random_graph(seed)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    new_name = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    for one, other in zip(
        network().represent(x[order], new_name[edge_index], weight),
        network().represent(x, edge_index, weight),
        strict=True,
    ):
        assert torch.allclose(one, other[order], rtol=1e-12, atol=1e-12)


@given(st.integers(0, 1000))
def test_the_order_of_edges_does_not_matter(seed):
    x, edge_index, weight = random_graph(seed)
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
    shuffled = network()(x, edge_index[:, order], weight[order])
    assert torch.allclose(shuffled, network()(x, edge_index, weight), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("features", [6, 10])
def test_many_weightings_at_once_are_each_on_their_own(features):
    x, edge_index, weight = random_graph(features=features)
    drops = torch.ones(5, len(weight), dtype=x.dtype)
    drops[torch.arange(5), torch.arange(5)] = 0
    many = (weight * drops).requires_grad_()
    ours = network(features, layers=3)
    h, logits = ours.represent(x, edge_index, many)
    assert h.shape == (5, 12, 8)
    each = [ours(x, edge_index, row) for row in many]
    assert torch.allclose(logits, torch.stack(each), rtol=1e-13, atol=1e-13)
    logits.square().sum().backward()
    together = many.grad.clone()
    many.grad = None
    torch.stack([ours(x, edge_index, row) for row in many]).square().sum().backward()
    assert torch.allclose(together, many.grad)


@pytest.mark.parametrize(("block", "features"), [(7, 6), (1 << 17, 10)])
def test_gradients(monkeypatch, block, features):
    monkeypatch.setattr(networks, "_EDGES_AT_ONCE", block)
    x, edge_index, weight = random_graph(nodes=6, edges=15, features=features)
    ours = network(features)
    assert torch.autograd.gradcheck(
        lambda a, w: ours(a, edge_index, w), (x.requires_grad_(), weight.requires_grad_()), atol=1e-6
    )
    matrix, bias = (p.detach().requires_grad_() for p in (ours.weights[0], ours.biases[0]))

    def by_parameters(w, b):
        return torch.func.functional_call(ours, {"weights.0": w, "biases.0": b}, (x.detach(), edge_index))

    assert torch.autograd.gradcheck(by_parameters, (matrix, bias))


def test_an_edge_of_weight_zero_has_a_gradient_of_its_own():
    x, edge_index, weight = random_graph()
    weight[3] = 0
    ours = network()
    weight.requires_grad_()
    ours(x, edge_index, weight).sum().backward()
    step = torch.zeros_like(weight)
    step[3] = 1e-6
    with torch.no_grad():
        change = ours(x, edge_index, weight + step).sum() - ours(x, edge_index, weight).sum()
    assert float(weight.grad[3]) == pytest.approx(float(change) / 1e-6, rel=1e-4)


def test_isolated_nodes_and_a_graph_without_edges():
    x, _, _ = random_graph()
    ours = network()
    none = torch.zeros(2, 0, dtype=torch.long)
    alone = torch.relu(x @ ours.weights[0] + ours.biases[0]) @ ours.weights[1] + ours.biases[1]
    assert torch.allclose(ours(x, none), alone)
    assert torch.allclose(ours(x, none, torch.zeros(0)), alone)


def test_sparse_features_give_the_same():
    x, edge_index, _ = random_graph(features=50)
    x = x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.05)
    sparse = networks.sparse_features(x)
    assert sparse.layout == torch.sparse_coo
    assert networks.sparse_features(sparse) is sparse
    assert networks.sparse_features(x + 1).layout == torch.strided
    one, other = network(50), network(50)
    one(x, edge_index).square().sum().backward()
    other(sparse, edge_index).square().sum().backward()
    assert torch.allclose(one(x, edge_index), other(sparse, edge_index))
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad)


def test_dropout_draws_from_its_generator_and_keeps_the_mean():
    x, edge_index, weight = random_graph(nodes=200, edges=300)
    ours = network(dropout=0.5)
    adjacency = networks.normalised(edge_index, weight, 200, x.dtype)

    def run(seed):
        return ours.represent_on(x, adjacency, torch.Generator().manual_seed(seed))[0]

    state = torch.get_rng_state()
    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))
    plain = ours.represent_on(x, adjacency)[0]
    mean = torch.stack([run(seed) for seed in range(200)]).mean(0)
    assert float((mean - plain).abs().max().detach()) < 0.2 * float(plain.abs().max().detach())
    still = network(dropout=0.0)
    assert torch.equal(still.represent_on(x, adjacency, torch.Generator())[0], still.represent_on(x, adjacency)[0])
    assert torch.equal(state, torch.get_rng_state())


def test_initial_weights_are_glorot_and_come_from_the_generator_alone():
    state = torch.get_rng_state()
    one, other = (SparseGCN(300, 5, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one.weights[0], other.weights[0])
    assert torch.equal(SparseGCN(300, 5).weights[0], SparseGCN(300, 5).weights[0])
    bound = (6 / 364) ** 0.5
    assert float(one.weights[0].detach().abs().max()) <= bound
    assert float(one.weights[0].detach().std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"features": 0}, "features"),
        ({"classes": 2.0}, "classes"),
        ({"hidden": 0}, "hidden"),
        ({"layers": 1}, "layers"),
        ({"layers": True}, "layers"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_sizes_that_make_no_network(sizes, said):
    with pytest.raises(InputError, match=said):
        SparseGCN(**({"features": 3, "classes": 2} | sizes))
