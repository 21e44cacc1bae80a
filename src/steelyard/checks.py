"""``check_method``: one set of checks that every method of the catalog must pass, public, so that yours can too.

Each check is a function that raises AssertionError with a sentence. ``CHECKS`` lists them all; a test runs them one by
one over the catalog, and :func:`check_method` runs them at once.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard import catalog
from steelyard.card import Card
from steelyard.contracts import Arrays, BenchSpec, CellInput, Conformance, Measured, Profile
from steelyard.errors import InputError

_WEIGHED_SEEDS = (0, 1)  # of the easy task, for the order floor <= method <= ceiling


@dataclass(frozen=True)
class Subject:
    """A method under check; its parts load on first use."""

    method: str

    @cached_property
    def card(self) -> Card:
        """The card."""
        return catalog.load_card(self.method)

    @cached_property
    def bench(self) -> BenchSpec:
        """The bench."""
        return catalog.load_bench(self.method)

    @cached_property
    def probes(self) -> Conformance:
        """The probes."""
        return catalog.load_conformance(self.method)

    @cached_property
    def weighed(self) -> dict[int, dict[str, Measured]]:
        """Seed -> arm -> what the quick profile measures on the bench's easy task."""
        return {seed: _easy_task(self.bench, seed) for seed in _WEIGHED_SEEDS}


def _easy_task(bench: BenchSpec, seed: int) -> dict[str, Measured]:
    task, quick = bench.task(bench.easy_task), bench.profiles["quick"]
    data = dict(task.load())
    if task.prepare is not None:
        data.update(task.prepare(data))
    measured = {}
    for block in quick.blocks:
        for name in block.arms if task.name in block.tasks else ():
            arm = bench.arm(name)
            if arm.derived:
                continue
            tuned = bench.tuned.get(task.name, {}).get(name, {})
            params = {**quick.params, **block.params}
            cell = CellInput(task.name, name, {**arm.config, **tuned}, params, {}, seed, data)
            measured[name] = bench.run(cell)
    return measured


