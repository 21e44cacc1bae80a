"""Baselines: likelihoods by hand, HIDE, P(True), the controls; and those that sample."""

import math

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.guard import EmbeddingDiscrepancy
from steelyard.guard.discrepancy import baselines, multi_response
from steelyard.guard.discrepancy.multi_response import Samples
from steelyard.guard.discrepancy.passes import Pair, Pass, TokenStatistics, token_statistics
from steelyard.models.embedders import HashingEmbedder
from steelyard.models.tiny import tiny_random_lm


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    return tiny_random_lm(layers=4)


def statistics(nll, entropy=None, energy=None):
    filled = [np.array(values if values is not None else nll, np.float32) for values in (nll, entropy, energy)]
    return TokenStatistics(*filled)


def pair(context, alone, states=None, prefix=None):
    T = len(context.nll)
    states = np.zeros((1, T, 2), np.float32) if states is None else states
    return Pair(Pass(states, prefix, context), Pass(states, None, alone))


def test_likelihood_scores_by_hand():
    pairs = [pair(statistics([1, 3], [0.5, 1.5], [-4, -2]), statistics([2, 6])), pair(statistics([7]), statistics([5]))]
    expected = {
        "nll": [2, 7], "summed_nll": [4, 7], "max_nll": [3, 7], "entropy": [1, 7], "energy": [-3, 7],
        "pmi": [-2, 2], "length": [2, 1],
    }  # fmt: skip
    assert set(expected) == set(baselines.LIKELIHOODS)
    for name, values in expected.items():
        np.testing.assert_allclose(baselines.LIKELIHOODS[name](pairs), values)


def test_token_statistics_of_a_distribution_by_hand():
    logits = torch.tensor([[math.log(2.0), math.log(6.0), -math.inf], [0.0, 0.0, 0.0]])
    found = token_statistics(logits, torch.tensor([0, 2]))
    np.testing.assert_allclose(found.nll, [math.log(4), math.log(3)], rtol=1e-6)
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    np.testing.assert_allclose(found.entropy, [entropy, math.log(3)], rtol=1e-6)
    np.testing.assert_allclose(found.energy, [-math.log(8), -math.log(3)], rtol=1e-6)


def test_pmi_of_a_question_that_is_the_prefix_is_zero(lm):
    det = EmbeddingDiscrepancy(lm)
    chats = [[{"role": "user", "content": "Why?"}]]
    pairs = det.passes(None, ["storm"], condition=chats, base=chats, logits=True)
    assert baselines.pmi(pairs)[0] == 0
    with pytest.raises(InputError, match="logits=True"):
        baselines.nll(det.passes(["Why?"], ["storm"]))


def hsic_by_definition(K, L):
    n, total = len(K), 0.0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += K[i, j] * (L[i, j] + L[q, r] - 2 * L[i, q])
    return total / math.perm(n, 4)


def test_hide_is_minus_the_dependence_of_central_tokens():
    g = np.random.default_rng(0)
    states, prefix = g.normal(size=(1, 5, 3)) + 1, g.normal(size=(1, 9, 3)) + 1
    chosen = []
    for side in (prefix[0], states[0]):
        closeness = [row @ side.mean(0) / np.linalg.norm(row) for row in side]
        chosen.append(side[np.argsort(closeness)[::-1][:5]])
    kernels = [np.exp(-0.2 * ((x[:, None] - x[None]) ** 2).sum(-1)) for x in chosen]
    pairs = [pair(statistics([1] * 5), None, states, prefix)]
    assert baselines.hide(pairs, gamma=0.2)[0] == pytest.approx(-hsic_by_definition(*kernels), rel=1e-9)
    tiny = baselines.hide(pairs)[0]  # the published gamma: the kernel is linear, and no digit is lost
    linear = [-((x[:, None] - x[None]) ** 2).sum(-1) for x in chosen]
    assert tiny == pytest.approx(-1e-14 * hsic_by_definition(*linear), rel=1e-5)


