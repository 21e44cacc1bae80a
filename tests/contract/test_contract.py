"""Every check of steelyard.checks over the whole catalog: the contract that a method signs by being in it."""

import pytest

from steelyard import catalog
from steelyard.checks import CHECKS, Subject

_SUBJECTS = {row.id: Subject(row.id) for row in catalog.METHODS}  # one per method, so that its easy task runs once
_LONG = ("check_acceptance", "check_dummies_fail", "check_declared_work", "check_floor_and_ceiling")


@pytest.mark.parametrize("method", list(_SUBJECTS))
@pytest.mark.parametrize("check", [check for check in CHECKS if check.__name__ not in _LONG], ids=lambda c: c.__name__)
def test_contract(check, method):
    check(_SUBJECTS[method])


@pytest.mark.acceptance
@pytest.mark.parametrize("method", list(_SUBJECTS))
def test_method_passes_and_its_dummies_fail(method):
    for check in CHECKS:
        if check.__name__ in _LONG:
            check(_SUBJECTS[method])


@pytest.mark.parametrize("method", list(_SUBJECTS))
def test_three_dummies_are_there(method):
    assert {"constant", "random", "identity"} <= set(_SUBJECTS[method].probes.dummies)
