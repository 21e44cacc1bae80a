"""The guard that is attacked: what it flags, that its gradient is one, that it survives JSON."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing import topic, victim
from steelyard.guard.dr_smoothing.victim import EmbeddingGuard, embed, train_guard
from steelyard.models import minilm


@pytest.fixture(scope="module")
def guard():
    texts = topic.FORBIDDEN_TRAIN + topic.ALLOWED_TRAIN
    return train_guard(texts, [True] * len(topic.FORBIDDEN_TRAIN) + [False] * len(topic.ALLOWED_TRAIN))


def test_it_knows_its_topic(guard):
    assert guard.flags(topic.FORBIDDEN).mean() > 0.9
    assert guard.flags(topic.ALLOWED).mean() < 0.1


def test_embeddings_are_those_of_the_encoder_one_by_one():
    """Batching by length and padding change nothing that counts."""
    texts = ["a", "How do I grow sunflowers from seed?", "word " * 40, "b c d"]
    model, tokenizer = victim.encoder()
    alone = [
        minilm.embed(model, *(tokenizer(text, return_tensors="pt")[key] for key in ("input_ids", "attention_mask")))
        for text in texts
    ]
    np.testing.assert_allclose(embed(texts), torch.cat(alone).numpy(), atol=1e-5)
    assert embed([]).shape == (0, 384)


def test_long_texts_are_cut():
    long = "many words and more " * 60
    assert np.array_equal(embed([long]), embed([long + " and a tail that nobody reads"]))


def test_gradient_agrees_with_differences(guard):
    """Along a change of one token's embedding, the gradient's product is the derivative of the logit."""
    model, tokenizer = victim.encoder()
    ids = tokenizer("Which flowers grow well ! ! in the shade?")["input_ids"]
    position, other = ids.index(tokenizer.convert_tokens_to_ids("!")), tokenizer.convert_tokens_to_ids("museum")
    gradient = guard.logit_gradient(ids, [position])
    table = model.get_input_embeddings().weight
    step = 1e-2

    def logit(share):
        rows = table[torch.tensor(ids)].clone()
        rows[position] += share * (table[other] - table[ids[position]])
        hidden = model(inputs_embeds=rows[None]).last_hidden_state[0].mean(0)
        return float(torch.nn.functional.normalize(hidden, dim=-1).double() @ torch.from_numpy(guard.weights))

    expected = (logit(step) - logit(-step)) / (2 * step)
    assert float(gradient[0, other] - gradient[0, ids[position]]) == pytest.approx(expected, rel=0.02)


def test_it_answers_like_a_model(guard):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": topic.FORBIDDEN[0]}]
    assert guard.respond([chat, topic.ALLOWED[0]]) == [victim.REFUSED, victim.PASSED]


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: train_guard(["a"], [True, False]), "labels"),
        (lambda: train_guard(["a", "b"], [True, True]), "both kinds"),
        (lambda: EmbeddingGuard(np.ones(3), 0.0), "384"),
        (lambda: EmbeddingGuard(np.full(384, np.nan), 0.0), "finite"),
        (lambda: EmbeddingGuard(np.zeros(384), 0.0).logit_gradient([0] * 97, [1]), "ids"),
    ],
)
def test_what_is_refused(call, word):
    with pytest.raises(InputError, match=word):
        call()
