"""The detector behind scikit-learn, lm-polygraph, the proxy; and without hidden states."""

import sys
import types
from abc import ABC, abstractmethod

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from steelyard.errors import InputError
from steelyard.guard import (
    BlackBoxDiscrepancy,
    DiscrepancyDetector,
    DiscrepancyEstimator,
    EmbeddingDiscrepancy,
    PolygraphEstimator,
)
from steelyard.guard.discrepancy.lm_polygraph import check_seam
from steelyard.guard.discrepancy.scorer import columns
from steelyard.models.default import load_default_embedder
from steelyard.models.embedders import HashingEmbedder, TokenStates
from steelyard.models.tiny import tiny_random_lm

QUESTIONS = ["Where is it?", "Who has been there?", "Why?", "When was that?"]
RESPONSES = ["In the harbour.", "Nobody.", "Because of the weather", "x"]
CONTEXTS = ["The ship lies in the harbour.", None, None, None]
ROWS = [(q, r, c) for q, r, c in zip(QUESTIONS, RESPONSES, CONTEXTS, strict=True)]


@pytest.fixture(scope="module")
def det():
    torch.set_num_threads(1)
    return EmbeddingDiscrepancy(tiny_random_lm(layers=4))


class Mixing:
    """An encoder whose every token is its own number plus a share of the text's sum: context reaches all tokens."""

    def __init__(self, share=0.1, limit=10_000):
        self.share, self.limit = share, limit

    def encode_tokens(self, texts, batch_size=64, keep="start"):
        found = []
        for text in texts:
            places = list(range(len(text)))[-self.limit :] if keep == "end" else list(range(len(text)))[: self.limit]
            own = np.array([[np.sin(ord(text[i])), np.cos(ord(text[i])), 1.0] for i in places])
            offsets = np.array([(0, 0), *((i, i + 1) for i in places)])
            states = np.vstack([np.zeros(3), own + self.share * own.sum(0)]).astype(np.float32)
            found.append(TokenStates(states, offsets))
        return found


def test_signs_of_scikit_learn_and_pyod(det):
    S = det.score(QUESTIONS, RESPONSES, CONTEXTS)
    np.testing.assert_array_equal(det.decision_function(ROWS), S)
    np.testing.assert_array_equal(det.score_samples(ROWS), -S)
    assert (det.score_samples(ROWS) > 0).all()  # D
    estimator = DiscrepancyEstimator(det, quantile=0.7).fit(ROWS)
    np.testing.assert_array_equal(estimator.decision_scores_, S)
    np.testing.assert_array_equal(estimator.score_samples(ROWS), -S)
    expected = (np.quantile(S, 0.7) < S).astype(int)
    assert 0 < expected.sum() < 4
    np.testing.assert_array_equal(estimator.predict(ROWS), expected)  # 1 = the highest S = the lowest D
    np.testing.assert_array_equal(estimator.labels_, expected)


def test_the_estimator_is_one_of_scikit_learns(det):
    estimator = DiscrepancyEstimator(det, method="youden")
    assert estimator.get_params()["method"] == "youden"
    assert clone(DiscrepancyEstimator(None, quantile=0.5)).quantile == 0.5
    with pytest.raises(NotFittedError):
        estimator.predict(ROWS)
    S = det.decision_function(ROWS)
    wrong = (S.max() == S).astype(int)
    assert estimator.fit(ROWS, wrong).predict(ROWS).tolist() == wrong.tolist()
    assert DiscrepancyEstimator(det, method="otsu").fit(ROWS, wrong).predict(ROWS).sum() >= 1  # labels not read


def test_threshold_and_predict(det):
    fresh = EmbeddingDiscrepancy(det.lm)
    with pytest.raises(InputError, match="no threshold yet"):
        fresh.predict([0.0])
    assert fresh.fit_threshold([0, 1, 2, 3], "otsu") == 1.5
    assert fresh.predict([1.5, 1.6]).tolist() == [0, 1]
    with pytest.raises(InputError, match=r"scores\[1\] is NaN"):
        fresh.predict([1.5, np.nan])
    assert fresh.fit_threshold([0, 1], "youden", labels=[0, 1]) == 0.5


