"""``check_method`` passes a sound method, and every check of it fails a method that is broken in its way."""

import dataclasses
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

import steelyard
from steelyard import checks
from steelyard.card import Frozen
from steelyard.checks import CHECKS, Subject, cells_of, check_method
from steelyard.contracts import BadInput, Block, Measured
from steelyard.errors import InputError


@pytest.fixture
def subject():
    return Subject("toys.robust")


def probes(subject, **changes):
    subject.__dict__["probes"] = dataclasses.replace(subject.probes, **changes)
    return subject


def bench(subject, **changes):
    subject.__dict__["bench"] = dataclasses.replace(subject.bench, **changes)
    return subject


def card(subject, **changes):
    subject.__dict__["card"] = subject.card.model_copy(update=changes)
    return subject


def fails(check, subject, said):
    with pytest.raises(AssertionError, match=said):
        check(subject)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_method_passes(subject, check):
    check(subject)


def test_all_at_once():
    check_method("toys.robust")
    assert steelyard.check_method is check_method
    assert len(CHECKS) >= 13
    assert check_method not in CHECKS


def test_without_assertions_nothing_is_said_to_pass():
    code = "import steelyard; steelyard.check_method('toys.robust')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, env=environment)
    assert "InputError: check_method needs Python's assertions" in done.stderr


def test_all_failures_are_told_at_once(monkeypatch):
    def no(_):
        raise AssertionError("broken on purpose")

    no.__name__ = "check_no"
    monkeypatch.setattr(checks, "CHECKS", (no, no, checks.check_seeds))
    with pytest.raises(AssertionError, match=r"toys.robust fails 2 of 3 checks:\n(check_no: broken on purpose\n?){2}$"):
        check_method("toys.robust")


def package(folder, monkeypatch, card_py, bench_py):
    home = folder / "brittle" / "one"
    home.mkdir(parents=True)
    (folder / "brittle" / "__init__.py").touch()
    (home / "__init__.py").touch()
    (home / "card.py").write_text(card_py)
    (home / "bench.py").write_text(bench_py)
    monkeypatch.syspath_prepend(folder)
    return Subject("brittle.one")


BENCH_PY = (
    "import dataclasses\n"
    "from toys.robust.bench import BENCH\n"
    "BENCH = dataclasses.replace(BENCH, method='brittle.one')\n"
)


def test_a_card_that_needs_a_heavy_module(tmp_path, monkeypatch):
    found = package(tmp_path, monkeypatch, "import scipy\nfrom toys.robust.card import CARD\n", BENCH_PY)
    fails(checks.check_imports_alone, found, r"the card of brittle.one pulls in \['scipy'\]")


def test_a_bench_that_does_not_import_alone(tmp_path, monkeypatch):
    found = package(tmp_path, monkeypatch, "from toys.robust.card import CARD\n", "BENCH = undefined\n")
    fails(checks.check_imports_alone, found, r"(?s)brittle.one does not import alone: .*NameError")


@pytest.mark.parametrize(
    "name", ["summary", "does", "cost", "usage", "use_when", "avoid_when", "limits", "claims", "decisions"]
)
def test_a_card_with_a_gap(subject, name):
    empty = "" if isinstance(getattr(subject.card, name), str) else ()
    fails(checks.check_card_is_complete, card(subject, **{name: empty}), f"the card's {name} is empty")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arm": "nobody"}, "claim better compares unknown arms: .'nobody', 'mean'."),
        ({"versus": "nobody"}, "claim better compares unknown arms"),
        ({"metric": "beauty"}, "claim better reads an unknown metric: beauty"),
        ({"tasks": ("nowhere",)}, "claim better names unknown tasks"),
    ],
)
def test_a_claim_about_what_is_not_there(subject, change, said):
    claims = (subject.card.claims[0].model_copy(update=change), *subject.card.claims[1:])
    fails(checks.check_card_is_complete, card(subject, claims=claims), said)


