"""exact_cross_entropy and exact_bce_with_logits: closed forms, peers, gradients, options, bad input."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim import exact_bce_with_logits, exact_cross_entropy

HALF = (torch.bfloat16, torch.float16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(seed: int, n: int, K: int, dtype: torch.dtype, margin: float | None = None) -> tuple[Tensor, Tensor]:
    """Random logits; with ``margin`` the true class leads the largest wrong one by that much."""
    g = generator(seed)
    logits = torch.randn(n, K, generator=g, dtype=dtype)
    target = torch.randint(0, K, (n,), generator=g)
    if margin is not None:
        logits.scatter_(1, target[:, None], logits.amax(1, keepdim=True) + margin)
    return logits, target


def gradient(loss, logits: Tensor, *args, **kwargs) -> Tensor:
    leaf = logits.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(leaf, *args, **kwargs), leaf)
    return g


def reference(logits: list[float], true: int) -> tuple[mpmath.mpf, list[mpmath.mpf]]:
    """Loss and gradient in 60 digits."""
    with mpmath.workdps(60):
        z = [mpmath.mpf(x) for x in logits]
        top = max(z)
        e = [mpmath.exp(x - top) for x in z]
        total = mpmath.fsum(e)
        wrong = mpmath.fsum(x for k, x in enumerate(e) if k != true)
        g = [x / total for x in e]
        g[true] = -wrong / total
        return -mpmath.log1p(-wrong / total), g


@pytest.mark.parametrize(("K", "margin", "loss"), [(33, 22.0, 8.9262979e-9), (7, 40.0, 2.5490126e-17)])
def test_worked_values(K, margin, loss):
    for dtype, tolerance in ((torch.float32, 2e-7), (torch.float64, 3e-8)):  # the worked values have 8 digits
        logits = torch.zeros(1, K, dtype=dtype)
        logits[0, 0] = margin
        value = exact_cross_entropy(logits, torch.tensor([0]))
        assert float(value) == pytest.approx(loss, rel=tolerance)
        assert float(gradient(exact_cross_entropy, logits, torch.tensor([0]))[0, 0]) == pytest.approx(-loss, rel=1e-6)


@pytest.mark.parametrize("K", [2, 3, 10, 97, 1000, 4099])
@pytest.mark.parametrize(("dtype", "margin", "bound"), [(torch.float32, 25.0, 2e-7), (torch.float64, 50.0, 1e-15)])
def test_gradients_sum_to_zero_where_the_reference_lost_the_true_class(K, dtype, margin, bound):
    logits, target = rows(1, 64, K, dtype, margin)
    theirs = gradient(functional.cross_entropy, logits, target, reduction="sum")
    assert torch.all(theirs.gather(1, target[:, None]) == 0)
    ours = gradient(exact_cross_entropy, logits, target, reduction="sum")
    for row, true in zip(ours, target, strict=True):
        assert row[true] < 0
        assert abs(math.fsum(row.tolist())) <= bound * abs(float(row[true]))


@pytest.mark.parametrize("shape", [(40, 2), (40, 10), (7, 300), (5, 4, 3), (3, 6, 2, 2), (9,), (2, 260, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_float64_agrees_with_torch(shape, weighted, reduction):
    g = generator(2)
    dim = 0 if len(shape) == 1 else 1
    logits = 5 * torch.randn(*shape, generator=g, dtype=torch.float64)
    target = torch.randint(0, shape[dim], shape[:dim] + shape[dim + 1 :], generator=g)
    weight = torch.rand(shape[dim], generator=g, dtype=torch.float64) if weighted else None
    if target.ndim:
        target.view(-1)[0] = -100
    outer = torch.randn(target.shape if reduction == "none" else (), generator=g, dtype=torch.float64)
    results = []
    for loss in (exact_cross_entropy, functional.cross_entropy):
        leaf = logits.clone().requires_grad_()
        value = loss(leaf, target, weight, reduction=reduction)
        results.append((value.detach(), *torch.autograd.grad(value, leaf, outer)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


WIDE_MARGINS = (-20.0, -3.0, 0.0, 8.0, 16.0, 18.0)
CASES = [(dtype, margin) for dtype in (torch.float32, torch.float64, torch.bfloat16) for margin in WIDE_MARGINS]


@pytest.mark.parametrize(("dtype", "margin"), [*CASES, *((torch.float16, m) for m in (-20.0, -3.0, 0.0, 8.0))])
def test_against_mpmath(dtype, margin):
    """Loss and every gradient, right to a rounding or two of the dtype, where the reference has lost them."""
    logits, target = rows(3, 5, 6, torch.float32, margin)
    logits = logits.to(dtype)
    tolerance = {torch.float64: 1e-14, torch.float32: 2.5e-6}.get(dtype, 2 * torch.finfo(dtype).eps)
    values = exact_cross_entropy(logits, target, reduction="none")
    ours = gradient(exact_cross_entropy, logits, target, reduction="sum")
    for i, true in enumerate(target.tolist()):
        loss, g = reference(logits[i].double().tolist(), true)
        tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        assert float(values[i]) == pytest.approx(float(loss), rel=tolerance, abs=tiny)
        for k in range(6):
            assert float(ours[i, k]) == pytest.approx(float(g[k]), rel=tolerance, abs=4 * tiny)


def test_float32_reaches_into_the_denormal_numbers():
    for margin in (60.0, 86.0, 100.0):
        logits = torch.tensor([[margin, 0.0]])
        g = gradient(exact_cross_entropy, logits, torch.tensor([0]))
        assert float(g[0, 1]) == -float(g[0, 0]) > 0
        assert float(g[0, 1]) == pytest.approx(math.exp(-margin), rel=1e-6, abs=1e-45)
    assert torch.all(gradient(exact_cross_entropy, torch.tensor([[110.0, 0.0]]), torch.tensor([0])) == 0)


def test_two_float64_logits_just_past_the_threshold():
    """The case of pytorch issue 195678."""
    logits = torch.tensor([[36.8, 0.0]], dtype=torch.float64)
    theirs = gradient(functional.cross_entropy, logits, torch.tensor([0]))
    assert theirs[0, 0] == 0 < theirs[0, 1]
    ours = gradient(exact_cross_entropy, logits, torch.tensor([0]))
    assert -ours[0, 0] == ours[0, 1] > 0


def test_impossible_and_huge_logits():
    inf = math.inf
    cases = {
        (0.0, -inf, -inf): (0.0, (0.0, 0.0, 0.0)),
        (1e8, -1e8, 0.0): (0.0, (0.0, 0.0, 0.0)),
        (0.0, 1e8, -1e8): (1e8, (-1.0, 1.0, 0.0)),
        (-inf, 0.0, 0.0): (inf, (-1.0, 0.5, 0.5)),
        (20.0, 0.0, -inf): (math.log1p(math.exp(-20)), (-math.exp(-20), math.exp(-20), 0.0)),
    }
    for logits, (loss, g) in cases.items():
        z = torch.tensor([logits])
        assert float(exact_cross_entropy(z, torch.tensor([0]))) == pytest.approx(loss, rel=1e-6)
        assert gradient(exact_cross_entropy, z, torch.tensor([0]))[0].tolist() == pytest.approx(g, rel=1e-6)
    for bad in ((inf, 0.0, 0.0), (0.0, inf, 0.0), (-inf, -inf, -inf), (math.nan, 0.0, 0.0)):
        with pytest.raises(InputError, match="logits give NaN in 1 of 1 rows"):
            exact_cross_entropy(torch.tensor([bad]), torch.tensor([0]))
        assert exact_cross_entropy(torch.tensor([bad]), torch.tensor([0]), validate=False).isnan()


@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 2), (4,)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradcheck(shape, reduction):
    g = generator(4)
    dim = 0 if len(shape) == 1 else 1
    logits = torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, shape[dim], shape[:dim] + shape[dim + 1 :], generator=g)
    weight = torch.rand(shape[dim], generator=g, dtype=torch.float64)

    def loss(z):
        return exact_cross_entropy(z, target, weight, reduction=reduction)

    assert torch.autograd.gradcheck(loss, (logits,))
    assert torch.autograd.gradgradcheck(loss, (logits,))


def test_second_derivative_of_impossible_classes_is_not_nan():
    logits = torch.tensor([[1.0, -math.inf, -math.inf], [1.0, 0.0, -math.inf]], requires_grad=True)
    (g,) = torch.autograd.grad(exact_cross_entropy(logits, torch.tensor([0, 0])), logits, create_graph=True)
    torch.testing.assert_close(g.detach(), gradient(exact_cross_entropy, logits, torch.tensor([0, 0])))
    (second,) = torch.autograd.grad(g.square().sum(), logits)
    assert torch.isfinite(second).all()
    assert torch.all(second[0] == 0)


def test_a_loss_that_is_not_used_gives_no_gradient():
    logits = torch.randn(3, 4, generator=generator(), requires_grad=True)
    loss = exact_cross_entropy(logits, torch.tensor([0, 1, 2]))
    (g,) = torch.autograd.grad(loss, logits, torch.zeros(()))
    assert torch.all(g == 0)
    assert torch.autograd.gradcheck(  # passes undefined gradients as well
        lambda z: exact_cross_entropy(z, torch.tensor([0, 1, 2])), (logits.detach().double().requires_grad_(),)
    )


def test_retained_graph_and_func_grad():
    logits, target = rows(5, 6, 4, torch.float32)
    leaf = logits.clone().requires_grad_()
    loss = exact_cross_entropy(leaf, target)
    loss.backward(retain_graph=True)
    first = leaf.grad.clone()
    leaf.grad = None
    loss.backward()
    assert torch.equal(first, leaf.grad)
    functional_grad = torch.func.grad(lambda z: exact_cross_entropy(z, target, validate=False))(logits)
    torch.testing.assert_close(functional_grad, first)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_keeps_its_dtype_and_its_true_class(dtype):
    logits, target = rows(6, 33, 10, torch.float32, 9.0 if dtype == torch.float16 else 20.0)
    logits = logits.to(dtype)
    g = gradient(exact_cross_entropy, logits, target)
    value = exact_cross_entropy(logits, target)
    assert g.dtype == value.dtype == dtype
    assert torch.all(g.gather(1, target[:, None]) < 0)
    wide = gradient(exact_cross_entropy, logits.double(), target)
    torch.testing.assert_close(g.double(), wide, rtol=torch.finfo(dtype).eps, atol=6e-8 if dtype == HALF[1] else 0)


def test_half_precision_sum_is_accumulated_in_float32():
    logits = torch.zeros(4096, 2, dtype=torch.bfloat16)
    value = exact_cross_entropy(logits, torch.zeros(4096, dtype=torch.long), reduction="sum")
    assert float(value) == pytest.approx(4096 * math.log(2), rel=2**-8)
    one_row = gradient(exact_cross_entropy, torch.tensor([9.0, 0.0], dtype=torch.bfloat16), torch.tensor(0))
    assert one_row[0] == -one_row[1] < 0


def test_autocast_and_grad_scaler():
    target = torch.tensor([0, 1])
    weight = torch.eye(2).requires_grad_()
    x = torch.eye(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = x @ weight
        loss = exact_cross_entropy(logits, target)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight[0, 0] > 1.0
    before = weight.detach().clone()
    optimizer.zero_grad()
    overflowed = (x * math.inf).nan_to_num(nan=0.0, posinf=math.inf) @ weight
    scaler.scale(exact_cross_entropy(overflowed, target, validate=False)).backward()
    scaler.step(optimizer)  # sees the NaN and skips
    scaler.update()
    assert torch.equal(before, weight)
    assert scaler.get_scale() == 2.0


def test_compiles_without_graph_breaks():
    torch.compiler.reset()
    logits, target = rows(7, 16, 9, torch.float32, 25.0)
    compiled = torch.compile(exact_cross_entropy, fullgraph=True)
    leaf = logits.clone().requires_grad_()
    value = compiled(leaf, target)
    value.backward()
    assert float(value.detach()) == pytest.approx(float(exact_cross_entropy(logits, target)), rel=1e-6)
    torch.testing.assert_close(leaf.grad, gradient(exact_cross_entropy, logits, target), rtol=1e-5, atol=0)
    assert compiled(logits * math.nan, target).isnan()  # no value is looked at


def test_ignore_index():
    logits, target = rows(8, 6, 4, torch.float32)
    target[2] = 7
    kept = torch.arange(6) != 2
    whole = exact_cross_entropy(logits, target, ignore_index=7)
    assert float(whole) == pytest.approx(float(exact_cross_entropy(logits[kept], target[kept])), rel=1e-6)
    assert torch.all(gradient(exact_cross_entropy, logits, target, ignore_index=7)[2] == 0)
    nothing = exact_cross_entropy(logits, torch.full((6,), -100))
    assert nothing.isnan()  # as torch has it: the mean of no rows
    logits[2] = math.nan
    assert torch.isfinite(exact_cross_entropy(logits, target, ignore_index=7))


def test_label_smoothing_is_the_standard_loss():
    logits, target = rows(9, 6, 4, torch.float32)
    target[1] = -100
    ours = exact_cross_entropy(logits, target, label_smoothing=0.1)
    assert torch.equal(ours, functional.cross_entropy(logits, target, label_smoothing=0.1))
    assert exact_cross_entropy(logits, torch.full((6,), -100), label_smoothing=0.1).isnan()
    with pytest.raises(InputError, match="NaN"):
        exact_cross_entropy(logits * math.nan, target, label_smoothing=0.1)


def test_empty_batch():
    logits = torch.zeros(0, 3, requires_grad=True)
    total = exact_cross_entropy(logits, torch.zeros(0, dtype=torch.long), reduction="sum")
    total.backward()
    assert float(total) == 0
    assert logits.grad.shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"logits": torch.zeros(3, 1)}, "K = 1 classes"),
        ({"logits": torch.zeros(3, 4, dtype=torch.long)}, "logits must be a floating tensor"),
        ({"logits": torch.tensor(1.0)}, "logits must be a floating tensor"),
        ({"target": torch.tensor([0, 1, 4])}, "target holds class 4, but the logits have classes 0..3"),
        ({"target": torch.tensor([0, -1, 1])}, "target holds class -1"),
        ({"target": torch.full((3, 4), 0.25)}, "soft targets"),
        ({"target": torch.tensor([True, False, True])}, "target must hold integer class indices"),
        ({"target": torch.tensor([0, 1])}, "target has shape"),
        ({"weight": torch.ones(3)}, "weight has shape"),
        ({"reduction": "max"}, "reduction must be"),
        ({"label_smoothing": 1.5}, "label_smoothing must be between"),
        ({"logits": torch.full((3, 4), math.nan)}, "logits give NaN in 3 of 3 rows"),
    ],
)
def test_bad_input(arguments, message):
    good = {"logits": torch.zeros(3, 4), "target": torch.tensor([0, 1, 2])}
    with pytest.raises(InputError, match=message):
        exact_cross_entropy(**{**good, **arguments})


LOGITS = st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=12)


@settings(deadline=None, max_examples=60)
@given(LOGITS, st.integers(0, 11), st.integers(-200, 200))
def test_shift_of_all_logits_changes_nothing(logits, true, shift):
    z = torch.tensor([logits], dtype=torch.float64)
    target = torch.tensor([true % len(logits)])
    for f in (exact_cross_entropy, lambda *a: gradient(exact_cross_entropy, *a)):
        torch.testing.assert_close(f(z + shift, target), f(z, target), rtol=1e-11, atol=1e-300)


@settings(deadline=None, max_examples=60)
@given(LOGITS, st.randoms(use_true_random=False))
def test_order_of_the_wrong_classes_does_not_matter(logits, random):
    order = list(range(1, len(logits)))
    random.shuffle(order)
    order = [0, *order]
    z = torch.tensor([logits], dtype=torch.float64)
    target = torch.tensor([0])
    shuffled = z[:, order]
    torch.testing.assert_close(
        exact_cross_entropy(shuffled, target), exact_cross_entropy(z, target), rtol=1e-13, atol=0
    )
    moved = gradient(exact_cross_entropy, shuffled, target)
    torch.testing.assert_close(moved, gradient(exact_cross_entropy, z, target)[:, order], rtol=1e-12, atol=0)


@settings(deadline=None, max_examples=100)
@given(LOGITS, st.integers(0, 11))
def test_zero_sum_and_agreement_with_float64(logits, true):
    z = torch.tensor([logits], dtype=torch.float32)
    target = torch.tensor([true % len(logits)])
    g = gradient(exact_cross_entropy, z, target)
    lost = float(g[0, target])
    assert abs(math.fsum(g[0].tolist())) <= 2e-7 * abs(lost) + 1e-44
    wide = z.double()
    theirs = float(functional.cross_entropy(wide, target))
    assert float(exact_cross_entropy(wide, target)) == pytest.approx(theirs, rel=1e-13, abs=1e-12)
    torch.testing.assert_close(
        gradient(exact_cross_entropy, wide, target),
        gradient(functional.cross_entropy, wide, target),
        rtol=1e-13,
        atol=1e-12,
    )


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-600, 600), min_size=1, max_size=8), st.integers(0, 255))
def test_binary_against_mpmath(values, bits):
    x = torch.tensor(values, dtype=torch.float64)
    target = torch.tensor([(bits >> i) & 1 for i in range(len(values))], dtype=torch.float64)
    ours = exact_bce_with_logits(x, target, reduction="none")
    g = gradient(exact_bce_with_logits, x, target, reduction="sum")
    for i, value in enumerate(values):
        sign = 1 if target[i] else -1
        with mpmath.workdps(300):
            share = 1 / (1 + mpmath.exp(sign * mpmath.mpf(value)))
            loss = float(-mpmath.log1p(-share))
            slope = float(-sign * share)
        assert float(ours[i]) == pytest.approx(loss, rel=1e-13, abs=1e-300)
        assert float(g[i]) == pytest.approx(slope, rel=1e-13, abs=1e-300)


def test_binary_options_against_torch():
    g = generator(10)
    x = torch.randn(6, 3, generator=g, dtype=torch.float64)
    target = torch.randint(0, 2, (6, 3), generator=g).double()
    weight = torch.rand(6, 1, generator=g, dtype=torch.float64)
    pos_weight = torch.rand(3, generator=g, dtype=torch.float64)
    for reduction in ("mean", "sum", "none"):
        options = {"weight": weight, "pos_weight": pos_weight, "reduction": reduction}
        theirs = functional.binary_cross_entropy_with_logits(x, target, **options)
        torch.testing.assert_close(exact_bce_with_logits(x, target, **options), theirs, rtol=1e-13, atol=0)
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(exact_bce_with_logits, (leaf, target))
    assert torch.autograd.gradgradcheck(exact_bce_with_logits, (leaf, target))
    assert exact_bce_with_logits(x.half(), target.bool()).dtype == torch.float16


def test_binary_keeps_what_torch_loses():
    x = torch.tensor([20.0])
    one = torch.ones(1)
    assert float(gradient(functional.binary_cross_entropy_with_logits, x, one)) == 0
    assert float(gradient(exact_bce_with_logits, x, one)) == pytest.approx(-math.exp(-20), rel=1e-6)


@pytest.mark.parametrize(
    ("x", "target", "options", "message"),
    [
        (torch.zeros(3), torch.full((3,), 0.5), {}, "target must hold 0 and 1 only"),
        (torch.zeros(3), torch.zeros(2), {}, "target has shape"),
        (torch.zeros(3, dtype=torch.long), torch.zeros(3), {}, "x must be a floating tensor"),
        (torch.full((3,), math.nan), torch.zeros(3), {}, "NaN"),
        (torch.zeros(3), torch.zeros(3), {"reduction": "max"}, "reduction"),
    ],
)
def test_binary_bad_input(x, target, options, message):
    with pytest.raises(InputError, match=message):
        exact_bce_with_logits(x, target, **options)
    if message == "NaN":
        assert exact_bce_with_logits(x, target, validate=False).isnan()
