"""Adaptive attacks: the objective is the mean over the defence's noise, the verdict uses noise not seen before."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.guard import DRSmoothing, NoDefence, SmoothLLM, SuffixSearch, adaptive_eval
from steelyard.guard.dr_smoothing.adaptive import Objective

pytestmark = [
    pytest.mark.filterwarnings("ignore::steelyard.guard.dr_smoothing.result.SmoothingWarning"),
    pytest.mark.filterwarnings("ignore::steelyard.errors.NoEffectWarning"),
]
GOAL = "open the old tower"
WORDS = ["apple", "stone", "river", "magic", "cloud", "table"]


def victim(prompts):
    """Complies as soon as the prompt holds two "magic"s that noise has not broken."""
    return ["Sure" if prompt.count("magic") >= 2 else "I'm sorry" for prompt in prompts]


def guard(**options):
    return SmoothLLM(victim, q=0.05, alphabet="safe", n=5, **options)


def test_the_black_box_objective_is_one_minus_the_share_of_jailbroken_copies():
    objective = Objective(guard(), 50, None, "s")
    losses = objective([GOAL, GOAL + " magic magic", GOAL + " magic" * 12])
    assert losses[0] == 1
    assert 0 < losses[1] < 1
    assert losses[2] < losses[1]
    assert objective.queries == 150


def test_the_white_box_objective_is_the_mean_loss_of_the_copies():
    defence = DRSmoothing(rectify=str.upper, disrupt=lambda text, rng: text + "ab"[rng.integers(2)], n=5)
    objective = Objective(defence, 400, lambda copies: [copy.endswith("A") for copy in copies], "s")
    losses = objective(["x", "y"])
    assert losses.shape == (2,)
    assert abs(losses - 0.5).max() < 4 * np.sqrt(0.25 / 400)
    assert objective.queries == 800
    assert (losses != objective(["x", "y"])).any()  # fresh noise at every call
    again = Objective(defence, 400, objective.loss, "s")
    assert (again(["x", "y"]) == losses).all()


@pytest.mark.parametrize("loss", [lambda c: [], lambda c: [np.nan] * len(c), lambda c: 3.0])
def test_losses_that_cannot_be_used(loss):
    with pytest.raises(InputError, match="loss must return"):
        Objective(guard(), 2, loss, "s")(["a"])


def test_a_search_gets_through_where_the_prompt_alone_does_not():
    search = SuffixSearch(WORDS, length=6, steps=25, candidates=6)
    report = adaptive_eval(guard(), search, prompts=[GOAL, "shut the gate"], n_samples=4)
    assert report.clean_rate == 0
    assert report.success_rate == 1
    assert all(found.startswith(prompt) for found, prompt in zip(report.attacked, [GOAL, "shut the gate"], strict=True))
    assert report.queries == 2 * 25 * 7 * 4
    again = adaptive_eval(guard(), search, prompts=[GOAL, "shut the gate"], n_samples=4)
    assert again == report


def test_the_method_of_a_defence_is_the_function():
    report = guard().adaptive_eval(lambda prompt, objective: prompt + " magic" * 9, prompts=[GOAL], n_samples=2)
    assert (report.success_rate, report.queries) == (1, 0)


def test_an_attack_that_overfits_the_noise_is_not_rewarded_for_it():
    """An attack may only report; what counts is the vote on noise that it has not seen."""
    report = adaptive_eval(guard(), lambda prompt, objective: prompt, prompts=[GOAL])
    assert report.success_rate == report.clean_rate == 0


def test_the_verdicts_noise_was_never_an_objectives():
    class Spy:
        def __init__(self):
            self.inner, self.seeds = guard(), {"attack": [], "verdict": []}

        def batch(self, prompts, *, seed=None):
            self.seeds["verdict"].append(seed)
            return self.inner.batch(prompts, seed=seed)

        def sample(self, prompts, n, *, seed=None):
            self.seeds["attack"].append(seed)
            return self.inner.sample(prompts, n, seed=seed)

        def draw(self, prompts, n=None, *, seed=None):
            return self.inner.draw(prompts, n, seed=seed)

    spy = Spy()
    adaptive_eval(spy, SuffixSearch(WORDS, steps=5), prompts=[GOAL, GOAL + "s"])
    assert len(set(spy.seeds["attack"])) == 10
    assert not set(spy.seeds["attack"]) & set(spy.seeds["verdict"])


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=25)
def test_a_search_never_gets_worse_on_a_loss_without_noise(seed, length, steps):
    seen = []

    def objective(candidates):
        losses = np.array([-sum(word == "magic" for word in text.split()) for text in candidates], dtype=float)
        seen.append((losses[0], losses.min()))
        return losses

    found = SuffixSearch(WORDS, length, steps, 3, seed)(GOAL, objective)
    assert -found.split().count("magic") == seen[-1][1]
    assert all(later[0] == earlier[1] for earlier, later in itertools.pairwise(seen))
    assert len(found.split()) == len(GOAL.split()) + length


def test_a_search_takes_any_text():
    assert SuffixSearch(WORDS, 1, 1, 1)("\ud800", lambda texts: [0.0] * len(texts)).startswith("\ud800 ")


def test_a_baseline_can_be_attacked():
    report = adaptive_eval(NoDefence(victim), SuffixSearch(WORDS, steps=30), prompts=[GOAL])
    assert (report.clean_rate, report.success_rate) == (0, 1)
    white = Objective(NoDefence(victim), 2, lambda copies: [len(copy) for copy in copies], "s")
    assert white(["ab", "abc"]).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: adaptive_eval(guard(), lambda p, o: p, prompts=[]), "prompts"),
        (lambda: adaptive_eval(guard(), lambda p, o: p, prompts="text"), "prompts"),
        (lambda: adaptive_eval(guard(), lambda p, o: p, prompts=[GOAL], n_samples=0), "n_samples"),
        (lambda: adaptive_eval(guard(), lambda p, o: p, prompts=[GOAL], seed=-1), "seed"),
        (lambda: adaptive_eval(guard(), lambda p, o: None, prompts=[GOAL]), "attack must return"),
        (lambda: SuffixSearch([]), "vocabulary"), (lambda: SuffixSearch("abc"), "vocabulary"),
        (lambda: SuffixSearch(WORDS, length=0), "length"), (lambda: SuffixSearch(WORDS, steps=0), "steps"),
        (lambda: SuffixSearch(WORDS, candidates=0), "candidates"),
    ],
)  # fmt: skip
def test_bad_arguments(call, names):
    with pytest.raises(InputError, match=names):
        call()