def test_hide_of_answers_too_short_for_it_is_zero(lm):
    det = EmbeddingDiscrepancy(lm)
    pairs = det.passes(["Why?", "Why?"], ["abc", "abcd"], layers=[2], keep_prefix=True)
    found = baselines.hide(pairs)
    assert found[0] == 0
    assert found[1] != 0
    with pytest.raises(InputError, match="keep_prefix=True"):
        baselines.hide(det.passes(["Why?"], ["abcd"]))


def test_p_true_compares_the_two_letters(lm):
    for model in (lm, tiny_random_lm(layers=2, chat=False)):
        found = baselines.p_true(model, ["Why?", "Who?"], ["storm", "me"], ["A storm came.", None])
        assert found.shape == (2,)
        assert ((found > 0) & (found < 1)).all()

    class Sure:
        is_chat = True

        def logprobs(self, prompts, responses):
            assert "storm" in prompts[0][-1]["content"]
            return [np.array([math.log(0.6 if text == "A" else 0.2)], np.float32) for text in responses]

    assert baselines.p_true(Sure(), ["Why?"], ["storm"])[0] == pytest.approx(0.25)


class Table:
    """An encoder with a given unit vector for each text."""

    def __init__(self, **angles):
        self.angles = angles

    def encode(self, texts, batch_size=64):
        return np.array([[math.cos(self.angles[t]), math.sin(self.angles[t])] for t in texts], np.float32)


def test_sgi_is_the_ratio_of_angles():
    encoder = Table(q=0.0, c=1.0, r=0.75)
    assert baselines.sgi(encoder, ["q"], ["r"], ["c"])[0] == pytest.approx(-3, rel=1e-4)
    assert baselines.sgi(encoder, ["q"], ["c"], ["c"])[0] == pytest.approx(-1000, rel=1e-3)
    near_question = baselines.sgi(Table(q=0.0, c=1.0, r=0.1), ["q"], ["r"], ["c"])[0]
    assert near_question > -1  # closer to the question: likely hallucinated
    with pytest.raises(InputError, match="contexts must hold"):
        baselines.sgi(encoder, ["q"], ["r"], [None])


def test_text_similarity_is_minus_the_cosine():
    encoder = Table(**{"q": 0.0, "c\nq": 1.0, "r": math.pi / 3})
    found = baselines.text_similarity(encoder, ["q", "q"], ["r", "r"], [None, "c"])
    np.testing.assert_allclose(found, [-0.5, -math.cos(math.pi / 3 - 1)], rtol=1e-6)
    assert baselines.text_similarity(encoder, ["q"], ["r"])[0] == pytest.approx(-0.5)


def samples(*texts, states=None, logprobs=None):
    return Samples(list(texts), np.zeros((len(texts), 4)) if states is None else states, logprobs or [])


def test_lexical_and_selfcheck_by_hand():
    agreed, torn = samples("a b", "a b", "a b"), samples("a b", "c d", "a c")
    np.testing.assert_allclose(multi_response.lexical([agreed, torn]), [-1, -(0 + 0.5 + 0.5) / 3])
    np.testing.assert_allclose(multi_response.selfcheck(["a b", "a b"], [agreed, torn]), [0, (0 + 1 + 0.5) / 3])
    own = multi_response.selfcheck(["a b"], [torn], similarity=lambda a, b: float(a == b))
    np.testing.assert_allclose(own, [2 / 3])
    encoder = Table(r=0.0, x=math.pi / 3, y=math.pi / 2)
    np.testing.assert_allclose(multi_response.selfcheck(["r"], [samples("x", "y")], encoder), [0.75], rtol=1e-6)
    with pytest.raises(InputError, match="equally long"):
        multi_response.selfcheck([], [torn])
    with pytest.raises(InputError, match="similarity must be"):
        multi_response.selfcheck(["a"], [torn], similarity="cosine")


def test_word_overlap():
    assert multi_response.word_overlap("a a b", "a b b") == pytest.approx(2 / 3)
    assert multi_response.word_overlap("", "a") == 0


