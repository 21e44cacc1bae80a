import math
import warnings

import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import shrunk_covariance
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.preprocessing import StandardScaler

from steelyard.errors import InputError
from steelyard.graphs.graphuat import core

# alpha, total, aleatoric, epistemic, vacuity, dissonance, differential entropy: from the published formulas
TABLE = [
    ((3, 2, 1), 1.011404, 0.866667, 0.144738, 0.5, 0.333333, -1.244345),
    ((20, 5, 1), 0.644180, 0.609364, 0.034816, 0.115385, 0.307692, -3.459016),
    ((50, 50, 2), 0.776065, 0.766685, 0.009380, 0.029412, 0.942729, -4.654559),
    ((4, 4), 0.693147, 0.634524, 0.058623, 0.25, 0.75, -0.384500),
]
FIELDS = ("total", "aleatoric", "epistemic", "vacuity", "dissonance")
CONCENTRATIONS = st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=7)


def exact(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: str(row[0]))
def test_the_published_values(row):
    alpha = exact(*row[0])
    found = core.dirichlet_uncertainty(alpha)
    assert [float(getattr(found, name)) for name in FIELDS] == pytest.approx(row[1:6], abs=6e-7)
    assert float(core.differential_entropy(alpha)) == pytest.approx(row[6], abs=6e-7)
    assert float(core.differential_entropy(alpha)) == pytest.approx(scipy.stats.dirichlet(row[0]).entropy(), abs=1e-12)


def mp_split(alpha):
    """Total, aleatoric and epistemic uncertainty in 60 digits, by the definition."""
    with mpmath.workdps(60):
        a = [mpmath.mpf(value) for value in alpha]
        whole = mpmath.fsum(a)
        total = -mpmath.fsum(x / whole * mpmath.log(x / whole) for x in a)
        aleatoric = mpmath.fsum(x / whole * (mpmath.digamma(whole + 1) - mpmath.digamma(x + 1)) for x in a)
        return float(total), float(aleatoric), float(total - aleatoric)


@given(CONCENTRATIONS)
def test_the_split_agrees_with_sixty_digits_at_any_concentration(alpha):
    found = core.dirichlet_uncertainty(exact(*alpha))
    total, aleatoric, epistemic = mp_split(alpha)
    assert float(found.total) == pytest.approx(total, rel=1e-9, abs=1e-15)
    assert float(found.aleatoric) == pytest.approx(aleatoric, rel=1e-8, abs=1e-13)
    assert float(found.epistemic) == pytest.approx(epistemic, rel=1e-8, abs=1e-16)


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9, 1e12, 1e15])
def test_epistemic_uncertainty_does_not_cancel_at_large_concentrations(size):
    alpha = [size, 2 * size, 0.5 * size]
    assert float(core.dirichlet_uncertainty(exact(*alpha)).epistemic) == pytest.approx(mp_split(alpha)[2], rel=1e-9)
    single = core.dirichlet_uncertainty(torch.tensor(alpha, dtype=torch.float32)).epistemic
    assert float(single) == pytest.approx(mp_split(alpha)[2], rel=1e-6)
    assert float(single) > 0


def test_the_series_and_the_function_meet():
    below, above = core._digamma_gap(exact(32.0 - 1e-9)), core._digamma_gap(exact(32.0 + 1e-9))
    assert float(below) == pytest.approx(float(above), rel=1e-9)
    with mpmath.workdps(40):
        for x in (32.0, 33.5, 100.0):
            wanted = float(mpmath.digamma(mpmath.mpf(x) + 1) - mpmath.log(mpmath.mpf(x)))
            assert float(core._digamma_gap(exact(x))) == pytest.approx(wanted, rel=3e-14)


