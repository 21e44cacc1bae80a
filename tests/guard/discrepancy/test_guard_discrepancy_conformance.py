"""What the acceptance test lets pass: a detector that reads the model's states, and nothing that reads texts."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.guard.discrepancy import conformance
from steelyard.guard.discrepancy.conformance import CONFORMANCE, acceptance, check_deaf, deaf_model
from steelyard.guard.discrepancy.detector import EmbeddingDiscrepancy
from steelyard.guard.discrepancy.labels import words
from steelyard.models.tiny import tiny_random_lm


class Overlap:
    """Shared words with context and question: tells planted answers by their text."""

    def __init__(self, lm):
        pass

    def score(self, questions, responses, contexts=None):
        contexts = contexts or [""] * len(questions)
        rows = zip(questions, contexts, responses, strict=True)
        return [-len(set(words(f"{c} {q}")) & set(words(r))) - 0.01 * len(q) for q, c, r in rows]


class Wrong(EmbeddingDiscrepancy):
    """The sign the wrong way round."""

    def score(self, *args, **options):
        return -super().score(*args, **options)


@pytest.fixture
def light(monkeypatch):
    """Planted answers on the tiny model, whose scores stand for SmolLM2's: what a test of the rule needs."""
    lm = tiny_random_lm()
    pairs = [
        conformance.tasks.Pair("What?", f"The word is {word * 4}.", answer, wrong, group)
        for group, (word, other) in enumerate(("ab", "cd", "ef", "gh"))
        for answer, wrong in ((word * 4, False), (other * 4, True))
    ]
    answers = conformance.answering.given_answers(pairs, lm)
    monkeypatch.setattr(conformance, "_planted", lambda: (lm, answers))
    return answers


@pytest.mark.parametrize("name", ["constant", "random", "identity"])
def test_dummies_fail(name, light):
    with pytest.raises(AssertionError):
        acceptance(CONFORMANCE.dummies[name])


def test_what_reads_texts_fails_on_a_model_that_cannot_look_back():
    with pytest.raises(AssertionError, match="the question can change nothing"):
        check_deaf(Overlap)


def test_the_detector_is_deaf_where_the_model_is_and_only_there():
    check_deaf(EmbeddingDiscrepancy)
    score = EmbeddingDiscrepancy(deaf_model()).score(["Who?", "A longer question?"], ["one", "two"])
    assert score == pytest.approx([0, 0], abs=1e-9)


def test_a_threshold_of_area_is_what_is_asked(light, monkeypatch):
    """The implementation is judged on its own order of the planted answers."""

    class Known:
        def __init__(self, lm):
            self.real = EmbeddingDiscrepancy(lm)

        def score(self, questions, responses, contexts=None):
            if contexts is None:
                return self.real.score(questions, responses)
            return light.wrong.astype(float) * self.sign

    monkeypatch.setattr(Known, "sign", 1, raising=False)
    acceptance(Known)
    monkeypatch.setattr(Known, "sign", -1, raising=False)
    with pytest.raises(AssertionError, match=r"AUROC of 0\.00 only"):
        acceptance(Known)


def test_scores_of_a_wrong_form_fail(light):
    class Short:
        def __init__(self, lm):
            pass

        def score(self, questions, responses, contexts=None):
            return np.zeros(1)

    with pytest.raises(AssertionError, match="got scores of shape"):
        acceptance(Short)


@pytest.mark.acceptance
def test_on_smollm2_the_detector_passes_and_turned_round_it_fails():
    acceptance(EmbeddingDiscrepancy)
    with pytest.raises(AssertionError, match="AUROC"):
        acceptance(Wrong)
