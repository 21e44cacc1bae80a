"""The cost of a batch, against counting by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.models import estimate_cost


def test_counted_by_hand():
    cost = estimate_cost(10, 8, 4, 3, parameters=5)
    assert cost == (8 + 4 * 2, 4 * 2, 2, 2 * 5 * (16 + 8))
    assert cost.tokens == 24


@given(st.integers(2, 500), st.integers(0, 499), st.integers(1, 50), st.integers(1, 99))
def test_sharing_saves_what_the_others_would_repeat(length, shared, n, new):
    shared = min(shared, length - 1)
    one, batch, both = (estimate_cost(length, *rest, new) for rest in ((0, 1), (0, n), (shared, n)))
    assert batch.tokens == n * one.tokens
    assert batch.tokens - both.tokens == (n - 1) * shared
    assert one.flops <= both.flops <= batch.flops


@pytest.mark.parametrize("numbers", [(0, 0, 1, 1), (5, 5, 1, 1), (5, -1, 1, 1), (5, 0, 0, 1), (5, 0, 1, 0)])
def test_numbers_out_of_range(numbers):
    with pytest.raises(InputError, match="must be"):
        estimate_cost(*numbers)