def test_rows():
    assert columns([("q", "r")]) == (["q"], ["r"], None)
    assert columns([("q", "r"), ("q", "r", "c")]) == (["q", "q"], ["r", "r"], [None, "c"])
    assert columns(np.array([["q", "r"]]))[1] == ["r"]
    mappings = [{"question": "q", "response": "r"}, {"question": "q", "response": "r", "context": "c"}]
    assert columns(mappings) == (["q", "q"], ["r", "r"], [None, "c"])
    for bad in ("qr", ["qr"], [("q",)], [("q", "r", "c", "d")], [3], [{"question": "q"}], [{**mappings[0], "x": 1}]):
        with pytest.raises(InputError, match="X"):
            columns(bad)


def logged(init):
    """As lm-polygraph 0.7 decorates it: the names of the arguments are gone."""

    def wrapper(*args, **kwargs):
        init(*args, **kwargs)

    return wrapper


class Estimator(ABC):
    """What lm-polygraph 0.7 has under this name."""

    @logged
    def __init__(self, stats_dependencies, level):
        self.level, self.stats_dependencies = level, stats_dependencies

    @abstractmethod
    def __str__(self): ...

    @abstractmethod
    def __call__(self, stats): ...


def fake_polygraph(monkeypatch, estimator):
    for name in ("lm_polygraph", "lm_polygraph.estimators", "lm_polygraph.estimators.estimator"):
        module = types.ModuleType(name)
        module.__spec__, module.__path__ = types.SimpleNamespace(name=name), []
        module.Estimator = estimator
        monkeypatch.setitem(sys.modules, name, module)


def test_lm_polygraph(det, monkeypatch):
    estimator = PolygraphEstimator(det)
    assert estimator.level == "sequence"
    assert str(estimator) == "EmbeddingDiscrepancy(layer=3, pool=mean, dist=cosine)"
    assert str(PolygraphEstimator(EmbeddingDiscrepancy(det.lm, layer=(1, 3)))).startswith(
        "EmbeddingDiscrepancy(layer=1-3"
    )
    found = estimator({"input_texts": QUESTIONS, "greedy_texts": RESPONSES, "more": 1})
    chats = [[{"role": "user", "content": q}] for q in QUESTIONS]
    np.testing.assert_allclose(found, det.score(chats, RESPONSES), atol=1e-6)  # the prompts as they are
    with pytest.raises(InputError, match="greedy_texts"):
        estimator({"input_texts": QUESTIONS})
    fake_polygraph(monkeypatch, Estimator)
    assert isinstance(PolygraphEstimator(det), Estimator)


def test_the_seam_of_lm_polygraph_is_looked_at(det, monkeypatch):
    check_seam(Estimator)
    for bad in (
        type("Estimator", (ABC,), {}),
        type("Estimator", (Estimator,), {"__init__": lambda self, level: None}),
        type("Estimator", (Estimator,), {"__init__": lambda self, stats_dependencies, level: None}),
        type("Estimator", (Estimator,), {"__str__": lambda self: "x"}),
    ):
        fake_polygraph(monkeypatch, bad)
        with pytest.raises(InputError, match="other estimators"):
            PolygraphEstimator(det)


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]


def test_the_proxys_detector(det):
    detector = DiscrepancyDetector(det)
    found = detector.score(CHAT, "In the harbour.")["x_discrepancy"]
    value = det.score([CHAT], ["In the harbour."])[0]
    assert found == {"score": pytest.approx(value), "hallucinated": None, "threshold": None}
    own = EmbeddingDiscrepancy(det.lm)
    own.threshold = value - 0.1
    assert DiscrepancyDetector(own).score(CHAT, "In the harbour.")["x_discrepancy"]["hallucinated"] is True
    for messages, text, reason in (
        (CHAT, "", "is empty"),
        (CHAT, "x" * 2000, "tokens"),
        ([{"role": "tool", "content": "x"}], "x", "role must be one of"),
    ):
        found = DiscrepancyDetector(own).score(messages, text)["x_discrepancy"]
        assert reason in found.pop("reason")
        assert found == {"score": None, "hallucinated": None, "threshold": own.threshold}  # not known is not "no"


