"""What the acceptance test lets pass: the method, and nothing that only says that it is one."""

from __future__ import annotations

import pytest

from steelyard.guard.dr_smoothing import conformance
from steelyard.guard.dr_smoothing.conformance import CONFORMANCE, acceptance
from steelyard.guard.dr_smoothing.core import disrupt_swap
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing, SmoothLLM


def test_the_method_passes():
    acceptance(CONFORMANCE.implementation)


@pytest.mark.parametrize("name", ["constant", "random", "identity"])
def test_dummies_fail(name):
    with pytest.raises(AssertionError):
        acceptance(CONFORMANCE.dummies[name])


def restoring(generate, judge, seed):
    """Undoes its own noise: the attack comes back with the text."""
    origins = {}

    def noisy(text, rng):
        changed = disrupt_swap(0.05)(text, rng)
        origins[changed] = text
        return changed

    return DRSmoothing(generate, disrupt=noisy, rectify=lambda text: origins[text], judge=judge, n=5, seed=seed)


def disturbing_the_system(generate, judge, seed):
    """Good on texts, but changes the system turn of a chat."""

    def changed(prompts):
        said = [p if isinstance(p, str) else [{"role": "system", "content": "Other."}, *p[1:]] for p in prompts]
        return generate(said)

    return conformance._dr(changed, judge, seed)


@pytest.mark.parametrize(
    ("impostor", "word"),
    [
        (restoring, "attacks get through"),
        (lambda g, j, s: SmoothLLM(g, q=0.05, alphabet="letters", judge=j, n=5, seed=s), "attacks get through"),
        (disturbing_the_system, "system turn"),
    ],
)
def test_impostors_fail(impostor, word):
    with pytest.raises(AssertionError, match=word):
        acceptance(impostor)


def test_an_answer_of_the_minority_is_found_out():
    class Liar(conformance._Deaf):
        def batch(self, prompts):
            import dataclasses

            return [dataclasses.replace(one, jailbroken=not one.jailbroken) for one in super().batch(prompts)]

    with pytest.raises(AssertionError, match="majority"):
        acceptance(lambda g, j, s: Liar(None))


@pytest.mark.parametrize("probe", ["noop", "resumed", "untouched"])
def test_probes_that_must_agree(probe):
    first, second = getattr(CONFORMANCE, probe)()
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_the_probe_that_must_differ():
    first, second = CONFORMANCE.effect()
    assert first["copies"].tolist() != second["copies"].tolist()
