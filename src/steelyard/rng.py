"""Named random streams: a generator is a function of (root, stream name, seed), never of the order of calls.

Adding a method or an arm therefore changes nobody else's draws, and two arms that ask for the same stream get the
same random numbers, so that their differences pair.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def derive_seed(root: str, name: str, seed: int) -> int:
    """Return a 63-bit seed, the same on every machine, from the content of its three parts."""
    digest = hashlib.sha256(f"{root}\x1f{name}\x1f{int(seed)}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(root: str, name: str, seed: int) -> np.random.Generator:
    """Return a numpy generator for the stream (root, name, seed)."""
    import numpy as np

    return np.random.default_rng(derive_seed(root, name, seed))


def torch_generator(root: str, name: str, seed: int) -> torch.Generator:
    """Return a CPU torch generator for the stream (root, name, seed)."""
    import torch

    return torch.Generator().manual_seed(derive_seed(root, name, seed))
