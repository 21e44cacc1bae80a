import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from gm_runs import descend, parameters, same, trained

from steelyard.errors import InputError, NoEffectWarning
from steelyard.optim import GreedyAdamW, GreedySGD
from steelyard.optim.greedy_momentum import greedy, torch_optim
from steelyard.optim.greedy_momentum.core import Choice

BOTH = pytest.mark.parametrize("make", [GreedySGD, GreedyAdamW])


def test_large_tensors_are_cut_without_a_trace(monkeypatch):
    shapes = ((50, 40), (7,), (100, 11))
    make = {
        "sgd": lambda params: GreedySGD(
            params, lr=0.01, selection="per_param", weight_decay=0.1, momentum=(0.0, 0.5, 0.9)
        ),
        "adam": lambda params: GreedyAdamW(params, lr=0.01, beta1=(0.0, 0.9)),
    }
    whole = {name: trained(function, shapes=shapes) for name, function in make.items()}
    monkeypatch.setattr(greedy, "CACHE_BLOCK", 128)
    for name, function in make.items():
        cut = trained(function, shapes=shapes)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(whole[name], cut, strict=True))


def test_strided_tensors_are_scored_like_contiguous_ones():
    plain = parameters(torch.float64, ((4, 3, 5, 5),))
    strided = [p.detach().clone(memory_format=torch.channels_last).requires_grad_() for p in plain]
    gradient = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = []
    for params in (plain, strided):
        optimizer = GreedySGD(params, lr=0.1)
        for _ in range(3):
            params[0].grad = (
                gradient.clone() if params is plain else gradient.contiguous(memory_format=torch.channels_last)
            )
            optimizer.step()
        found.append(optimizer.alignment)
    assert torch.allclose(found[0], found[1], rtol=1e-12)
    assert torch.allclose(plain[0], strided[0])