def test_semantic_entropy_and_the_rule_that_gave_it():
    torn = samples("The cat.", "cat", "dog", "cat!")
    plain = multi_response.semantic_entropy([torn, samples("x", "x")])
    assert plain.rule == "match"
    np.testing.assert_allclose(plain.values, [-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), 0])
    encoder = Table(a=0.0, b=0.1, c=1.5)
    close = multi_response.semantic_entropy([samples("a", "b", "c")], embedder=encoder)
    assert close.rule == "embedding"
    np.testing.assert_allclose(close.values, [-(2 / 3 * math.log(2 / 3) + math.log(1 / 3) / 3)])
    one_way = multi_response.semantic_entropy([samples("a", "b")], entails=lambda a, b: a <= b)
    assert one_way.rule == "entailment"
    np.testing.assert_allclose(one_way.values, [math.log(2)])
    everything = multi_response.semantic_entropy([samples("a", "b")], entails=lambda a, b: True)
    np.testing.assert_allclose(everything.values, [0])


def test_ln_entropy():
    one = samples("a", "b", "", logprobs=[np.array([-1.0, -3]), np.array([-4.0]), np.zeros(0)])
    silent = samples("", "", logprobs=[np.zeros(0), np.zeros(0)])
    np.testing.assert_allclose(multi_response.ln_entropy([one, silent]), [3, 0])
    with pytest.raises(InputError, match="logprobs=True"):
        multi_response.ln_entropy([samples("a", "b")])


def test_eigenscore_against_eigenvalues_by_hand():
    x = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])
    centred = x - x.mean(1, keepdims=True)
    eigenvalues = np.linalg.eigvals(centred @ centred.T / 3 + 1e-3 * np.eye(3)).real
    found = multi_response.eigenscore([samples("a", "b", "c", states=x)])
    assert found[0] == pytest.approx(np.log10(eigenvalues).mean())
    clipped = multi_response.eigenscore([samples("a", "b", "c", states=x)], bank=np.zeros((5, 4)))
    assert clipped[0] == pytest.approx(-3)


def test_the_state_near_the_end():
    states = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(multi_response.near_end(states), [4, 5])
    np.testing.assert_array_equal(multi_response.near_end(states[:1]), [0, 1])
    np.testing.assert_array_equal(multi_response.near_end(states[:0]), [0, 0])


def test_samples_of_a_model_feed_every_score(lm):
    chats = [[{"role": "user", "content": text}] for text in ("Why?", "Where is it?")]
    draw = {"k": 3, "max_new_tokens": 6, "logprobs": True}
    found = multi_response.sample_answers(lm, chats, seed=1, **draw)
    assert [len(one.texts) for one in found] == [3, 3]
    assert found[0].states.shape == (3, 32)
    again, other = (multi_response.sample_answers(lm, chats, seed=seed, **draw) for seed in (1, 2))
    assert [one.texts for one in again] == [one.texts for one in found] != [one.texts for one in other]
    scores = [
        multi_response.ln_entropy(found), multi_response.lexical(found), multi_response.eigenscore(found),
        multi_response.semantic_entropy(found, HashingEmbedder()).values,
        multi_response.selfcheck([one.texts[0] for one in found], found, HashingEmbedder()),
    ]  # fmt: skip
    assert all(np.isfinite(score).all() and score.shape == (2,) for score in scores)
    assert multi_response.sample_answers(lm, chats, k=2, max_new_tokens=3)[0].logprobs == []
    for bad in ({"k": 1}, {"temperature": 0.0}):
        with pytest.raises(InputError):
            multi_response.sample_answers(lm, chats, **bad)


def test_log_probabilities_of_samples_are_those_of_their_tokens(lm):
    chats = [[{"role": "user", "content": "Where is it?"}]]
    (found,) = multi_response.sample_answers(lm, chats, k=2, max_new_tokens=5, logprobs=True, layer=2)
    done = lm.generations(chats, layers=[2], n=2, temperature=1.0, max_new_tokens=5, seed=0)
    for one, logprobs, state in zip(done, found.logprobs, found.states, strict=True):
        assert len(logprobs) == len(one.tokens)
        assert (logprobs < 0).all()
        np.testing.assert_array_equal(state, multi_response.near_end(one.states[0]))