@pytest.mark.parametrize("alpha", [(3, 2, 1), (20, 5, 1), (1.5, 1.1)])
def test_the_split_is_what_draws_from_the_dirichlet_show(alpha):
    draws = np.random.default_rng(0).dirichlet(alpha, size=200_000)
    entropies = scipy.stats.entropy(draws, axis=1)
    found = core.dirichlet_uncertainty(exact(*alpha))
    error = entropies.std() / math.sqrt(len(draws))
    assert float(found.aleatoric) == pytest.approx(entropies.mean(), abs=5 * error)
    assert float(found.total) == pytest.approx(scipy.stats.entropy(draws.mean(0)), abs=5e-3)


@given(CONCENTRATIONS, st.randoms(use_true_random=False))
def test_the_order_of_classes_does_not_matter(alpha, random):
    shuffled = random.sample(alpha, len(alpha))
    one, other = core.dirichlet_uncertainty(exact(*alpha)), core.dirichlet_uncertainty(exact(*shuffled))
    for name in FIELDS:
        assert float(getattr(one, name)) == pytest.approx(float(getattr(other, name)), rel=1e-7, abs=1e-12)


@given(CONCENTRATIONS)
def test_bounds(alpha):
    found = core.dirichlet_uncertainty(exact(*alpha))
    classes = len(alpha)
    assert 0 <= float(found.epistemic) <= float(found.total) + 1e-15 <= math.log(classes) + 1e-12
    assert float(found.vacuity) == pytest.approx(classes / sum(alpha))
    assert -1e-12 <= float(found.dissonance) <= 1 + 1e-12


@given(st.lists(st.floats(1.0, 50.0), min_size=2, max_size=6), st.floats(1.5, 20.0))
def test_more_evidence_of_the_same_kind_lowers_the_epistemic_part_only(alpha, factor):
    less = core.dirichlet_uncertainty(exact(*alpha))
    more = core.dirichlet_uncertainty(exact(*(factor * value for value in alpha)))
    assert float(more.total) == pytest.approx(float(less.total), rel=1e-9, abs=1e-12)
    assert float(more.epistemic) < float(less.epistemic)


def slow_dissonance(alpha):
    whole = sum(alpha)
    belief = [(value - 1) / whole for value in alpha]
    answer = 0.0
    for k, own in enumerate(belief):
        others = [b for j, b in enumerate(belief) if j != k]
        if sum(others) == 0:
            continue
        balance = [1 - abs(b - own) / (b + own) if b > 0 and own > 0 else 0 for b in others]
        answer += own * sum(b * w for b, w in zip(others, balance, strict=True)) / sum(others)
    return answer


@given(st.lists(st.sampled_from([1.0, 1.5, 2.0, 7.0, 40.0]), min_size=1, max_size=6))
def test_dissonance_is_the_double_loop_of_its_definition(alpha):
    assert float(core.dirichlet_uncertainty(exact(*alpha)).dissonance) == pytest.approx(slow_dissonance(alpha))


def test_dissonance_in_blocks_is_dissonance_at_once(monkeypatch):
    alpha = 1 + 5 * torch.rand(7, 3, 4, generator=torch.Generator().manual_seed(0))
    at_once = core.dirichlet_uncertainty(alpha).dissonance
    monkeypatch.setattr(core, "_PAIRS", 32)
    assert at_once.shape == (7, 3)
    assert torch.equal(core.dirichlet_uncertainty(alpha).dissonance, at_once)


def test_one_class_has_no_uncertainty_and_no_conflict():
    found = core.dirichlet_uncertainty(exact(4.0))
    assert [float(getattr(found, name)) for name in FIELDS] == [0.0, 0.0, 0.0, 0.25, 0.0]