def test_sgd_scores_are_the_formula():
    params = parameters(torch.float64, ((6,), (2, 2)))
    optimizer = GreedySGD(params, lr=0.0, momentum=(0.0, 0.5, 0.9), weight_decay=0.3)
    buffers = [[torch.zeros_like(p) for p in params] for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        optimizer.step()
        for m, buffer in zip((0.0, 0.5, 0.9), buffers, strict=True):
            for i, p in enumerate(params):
                buffer[i] = m * buffer[i] + p.grad + 0.3 * p.detach()
    wanted = [
        math.sqrt(1 - m * m) * sum(float((p.grad * b).sum()) for p, b in zip(params, buffer, strict=True))
        for m, buffer in zip((0.0, 0.5, 0.9), buffers, strict=True)
    ]
    assert optimizer.alignment.tolist() == pytest.approx(wanted)
    assert optimizer.last_choice == Choice(int(np.argmax(wanted)), (0.0, 0.5, 0.9)[int(np.argmax(wanted))])


@pytest.mark.parametrize("normalization", ["literal", "accumulator", "none"])
@pytest.mark.parametrize("w_scope", ["tensor", "all"])
@pytest.mark.parametrize("w_exponent", [1.0, 2.0, 0.0])
@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("score", ["in_sample", "next"])
def test_adam_scores_are_the_formula(normalization, w_scope, w_exponent, corrected, score):
    params = parameters(torch.float64, ((6,), (2, 2)))
    betas, beta2, eps, steps = (0.5, 0.9), 0.99, 1e-3, 4
    optimizer = GreedyAdamW(
        params, lr=0.0, beta1=betas, beta2=beta2, eps=eps, weight_decay=0.0, normalization=normalization,
        w_scope=w_scope, w_exponent=w_exponent, bias_corrected_score=corrected, score=score,
    )  # fmt: skip
    m = {(b, i): torch.zeros_like(p) for b in betas for i, p in enumerate(params)}
    v = [torch.zeros_like(p) for p in params]
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        before = dict(m)
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            v[i] = beta2 * v[i] + (1 - beta2) * p.grad**2
            for b in betas:
                m[b, i] = b * m[b, i] + (1 - b) * p.grad
        optimizer.step()
    moments, count = (before, steps - 1) if score == "next" else (m, steps)
    denominators = [torch.sqrt(x / (1 - beta2**steps if corrected else 1)) + eps for x in v]
    W = [float((1 / d).mean()) for d in denominators]
    if w_scope == "all":
        W = [float(torch.cat([(1 / d).reshape(-1) for d in denominators]).mean())] * 2
    wanted = []
    for b in betas:
        factor = {"literal": math.sqrt(1 - b * b), "accumulator": math.sqrt((1 + b) / (1 - b)), "none": 1.0}
        total = 0.0
        for i, p in enumerate(params):
            update = moments[b, i] / (1 - b**count if corrected else 1) / denominators[i]
            weight = 1.0 if normalization == "none" else W[i] ** (-w_exponent / 2)
            total += float((p.grad * update).sum()) * factor[normalization] * weight
        wanted.append(total)
    assert optimizer.alignment.tolist() == pytest.approx(wanted)


def test_next_and_in_sample_differ_by_the_gradient_itself():
    """<g, buf_t> = m <g, buf_{t-1}> + |g|^2 (section 2.3 of the reconstruction)."""
    runs = {}
    for score in ("next", "in_sample"):
        params = parameters(torch.float64)
        optimizer = GreedySGD(params, lr=0.0, score=score, normalization="none", momentum=(0.5, 0.9))
        descend(params, optimizer, 10, skip=False)
        runs[score] = optimizer.alignment
    square = sum(float((p.grad**2).sum()) for p in params)
    assert runs["in_sample"].tolist() == pytest.approx((runs["next"] * torch.tensor([0.5, 0.9]) + square).tolist())


@BOTH
def test_the_first_step_of_the_next_score_takes_the_smallest_candidate(make):
    params = parameters()
    optimizer = make(params, preset="robust")
    descend(params, optimizer, 1, skip=False)
    assert optimizer.last_choice == Choice(0, 0.5)
    assert optimizer.alignment.tolist() == [0, 0, 0]


@BOTH
def test_all_scores_negative_still_takes_the_largest(make):
    params = parameters(shapes=((4,),))
    optimizer = make(params, preset="robust", j_ema=0.0, lr=1e-3)
    for sign in (1.0, 1.0, -1.0):
        params[0].grad = torch.full((4,), sign)
        optimizer.step()
    assert (optimizer.alignment < 0).all()
    assert optimizer.last_choice.index == int(optimizer.alignment.argmax())


@BOTH
def test_per_parameter_choices_and_untouched_parameters(make):
    params = parameters()
    optimizer = make(params, selection="per_param", lr=0.01)
    for p in params[1:]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert len(optimizer.last_choice) == len(optimizer.alignment) == len(params)
    assert optimizer.last_choice[0] == Choice(0, 0.5)
    assert params[0] not in optimizer.state or not optimizer.state[params[0]]
    assert optimizer.alignment[0].tolist() == [0, 0, 0]
    assert (optimizer.alignment[1] > 0).all()


@BOTH
@pytest.mark.parametrize("selection", ["global", "per_param"])
@pytest.mark.parametrize("candidates", [(0.9,), (0.0, 0.5, 0.99)])
def test_state_dict_continues_identically(make, selection, candidates):
    key = "momentum" if make is GreedySGD else "beta1"

    def build(params):
        return make(params, lr=0.02, selection=selection, j_ema=0.5, hysteresis=2, **{key: candidates})

    whole = parameters()
    descend(whole, build(whole), 20, seed=5)
    half = parameters()
    optimizer = build(half)
    generator = torch.Generator().manual_seed(5)
    stream = [[torch.randn(p.shape, generator=generator) for p in half] for _ in range(20)]
    restored, last = half, optimizer
    for step, noise in enumerate(stream):
        if step == 10:
            file = io.BytesIO()
            torch.save(last.state_dict(), file)
            file.seek(0)
            restored = [p.detach().clone().requires_grad_() for p in restored]
            last = build(restored)
            last.load_state_dict(torch.load(file, weights_only=True))
            assert last.last_choice == optimizer.last_choice
        for p, draw in zip(restored, noise, strict=True):
            p.grad = draw + 0.3 * p.detach()
        if step % 7 == 3:
            restored[1].grad = None
        last.step()
    assert same(whole, restored)


@BOTH
def test_copies_are_independent(make):
    params = parameters()
    optimizer = make(params)
    descend(params, optimizer, 3)
    twin = copy.deepcopy(optimizer)
    kept = optimizer.alignment.clone()
    descend(params, optimizer, 3)
    assert torch.equal(twin.alignment, kept)
    twin.step()


@BOTH
def test_half_precision_is_scored_in_float32(make):
    params = parameters(torch.bfloat16)
    optimizer = make(params, lr=0.01, **{"momentum" if make is GreedySGD else "beta1": (0.0, 0.5, 0.9)})
    descend(params, optimizer, 5)
    assert all(p.dtype == torch.bfloat16 and p.isfinite().all() for p in params)
    assert torch.isfinite(optimizer.alignment).all()
    exact = parameters(torch.float32, ((4096,),))
    half = [p.detach().bfloat16().requires_grad_() for p in exact]
    found = []
    for group in (exact, half):
        group[0].grad = torch.full_like(group[0], 0.1)
        rough = make(group, lr=0.0)
        rough.step()
        found.append(rough.alignment)
    assert found[1].tolist() == pytest.approx(found[0].tolist(), rel=0.01)


@BOTH
def test_tensors_of_several_dtypes(make):
    params = [*parameters(torch.float32, ((3,),)), *parameters(torch.float64, ((3,),))]
    optimizer = make(params, lr=0.01)
    descend(params, optimizer, 5, skip=False)
    assert torch.isfinite(optimizer.alignment).all()


@BOTH
def test_no_gradient_changes_nothing(make):
    params = parameters()
    kept = [p.detach().clone() for p in params]
    optimizer = make(params)
    optimizer.step()
    assert same(kept, params)
    assert not optimizer.state


@BOTH
def test_gradients_that_are_not_finite_keep_the_candidate_and_warn(make):
    params = parameters()
    optimizer = make(params, lr=1e-3)
    descend(params, optimizer, 5)
    before, kept = optimizer.last_choice, optimizer.alignment
    params[0].grad = torch.full_like(params[0], math.nan)
    with pytest.warns(RuntimeWarning, match="not finite"):
        optimizer.step()
    assert optimizer.last_choice == before
    assert torch.equal(optimizer.alignment, kept)


@BOTH
def test_closures_and_sparse_gradients_are_refused_before_anything_changes(make):
    params = parameters()
    kept = [p.detach().clone() for p in params]
    optimizer = make(params)
    with pytest.raises(InputError, match="closure"):
        optimizer.step(lambda: 0.0)
    for p in params:
        p.grad = torch.ones_like(p)
    params[1].grad = torch.ones(7).to_sparse()
    with pytest.raises(InputError, match="sparse"):
        optimizer.step()
    assert same(kept, params)


@BOTH
@pytest.mark.parametrize("candidates", [(0.5, 1.0), (-0.1,), (0.9, 0.5), (0.5, 0.5), (), (math.nan,)])
def test_bad_candidates(make, candidates):
    key = "momentum" if make is GreedySGD else "beta1"
    with pytest.raises(InputError, match=key):
        make(parameters(), **{key: candidates})


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"lr": -1.0}, "lr"), ({"lr": math.nan}, "lr"), ({"lr": torch.ones(2)}, "lr"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"eps": -1.0}, "eps"), ({"beta2": 1.0}, "beta2"), ({"w_exponent": -1.0}, "w_exponent"),
    ],
)  # fmt: skip
def test_bad_numbers(arguments, name):
    with pytest.raises(InputError, match=name):
        GreedyAdamW(parameters(), **arguments)


