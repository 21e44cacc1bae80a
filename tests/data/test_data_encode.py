"""Features from tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.data import encode
from steelyard.data.encode import encode_features
from steelyard.data.tables import read_table
from steelyard.errors import InputError


def test_every_kind_of_column():
    table = read_table(
        {
            "n": [1.0, 3.0, None],
            "k": [5, 5, 5],
            "c": ["b", "a", None],
            "d": ["x", "y", "x"],
            "gone": [None, None, None],
            "y": ["p", "q", "p"],
        }
    )
    encoded = encode_features(table, exclude=("y",))
    assert encoded.names == (
        "n",
        "n missing",
        "k",
        "c=a",
        "c=b",
        "c=(missing)",
        "d=x",
        "d=y",
        "gone",
        "gone missing",
    )
    expected = [
        [-1, 0, 0, 0, 1, 0, 1, 0, 0, 1],
        [1, 0, 0, 1, 0, 0, 0, 1, 0, 1],
        [0, 1, 0, 0, 0, 1, 1, 0, 0, 1],
    ]
    np.testing.assert_array_equal(encoded.matrix, np.array(expected, dtype=float))
    assert encoded.matrix.dtype == np.float64
    assert math.isnan(table.column("n")[2])


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(allow_infinity=False)))
def test_a_numeric_column_is_standardised(values):
    encoded = encode_features(read_table({"x": values}))
    missing = np.isnan(values)
    column = encoded.matrix[:, 0]
    assert np.isfinite(encoded.matrix).all()
    assert (column[missing] == 0).all()
    present = values[~missing]
    if present.size and present.min() < present.max():
        assert abs(column[~missing].mean()) < 1e-6
        assert abs(column[~missing].std() - 1) < 1e-9
        assert (np.diff(column[~missing][np.argsort(present, kind="stable")]) >= 0).all()
    else:
        assert (column == 0).all()
    assert encoded.names == (("x", "x missing") if missing.any() else ("x",))


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from("abc")), min_size=1, max_size=30).filter(any))
def test_categories_are_a_partition(values):
    encoded = encode_features(read_table({"c": values}))
    np.testing.assert_array_equal(encoded.matrix.sum(axis=1), np.ones(len(values)))
    back = [encoded.names[j].removeprefix("c=") for j in encoded.matrix.argmax(axis=1)]
    assert back == [value or "(missing)" for value in values]


@settings(deadline=None)
@given(st.permutations(range(8)))
def test_the_order_of_rows_does_not_matter(order):
    columns = {"x": [1.0, 2.0, None, 5.0, 5.0, 0.0, -1.0, 9.0], "c": list("abcabcaa")}
    moved = {name: [values[i] for i in order] for name, values in columns.items()}
    straight, shuffled = encode_features(read_table(columns)), encode_features(read_table(moved))
    assert straight.names == shuffled.names
    np.testing.assert_allclose(shuffled.matrix, straight.matrix[list(order)], atol=1e-12)


def test_refusals(monkeypatch):
    table = read_table({"x": [1.0, 2.0], "y": ["a", "b"]}, "mine.csv")
    with pytest.raises(InputError, match=r"mine\.csv has no column 'z'"):
        encode_features(table, exclude=("x", "z"))
    with pytest.raises(InputError, match=r"mine\.csv has no column left"):
        encode_features(table, exclude=("x", "y"))
    assert encode_features(table, exclude="y").names == ("x",)
    many = read_table({"id": [f"user {i}" for i in range(1001)]}, "mine.csv")
    with pytest.raises(InputError, match=r"mine\.csv, column 'id': it has 1001 different texts"):
        encode_features(many)
    monkeypatch.setattr(encode, "MAX_TABLE_BYTES", 47)
    with pytest.raises(InputError, match="column 'y': with it the 2 rows have 3 features"):
        encode_features(table)