def test_concentrations_below_one_are_no_belief():
    found = core.dirichlet_uncertainty(exact(0.1, 0.2, 3.0))
    assert float(found.dissonance) == 0
    assert float(found.epistemic) == pytest.approx(mp_split([0.1, 0.2, 3.0])[2], rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_comes_back(dtype):
    found = core.dirichlet_uncertainty(torch.tensor([[3.0, 2, 1]], dtype=dtype))
    assert {part.dtype for part in found} == {dtype}
    assert core.differential_entropy(found.alpha).dtype == dtype
    assert core.uce_loss(found.alpha, torch.tensor([0])).dtype == dtype
    assert core.dirichlet_uncertainty([3, 2, 1]).total.dtype == torch.float64


def test_an_empty_batch_stays_empty():
    assert core.dirichlet_uncertainty(torch.ones(0, 3)).dissonance.shape == (0,)


def test_gradients():
    alpha = exact(3.0, 2.0, 1.3, 60.0).repeat(2, 1).requires_grad_()
    for part in range(5):
        assert torch.autograd.gradcheck(lambda a, part=part: core.dirichlet_uncertainty(a)[part], (alpha,))
    assert torch.autograd.gradcheck(core.differential_entropy, (alpha,))
    target = exact(0.1, 0.2, 0.3, 0.4).repeat(2, 1)
    assert torch.autograd.gradcheck(lambda a: core.uce_loss(a, target, 0.01), (alpha,))
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(core.logit_entropy, (logits,))


@pytest.mark.parametrize(
    ("alpha", "said"),
    [
        ([1.0, 0.0], "index (1,)"),
        ([[1.0, 1.0], [math.nan, 1.0]], "nan at index (1, 0)"),
        ([1.0, math.inf], "inf"),
        (1.0, "one column per class"),
        ([], "one column per class"),
    ],
)
def test_concentrations_that_are_none(alpha, said):
    with pytest.raises(InputError) as caught:
        core.dirichlet_uncertainty(torch.tensor(alpha))
    assert said in str(caught.value)


def test_entropy():
    probabilities = np.array([[1.0, 0, 0], [0.2, 0.3, 0.5]])
    wanted = scipy.stats.entropy(probabilities, axis=1)
    assert core.entropy(torch.tensor(probabilities)).numpy() == pytest.approx(wanted)
    saturated = torch.tensor([1000.0, 0.0, -1000.0], requires_grad=True)
    core.logit_entropy(saturated).backward()
    assert torch.isfinite(saturated.grad).all()
    logits = torch.tensor([[0.3, -1.0, 2.0]])
    assert torch.allclose(core.logit_entropy(logits), core.entropy(torch.softmax(logits, -1)))


def test_uce_loss():
    alpha, soft = exact(6.0, 3.0, 1.0), exact(0.7, 0.2, 0.1)
    assert float(core.uce_loss(alpha, soft)) == pytest.approx(0.930635, abs=6e-7)
    entropy = scipy.stats.dirichlet([6, 3, 1]).entropy()
    assert float(core.uce_loss(alpha, soft, 0.5)) == pytest.approx(float(core.uce_loss(alpha, soft)) - 0.5 * entropy)
    both, classes = torch.stack([alpha, alpha]), torch.tensor([0, 2])
    assert float(core.uce_loss(both, classes)) == pytest.approx(float(core.uce_loss(both, torch.eye(3)[classes])))
    draws = np.random.default_rng(0).dirichlet([6, 3, 1], size=200_000)
    assert float(core.uce_loss(alpha, soft)) == pytest.approx((-np.log(draws) @ soft.numpy()).mean(), abs=0.01)


@pytest.mark.parametrize(
    ("target", "weight", "said"),
    [
        (torch.ones(2) / 2, 0.0, "target has shape (2,)"),
        (torch.tensor(3), 0.0, "one class from 0 to 2"),
        (torch.tensor([0]), 0.0, "one class"),
        (torch.tensor(0), -1.0, "lambda_h"),
        (torch.tensor(0), math.nan, "lambda_h"),
    ],
)
def test_uce_loss_refuses(target, weight, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        core.uce_loss(torch.ones(3), target, weight)


def labelled(seed=0, width=5, counts=(4, 7, 3)):
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    h = torch.randn(len(y), width, generator=generator, dtype=torch.float64) + 2 * y[:, None]
    others = 1.5 * torch.randn(11, width, generator=generator, dtype=torch.float64) + 2
    return h, y, others


def slow_strength(h, y, others, tau=8.0, budget=20.0):
    """The definition, node by node, with the covariance of scikit-learn."""
    peer = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(h, y)
    inverse = np.linalg.inv(shrunk_covariance(peer.covariance_, shrinkage=0.5))
    width = h.shape[1]

    def log_likelihood(v):
        terms = []
        for c in np.unique(y):
            gap = v - h[y == c].mean(0)
            terms.append(math.log((y == c).sum()) - 0.5 * gap @ inverse @ gap * tau / width)
        return scipy.special.logsumexp(terms)

    middle = np.median([log_likelihood(v) for v in h])
    return [budget * math.exp(min(max(log_likelihood(v) - middle, -8), 3)) for v in others]


@pytest.mark.parametrize("tau", [8.0, 0.7])
def test_strength_is_its_definition_with_the_pooled_covariance_of_scikit_learn(tau):
    h, y, others = labelled()
    found = core.coverage_strength(others, h, y, tau=tau, n_budget=5.0)
    wanted = slow_strength(h.numpy(), y.numpy(), others.numpy(), tau, 5.0)
    assert found.numpy() == pytest.approx(wanted, rel=1e-9)
    assert len(set(wanted)) > 3  # not all at the clip


def test_the_median_labelled_node_has_the_budget_and_the_clip_holds():
    h, y, _ = labelled(counts=(4, 7, 4))
    own = core.coverage_strength(h, h, y)
    assert float(own.median()) == pytest.approx(20.0)
    far = core.coverage_strength(torch.full((1, 5), 1e4, dtype=torch.float64), h, y)
    assert float(far) == pytest.approx(20 * math.exp(-8))
    close = core.coverage_strength(h[:1], h * 1.0, y, tau=100.0)
    assert float(close) <= 20 * math.exp(3) + 1e-9


@given(st.integers(0, 50), st.floats(0.1, 30.0), st.integers(1, 6))
def test_strength_does_not_depend_on_rotation_scale_or_order(seed, scale, width):
    h, y, others = labelled(seed, width)
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64)).Q * scale
    order = torch.randperm(len(h), generator=generator)
    moved = core.coverage_strength(others @ turn + 3, (h @ turn + 3)[order], y[order])
    assert torch.allclose(moved, core.coverage_strength(others, h, y), rtol=1e-6)