def test_complex_parameters_are_refused():
    with pytest.raises(InputError, match="complex"):
        GreedySGD([torch.zeros(2, dtype=torch.complex64, requires_grad=True)])


def test_groups_share_one_index_and_may_differ_in_the_rest():
    params = parameters()
    optimizer = GreedySGD([{"params": params[:2], "lr": 0.5}, {"params": params[2:], "weight_decay": 0.1}], lr=0.01)
    descend(params, optimizer, 5)
    first, second = optimizer.param_groups
    assert first["momentum"] == second["momentum"] == optimizer.last_choice.value
    assert torch.equal(first["memory"]["alignment"], second["memory"]["alignment"])
    extra = torch.zeros(3, requires_grad=True)
    optimizer.add_param_group({"params": [extra]})
    assert optimizer.param_groups[2]["momentum"] == first["momentum"]


def test_group_candidates_need_per_parameter_selection():
    params = parameters()
    groups = [{"params": params[:2]}, {"params": params[2:], "momentum": (0.0, 0.9)}]
    with pytest.raises(InputError, match="per_param"):
        GreedySGD(groups, lr=0.01)
    optimizer = GreedySGD(groups, lr=0.01, selection="per_param")
    descend(params, optimizer, 5)
    assert {choice.value for choice in optimizer.last_choice[2:]} <= {0.0, 0.9}
    mixed = GreedyAdamW(
        [{"params": params[:2], "beta1": 0.9, "beta2": 0.9}, {"params": params[2:]}], selection="per_param"
    )
    descend(params, mixed, 3)
    assert mixed.param_groups[0]["betas"] == (0.9, 0.9)
    with pytest.raises(InputError, match="score"):
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)], "score": "next"})
    with pytest.raises(InputError, match="beta2"):
        mixed.add_param_group({"params": [torch.zeros(1, requires_grad=True)], "beta2": 2.0})
    with pytest.raises(InputError, match="momentum"):
        optimizer.add_param_group({"params": [torch.zeros(1, requires_grad=True)], "momentum": (0.9, 0.1)})