def test_a_bench_without_full_or_without_a_floor(subject):
    quick = {"quick": subject.bench.profiles["quick"]}
    fails(checks.check_card_is_complete, bench(subject, profiles=quick), "needs the profiles quick and full")
    floorless = tuple(arm for arm in subject.bench.arms if arm.role != "floor")
    found = bench(Subject("toys.robust"), arms=floorless)
    fails(checks.check_card_is_complete, found, "needs floor and baseline arms")


def test_a_config_that_takes_anything(subject):
    class Loose(Frozen, extra="ignore"):
        pass

    fails(checks.check_config_refuses_unknown_keys, card(subject, config=Loose), "config with an unknown key was accep")


def test_seeds_that_do_nothing_or_are_not_all(subject):
    fixed = subject.probes.run(0, "float32")
    fails(checks.check_seeds, probes(subject, run=lambda *_: fixed), "different seeds gave equal results")
    count = iter(range(9))
    wild = probes(subject, run=lambda *_: {"y": np.asarray(next(count))})
    fails(checks.check_seeds, wild, "equal seeds gave different results")


def torch_seed():
    import torch

    torch.manual_seed(next(COUNTER))


def torch_settings():
    import torch

    torch.set_default_dtype(torch.float64)


COUNTER = iter(range(100, 1000))
TOUCHES = {
    "working directory": lambda: os.chdir(os.sep),
    "environment": lambda: os.environ.__setitem__("LEFT_BEHIND", "1"),
    "random": random.random,
    "numpy random": lambda: np.random.rand(),  # noqa: NPY002
    "torch random": torch_seed,
    "torch default dtype": torch_settings,
}


@pytest.mark.parametrize("what", TOUCHES)
def test_a_run_that_touches_the_world(subject, monkeypatch, what):
    import torch

    monkeypatch.chdir(os.getcwd())
    monkeypatch.setenv("LEFT_BEHIND", "")
    sound = subject.probes.run

    def run(seed, dtype):
        TOUCHES[what]()
        return sound(seed, dtype)

    try:
        fails(checks.check_leaves_the_world_alone, probes(subject, run=run), f"a run changed: {what}$")
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_world_without_torch(subject, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    checks.check_leaves_the_world_alone(subject)


def test_a_call_that_changes_its_inputs(subject):
    changed = probes(subject, untouched=lambda: ({"x": np.zeros(2)}, {"x": np.ones(2)}))
    fails(checks.check_leaves_the_world_alone, changed, "a call changed its inputs")


def test_a_dtype_that_is_not_kept(subject):
    fails(
        checks.check_dtypes,
        probes(subject, run=lambda *_: {"y": np.zeros(2)}),
        r"asked for float32, got \{'y': 'float64'\}",
    )
    nan = probes(subject, dtypes=("bfloat16",), run=lambda *_: {"y": np.full(1, np.nan, dtype=np.float32)})
    fails(checks.check_dtypes, nan, "bfloat16 gave values that are not finite")


def refuse(message):
    raise InputError(message)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (BadInput("no values", lambda: 0.0, "values"), "no values was accepted"),
        (BadInput("no values", lambda: refuse("something is wrong"), "values"), "does not name 'values': something"),
        (BadInput("no values", lambda: refuse("values\nare empty"), "values"), "the message has several lines"),
    ],
)
def test_bad_input_that_is_not_refused_well(subject, bad, said):
    rest = subject.probes.bad_inputs[1:]
    fails(checks.check_bad_inputs, probes(subject, bad_inputs=(bad, *rest)), said)
    fails(checks.check_bad_inputs, probes(subject, bad_inputs=rest), "at least three ways")


def test_an_error_of_another_kind_is_not_taken_for_a_refusal(subject):
    bad = BadInput("no values", lambda: 1 / 0, "values")
    with pytest.raises(ZeroDivisionError):
        checks.check_bad_inputs(probes(subject, bad_inputs=(bad,) * 3))


