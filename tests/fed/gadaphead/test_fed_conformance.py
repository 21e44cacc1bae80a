"""Impostors that are no dummies: rules that share well in one regime must not pass for an adaptive one."""

import numpy as np
import pytest

from steelyard.errors import InputError
from steelyard.fed import head_prototypes
from steelyard.fed.gadaphead import sharing
from steelyard.fed.gadaphead.conformance import CONFORMANCE, acceptance, adaptive
from steelyard.fed.gadaphead.sharing import Shared


def _scaled(factor):
    """Return the rule with variances that are wrong by a factor."""

    def share(fits, draws):
        variances = {"refit": factor * fits.variances["refit"]}
        return sharing.adaptive(fits._replace(variances=variances), sharing.labels_of(fits.heads))

    return share


def _at(change):
    """Return the rule at strengths that are not its own."""

    def share(fits, draws):
        ours = adaptive(fits, draws)
        return sharing._mixed(fits, ours.groups, change(ours.strength, draws))

    return share


def _swapped(fits, draws):
    """Share the more the surer a client is: distance over variance."""
    groups = sharing.labels_of(fits.heads)
    step = fits.heads - head_prototypes(fits.heads, groups)
    apart = np.einsum("ni,ij,nj->n", step, fits.second_moment, step)
    return sharing._mixed(fits, groups, np.clip(apart / fits.variances["refit"], 0.0, 1.0))


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (lambda fits, draws: sharing.group_mean(fits, sharing.labels_of(fits.heads)), "1500 transitions: .* own head"),
        (lambda fits, draws: sharing.adaptive(fits, np.zeros(12, dtype=int)), "random groups"),
        (lambda fits, draws: sharing.adaptive(fits, sharing.labels_of(fits.heads, 0.05)), "own head|random groups"),
        (_scaled(5.0), "random groups|own head"),
        (_scaled(0.05), "random groups|own head"),
        (lambda fits, draws: sharing.adaptive(fits, np.arange(12) // 4), "random groups"),
        (lambda fits, draws: sharing.adaptive(fits, np.arange(12) % 3), "random groups"),
        (_at(lambda ours, draws: draws.random(12)), "1500 transitions: .* own head"),
        (_at(lambda ours, draws: 1.0 - ours), "1500 transitions: .* own head"),
        (_at(lambda ours, draws: np.full(12, ours.mean())), "60 and 1500 transitions: .* one strength"),
        (_at(lambda ours, draws: draws.permutation(ours)), "60 and 1500 transitions"),
        (_swapped, "random groups|own head"),
        (lambda fits, draws: Shared(fits.heads * 0, np.ones(12), sharing.labels_of(fits.heads)), "own head"),
    ],
)
def test_rules_that_do_not_adapt_are_found_out(share, said):
    with pytest.raises(AssertionError, match=said):
        acceptance(share)


def test_a_rule_that_shares_with_strangers_is_found_out():
    """It is right where there are groups, and where there are none it pulls everyone to one mean."""

    def share(fits, draws):
        groups = sharing.labels_of(fits.heads)
        if len(np.unique(groups)) > 6:
            return sharing.at_strength(fits, np.zeros_like(groups), 0.5)
        return adaptive(fits, draws)

    with pytest.raises(AssertionError, match="without groups"):
        acceptance(share)


def test_probes_are_deterministic():
    first, again = CONFORMANCE.run(0, "float32"), CONFORMANCE.run(0, "float32")
    np.testing.assert_array_equal(first["heads"], again["heads"])
    assert first["heads"].dtype == np.float32
    assert len(np.unique(first["labels"])) == 2


def _same(first, second):
    return set(first) == set(second) and all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_probes_hold():
    assert _same(*CONFORMANCE.noop())
    assert not _same(*CONFORMANCE.effect())
    assert _same(*CONFORMANCE.resumed())
    assert _same(*CONFORMANCE.untouched())


@pytest.mark.parametrize("bad", CONFORMANCE.bad_inputs, ids=lambda bad: bad.label)
def test_bad_input_is_named(bad):
    with pytest.raises(InputError, match=bad.names):
        bad.call()


@pytest.mark.parametrize("name", CONFORMANCE.dummies)
def test_dummies_fail(name):
    with pytest.raises(AssertionError):
        acceptance(CONFORMANCE.dummies[name])


def test_the_method_passes():
    acceptance(adaptive)
