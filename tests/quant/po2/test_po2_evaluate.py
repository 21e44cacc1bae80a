"""Divergence of a model from its reference, against closed forms."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.quant.po2.evaluate import Divergence, compare, perplexity, token_windows

VOCAB = 6


def table(seed, scale=2.0):
    """A model whose logits depend on the current token alone."""
    weights = torch.from_numpy(np.random.default_rng(seed).normal(0, scale, (VOCAB, VOCAB))).float()
    return lambda ids: weights[ids]


def windows(seed, count=3, length=300):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, VOCAB, (count, length)))


def definition(reference, model, text):
    """KL, agreement and likelihoods in float64, position by position."""
    rows = []
    for window in text:
        p = reference(window[:-1]).double().softmax(-1).numpy()
        q = model(window[:-1]).double().softmax(-1).numpy()
        at = np.arange(len(p)), window[1:].numpy()
        rows += list(zip(
            (p * np.log(p / q)).sum(1), p.argmax(1) == q.argmax(1), -np.log(q[at]), -np.log(p[at]), strict=True
        ))  # fmt: skip
    return np.mean(np.array(rows, dtype=np.float64), axis=0)


@given(st.integers(0, 1000), st.integers(2, 300))
def test_it_is_the_definition(seed, length):
    reference, model, text = table(seed), table(seed + 1), windows(seed, 2, length)
    found = compare(reference, {"m": model}, text)["m"]
    expected = definition(reference, model, text)
    np.testing.assert_allclose([found.kl, found.top1, found.nll, found.reference_nll], expected, rtol=1e-5, atol=1e-6)
    assert found.tokens == 2 * (length - 1)
    assert math.isclose(perplexity(model, text), found.perplexity, rel_tol=1e-6)
    assert math.isclose(perplexity(reference, text), found.reference_perplexity, rel_tol=1e-6)


@given(st.integers(0, 1000), st.floats(-3, 3))
def test_the_reference_itself_diverges_by_nothing(seed, shift):
    reference, text = table(seed), windows(seed, 1, 40)
    found = compare(reference, {"same": reference, "shifted": lambda ids: reference(ids) + shift}, text)
    assert found["same"].kl == 0.0
    assert found["same"].top1 == found["shifted"].top1 == 1.0
    assert found["shifted"].kl < 1e-6


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_divergence_is_never_negative_and_needs_no_symmetry(a, b):
    text = windows(a, 1, 30)
    there = compare(table(a), {"b": table(b)}, text)["b"].kl
    assert there >= 0
    assert (there == 0) == (a == b)


def test_a_uniform_model_has_the_perplexity_of_chance():
    text = windows(1, 1, 200)
    assert math.isclose(perplexity(lambda ids: torch.zeros(*ids.shape, VOCAB), text), VOCAB, rel_tol=1e-6)
    huge = Divergence(0.0, 1.0, 1e4, 1.0, 1)
    assert huge.perplexity == math.inf


def test_outputs_with_logits_and_half_precision_are_taken():
    reference, text = table(3), windows(3, 1, 20)
    found = compare(
        lambda ids: SimpleNamespace(logits=reference(ids)), {"half": lambda ids: reference(ids).bfloat16()}, text
    )["half"]
    assert 0 < found.kl < 1e-3


def test_windows():
    ids = torch.arange(23)
    cut = token_windows(ids, 5)
    assert cut.tolist() == [[*range(n, n + 5)] for n in (0, 5, 10, 15)]
    assert token_windows(ids, 5, 2).tolist() == cut[:2].tolist()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: token_windows(torch.arange(9), 5, 2), "9 tokens, too few for 2 windows of 5"),
        (lambda: token_windows(torch.arange(1), 2), "too few for 1 windows"),
        (lambda: token_windows(torch.arange(9), 5, 0), "too few for 0 windows"),
        (lambda: token_windows(torch.arange(9), 1), "length must be at least 2"),
        (lambda: token_windows(torch.ones(9), 2), "ids must be int64"),
        (lambda: token_windows(torch.ones(9, 1, dtype=torch.int64), 2), "ids must be int64"),
        (lambda: compare(table(1), {}, torch.zeros(0, 4, dtype=torch.int64)), "windows must be"),
        (lambda: perplexity(table(1), torch.zeros(1, 1, dtype=torch.int64)), "windows must be"),
        (lambda: perplexity(lambda ids: table(1)(ids) / 0, windows(1)), "window 0: the model gives logits"),
        (lambda: compare(table(1), {"m": lambda ids: table(1)(ids) * math.nan}, windows(1)), "'m', window 0"),
        (lambda: compare(table(1), {"m": lambda ids: table(1)(ids)[..., :3]}, windows(1)), "'m' has logits"),
    ],
)
def test_what_cannot_be_compared(call, says):
    with pytest.raises(InputError, match=says):
        call()
