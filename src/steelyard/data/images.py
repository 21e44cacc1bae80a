"""The idx format of the MNIST files: a checked header, then unsigned bytes."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steelyard.data.cache import locate
from steelyard.data.limits import gunzip
from steelyard.data.registry import Progress
from steelyard.errors import InputError

_UNSIGNED_BYTE = 0x08
_MAX_DIMENSIONS = 4
_MAX_IMAGE_BYTES = 1 << 26  # the 10,000 images take 7.8 MB

Bytes = npt.NDArray[np.uint8]


def parse_idx(data: bytes, source: str) -> Bytes:
    """Read idx data: two zero bytes, the type (8, unsigned byte), the number of dimensions, big-endian sizes, values.

    Args:
        data: The unpacked file.
        source: File name for error messages.

    Returns:
        uint8 array of the shape in the header.

    Raises:
        InputError: Another format or type, a header that is cut off, or more or fewer values than it promises.
    """
    if len(data) < 4 or data[:2] != b"\0\0":
        raise InputError(f"{source} is not an idx file: it does not begin with two zero bytes and a type")
    kind, dimensions = data[2], data[3]
    if kind != _UNSIGNED_BYTE:
        raise InputError(f"{source} holds idx values of type 0x{kind:02x} where only unsigned bytes (0x08) are read")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise InputError(f"{source} claims {dimensions} dimensions where 1 to {_MAX_DIMENSIONS} are read")
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise InputError(f"{source} is cut off within its header of {start} bytes")
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    if len(data) - start != math.prod(shape):
        raise InputError(
            f"{source} holds {len(data) - start} values where its header {shape} promises {math.prod(shape)}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape).copy()


def read_idx(path: Path) -> Bytes:
    """Read a gzipped idx file; see :func:`parse_idx`."""
    return parse_idx(gunzip(path.read_bytes(), str(path), _MAX_IMAGE_BYTES), str(path))


def load_images(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
    """Read an image file and its label file.

    Returns:
        Images uint8 [n, height, width] and labels uint8 [n].

    Raises:
        InputError: The two do not belong together.
    """
    pixels, classes = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
        raise InputError(f"{images} and {labels} do not belong together: {pixels.shape} images, {classes.shape} labels")
    return pixels, classes


def mnist_t10k(progress: Progress | None = None) -> tuple[Bytes, Bytes]:
    """Return the 10,000 test images of MNIST.

    Args:
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Returns:
        Images uint8 [10000, 28, 28] and labels uint8 [10000] in 0..9.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    images, labels = locate("mnist_t10k", progress).paths
    return load_images(images, labels)
