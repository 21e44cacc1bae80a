"""Numba kernels of the packed product: per-byte partial sums for one input row, and the decoding of a column block.

A *word* is 16 codes of a row: 8 bytes, read as one little-endian unsigned integer. All indices into tables are
unsigned, which spares numba's wrap-around test for negative ones (twice the speed here).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steelyard.quant.po2.kernels import compiled

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_BYTE = np.uint64(255)
_TILE = 64  # rows decoded together, so that scaling finds them in the first-level cache


@compiled
def _fill(table: Floats, grids: Floats, x: Floats) -> None:
    """Fill (m, 8, 256) partial sums G[low] x[2b] + G[high] x[2b + 1] for the 16 inputs ``x`` of a word."""
    for i in range(grids.shape[0]):
        for b in range(8):
            for high in range(16):
                start = ((i * 8 + b) * 16 + high) * 16
                product = grids[i, high] * x[2 * b + 1]
                for low in range(16):
                    table[start + low] = grids[i, low] * x[2 * b] + product


@compiled
def row_product(
    words: Words, scales: Bytes, scale_of: Floats, selector_of: Bytes, grids: Floats, x: Floats, y: Floats
) -> None:
    """Add W x to ``y`` (rows,) for one input row ``x`` (words * 16,).

    Args:
        words: (words, rows) packed codes.
        scales: (groups, rows) scale bytes.
        scale_of: (256,) value of a scale byte.
        selector_of: (256,) grid of a scale byte.
        grids: (m, 16).
        x: Inputs.
        y: Sums.
    """
    per_group = words.shape[0] // scales.shape[0]
    table = np.empty(grids.shape[0] * 2048, np.float32)
    offset_of = selector_of.astype(np.uint64) * np.uint64(2048)
    for w in range(words.shape[0]):
        _fill(table, grids, x[16 * w : 16 * w + 16])
        word_row, scale_row = words[w], scales[w // per_group]
        for r in range(word_row.size):
            c, byte = word_row[r], scale_row[r]
            at = offset_of[byte]
            a = table[at + (c & _BYTE)] + table[at + np.uint64(256) + ((c >> np.uint64(8)) & _BYTE)]
            b = table[at + np.uint64(512) + ((c >> np.uint64(16)) & _BYTE)]
            b += table[at + np.uint64(768) + ((c >> np.uint64(24)) & _BYTE)]
            d = table[at + np.uint64(1024) + ((c >> np.uint64(32)) & _BYTE)]
            d += table[at + np.uint64(1280) + ((c >> np.uint64(40)) & _BYTE)]
            e = table[at + np.uint64(1536) + ((c >> np.uint64(48)) & _BYTE)]
            e += table[at + np.uint64(1792) + (c >> np.uint64(56))]
            y[r] += scale_of[byte] * ((a + b) + (d + e))


@compiled
def decode(
    words: Words, scales: Bytes, scale_of: Floats, selector_of: Bytes, pairs: Words, first: int, out: Floats
) -> None:
    """Write the weights of words ``first`` to ``first + n`` into ``out`` (rows, n, 16).

    A byte is decoded by one look-up of two values; scaling is a second pass over a tile that is still in the cache,
    because it is then done on whole vectors.

    Args:
        words: (words, rows) packed codes.
        scales: (groups, rows) scale bytes.
        scale_of: (256,) value of a scale byte.
        selector_of: (256,) grid of a scale byte.
        pairs: (m * 256,) two float32 values a byte of codes.
        first: First word.
        out: Weights; its values are overwritten.
    """
    per_group = words.shape[0] // scales.shape[0]
    offset_of = selector_of.astype(np.uint64) * np.uint64(256)
    out_pairs = out.view(np.uint64)
    for start in range(0, out.shape[0], _TILE):
        stop = min(out.shape[0], start + _TILE)
        for n in range(out.shape[1]):
            word_row, scale_row = words[first + n], scales[(first + n) // per_group]
            for r in range(start, stop):
                c, at, cell = word_row[r], offset_of[scale_row[r]], out_pairs[r, n]
                cell[0] = pairs[at + (c & _BYTE)]
                cell[1] = pairs[at + ((c >> np.uint64(8)) & _BYTE)]
                cell[2] = pairs[at + ((c >> np.uint64(16)) & _BYTE)]
                cell[3] = pairs[at + ((c >> np.uint64(24)) & _BYTE)]
                cell[4] = pairs[at + ((c >> np.uint64(32)) & _BYTE)]
                cell[5] = pairs[at + ((c >> np.uint64(40)) & _BYTE)]
                cell[6] = pairs[at + ((c >> np.uint64(48)) & _BYTE)]
                cell[7] = pairs[at + (c >> np.uint64(56))]
            for r in range(start, stop):
                scale, values = scale_of[scale_row[r]], out[r, n]
                for j in range(values.size):
                    values[j] *= scale