def test_a_refused_group_is_not_kept():
    params = parameters()
    optimizer = GreedySGD(params[:2], lr=0.01)
    with pytest.raises(InputError, match="momentum"):
        optimizer.add_param_group({"params": params[2:], "momentum": (0.1, 0.2)})
    assert len(optimizer.param_groups) == 1


SCHEDULERS = {
    "one_cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=30),
    "cyclic": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(
        optimizer, base_lr=0.01, max_lr=0.1, step_size_up=5, cycle_momentum=True
    ),
}


def scheduled(make, schedule, **arguments):
    params = parameters()
    optimizer = make(params, lr=0.01, **arguments)
    scheduler = SCHEDULERS[schedule](optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator) + 0.3 * p.detach()
        optimizer.step()
        scheduler.step()
    return params, optimizer


@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_one_candidate_follows_a_momentum_schedule_as_torch_does(schedule):
    theirs, _ = scheduled(torch.optim.SGD, schedule, momentum=0.9)
    ours, optimizer = scheduled(GreedySGD, schedule, momentum=0.9)
    assert same(theirs, ours)
    assert optimizer.last_choice == Choice(0, optimizer.param_groups[0]["momentum"])
    theirs, _ = scheduled(torch.optim.AdamW, schedule)
    ours, _ = scheduled(GreedyAdamW, schedule, beta1=0.9)
    assert same(theirs, ours)


@BOTH
@pytest.mark.parametrize("schedule", SCHEDULERS)
def test_several_candidates_ignore_a_momentum_schedule_and_say_so_once(make, schedule):
    with pytest.warns(NoEffectWarning, match="scheduler") as caught:
        _, optimizer = scheduled(make, schedule)
    assert len([w for w in caught if w.category is NoEffectWarning]) == 1
    assert optimizer.last_choice.value in (0.5, 0.9, 0.99)
    assert len(optimizer.param_groups[0].get("betas", (0, 0))) == 2