def check_imports_alone(subject: Subject) -> None:
    """The card loads in a fresh interpreter without torch, scipy, typer or rich; the bench loads on its own."""
    heavy = "torch", "scipy", "typer", "rich", "sklearn"
    code = (
        "import sys; from steelyard import catalog; "
        f"catalog.load_card({subject.method!r}); "
        f"print([m for m in {heavy!r} if m in sys.modules]); catalog.load_bench({subject.method!r})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{subject.method} does not import alone: {done.stderr.strip()[-500:]}"
    assert done.stdout.strip() == "[]", f"the card of {subject.method} pulls in {done.stdout.strip()}"


def check_card_is_complete(subject: Subject) -> None:
    """Texts are there, claims name arms, metrics and tasks that the bench has."""
    card, bench = subject.card, subject.bench
    for name in ("summary", "does", "cost", "usage", "use_when", "avoid_when", "limits", "claims", "decisions"):
        assert getattr(card, name), f"the card's {name} is empty"
    arms, metrics = {arm.name for arm in bench.arms}, {metric.name for metric in bench.metrics}
    tasks = {task.name for task in bench.tasks} | ({"user"} if bench.user_task else set())
    for claim in card.claims:
        named = [arm for arm in (claim.arm, claim.versus) if isinstance(arm, str)]
        if not claim.paper_scale_only:
            assert arms.issuperset(named), f"claim {claim.id} compares unknown arms: {named}"
            assert claim.metric in metrics, f"claim {claim.id} reads an unknown metric: {claim.metric}"
        assert tasks.issuperset(claim.tasks or ()), f"claim {claim.id} names unknown tasks: {claim.tasks}"
    assert {"quick", "full"} <= set(bench.profiles), "the bench needs the profiles quick and full"
    assert {"floor", "baseline", "method"} <= {arm.role for arm in bench.arms}, (
        "the bench needs floor and baseline arms"
    )
    assert card.config().model_dump() is not None, "the config has fields without a default"


def check_config_refuses_unknown_keys(subject: Subject) -> None:
    """A misspelt setting is an error, not silence."""
    with _raises(ValueError, "config with an unknown key"):
        subject.card.config(no_such_setting=1)


def check_seeds(subject: Subject) -> None:
    """Equal seeds give equal results, different seeds differ."""
    dtype = subject.probes.dtypes[0]
    first, again, other = (subject.probes.run(seed, dtype) for seed in (1, 1, 2))
    assert _equal(first, again), "equal seeds gave different results"
    assert not _equal(first, other), "different seeds gave equal results"


def check_leaves_the_world_alone(subject: Subject) -> None:
    """Global random states, working directory, environment and inputs are as before."""
    before = _world()
    subject.probes.run(3, subject.probes.dtypes[0])
    after = _world()
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, f"a run changed: {', '.join(changed)}"
    inputs, kept = subject.probes.untouched()
    assert _equal(inputs, kept), "a call changed its inputs"


def _world() -> dict[str, object]:
    import random

    world: dict[str, object] = {"working directory": os.getcwd(), "environment": dict(os.environ)}
    world["random"] = random.getstate()
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002 - read, to see that nobody draws from it
    world["numpy random"] = repr(legacy)
    torch = sys.modules.get("torch")
    if torch is not None:
        world["torch random"] = torch.get_rng_state().numpy().tobytes()
        world["torch default dtype"] = torch.get_default_dtype()
        world["torch threads"] = torch.get_num_threads()
        world["torch grad mode"] = torch.is_grad_enabled()
    return world


def check_dtypes(subject: Subject) -> None:
    """Outputs keep the dtype of the inputs (bfloat16 counts through its name in the probe)."""
    for dtype in subject.probes.dtypes:
        outputs = subject.probes.run(0, dtype)
        kinds = {name: str(array.dtype) for name, array in outputs.items() if array.dtype.kind == "f"}
        wanted = "float32" if dtype in ("bfloat16", "float16") else dtype  # numpy shows both as float32
        wrong = {name: kind for name, kind in kinds.items() if kind != wanted}
        assert not wrong, f"asked for {dtype}, got {wrong}"
        assert all(np.isfinite(outputs[name]).all() for name in kinds), f"{dtype} gave values that are not finite"


def check_bad_inputs(subject: Subject) -> None:
    """Every listed bad input raises InputError with what is at fault in its message, in one line."""
    assert len(subject.probes.bad_inputs) >= 3, "a method has at least three ways to be called wrongly"
    for bad in subject.probes.bad_inputs:
        try:
            bad.call()
        except InputError as error:
            message = str(error)
            assert bad.names in message, f"{bad.label}: the message does not name '{bad.names}': {message}"
            assert "\n" not in message, f"{bad.label}: the message has several lines"
        else:
            raise AssertionError(f"{bad.label} was accepted")


def check_no_op_is_the_baseline(subject: Subject) -> None:
    """The method's no-op setting reproduces its baseline bit for bit."""
    ours, baseline = subject.probes.noop()
    assert _equal(ours, baseline), "the no-op setting differs from the baseline"


def check_has_an_effect(subject: Subject) -> None:
    """A non-trivial setting does something."""
    ours, baseline = subject.probes.effect()
    assert not _equal(ours, baseline), "a non-trivial setting changes nothing"


def check_resumes(subject: Subject) -> None:
    """A run saved and restored half way continues identically."""
    whole, resumed = subject.probes.resumed()
    assert _equal(whole, resumed), "a restored run continues differently"


def check_declared_work(subject: Subject) -> None:
    """The quick profile stays inside its declared work: cells times the steps that they count."""
    bench = subject.bench
    quick = bench.profiles["quick"]
    counted = max(sum(result.steps for result in arms.values()) for arms in subject.weighed.values())
    assert all(result.steps > 0 for arms in subject.weighed.values() for result in arms.values()), (
        "a cell counts no work"
    )
    cells_here = sum(len(arms) for arms in subject.weighed.values()) / len(subject.weighed)
    estimate = counted / cells_here * cells_of(bench, quick)
    assert estimate <= quick.work, f"quick needs about {estimate:.0f} steps, more than its declared {quick.work}"


def cells_of(bench: BenchSpec, profile: Profile) -> int:
    """Return how many cells a profile has."""
    return sum(
        len(block.tasks)
        * sum(not bench.arm(name).derived for name in block.arms)
        * (profile.seeds if block.seeds is None else min(block.seeds, profile.seeds))
        for block in profile.blocks
    )


def check_floor_and_ceiling(subject: Subject) -> None:
    """On the easy task: no floor is better than the method, and no method better than a true ceiling."""
    bench = subject.bench
    better = next(metric.better for metric in bench.metrics if metric.name == bench.primary)
    sign = 1.0 if better == "higher" else -1.0
    means = {
        arm.name: sign * float(np.mean([arms[arm.name].metrics[bench.primary] for arms in subject.weighed.values()]))
        for arm in bench.arms
        if all(arm.name in arms and bench.primary in arms[arm.name].metrics for arms in subject.weighed.values())
    }
    methods = [means[arm.name] for arm in bench.arms if arm.role == "method" and arm.name in means]
    floors = [means[arm.name] for arm in bench.arms if arm.role == "floor" and arm.name in means]
    assert methods, "the quick profile runs no method arm on the easy task"
    assert floors, "the quick profile runs no floor on the easy task"
    assert max(methods) >= max(floors), f"the method ({max(methods):g}) is below a floor ({max(floors):g})"
    if bench.true_ceiling is not None:
        ceiling = means[bench.true_ceiling]
        assert max(methods) <= ceiling + 1e-9, f"the method ({max(methods):g}) is above its true ceiling ({ceiling:g})"


def check_acceptance(subject: Subject) -> None:
    """The method passes its acceptance test on real data."""
    subject.probes.acceptance(subject.probes.implementation)


def check_dummies_fail(subject: Subject) -> None:
    """A constant, a random and an identity stand-in fail the acceptance test."""
    dummies = subject.probes.dummies
    assert {"constant", "random", "identity"} <= set(dummies), f"dummies are missing, there are: {sorted(dummies)}"
    for name, dummy in dummies.items():
        with _raises(AssertionError, f"the acceptance test with the {name} dummy"):
            subject.probes.acceptance(dummy)


CHECKS: tuple[Callable[[Subject], None], ...] = tuple(
    function for name, function in list(globals().items()) if name.startswith("check_") and inspect.isfunction(function)
)


def check_method(method: str) -> None:
    """Run every check on ``method``; raises AssertionError with all that failed.

    Args:
        method: A method of the catalog, or the dotted name of a package of your own (with ``conformance.py``).
    """
    if not __debug__:
        raise InputError("check_method needs Python's assertions: run it without -O and without PYTHONOPTIMIZE")
    subject = Subject(method)
    failures = []
    for check in CHECKS:
        try:
            check(subject)
        except AssertionError as error:
            failures.append(f"{check.__name__}: {error}")
    assert not failures, f"{method} fails {len(failures)} of {len(CHECKS)} checks:\n" + "\n".join(failures)


def _equal(first: Arrays, second: Arrays) -> bool:
    same_names = set(first) == set(second)
    return same_names and all(
        first[name].dtype == second[name].dtype and first[name].tobytes() == second[name].tobytes() for name in first
    )


@contextlib.contextmanager
def _raises(expected: type[Exception], what: str) -> Iterator[None]:
    try:
        yield
    except expected:
        return
    raise AssertionError(f"{what} was accepted")
