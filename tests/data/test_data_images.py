"""The idx format."""

from __future__ import annotations

import contextlib
import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.data.images import load_images, parse_idx, read_idx
from steelyard.errors import InputError


def idx(array, kind=8):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes()


@settings(deadline=None)
@given(hnp.arrays(np.uint8, hnp.array_shapes(max_dims=4, min_side=0, max_side=5)))
def test_what_is_written_is_read_back(array):
    read = parse_idx(idx(array), "a")
    assert read.dtype == np.uint8
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


@settings(deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_give_an_array_or_an_input_error(data):
    with contextlib.suppress(InputError):
        assert idx(parse_idx(data, "a")) == data


SOUND = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not an idx file"),
        (b"\x01" + SOUND[1:], "is not an idx file"),
        (idx(np.zeros(2, dtype=np.uint8), kind=0x0D), "type 0x0d"),
        (b"\0\0\x08\x00", "claims 0 dimensions"),
        (b"\0\0\x08\xff", "claims 255 dimensions"),
        (SOUND[:9], "is cut off within its header of 12 bytes"),
        (SOUND[:-1], r"holds 5 values where its header \(2, 3\) promises 6"),
        (SOUND + b"x", r"holds 7 values where its header \(2, 3\) promises 6"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "holds 0 values where its header"),
    ],
)
def test_idx_is_refused(data, says):
    with pytest.raises(InputError, match=says):
        parse_idx(data, "a")


def test_files_that_do_not_belong_together(tmp_path):
    def write(name, array):
        (tmp_path / name).write_bytes(gzip.compress(idx(array)))
        return tmp_path / name

    images = write("i", np.ones((2, 3, 3), dtype=np.uint8))
    labels = write("l", np.array([4, 5], dtype=np.uint8))
    pixels, classes = load_images(images, labels)
    assert pixels.shape == (2, 3, 3)
    assert classes.tolist() == [4, 5]
    for first, second in [(labels, images), (images, images), (images, write("m", np.zeros(3, dtype=np.uint8)))]:
        with pytest.raises(InputError, match="do not belong together"):
            load_images(first, second)
    (tmp_path / "i").write_bytes(idx(np.zeros(3, dtype=np.uint8)))
    with pytest.raises(InputError, match="is not a sound gzip file"):
        read_idx(tmp_path / "i")