def test_no_op_effect_and_resume(subject):
    equal, different = subject.probes.noop, subject.probes.effect
    fails(checks.check_no_op_is_the_baseline, probes(subject, noop=different), "no-op setting differs from the base")
    fails(checks.check_has_an_effect, probes(subject, effect=equal), "a non-trivial setting changes nothing")
    fails(checks.check_resumes, probes(subject, resumed=different), "a restored run continues differently")


def test_equality_is_of_bits_names_and_dtypes():
    one = {"x": np.zeros(2)}
    assert checks._equal(one, {"x": np.zeros(2)})
    assert not checks._equal(one, {"x": -np.zeros(2)})
    assert not checks._equal(one, {"x": np.zeros(2, dtype=np.float32)})
    assert not checks._equal(one, {"x": np.zeros(2), "y": np.zeros(1)})
    assert checks._equal({"x": np.full(1, np.nan)}, {"x": np.full(1, np.nan)})


def test_more_work_than_declared(subject):
    quick = subject.bench.profiles["quick"]
    declared = {**subject.bench.profiles, "quick": quick.model_copy(update={"work": 1599})}
    fails(checks.check_declared_work, bench(subject, profiles=declared), "needs about 1600 steps, more than .* 1599")
    idle = bench(Subject("toys.robust"), run=lambda _: Measured(metrics={"error": 0.0}, steps=0))
    fails(checks.check_declared_work, idle, "a cell counts no work")


def test_cells_of(subject):
    quick = subject.bench.profiles["quick"]
    assert cells_of(subject.bench, quick) == 8
    short = Block(tasks=("outlier", "other"), arms=("robust",), seeds=1)
    assert cells_of(subject.bench, quick.model_copy(update={"blocks": (*quick.blocks, short)})) == 10


def errors(**by_arm):
    return lambda cell: Measured(metrics={"error": by_arm[cell.arm]}, steps=1)


@pytest.mark.parametrize(
    ("by_arm", "said"),
    [
        ({"robust": 9.0, "zero": 3.0, "mean": 1.0, "knows": 0.0}, r"the method \(-9\) is below a floor \(-3\)"),
        (
            {"robust": 1.0, "zero": 3.0, "mean": 2.0, "knows": 2.0},
            r"method \(-1\) is above its true ceiling \(-2\)",
        ),
    ],
)
def test_order_of_floor_method_and_ceiling(subject, by_arm, said):
    fails(checks.check_floor_and_ceiling, bench(subject, run=errors(**by_arm)), said)


def test_a_quick_profile_without_method_or_floor(subject):
    for role, said in (("method", "runs no method arm"), ("floor", "runs no floor")):
        found = Subject("toys.robust")
        arms = tuple(a if a.role != role else a.model_copy(update={"role": "ablation"}) for a in found.bench.arms)
        fails(checks.check_floor_and_ceiling, bench(found, arms=arms), said)


def test_higher_is_better_and_no_true_ceiling(subject):
    higher = (subject.bench.metrics[0].model_copy(update={"better": "higher"}),)
    run = errors(robust=9.0, zero=3.0, mean=1.0, knows=4.0)
    checks.check_floor_and_ceiling(bench(subject, metrics=higher, run=run, true_ceiling=None))


def test_the_easy_task_without_preparation(subject):
    task = dataclasses.replace(subject.bench.tasks[0], prepare=None, load=lambda: {"precision": np.ones(1)})
    checks.check_floor_and_ceiling(bench(subject, tasks=(task,)))


def test_an_implementation_that_does_not_work(subject):
    fails(checks.check_acceptance, probes(subject, implementation=np.mean), "an outlier moves the estimate")


def test_dummies(subject):
    dummies = subject.probes.dummies
    missing = {name: dummies[name] for name in ("constant", "random")}
    fails(checks.check_dummies_fail, probes(subject, dummies=missing), re.escape("there are: ['constant', 'random']"))
    good = {**dummies, "identity": subject.probes.implementation}
    fails(
        checks.check_dummies_fail,
        probes(Subject("toys.robust"), dummies=good),
        "the acceptance test with the identity dummy was accepted",
    )
