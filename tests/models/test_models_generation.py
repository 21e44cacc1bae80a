"""Batches and the decoding loop: groups with a common start, padding, the Gumbel-max rule, the nucleus."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.models.batches import MIN_ROWS, common_start, group, padded
from steelyard.models.generation import Row, Sampling, decode, nucleus, pick, shared_start
from steelyard.models.tiny import tiny_random_lm
from steelyard.rng import generator

token_rows = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def lm():
    return tiny_random_lm()


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@given(token_rows, st.sampled_from([True, False, "auto"]))
def test_groups_hold_every_row_once_and_share_what_is_common(rows, share):
    limits = [len(row) - 1 for row in rows]
    groups = group(rows, limits, share)
    assert sorted(index for members, _ in groups for index in members) == list(range(len(rows)))
    for members, shared in groups:
        assert [len(rows[index]) for index in members] == sorted(len(rows[index]) for index in members)
        assert len({tuple(rows[index][:shared]) for index in members}) == 1
        assert all(shared <= limits[index] for index in members)
        if share is False:
            assert shared == 0
        if share == "auto" and shared:
            assert len(members) >= MIN_ROWS
            assert 2 * shared >= max(len(rows[index]) for index in members)


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_start(one, other):
    count = common_start(one, other)
    assert one[:count] == other[:count]
    assert one[count : count + 1] != other[count : count + 1] or min(len(one), len(other)) == count


def test_four_rows_with_half_in_common_make_a_group_and_the_rest_another():
    rows = [[1, 1, 1, token] for token in range(4)] + [[2, 2], [3, 3, 3, 3]]
    assert group(rows, [len(row) - 1 for row in rows], "auto") == [([0, 1, 2, 3], 3), ([4, 5], 0)]
    assert group(rows[:3], [3, 3, 3], "auto") == [([0, 1, 2], 0)]
    assert group(rows[:3], [3, 3, 2], True) == [([0, 1, 2], 2)]
    assert group(rows[:1], [3], True) == [([0], 0)]
    assert group([], [], "auto") == []


@given(token_rows, st.sampled_from(["left", "right"]))
def test_padding_keeps_rows_under_the_mask(rows, side):
    ids, mask = padded(rows, side)
    assert ids.shape == mask.shape == (len(rows), max(map(len, rows)))
    for index, row in enumerate(rows):
        assert ids[index][mask[index].bool()].tolist() == row
        edge = mask[index, -1] if side == "left" else mask[index, 0]
        assert edge == 1


@given(st.integers(0, 10**6), st.floats(0.05, 1.0))
def test_the_nucleus_is_the_smallest_set_that_reaches_its_probability(seed, top_p):
    logits = torch.from_numpy(generator("test", "nucleus", seed).normal(size=(1, 12)) * 2)
    kept = nucleus(logits, top_p)[0]
    probability = torch.softmax(logits[0], -1)
    inside = torch.isfinite(kept)
    assert torch.equal(kept[inside], logits[0][inside])
    assert probability[inside].sum() >= top_p - 1e-9
    assert probability[inside].sum() - probability[inside].min() < top_p
    assert inside.all() or probability[inside].min() >= probability[~inside].max()


def test_gumbel_max_draws_from_the_softmax():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    draws = 20_000
    row = [Row([0], 1, generator("test", "gumbel", 0))]
    for temperature in (1.0, 2.0):
        expected = torch.softmax(logits / temperature, -1).numpy()
        counts = Counter(pick(logits[None], Sampling(temperature), row)[0] for _ in range(draws))
        found = np.array([counts[token] for token in range(4)]) / draws
        assert np.all(np.abs(found - expected) < 4.5 * np.sqrt(expected * (1 - expected) / draws))
    cut = {pick(logits[None], Sampling(1.0, 0.6), row)[0] for _ in range(500)}
    assert cut == {0, 1}  # the second is needed to reach .6
    assert pick(logits[None], Sampling(), row) == [0]
    assert pick(logits[None] - 50, Sampling(1e-40, 0.5), row) == [0]  # as good as greedy, and no overflow


def test_a_text_ends_before_an_end_token_or_at_its_own_limit(lm):
    prompts = [lm.prompt_ids(text) for text in ("one", "and another")]
    free = [Row(ids, 12) for ids in prompts]
    decode(lm._decoder, free, Sampling(), ends=())
    assert [len(row.tokens) for row in free] == [12, 12]
    end = next(token for token in free[0].tokens[3:] if token not in free[0].tokens[:3])
    ended = [Row(prompts[0], 12), Row(prompts[1], 5)]
    decode(lm._decoder, ended, Sampling(), ends=(end,))
    assert ended[0].tokens == free[0].tokens[: free[0].tokens.index(end)]
    assert (
        ended[1].tokens
        == (free[1].tokens[: free[1].tokens.index(end)] if end in free[1].tokens else free[1].tokens)[:5]
    )


def test_a_shared_start_can_be_used_again(lm):
    rows = [lm.prompt_ids("x" * 30 + end) for end in ("a", "bcd", "ef", "g")]
    start = shared_start(lm._decoder, rows[0][:20])
    texts = []
    for _ in range(2):
        work = [Row(ids, 6) for ids in rows]
        decode(lm._decoder, work, Sampling(), ends=(), start=start, shared=20)
        texts.append([row.tokens for row in work])
    plain = [Row(ids, 6) for ids in rows]
    decode(lm._decoder, plain, Sampling(), ends=())
    assert texts[0] == texts[1] == [row.tokens for row in plain]
    assert shared_start(lm._decoder, []) is None
