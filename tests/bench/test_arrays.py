"""Arrays as bytes and hashes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.bench.arrays import content_hash, from_bytes, plain, to_bytes
from steelyard.errors import InputError

DTYPES = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.complex128, "<U4"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAY = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
NAMES = st.text("abcxyz_", min_size=1, max_size=6)


def same(first, second):
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


@given(st.dictionaries(NAMES, ARRAY, max_size=3))
def test_bytes_and_back(arrays):
    back = from_bytes(to_bytes(arrays))
    assert set(back) == set(arrays)
    assert all(same(np.asarray(arrays[name]), back[name]) for name in arrays)
    assert content_hash(back) == content_hash(arrays)


@given(hnp.arrays(np.float64, (3, 4)))
def test_the_layout_in_memory_does_not_count(array):
    wanted = content_hash({"x": array})
    assert content_hash({"x": np.asfortranarray(array)}) == wanted
    wide = np.zeros((6, 8))
    wide[::2, ::2] = array
    assert content_hash({"x": wide[::2, ::2]}) == wanted
    assert content_hash(plain({"x": np.asfortranarray(array)}, "t")) == wanted


@given(ARRAY, ARRAY)
def test_the_order_of_names_does_not_count(first, second):
    assert content_hash({"a": first, "b": second}) == content_hash({"b": second, "a": first})


@given(hnp.arrays(np.int64, st.integers(1, 6)), st.data())
def test_values_names_shapes_and_dtypes_count(array, data):
    other = array.copy()
    other[data.draw(st.integers(0, len(array) - 1))] ^= 1
    variants = [{"x": array}, {"x": other}, {"y": array}, {"x": array[:, None]}, {"x": array.view(np.uint64)}]
    assert len({content_hash(variant) for variant in variants}) == len(variants)


def test_plain_takes_lists_and_numbers():
    found = plain({"a": [1, 2], "b": 3.0, "c": ["x", "yy"], "d": np.array(4)}, "t")
    assert {name: (array.dtype.kind, array.shape) for name, array in found.items()} == {
        "a": ("i", (2,)), "b": ("f", ()), "c": ("U", (2,)), "d": ("i", ()),
    }  # fmt: skip


@pytest.mark.parametrize("value", [[None, 1], np.array([object()]), np.array([b"x"]), np.array(["2020"], "M8[Y]")])
def test_plain_refuses_the_rest(value):
    with pytest.raises(InputError, match=r"task t: array 'bad' has dtype .*; only numbers and text can be stored"):
        plain({"bad": value}, "t")


def test_pickled_objects_are_refused():
    import io

    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        from_bytes(buffer.getvalue())
