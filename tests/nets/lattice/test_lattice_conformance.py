"""What the acceptance test accepts: the prices of this method, and none that only look like them."""

from functools import partial

import pytest

from steelyard.nets.lattice import conformance
from steelyard.nets.lattice.torch_nn import ResourceCost


def reversed_ranks(ranks, count):
    return (count + 1 - ranks) / count


class Pushed(ResourceCost):
    """A price of time that pushes the hazards up, whatever the distribution is."""

    def __call__(self, model, output, progress=1.0):
        terms = super().__call__(model, output, progress)
        return terms | {"time": -self.time * model.halting_bias.sum()} if self.time else terms


class PushedAtTheRightPrice(Pushed):
    """The same, with the value of E[t]."""

    def __call__(self, model, output, progress=1.0):
        terms = super().__call__(model, output, progress)
        value = self.time * output.expected_time.mean() - terms["time"]
        return terms | {"time": terms["time"] + value.detach()}


@pytest.mark.parametrize(
    ("stand_in", "what"),
    [
        (partial(ResourceCost, breadth_weight="uniform"), "breadth"),
        (partial(ResourceCost, breadth_weight=reversed_ranks), "breadth"),
        (partial(ResourceCost, depth_weight="uniform"), "depth"),
        (partial(ResourceCost, depth_weight=reversed_ranks), "depth"),
        (Pushed, "time"),
        (PushedAtTheRightPrice, "time"),
    ],
)
def test_a_stand_in_without_the_rule_fails(stand_in, what):
    with pytest.raises(AssertionError, match=what):
        conformance.acceptance(stand_in, updates=1)


@pytest.mark.parametrize("options", [{}, {"q": 2}, {"readout_in_norms": False}])
def test_the_rules_and_their_documented_alternatives_pass(options):
    make_cost = partial(ResourceCost, **options)
    conformance.check_positions(make_cost)
    conformance.check_time_price(make_cost)


@pytest.mark.parametrize("name", sorted(conformance.DUMMIES))
def test_dummies_fail_at_once(name):
    with pytest.raises(AssertionError):
        conformance.acceptance(conformance.DUMMIES[name], updates=1)
