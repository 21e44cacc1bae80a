import numpy as np
import pytest

from steelyard.errors import InputError
from steelyard.optim.gdro_fsq.conformance import CONFORMANCE


def equal(pair):
    one, two = pair
    assert set(one) == set(two)
    return all(np.array_equal(one[name], two[name]) for name in one)


def test_probes():
    assert equal(CONFORMANCE.noop())
    assert not equal(CONFORMANCE.effect())
    assert equal(CONFORMANCE.resumed())
    assert equal(CONFORMANCE.untouched())


@pytest.mark.parametrize("dtype", CONFORMANCE.dtypes)
def test_runs_repeat_and_keep_their_type(dtype):
    one = CONFORMANCE.run(0, dtype)
    assert equal((one, CONFORMANCE.run(0, dtype)))
    assert not equal((one, CONFORMANCE.run(1, dtype)))
    assert {value.dtype.name for value in one.values()} == {dtype}


@pytest.mark.parametrize("bad", CONFORMANCE.bad_inputs, ids=lambda bad: bad.label)
def test_bad_inputs_are_named(bad):
    with pytest.raises(InputError) as caught:
        bad.call()
    assert bad.names in str(caught.value)


@pytest.mark.acceptance
def test_acceptance():
    CONFORMANCE.acceptance(CONFORMANCE.implementation)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", CONFORMANCE.dummies)
def test_dummies_fail_the_acceptance_test(name):
    with pytest.raises(AssertionError):
        CONFORMANCE.acceptance(CONFORMANCE.dummies[name])
