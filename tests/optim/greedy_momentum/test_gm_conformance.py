import functools

import pytest

from steelyard.optim import GreedySGD
from steelyard.optim.greedy_momentum import conformance
from steelyard.optim.greedy_momentum.bench import CANDIDATES


@pytest.mark.acceptance
def test_the_method_passes_on_fresh_seeds():
    conformance.acceptance(GreedySGD, seeds=(2, 3))


@pytest.mark.parametrize("name", conformance.DUMMIES)
def test_dummies_fail(name):
    with pytest.raises(AssertionError):
        conformance.acceptance(conformance.DUMMIES[name])


@pytest.mark.parametrize("momentum", CANDIDATES)
def test_every_constant_fails(momentum):
    with pytest.raises(AssertionError):
        conformance.acceptance(lambda params, lr, **knobs: GreedySGD(params, lr, momentum=momentum))


@pytest.mark.acceptance
def test_the_training_part_alone_fails_the_dummies():
    """Whatever a stand-in does on the synthetic streams, on digits it misses one of the two rates."""
    for name, make in conformance.DUMMIES.items():
        gaps = []
        for lr in conformance.RATES:
            best = max(conformance._digits(functools.partial(GreedySGD, momentum=m), lr, 0) for m in CANDIDATES)
            gaps.append(best - conformance._digits(make, lr, 0))
        assert max(gaps) > 6, f"{name}: {gaps}"