def test_strength_is_differentiable_and_keeps_the_dtype():
    h, y, others = labelled()
    inside = (0.3 * others + 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: core.coverage_strength(v, h, y, tau=1.0), (inside,))
    assert core.coverage_strength(others.float(), h.float(), y).dtype == torch.float32


@pytest.mark.parametrize("counts", [(1, 1, 1), (1,), (5,), (1, 6)])
def test_classes_of_one_label_and_a_single_class(counts):
    h, y, others = labelled(counts=counts)
    found = core.coverage_strength(others, h, y)
    assert torch.isfinite(found).all()
    assert (found > 0).all()


def test_a_class_of_one_label_uses_the_pooled_covariance():
    h, y, others = labelled(counts=(1, 9))
    fitted = core.fit_coverage(h, y)
    within = (h[1:] - h[1:].mean(0)).T @ (h[1:] - h[1:].mean(0)) / 10
    wanted = torch.linalg.inv(0.5 * within + 0.5 * within.trace() / 5 * torch.eye(5, dtype=h.dtype))
    assert torch.allclose(fitted.whitening @ fitted.whitening.T, wanted)
    assert torch.isfinite(core.strength_from(fitted, others)).all()


def test_labelled_nodes_that_are_all_alike():
    found = core.coverage_strength(torch.eye(3), torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    assert torch.isfinite(found).all()
    assert (core.coverage_strength(torch.ones(1, 3), torch.ones(4, 3), torch.zeros(4, dtype=torch.long)) == 20).all()


def test_a_class_without_labels_is_named_in_a_warning():
    h, y, others = labelled()
    with pytest.warns(UserWarning, match=r"\[3, 4\]"):
        told = core.coverage_strength(others, h, y, num_classes=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(core.coverage_strength(others, h, y), told)


def test_nearest_labelled_nodes():
    h, y, others = labelled()
    fitted = core.fit_coverage(h, y, neighbours=3)
    white = (others - h.mean(0)) @ fitted.whitening
    squared = torch.cdist(white, fitted.anchors) ** 2
    wanted = -0.5 * 8 / 5 * squared.sort(-1).values[:, :3].mean(-1)
    assert torch.allclose(core.log_coverage(fitted, others), wanted)
    gaps = torch.cdist(fitted.anchors, fitted.anchors).fill_diagonal_(math.inf) ** 2
    others_only = -0.5 * 8 / 5 * gaps.sort(-1).values[:, :3].mean(-1)
    assert float(fitted.median) == pytest.approx(float(others_only.quantile(0.5)))
    assert float(core.fit_coverage(h[:1], y[:1], neighbours=3).median) == 0
    few = core.fit_coverage(h[:2], y[:2], neighbours=3)
    assert torch.isfinite(core.strength_from(few, others)).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"h": torch.ones(2, 4)}, "one width"),
        ({"h_train": torch.ones(3), "h": torch.ones(2, 3)}, "matrices"),
        ({"h_train": torch.ones(0, 5), "y_train": torch.ones(0, dtype=torch.long)}, "no labelled node"),
        ({"y_train": torch.ones(2, dtype=torch.long)}, "y_train must hold"),
        ({"y_train": torch.ones(3)}, "y_train must hold"),
        ({"h_train": torch.full((3, 5), math.nan)}, "not finite"),
        ({"y_train": torch.tensor([0, 1, 9]), "num_classes": 3}, "outside 0 to 2"),
        ({"tau": 0.0}, "tau"),
        ({"h": torch.ones(2, 0), "h_train": torch.ones(3, 0)}, "h_train must be a matrix"),
    ],
)
def test_strength_refuses(change, said):
    given = {"h": torch.ones(2, 5), "h_train": torch.ones(3, 5), "y_train": torch.tensor([0, 1, 1])} | change
    with pytest.raises(InputError, match=said):
        core.coverage_strength(**given)


