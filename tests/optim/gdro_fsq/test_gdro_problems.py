import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import log_softmax

from steelyard import data
from steelyard.errors import DataMissingError, InputError
from steelyard.optim.gdro_fsq import optimum, problems
from steelyard.optim.gdro_fsq.problems import GroupProblem


def small(classes, seed=0, n=60, d=3, m=3, radius=1.5):
    rng = np.random.default_rng(seed)
    x, groups = rng.standard_normal((n, d)), np.arange(n) % m
    labels = ((x[:, 0] + 0.8 * (groups - 1) * x[:, 1] + 0.3 * rng.standard_normal(n)) * 1.4).round().astype(int)
    labels = np.clip(labels + classes // 2, 0, classes - 1)
    return GroupProblem.from_arrays(problems._arrays(x, labels, groups, m, classes, 4.0, radius))


def reference_losses(problem, w):
    scores = problem.features @ w
    if problem.classes == 2:
        scores = np.stack([np.zeros(len(scores)), scores], axis=1)
    return -log_softmax(scores, axis=1)[np.arange(len(scores)), problem.labels]


@pytest.mark.parametrize("classes", [2, 4])
def test_losses_and_gradients(classes):
    problem = small(classes)
    rng = np.random.default_rng(1)
    w = rng.standard_normal(problem.w0.shape)
    rows = np.array([0, 7, 31])
    losses, slope = problem.loss_grad(w, rows)
    assert np.allclose(losses, reference_losses(problem, w)[rows], rtol=1e-12)
    weights = np.array([0.5, -1.0, 2.0])
    direction, h = rng.standard_normal(w.shape), 1e-6
    up, down = (weights @ problem.loss_grad(w + s * h * direction, rows)[0] for s in (1, -1))
    assert float((slope(weights) * direction).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-6)
    risks = problem.risks(w)
    groups = np.repeat(np.arange(3), problem.sizes)
    expected = [reference_losses(problem, w)[groups == i].mean() / 4 for i in range(3)]
    assert risks == pytest.approx(expected)
    q = np.array([0.2, 0.5, 0.3])
    again, gradient = problem.risks_and_slope(w)
    assert again == pytest.approx(risks)
    up, down = (q @ problem.risks(w + s * h * direction) for s in (1, -1))
    assert float((gradient(q) * direction).sum()) == pytest.approx((up - down) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_gradients_keep_to_the_lipschitz_bound(classes):
    problem = small(classes)
    w = 5 * np.random.default_rng(2).standard_normal(problem.w0.shape)
    norms = [
        np.linalg.norm(problem.loss_grad(w, np.array([row]))[1](np.ones(1))) / problem.loss_range for row in range(60)
    ]
    assert max(norms) <= problem.lipschitz("max") * (1 + 1e-12)
    assert problem.lipschitz("mean") < problem.lipschitz("max")


def test_extreme_scores_stay_finite():
    problem = small(2)
    losses, slope = problem.loss_grad(np.array([1e4, 0, 0]), np.arange(60))
    assert np.isfinite(losses).all()
    assert np.isfinite(slope(np.ones(60))).all()


def test_draws_come_from_the_asked_groups():
    problem, rng = small(2), np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 500)
    rows = problem.draw(groups, rng)
    owner = np.repeat(np.arange(3), problem.sizes)
    assert (owner[rows] == groups).all()
    assert len(np.unique(rows)) == 60  # every row is reached
    pooled = problem.draw_pooled(2000, rng)
    assert len(np.unique(pooled)) == 60


def test_accuracies():
    problem = small(4)
    w = np.random.default_rng(0).standard_normal(problem.w0.shape)
    right = (problem.features @ w).argmax(1) == problem.labels
    owner = np.repeat(np.arange(3), problem.sizes)
    assert problem.accuracies(w) == pytest.approx([right[owner == i].mean() for i in range(3)])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("radius", [0.7, 20.0])
def test_optimum_agrees_with_slsqp(classes, radius):
    """The epigraph form min t subject to R_i(w) <= t and ||w|| <= D, solved by an independent method."""
    problem = small(classes, radius=radius)
    shape, size = problem.w0.shape, problem.w0.size
    constraints = [
        {"type": "ineq", "fun": lambda v: v[-1] - problem.risks(v[:-1].reshape(shape))},
        {"type": "ineq", "fun": lambda v: radius**2 - v[:-1] @ v[:-1]},
    ]
    start = np.concatenate([np.full(size, 0.01), [1.0]])
    peer = minimize(lambda v: v[-1], start, constraints=constraints, method="SLSQP",
                    options={"maxiter": 500, "ftol": 1e-12})  # fmt: skip
    found = optimum.solve(problem, tolerance=1e-7)
    assert found.upper - found.lower <= 1e-7
    assert found.lower - 1e-6 <= peer.fun
    assert found.upper == pytest.approx(peer.fun, abs=2e-6)
    assert np.linalg.norm(found.w) <= radius * (1 + 1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(0.2, 5.0), st.integers(2, 4))
def test_certificate_holds_for_every_point_of_the_ball(seed, radius, classes):
    problem = small(classes, seed=seed, radius=radius)
    found = optimum.solve(problem, rounds=5)
    assert found.lower <= found.upper
    rng = np.random.default_rng(seed)
    for _ in range(20):
        w = rng.standard_normal(problem.w0.shape)
        w *= radius * rng.random() / np.linalg.norm(w)
        assert problem.risks(w).max() >= found.lower


def test_prepared_arrays():
    arrays = problems.digits_by_class()
    made = optimum.prepare(arrays)
    assert 0 <= made["optimum_high"] - made["optimum_low"] <= 1e-5
    assert float(made["optimum_high"]) == pytest.approx(0.38468, abs=2e-5)
    assert made["optimum_w"].shape == (65, 10)


def test_digits():
    arrays = problems.digits_by_class()
    assert arrays["features"].shape == (1797, 65)
    assert np.linalg.norm(arrays["features"], axis=1).mean() == pytest.approx(2.0)
    assert (arrays["labels"] == arrays["groups"]).all()
    assert GroupProblem.from_arrays(arrays).risks(np.zeros((65, 10))) == pytest.approx([np.log(10) / 4] * 10)


def test_synthetic_instances():
    easy, hard = problems.synthetic(0.5, 0.15, 2.0), problems.synthetic(1.0, 0.2, 4.0)
    assert easy["features"].shape == (40_000, 10)
    assert np.bincount(easy["groups"]).tolist() == [2000] * 20
    assert np.array_equal(easy["features"], problems.synthetic(0.5, 0.15, 2.0)["features"])
    low = [float(optimum.prepare(one)["optimum_low"]) for one in (easy, hard)]
    assert low[0] < np.log(2) / 2 - 0.05
    assert np.log(2) / 4 - 0.03 < low[1] < np.log(2) / 4  # little headroom


def load(name):
    try:
        return getattr(data, name)()
    except DataMissingError as error:
        pytest.skip(str(error))


def test_adult_groups_and_features():
    load("adult")
    arrays = problems.adult_by_race_sex_age()
    sizes = np.bincount(arrays["groups"])
    assert (len(sizes), sizes.min(), sizes.max(), sizes.sum()) == (18, 127, 7699, 32_561)
    assert arrays["features"].shape == (32_561, 93)
    assert np.isfinite(arrays["features"]).all()
    assert 0.2 < arrays["labels"].mean() < 0.3


def test_mnist():
    load("mnist_t10k")
    arrays = problems.mnist_by_class()
    assert arrays["features"].shape == (10_000, 785)
    assert np.bincount(arrays["labels"]).tolist() == np.bincount(arrays["groups"]).tolist()


TABLE = {
    "age": np.array([30.0, np.nan, 41.0, 22.0, 35.0, 60.0]),
    "job": np.array(["a", "b", "", "a", "b", "a"]),
    "region": np.array(["n", "s", "n", "", "s", "n"]),
    "y": np.array(["no", "yes", "maybe", "no", "yes", "no"]),
}


def made(columns, group="region", label="y"):
    return problems.table_by_group(data.read_table(columns), group, label, 4.0, 4.0)


def test_table_of_a_user():
    arrays = made(TABLE)
    assert arrays["m"] == 3  # the missing region is a group of its own
    assert arrays["classes"] == 3
    assert np.isfinite(arrays["features"]).all()
    assert np.linalg.norm(arrays["features"], axis=1).mean() == pytest.approx(2.0)
    assert made({**TABLE, "y": np.array([0, 1, 1, 0, 1, 0])})["classes"] == 2
    assert made({**TABLE, "region": np.array([1.0, 2.0, np.nan, 1.0, 2.0, np.nan])})["m"] == 3


@pytest.mark.parametrize(
    ("columns", "group", "label", "words"),
    [
        (TABLE, "regoin", "y", "regoin.*Did you mean 'region'"),
        (TABLE, "region", "why", "why"),
        (TABLE, "y", "y", "same column 'y'"),
        ({**TABLE, "region": np.array(["n"] * 6)}, "region", "y", "'region' has one value only"),
        ({**TABLE, "y": np.array([1.0] * 6)}, "region", "y", "'y' has one value only"),
        ({**TABLE, "y": np.array(["a", "", "b", "a", "", "b"])}, "region", "y", "'y' has no value in 2 rows.*row 2"),
        ({**TABLE, "y": np.array([0, 1, np.nan, 0, 1, 1])}, "region", "y", "no value in 1 rows.*row 3"),
        ({"region": TABLE["region"], "y": TABLE["y"]}, "region", "y", "no column"),
        ({name: column[:0] for name, column in TABLE.items()}, "region", "y", "no rows"),
    ],
)
def test_tables_that_cannot_be_used(columns, group, label, words):
    with pytest.raises(InputError, match=words):
        made(columns, group, label)


def test_too_many_groups_or_classes():
    many = np.arange(1200.0)
    table = {"x": many % 7, "g": many, "y": many % 2}
    with pytest.raises(InputError, match="1200 distinct values"):
        made(table, "g", "y")
    with pytest.raises(InputError, match="label column 'x2' has 1200"):
        made({"x": many % 7, "g": many % 3, "x2": many}, "g", "x2")


def test_group_without_rows():
    arrays = problems.digits_by_class()
    with pytest.raises(InputError, match="group 10 has no rows"):
        GroupProblem.from_arrays({**arrays, "m": np.array(11)})