def test_the_proxys_detector_does_not_hide_a_failure(det, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of memory")

    own = EmbeddingDiscrepancy(det.lm)
    monkeypatch.setattr(own, "score", broken)
    with pytest.raises(RuntimeError):  # the proxy gives no answer then
        DiscrepancyDetector(own).score(CHAT, "x")


def test_the_proxys_detector_on_a_base_model_or_an_encoder_reads_the_last_user_turn(det):
    base = EmbeddingDiscrepancy(tiny_random_lm(layers=2, chat=False))
    chat = [*CHAT, {"role": "assistant", "content": "Here."}, {"role": "user", "content": "Where?"}]
    found = DiscrepancyDetector(base).score(chat, "There.")["x_discrepancy"]["score"]
    assert found == pytest.approx(base.score(["Where?"], ["There."])[0])
    box = BlackBoxDiscrepancy(Mixing())
    found = DiscrepancyDetector(box).score(chat, "There.")["x_discrepancy"]["score"]
    assert found == pytest.approx(box.score(["Where?"], ["There."])[0])
    assert "no user turn" in DiscrepancyDetector(box).score([CHAT[0]], "x")["x_discrepancy"]["reason"]


def test_black_box_pools_the_answers_tokens_only():
    deaf = BlackBoxDiscrepancy(Mixing(share=0.0))  # an encoder that ignores context: nothing can differ
    np.testing.assert_allclose(deaf.score(QUESTIONS, RESPONSES, CONTEXTS), 0, atol=1e-12)
    S = BlackBoxDiscrepancy(Mixing()).score(QUESTIONS, RESPONSES, CONTEXTS)
    assert (S < 0).all()
    text = f"{QUESTIONS[1]}\n{RESPONSES[1]}"
    together, alone = Mixing().encode_tokens([text, RESPONSES[1]])
    a, b = together.span(len(QUESTIONS[1]) + 1, len(text)), alone.span(0, len(RESPONSES[1]))
    assert S[1] == pytest.approx(-(1 - float(a @ b)), abs=1e-6)


def test_black_box_options_and_order():
    box = BlackBoxDiscrepancy(Mixing(), dist="l2", batch_size=2)
    S = box.score(QUESTIONS, RESPONSES)
    np.testing.assert_allclose(box.score(QUESTIONS[::-1], RESPONSES[::-1]), S[::-1])
    np.testing.assert_allclose(box.score_samples(list(zip(QUESTIONS, RESPONSES, strict=True))), -S)
    assert box.score([], []).shape == (0,)


def test_black_box_keeps_the_answer_when_the_question_is_too_long():
    box = BlackBoxDiscrepancy(Mixing(limit=20))
    assert np.isfinite(box.score(["q" * 50], ["short answer"])).all()
    with pytest.raises(InputError, match=r"responses\[0\] is too long"):
        box.score(["q"], ["x" * 21])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["q"], [""]), r"responses\[0\] is empty"),
        ((["q"], [3]), r"responses\[0\] is empty"),
        (([" "], ["x"]), r"questions\[0\] must be text"),
        (([CHAT], ["x"]), r"questions\[0\] must be text"),
        ((["q"], ["x"], [3]), r"contexts\[0\] must be text or None"),
        ((["q"], ["x", "y"]), "equally long"),
        ((["q"], ["x"], ["c", "d"]), "equally long"),
    ],
)
def test_black_box_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        BlackBoxDiscrepancy(Mixing()).score(*arguments)


def test_black_box_needs_token_states():
    with pytest.raises(InputError, match="HashingEmbedder has no encode_tokens"):
        BlackBoxDiscrepancy(HashingEmbedder())
    with pytest.raises(InputError, match="dist must be one of"):
        BlackBoxDiscrepancy(Mixing(), dist="dot")


def test_black_box_on_a_real_encoder():
    box = BlackBoxDiscrepancy(load_default_embedder())
    questions = ["What is the capital of France?"] * 3
    S = box.score(questions, ["Paris.", "The capital of France is Paris.", "  Paris."])
    assert (S < -1e-4).all()
    assert S[2] == pytest.approx(S[0], abs=1e-5)  # blanks are no tokens
    assert box.score([questions[0]], ["The capital of France is Paris."])[0] == pytest.approx(S[1], abs=1e-5)
    with pytest.warns(UserWarning, match="more than 256 tokens"):
        assert np.isfinite(box.score(["why " * 400], ["Paris."])).all()