@given(st.integers(0, 100), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_z_scores_are_those_of_scikit_learn_and_ignore_the_unit(seed, unit, shift):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    scores = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    found = core.standardise(scores, reference)
    assert found.numpy() == pytest.approx(StandardScaler().fit(reference.numpy()).transform(scores.numpy()))
    assert torch.allclose(core.standardise(unit * scores + shift, unit * reference + shift), found)


def test_a_source_in_which_the_reference_does_not_vary_is_centred_only():
    reference = torch.tensor([[0.1, 0.0, 1.0], [0.1, 0.0, 3.0]])
    assert core.standardise(torch.tensor([[0.6, 0.25, 4.0]]), reference).tolist() == [pytest.approx([0.5, 0.25, 2.0])]
    assert core.standardise(torch.ones(1, 3), torch.zeros(1, 3)).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (torch.ones(0, 3), "empty"),
        (torch.ones(3), "empty"),
        (torch.ones(2, 2), "2"),
        (torch.full((2, 3), math.nan), "finite"),
    ],
)
def test_z_scores_need_a_reference(reference, said):
    with pytest.raises(InputError, match=said):
        core.standardise(torch.ones(1, 3), reference)


def test_shares_and_the_dominant_source():
    z = torch.tensor([[1.0, 3.0, -2.0], [-1.0, -2.0, -3.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    shares = core.source_shares(z)
    assert shares.tolist() == [
        [0.25, 0.75, 0.0],
        pytest.approx([1 / 3] * 3),
        [0.5, 0.5, 0.0],
        pytest.approx([1 / 3] * 3),
    ]
    assert core.dominant_source(z).tolist() == [1, 0, -1, -1]
    assert core.SOURCES[int(core.dominant_source(z)[0])] == "structure"
