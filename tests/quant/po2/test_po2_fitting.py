"""Grid learning: the objective never rises, is the real error, and finds the known grids on Gaussian groups."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2.families import (
    LLOYD1,
    MPO2,
    NF4,
    NF4_GRID,
    NVFP4,
    PO2_NF4,
    PO2_SPLIT87,
    SFP4_PAIR,
    GridFamily,
)
from steelyard.quant.po2.fitting import INITS, GridFit, HeavyTailWarning, fit_grid_pair, fit_grids
from steelyard.quant.po2.lloyd import Groups, Plan, Scaler, assign, codes_of, mirrored, moved
from steelyard.quant.po2.tensor import quantize

GROUPS = 12_000


@functools.cache
def gaussian(seed: int, g: int = 16, groups: int = GROUPS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((groups, g))


def student(seed: int, freedom: float, groups: int = GROUPS) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(freedom, (groups, 16))


@functools.cache
def learned(**options) -> GridFit:
    return fit_grids(gaussian(0), **options)


def relative_mse(x: np.ndarray, family: GridFamily) -> float:
    t = torch.tensor(x, dtype=torch.float32)
    return quantize(t, family).relative_mse(t)


def distance(grid, other) -> float:
    return float(np.abs(np.array(grid) - np.array(other)).max())


def flipped(grid) -> np.ndarray:
    return mirrored(np.array(grid))


# --- the objective ------------------------------------------------------------------------------------------------

KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy": lambda rng, shape: rng.standard_t(1.5, shape),
    "positive": lambda rng, shape: np.abs(rng.standard_normal(shape)),
    "relu": lambda rng, shape: np.maximum(rng.standard_normal(shape), 0.0),
    "ternary": lambda rng, shape: rng.integers(-1, 2, shape).astype(float),
    "lattice": lambda rng, shape: np.round(4 * rng.standard_normal(shape)) / 4,
    "spread": lambda rng, shape: rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, (shape[0], 1)),
    "one": lambda rng, shape: np.full(shape, 0.7),
}


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    g = draw(st.sampled_from([1, 2, 5, 16, 32]))
    x = KINDS[draw(st.sampled_from(sorted(KINDS)))](rng, (200, g))
    x[0] = rng.standard_normal(g)  # something that is not zero
    x = np.concatenate([x, rng.standard_normal((80, g))])
    mirror = draw(st.booleans())
    n_grids = 2 if mirror else draw(st.integers(1, 5))
    fixed = () if mirror else draw(st.sampled_from([(), (NF4,), (NVFP4,), ((-1.0, -0.2, 0.3, 1.0),)]))
    options = {
        "n_grids": n_grids,
        "fixed": fixed if len(fixed) < n_grids else (),
        "mirror": mirror,
        "init": draw(st.sampled_from(INITS)),
        "rule": draw(st.sampled_from(["absmax", "fit"])),
        "pin_ends": draw(st.booleans()),
        "explicit_zero": draw(st.booleans()),
        "n_restarts": draw(st.integers(1, 5)),
        "weights": draw(st.sampled_from([None, rng.uniform(0, 2, g) + 1e-3, rng.uniform(0, 2, x.shape)])),
        "group_size": g,
        "iters": draw(st.sampled_from([1, 12])),
        "tol": draw(st.sampled_from([0.0, 1e-4])),
        "scale": draw(st.sampled_from(["fp16", "fp32"] if n_grids > 4 else ["e4m3", "e3m3", "e8m0", "fp16", "fp32"])),
    }
    return x, options


@settings(max_examples=150)
@given(problems())
def test_history_never_rises_whatever_the_options(problem):
    x, options = problem
    fit = fit_grids(x, **options)
    history = np.array(fit.history)
    assert (np.diff(history) <= history[:-1] * 1e-12 + 1e-20).all()
    assert 0 <= history[-1] <= history[0]
    assert 2 <= len(history) <= options["iters"] + 1
    grids = [np.array(grid) for grid in fit.grids]
    fixed = len(options["fixed"])
    assert len(grids) == options["n_grids"]
    assert all((np.diff(grid) >= 0).all() for grid in grids)
    assert all(len(grid) == 16 for grid in grids[fixed:])
    if fixed and options["fixed"][0] is NF4:
        assert fit.grids[0] == NF4_GRID
    if options["explicit_zero"]:
        assert all((grid == 0).any() for grid in grids[fixed:])
    if options["pin_ends"]:
        assert all((grid[0], grid[-1]) == (-1.0, 1.0) for grid in grids[fixed:])
    if options["mirror"]:
        assert np.array_equal(grids[1], mirrored(grids[0]))
        assert fit.family.signed_scale


@given(problems())
@settings(max_examples=60)
def test_the_last_entry_of_the_history_is_the_real_error(problem):
    x, options = problem
    options.update(rule="absmax", scale="fp32")
    fit = fit_grids(x, **options)
    x = x / np.sqrt((x**2).mean())
    weights = np.broadcast_to(1.0 if options["weights"] is None else options["weights"], x.shape)
    scale = np.abs(x).max(axis=1, keepdims=True)
    u = x / np.where(scale > 1e-12, scale, 1.0)
    nearest = [np.abs(u[:, :, None] - np.array(grid)).min(axis=2) * scale for grid in fit.grids]
    errors = np.stack([(weights * miss**2).sum(axis=1) for miss in nearest])
    assert fit.history[-1] == pytest.approx(errors.min(axis=0).sum() / (weights * x**2).sum(), rel=1e-5, abs=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 16), st.floats(1e-6, 3))
def test_codes_are_those_of_a_binary_search(seed, size, width):
    rng = np.random.default_rng(seed)
    grid = np.sort(rng.normal(0, width, size))
    grid[1] = grid[0]  # two equal values
    x = rng.standard_normal((20, 8))
    x[0, : min(8, size - 1)] = ((grid[1:] + grid[:-1]) / 2)[:8]  # ties go down
    plan = Plan("absmax", lambda ideal, _: np.ones_like(ideal), (), mirror=False, tol=0.0, iters=1)
    scaled = Scaler(Groups(x, None, np.ones(20), np.ones(20)), plan).scaled(grid)
    assert np.array_equal(codes_of(scaled, grid), np.searchsorted((grid[1:] + grid[:-1]) / 2, x, side="left"))


def test_a_centroid_weighs_by_the_scale_squared_and_what_is_not_used_stays():
    x = np.array([[1.0, 0.2]] * 6 + [[3.0, 0.9]] * 6)  # u: 1, 0.2 with scale 1; 1, 0.3 with scale 3
    groups = Groups(x, np.tile([1.0, 2.0], (12, 1)), np.ones(12), np.ones(12))
    grid, pins = np.array([-1.0, 0.25, 0.7]), np.array([False, False, True])
    plan = Plan("absmax", lambda ideal, _: ideal, (pins,), mirror=False, tol=0.0, iters=1)
    scaler = Scaler(groups, plan)
    chosen = assign(scaler, [grid])
    assert chosen.errors == pytest.approx([0.3**2 + 2 * 0.05**2] * 6 + [9 * (0.3**2 + 2 * 0.05**2)] * 6)
    (new,) = moved(scaler, [grid], chosen, plan.pins)
    assert new == pytest.approx([-1.0, (1 * 0.2 + 9 * 0.3) / 10, 0.7])  # empty, centroid, pinned
    few = Scaler(groups.take(np.arange(12) < 9), plan)
    assert moved(few, [grid], assign(few, [grid]), plan.pins)[0] is grid  # nine groups have no say


def test_runs_end_by_the_tolerance_or_the_count():
    x = gaussian(0)[:2000]
    history = np.array(fit_grids(x, n_restarts=1, tol=1e-3).history)
    falls = 1 - history[1:] / history[:-1]
    assert falls[-1] <= 1e-3 < falls[:-1].min()
    assert len(fit_grids(x, n_restarts=1, tol=0.0, iters=7).history) == 8


def test_renormalising_every_iteration_is_a_trap():
    """Dividing a grid by its largest value after each step looks harmless, and the error rises."""
    x = gaussian(0)
    groups = Groups(x / np.sqrt((x**2).mean()), None, np.ones(len(x)), np.ones(len(x)))
    fixed, uniform = np.array(NF4_GRID), np.linspace(-1, 1, 16)
    pins = (np.ones(16, bool), np.zeros(16, bool))
    scaler = Scaler(groups, Plan("absmax", lambda ideal, _: ideal, pins, mirror=False, tol=0.0, iters=1))
    grids, trapped = [fixed, uniform], []
    for _ in range(30):
        chosen = assign(scaler, grids)
        trapped.append(chosen.objective / groups.energy())
        grids = [fixed, moved(scaler, grids, chosen, pins)[1]]
        grids[1] = grids[1] / np.abs(grids[1]).max()
    assert trapped[-1] > 1.01 * min(trapped)  # not monotone
    assert trapped[-1] > trapped[1]
    ours = fit_grids(x, fixed=(NF4,), init="uniform", n_restarts=1, scale="fp32")
    assert ours.history[-1] < 0.97 * min(trapped)


# --- known grids --------------------------------------------------------------------------------------------------


def test_the_single_grid_is_the_known_one():
    fit = learned(n_grids=1)
    assert min(distance(fit.grids[0], LLOYD1.grids[0]), distance(flipped(fit.grids[0]), LLOYD1.grids[0])) < 0.03
    assert relative_mse(gaussian(1), fit.family) < 1.005 * relative_mse(gaussian(1), LLOYD1)


def test_the_pair_is_the_known_one_and_a_mirror_pair():
    fit = learned()
    assert min(distance(fit.grids[i], MPO2.grids[0]) for i in (0, 1)) < 0.015
    assert distance(fit.grids[0], flipped(fit.grids[1])) < 0.015
    assert relative_mse(gaussian(1), fit.family) < 1.005 * relative_mse(gaussian(1), MPO2)


def test_a_mirrored_pair_is_as_good_as_a_free_one():
    free, tied = learned(), learned(mirror=True)
    assert tied.history[-1] == pytest.approx(free.history[-1], rel=0.004)
    assert relative_mse(gaussian(1), tied.family) == pytest.approx(relative_mse(gaussian(1), free.family), rel=0.004)


def test_the_companion_of_nf4_beats_the_known_one():
    fit = learned(fixed=(NF4,), init="residual", n_restarts=1)
    assert fit.grids[0] == NF4_GRID
    assert relative_mse(gaussian(1), fit.family) < 0.95 * relative_mse(gaussian(1), PO2_NF4)


def test_an_explicit_zero_costs_little_and_beats_the_known_split87():
    split = learned(mirror=True, explicit_zero=True)
    assert sum(value < 0 for value in split.grids[0]) in (7, 8)
    mse = relative_mse(gaussian(1), split.family)
    assert mse < 0.97 * relative_mse(gaussian(1), PO2_SPLIT87)
    assert mse < 1.035 * relative_mse(gaussian(1), learned().family)


def test_more_grids_are_better_and_restarts_never_worse():
    errors = [learned(n_grids=n).history[-1] for n in (1, 2, 4)]
    assert errors[0] > 1.1 * errors[1] > 1.1 * 1.05 * errors[2]
    assert learned(n_restarts=5).history[-1] <= learned().history[-1] <= learned(n_restarts=1).history[-1]
    classic = [learned(n_restarts=1, init=init).history[-1] for init in ("nf4-uniform", "tight-uniform")]
    assert learned(n_restarts=1).history[-1] < min(classic)  # the mirrored start wins on symmetric data


def test_rule_fit_learns_and_keeps_its_scale_free_form():
    fit = learned(rule="fit", n_restarts=1)
    assert fit.family.rule == "fit"
    assert all(max(-grid[0], grid[-1]) == pytest.approx(1.0) or grid[0] == -0.97 for grid in fit.grids)
    assert relative_mse(gaussian(1), fit.family) < 1.04 * relative_mse(gaussian(1), MPO2)
    assert relative_mse(gaussian(1), fit.family) == pytest.approx(fit.history[-1], rel=0.02)


# --- samples ------------------------------------------------------------------------------------------------------


def test_learned_family_quantises_with_the_error_of_the_history():
    some = 5.0 * gaussian(0)[:1500]  # a size that is no power of two, which E8M0 would see
    for options in (
        {},
        {"mirror": True},
        {"n_grids": 3},
        {"n_grids": 3, "fixed": (SFP4_PAIR,)},
        {"n_grids": 1, "scale": "e8m0"},
        {"n_grids": 2, "scale": "e8m0"},
        {"n_grids": 5},
    ):
        fit = fit_grids(some, n_restarts=1, iters=5, **options)
        assert relative_mse(some, fit.family) == pytest.approx(fit.history[-1], rel=1e-4), options


def test_samples_count_by_their_number_of_values_and_not_by_their_scale():
    x, y = gaussian(2, groups=500), student(3, 5, groups=500)
    plain = fit_grids([x, y], n_restarts=1)
    scaled = fit_grids([x * 2.0**40, y * 2.0**-500], n_restarts=1)
    assert scaled.grids == plain.grids
    assert scaled.history == plain.history


def test_tensors_arrays_layouts_and_zeros_give_the_same_grids():
    x = torch.tensor(gaussian(4, groups=400), dtype=torch.float32)
    fit = fit_grids(x.numpy(), n_restarts=1)
    assert fit_grids(x.clone().requires_grad_(), n_restarts=1) == fit
    assert fit_grids(x.t().contiguous().t(), n_restarts=1) == fit
    assert fit_grids(x.reshape(20, 20, 16), n_restarts=1) == fit
    assert fit_grids([x, torch.zeros(3, 16)], n_restarts=1) == fit
    assert fit_grids(x.flatten().tolist(), n_restarts=1).grids == fit.grids
    half = fit_grids(x.bfloat16(), n_restarts=1)
    assert distance(half.grids[0], fit.grids[0]) < 0.1
    assert fit_grids((x * 100).to(torch.int32), n_restarts=1).history[-1] == pytest.approx(fit.history[-1], rel=0.1)


def test_a_short_last_group_counts_without_its_padding():
    x = gaussian(5, g=20, groups=300)  # rows of 16 + 4
    fit = fit_grids(x, n_grids=1, n_restarts=1, scale="fp32")
    parts = [(x[:, :16], 16), (x[:, 16:], 4)]
    error = 0.0
    for part, size in parts:
        scale = np.abs(part).max(axis=1).reshape(-1, 1)
        assert part.shape[1] == size
        error += ((np.abs((part / scale)[:, :, None] - np.array(fit.grids[0])).min(axis=2) * scale) ** 2).sum()
    assert fit.history[-1] == pytest.approx(error / (x**2).sum(), rel=1e-6)


def test_elements_without_weight_have_no_say():
    x = gaussian(6, groups=2000)
    wild = x.copy()
    wild[:, 8:] = 0.3 * np.sign(wild[:, 8:])  # below every group's maximum, nearly
    share = np.repeat([1.0, 0.0], 8)
    heard = fit_grids(wild, n_grids=1, n_restarts=1, scale="fp32")
    deaf = fit_grids(wild, n_grids=1, n_restarts=1, scale="fp32", weights=share)
    near = [min(abs(value - 0.3) for value in fit.grids[0]) for fit in (heard, deaf)]
    assert heard.history[-1] != deaf.history[-1]
    assert max(near) < 0.2
    only = fit_grids(x, n_grids=1, n_restarts=1, scale="fp32", weights=[share])
    assert only.grids != heard.grids


def test_perturbed_restarts_depend_on_the_seed_alone():
    x = student(7, 4, groups=300)
    runs = [fit_grids(x, n_restarts=8, seed=seed, iters=3) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].history[-1] <= fit_grids(x, n_restarts=3, iters=3).history[-1]


def test_a_pair_is_two_grids():
    x = gaussian(8, groups=300)
    assert fit_grid_pair(x, n_restarts=1, name="mine") == fit_grids(x, n_grids=2, n_restarts=1, name="mine")
    assert fit_grid_pair(x, name="mine", n_restarts=1).family.name == "mine"


@pytest.mark.parametrize(("n_grids", "scale"), [(1, "e4m3"), (2, "e4m3"), (3, "e3m3"), (5, "fp16")])
def test_the_scale_has_room_for_the_selector(n_grids, scale):
    assert fit_grids(gaussian(9, groups=300), n_grids, n_restarts=1, iters=2).family.scale_format == scale


# --- tails --------------------------------------------------------------------------------------------------------


def test_heavier_tails_than_the_fits_are_told():
    fit = learned(n_restarts=1)
    with pytest.warns(HeavyTailWarning, match="heavier"):
        assert fit.tail_ratio(student(1, 3)) > 1.5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit.tail_ratio(gaussian(1)) == pytest.approx(1.0, abs=0.02)
        assert fit_grids(student(0, 3), n_restarts=1).tail_ratio(gaussian(1)) < 0.7


def test_grids_learned_on_heavy_tails_serve_them_better():
    tails = student(1, 3)
    own = fit_grids(student(0, 3), explicit_zero=True, pin_ends=True, n_restarts=1)
    assert relative_mse(tails, own.family) < relative_mse(tails, learned().family)


# --- bad input ----------------------------------------------------------------------------------------------------

X = gaussian(10, groups=60)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: fit_grids([]), "samples"),
        (lambda: fit_grids(torch.empty(0, 16)), r"samples\[0\]"),
        (lambda: fit_grids(np.float64(1.0)), r"samples\[0\]"),
        (lambda: fit_grids([1.0]), "groups"),
        (lambda: fit_grids(np.zeros((50, 16))), "samples"),
        (lambda: fit_grids(np.full((50, 16), -0.3)), "one value"),
        (lambda: fit_grids(np.where(X > 2, np.nan, X)), r"samples\[0\]"),
        (lambda: fit_grids([X, torch.tensor(X).fill_(float("inf"))]), r"samples\[1\]"),
        (lambda: fit_grids(X > 0), "dtype"),
        (lambda: fit_grids(X.astype(complex)), "dtype"),
        (lambda: fit_grids("weights"), "dtype"),
        (lambda: fit_grids([[[1.0], [1.0, 2.0]]]), r"samples\[0\]"),
        (lambda: fit_grids(X[:15]), "15 groups"),
        (lambda: fit_grids(X, n_grids=0), "n_grids"),
        (lambda: fit_grids(X, n_grids=17), "n_grids"),
        (lambda: fit_grids(X, n_grids=True), "n_grids"),
        (lambda: fit_grids(X, init="nf4_mirror"), "Did you mean 'nf4-mirror'"),
        (lambda: fit_grids(X, init=None), "init"),
        (lambda: fit_grids(X, rule="ocp"), "rule"),
        (lambda: fit_grids(X, fixed=((1.0, -1.0),)), r"fixed\[0\]"),
        (lambda: fit_grids(X, fixed=(tuple(np.linspace(-1, 1, 17)),)), r"fixed\[0\]"),
        (lambda: fit_grids(X, fixed=(1.0,)), r"fixed\[0\]"),
        (lambda: fit_grids(X, fixed=(("low", "high"),)), r"fixed\[0\]"),
        (lambda: fit_grids(X, fixed=NF4), "fixed"),
        (lambda: fit_grids(X, fixed=(NF4, NF4)), "fixed"),
        (lambda: fit_grids(X, mirror=True, n_grids=3), "mirror"),
        (lambda: fit_grids(X, mirror=True, fixed=(NF4,)), "mirror"),
        (lambda: fit_grids(X, pin_ends=1), "pin_ends"),
        (lambda: fit_grids(X, group_size=0), "group_size"),
        (lambda: fit_grids(X, group_size=16.0), "group_size"),
        (lambda: fit_grids(X, n_restarts=0), "n_restarts"),
        (lambda: fit_grids(X, iters=0), "iters"),
        (lambda: fit_grids(X, tol=-1e-4), "tol"),
        (lambda: fit_grids(X, tol="small"), "tol"),
        (lambda: fit_grids(X, weights=-np.ones(16)), r"weights\[0\]"),
        (lambda: fit_grids(X, weights=np.zeros(16)), "weight 0"),
        (lambda: fit_grids(X, weights=np.ones(5)), r"weights\[0\]"),
        (lambda: fit_grids([X, X], weights=np.ones(16)), "weights"),
        (lambda: fit_grids(X, scale="e5m2"), "scale"),
        (lambda: fit_grids(X, n_grids=5, scale="e4m3"), "scale"),
        (lambda: fit_grids(X, name=""), "name"),
        (lambda: learned(n_restarts=1).tail_ratio(np.zeros((5, 16))), "samples"),
    ],
)
def test_bad_input_names_the_argument(call, named):
    with pytest.raises(InputError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value)
