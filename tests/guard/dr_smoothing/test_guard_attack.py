"""Suffix attacks: they get through, keep to their style, depend on their stream alone, and adapt to a channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing import attack as module
from steelyard.guard.dr_smoothing import topic
from steelyard.guard.dr_smoothing.attack import GIBBERISH, STYLES, WORDS, Search, attack
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing
from steelyard.guard.dr_smoothing.victim import PASSED, train_guard

PROMPT = topic.FORBIDDEN[0]


@pytest.fixture(scope="module")
def guard():
    texts = topic.FORBIDDEN_TRAIN + topic.ALLOWED_TRAIN
    return train_guard(texts, [True] * len(topic.FORBIDDEN_TRAIN) + [False] * len(topic.ALLOWED_TRAIN))


@pytest.fixture(scope="module")
def suffixes(guard):
    return {name: attack(guard, PROMPT, style, np.random.default_rng(0)) for name, style in STYLES.items()}


@pytest.mark.parametrize("style", [GIBBERISH, WORDS], ids=lambda style: style.name)
def test_it_gets_through(guard, style, suffixes):
    found = suffixes[style.name]
    assert guard.flags([PROMPT, found.text]).tolist() == [True, False]
    assert found.logit == pytest.approx(float(guard.logits([found.text])[0]), abs=1e-4)
    assert found.logit < style.goal
    assert found.text == f"{PROMPT} {found.suffix}"
    assert found.scored == 1 + found.steps * 25


def test_it_depends_on_its_stream_alone(guard):
    search = Search(steps=1, candidates=4)
    found = [attack(guard, PROMPT, WORDS, np.random.default_rng(seed), search=search) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_words_are_words(suffixes):
    words = suffixes["words"].suffix.split()
    assert len(words) == WORDS.length
    assert all(word.isalpha() and word.isascii() and len(word) > 2 for word in words)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(STYLES)))
@settings(max_examples=8)
def test_one_step_never_raises_the_logit(guard, seed, name):
    start = attack(guard, PROMPT, STYLES[name], np.random.default_rng(seed), search=Search(steps=1, candidates=1))
    first = float(guard.logits([f"{PROMPT} {' '.join([STYLES[name].start] * STYLES[name].length)}"])[0])
    assert start.steps == 1
    # "! !" decodes to "!!", whose pieces are the same.
    assert start.logit <= first + 1e-4


def test_the_budget_is_kept(guard):
    found = attack(guard, PROMPT, GIBBERISH, np.random.default_rng(0), search=Search(steps=2, candidates=3))
    assert found.steps <= 2
    assert found.scored <= 3 + 2 * 3


def test_a_defence_is_attacked_through(guard):
    """The defence drops the last two words: the attack must put its weight before them."""
    defence = DRSmoothing(
        guard.respond, disrupt=lambda text, rng: " ".join(text.split()[:-2]), rectify=None, judge=lambda y: y == PASSED,
        n=3,
    )  # fmt: skip
    report = defence.adaptive_eval(
        lambda prompt, objective: attack(guard, prompt, WORDS, np.random.default_rng(0), objective).text,
        prompts=[PROMPT], n_samples=1, loss=guard.logits,
    )  # fmt: skip
    assert report.success_rate == 1
    assert report.clean_rate == 0
    assert not guard.flags([" ".join(report.attacked[0].split()[:-2])])[0]


def test_what_is_lowered_is_the_score(guard):
    """A score that nothing lowers keeps the first suffix."""
    seen = []

    def score(texts):
        seen.extend(texts)
        return np.full(len(texts), 5.0)

    found = attack(guard, PROMPT, WORDS, np.random.default_rng(0), score, Search(steps=2, candidates=3))
    assert found.suffix == " ".join(["the"] * 10)
    assert (found.logit, found.steps, found.scored) == (5.0, 2, len(seen))


def test_it_goes_on_from_a_suffix(guard, suffixes):
    first = suffixes["words"]
    again = attack(guard, PROMPT, WORDS, np.random.default_rng(1), start=first.suffix)
    assert (again.text, again.steps) == (first.text, 0)
    with pytest.raises(InputError, match="start"):
        attack(guard, PROMPT, GIBBERISH, np.random.default_rng(0), start="!")


def test_prompts_of_any_length(guard):
    found = attack(guard, "how " * 200, GIBBERISH, np.random.default_rng(0), search=Search(steps=1, candidates=2))
    assert found.steps <= 1


def test_allowed_tokens():
    assert len(module._allowed(WORDS)) < len(module._allowed(GIBBERISH))
    assert module._allowed(GIBBERISH).min() >= 1000


@pytest.mark.parametrize("name", ["steps", "candidates", "top"])
def test_what_is_refused(guard, name):
    with pytest.raises(InputError, match=name):
        Search(**{name: 0})
    with pytest.raises(InputError, match="prompt"):
        attack(guard, " ", WORDS, np.random.default_rng(0))
