"""Named random streams."""

import subprocess
import sys

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from steelyard.rng import derive_seed, generator, torch_generator

PART = st.text(max_size=12)
SEED = st.integers(0, 2**40)
KEY = st.tuples(PART, PART, SEED)


def test_golden_values():
    """The streams are part of every recorded result: they must never change."""
    assert derive_seed("evaluation", "noise", 0) == 2921177198892074368
    assert derive_seed("tuning", "a/b", 3) == 5502020315509019135
    assert generator("evaluation", "noise", 0).integers(0, 10**9) == 730789008


@given(KEY)
def test_a_stream_is_a_function_of_its_name(key):
    seed = derive_seed(*key)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*key)
    assert generator(*key).normal(size=3).tobytes() == generator(*key).normal(size=3).tobytes()


@given(st.lists(KEY, min_size=2, max_size=20, unique=True))
def test_streams_differ(keys):
    parts = [key for key in keys if "\x1f" not in key[0] + key[1]]
    assert len({derive_seed(*key) for key in parts}) == len(parts)


@given(KEY, st.integers(1, 50))
def test_streams_do_not_depend_on_what_was_drawn_before(key, draws):
    wanted = generator(*key).normal()
    generator(key[0], key[1] + "/other", key[2]).normal(size=draws)
    assert generator(*key).normal() == wanted


@given(KEY, KEY)
def test_streams_are_not_correlated(first, second):
    assume(first != second)
    a, b = generator(*first).normal(size=400), generator(*second).normal(size=400)
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.3


def test_streams_are_the_same_in_another_process():
    code = "from steelyard.rng import generator; print(repr(generator('r', 'n', 5).normal()))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert said == repr(generator("r", "n", 5).normal())


def test_torch_streams():
    import torch

    first, again = (torch.rand(5, generator=torch_generator("r", "n", 1)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.rand(5, generator=torch_generator("r", "n", 2)))
    assert torch_generator("r", "n", 1).initial_seed() == derive_seed("r", "n", 1)


def test_numpy_numbers_are_seeds_too():
    assert derive_seed("r", "n", np.int64(7)) == derive_seed("r", "n", 7)