@BOTH
def test_schedules_of_the_rate_alone_are_silent(make):
    params = parameters()
    optimizer = make(params, lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            descend(params, optimizer, 1)
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0)


def test_candidate_zero_needs_no_buffer_unless_the_previous_gradient_is_scored():
    for score, buffers in (("in_sample", 2), ("next", 3)):
        params = parameters(shapes=((4,),))
        optimizer = GreedySGD(params, lr=0.01, momentum=(0.0, 0.5, 0.9), score=score)
        descend(params, optimizer, 1, skip=False)
        assert len(optimizer.state[params[0]]["momentum_buffers"]) == buffers
    optimizer = GreedySGD(params, lr=0.01, momentum=0.0)
    descend(params, optimizer, 1, skip=False)
    assert not optimizer.state[params[0]]


def test_partial_sums_are_reduced_over_ranks():
    halves = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = [torch.zeros(12, dtype=torch.float64, requires_grad=True)]
    whole[0].grad = halves.reshape(-1).clone()
    reference = GreedyAdamW(whole, lr=0.0)
    reference.step()
    seen = []
    for half in halves:
        p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        p.grad = half.clone()
        GreedyAdamW([p], lr=0.0, reduce=lambda sums: seen.append(sums.clone())).step()
    first, second = seen[:3], seen[3:]
    added = iter([a + b for a, b in zip(first, second, strict=True)])
    p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    p.grad = halves[0].clone()
    shard = GreedyAdamW([p], lr=0.0, reduce=lambda sums: sums.copy_(next(added)))
    shard.step()
    assert shard.alignment.tolist() == pytest.approx(reference.alignment.tolist())


def test_gradient_scaling_scores_after_unscaling():
    params, plain = parameters(shapes=((4,),)), parameters(shapes=((4,),))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled, reference = GreedySGD(params, lr=0.01), GreedySGD(plain, lr=0.01)
    scaler.scale((params[0] ** 2).sum()).backward()
    scaler.step(scaled)
    (plain[0] ** 2).sum().backward()
    reference.step()
    assert torch.equal(params[0], plain[0])
    assert torch.equal(scaled.alignment, reference.alignment)


def test_the_rate_may_be_a_tensor():
    ours = trained(lambda params: GreedySGD(params, lr=torch.tensor(0.01)))
    assert all(
        torch.allclose(a, b) for a, b in zip(ours, trained(lambda params: GreedySGD(params, lr=0.01)), strict=True)
    )


def test_hooks_and_zero_grad_work_as_with_any_optimizer():
    params = parameters()
    optimizer = GreedySGD(params, lr=0.01)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    descend(params, optimizer, 2)
    optimizer.zero_grad()
    assert calls == [1, 1]
    assert all(p.grad is None for p in params)
    assert isinstance(optimizer, torch.optim.Optimizer)


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("selection", ["global", "per_param"])
def test_the_path_of_accelerators_gives_the_same(monkeypatch, foreach, selection):
    """Their foreach kernels run on the CPU too, only slower, so the path is tested here."""

    def run():
        found = []
        for make, key in ((GreedySGD, "momentum"), (GreedyAdamW, "beta1")):
            for preset in ("paper", "robust"):
                knobs = {"selection": selection, "preset": preset, "foreach": foreach, key: (0.0, 0.5, 0.9)}
                found += trained(
                    lambda params, make=make, knobs=knobs: make(params, lr=0.01, weight_decay=0.1, **knobs)
                )
        return found

    on_cpu = run()
    monkeypatch.setattr(greedy, "on_accelerator", lambda tensors: True)
    assert same(on_cpu, run())


def test_a_torch_whose_step_functions_changed_is_refused():
    with pytest.raises(ImportError, match="rest on"):
        torch_optim.check_seam(lambda params: None, {"params", "foreach"})
