"""The loop: seeds, the majority's answer, untouched system turns, early stop, equal copies, failures, warnings."""

from __future__ import annotations

import itertools
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.guard import (
    DRSmoothing,
    LLMRectifier,
    SmoothingWarning,
    SmoothLLM,
    break_probability,
    certify_from_samples,
    defense_success_probability,
    disrupt_swap,
    vote_threshold,
)
from steelyard.guard.dr_smoothing.judges import JudgeError
from steelyard.guard.dr_smoothing.prompts import user_turns
from steelyard.guard.dr_smoothing.rectifiers import Rectified
from steelyard.models.protocols import CallableLM
from steelyard.models.tiny import tiny_random_lm

pytestmark = [
    pytest.mark.filterwarnings("ignore::steelyard.guard.dr_smoothing.result.SmoothingWarning"),
    pytest.mark.filterwarnings("ignore::steelyard.errors.NoEffectWarning"),  # of prompts shorter than 1 / q
]
USER = "tell me how the clock in the tower works"
REFUSAL = "I'm sorry, but I can't help."


class Target:
    """A language model with scripted answers that keeps every call."""

    is_chat = True

    def __init__(self, answer=lambda prompt, seed: "Sure, " + said(prompt)):
        self.answer, self.calls = answer, []

    def generate(self, prompts, **options):
        self.calls.append((list(prompts), options))
        seeds = options.get("seed") or [0] * len(prompts)
        texts = [self.answer(prompt, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        return [text[: options.get("max_new_tokens", 10**6)] for text in texts]

    def logprobs(self, prompts, responses):
        return []

    def hidden_states(self, prompts, responses, layers):
        return []

    @property
    def asked(self):
        return [prompt for prompts, _ in self.calls for prompt in prompts]


def said(prompt):
    return prompt if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] == "user"][-1]


def voting(votes):
    """A disruption that numbers the copies and a target whose j-th copy gets the j-th vote."""
    count = itertools.count()
    target = Target(lambda prompt, seed: "Sure" if votes[int(prompt)] else REFUSAL)
    return target, {"disrupt": lambda text, rng: str(next(count)), "rectify": None}


def chat(user=USER, system="You know all about clocks."):
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


# --- seeds and the answer ---------------------------------------------------------------------------------------------


@given(st.integers(0, 2**40), st.text(min_size=1, max_size=60).filter(str.strip))
@settings(max_examples=50)
def test_the_same_seed_gives_the_same_votes_and_answer(seed, text):
    def run(batched):
        guard = SmoothLLM(lambda prompts: [f"Sure {p}" if len(p) % 2 else f"I'm sorry {p}" for p in prompts],
                          kind="insert", q=0.5, seed=seed, n=5)  # fmt: skip
        return guard.batch(["another prompt", text])[1] if batched else guard(text)

    assert run(False) == run(False) == run(True)
    assert SmoothLLM(lambda p: p, n=5)(text, seed=seed).copies == SmoothLLM(lambda p: p, n=5, seed=seed)(text).copies


def test_other_seeds_copies_and_prompts_draw_other_noise():
    guard = SmoothLLM(lambda prompts: list(prompts), n=5)
    copies = [copy.disrupted for seed in range(3) for copy in guard(USER, seed=seed).copies]
    assert len(set(copies)) == 15
    first, second = guard.batch([USER, USER[:-1] + "d"])
    changed = [{i for i, pair in enumerate(zip(c.disrupted, text, strict=True)) if pair[0] != pair[1]}
               for c, text in ((first.copies[0], USER), (second.copies[0], USER[:-1] + "d"))]  # fmt: skip
    assert changed[0] != changed[1]


def test_without_a_seed_a_call_is_fresh_and_tells_how_to_repeat_it():
    guard = SmoothLLM(lambda prompts: list(prompts), seed=None, n=3)
    first, second = guard(USER), guard(USER)
    assert first.copies != second.copies
    assert guard(USER, seed=first.seed) == first


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.sampled_from([0.0, 0.2, 0.5, 0.8]), st.booleans(),
       st.sampled_from(["uniform", "first", "longest"]), st.integers(0, 99))  # fmt: skip
def test_the_answer_is_the_majoritys(votes, gamma, early, choose, seed):
    target, options = voting(votes)
    result = DRSmoothing(target, n=len(votes), gamma=gamma, early_stop=early, choose=choose, seed=seed, **options)("x")
    assert result.jailbroken == (sum(votes) > math.floor(gamma * len(votes) + 1e-12))
    assert result.votes[result.chosen] == int(result.jailbroken)
    assert result.response == result.copies[result.chosen].response == ("Sure" if result.jailbroken else REFUSAL)
    assert list(result.votes) == [int(vote) for vote in votes[: len(result.votes)]]


def test_the_answer_is_drawn_uniformly_from_the_majority():
    chosen = [SmoothLLM(lambda p: ["Sure"] * len(p), n=4)(USER, seed=seed).chosen for seed in range(400)]
    counts = np.bincount(chosen, minlength=4)
    assert ((counts - 100) ** 2 / 100).sum() < 16.3  # chi-square with 3 degrees of freedom, 1 in 1000


def test_the_first_and_the_longest_answer():
    target = Target(lambda prompt, seed: "Sure" + "!" * {"0": 1, "1": 3, "2": 2}[prompt])
    for choose, want in (("first", 0), ("longest", 1)):
        count = itertools.count()
        guard = DRSmoothing(target, n=3, choose=choose, rectify=None, disrupt=lambda text, rng, c=count: str(next(c)))
        assert guard("x").chosen == want


def test_even_ties_are_no_jailbreak():
    target, options = voting([1, 1, 0, 0])
    assert not DRSmoothing(target, n=4, **options)("x").jailbroken


# --- what is never touched --------------------------------------------------------------------------------------------


@given(
    st.text(alphabet="ab \u00e9{}%", min_size=1, max_size=12).filter(str.strip),
    st.sampled_from(["last_user", "all_user"]),
)
@settings(max_examples=40)
def test_all_but_the_users_text_is_byte_identical_even_when_it_holds_the_users_text(text, scope):
    system = f"Rules. {text} {text}{text} {{0}} %s"
    prompt = [
        {"role": "system", "content": system}, {"role": "user", "content": text},
        {"role": "assistant", "content": f"echo {text}"}, {"role": "developer", "content": text},
        {"role": "user", "content": text},
    ]  # fmt: skip
    before = json.dumps(prompt)
    target = Target()
    disrupt = lambda given, rng: f"[{given}]"  # noqa: E731
    DRSmoothing(target, disrupt=disrupt, rectify=None, scope=scope, n=3, dedupe=False)(prompt)
    assert json.dumps(prompt) == before
    assert len(target.asked) == 3
    for copy in target.asked:
        assert [m for i, m in enumerate(copy) if i not in (1, 4)] == [
            m for i, m in enumerate(prompt) if i not in (1, 4)
        ]
        assert copy[1]["content"] == (f"[{text}]" if scope == "all_user" else text)
        assert copy[4]["content"] == f"[{text}]"


def test_plain_text_stays_plain_text():
    target = Target()
    SmoothLLM(target, n=2)(USER)
    assert all(isinstance(prompt, str) for prompt in target.asked)


def test_text_parts_are_text_and_other_parts_are_refused():
    target = Target()
    parts = [{"type": "text", "text": "tell me"}, {"type": "text", "text": "more"}]
    DRSmoothing(target, disrupt=lambda text, rng: text, rectify=None, n=1)(
        [{"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": parts}]
    )
    assert target.asked == [[{"role": "system", "content": "S"}, {"role": "user", "content": "tell me\nmore"}]]
    for bad in ({"type": "image_url", "image_url": {}}, {"type": "text", "text": 3}, "text"):
        with pytest.raises(InputError, match="message 0 has a content part"):
            SmoothLLM(target)([{"role": "user", "content": [bad]}])


@pytest.mark.parametrize(
    ("prompt", "names"),
    [
        ("", "prompts.0. is empty"), ("  \n", "prompts.0. is empty"), ([], "prompts.0."), (3, "prompts.0."),
        ([{"role": "system", "content": "x"}], "no message with role user"),
        ([{"role": "user", "content": ""}], "message 0 of the user is empty"),
        ([{"role": "tool", "content": "x"}], "role"), ([{"role": "user"}], "content"), (["x"], "use batch"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be_used(prompt, names):
    with pytest.raises(InputError, match=names):
        SmoothLLM(lambda prompts: prompts)(prompt)


def test_one_string_is_no_list_of_prompts():
    with pytest.raises(InputError, match=r"\[prompt\]"):
        SmoothLLM(lambda prompts: prompts).batch("text")
    assert SmoothLLM(lambda prompts: prompts).batch([]) == []


def test_all_user_draws_noise_of_its_own_for_every_turn():
    target = Target()
    turns = [
        {"role": "user", "content": USER},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": USER},
    ]
    result = SmoothLLM(target, scope="all_user", n=4)(turns)
    assert all(copy[0]["content"] != copy[2]["content"] for copy in target.asked)
    assert len(result.copies[0].disrupted.split("\n")) >= 2
    assert user_turns(turns, "all_user").positions == (0, 2)


# --- early stop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 0.75])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7])
def test_an_early_stop_gives_the_verdict_of_the_full_vote_for_every_pattern(n, gamma):
    t = vote_threshold(n, gamma)
    for votes in itertools.product([0, 1], repeat=n):
        target, options = voting(votes)
        result = DRSmoothing(target, n=n, gamma=gamma, early_stop=True, **options)("x")
        assert result.jailbroken == (sum(votes) > t)
        alone = next(k for k in range(n + 1) if sum(votes[:k]) > t or k - sum(votes[:k]) >= n - t)
        assert len(result.votes) == result.calls == alone  # never a copy more than one at a time would ask


@pytest.mark.parametrize(("n", "calls"), [(10, 5), (9, 5), (8, 4), (1, 1)])
def test_a_harmless_target_is_asked_n_minus_floor_gamma_n_times(n, calls):
    target = Target(lambda prompt, seed: REFUSAL)
    assert SmoothLLM(target, n=n, early_stop=True, dedupe=False)(USER).calls == calls
    assert len(target.calls) == 1  # in one wave


def test_a_stopped_vote_certifies_nothing():
    result = SmoothLLM(lambda p: [REFUSAL] * len(p), n=9, early_stop=True)(USER)
    with pytest.raises(InputError, match="early_stop"):
        result.certificate()
    assert result.to_dict()["certified"] is None


def test_a_full_vote_certifies():
    result = SmoothLLM(lambda p: [REFUSAL] * len(p), n=9)(USER)
    want = certify_from_samples(0, 9, 9, 0.95).success
    assert result.certificate(0.95).success == want
    assert want == pytest.approx(defense_success_probability(1 - 0.05 ** (1 / 9), 9), rel=1e-12)
    record = result.to_dict(0.95)
    assert record["certified"] == want
    assert json.loads(json.dumps(record)) == record
    assert record["votes"] == [0] * 9
    assert record["complied"] is False
    assert USER not in json.dumps(record)


# --- batches, equal copies, early judging -----------------------------------------------------------------------------


def test_a_batch_is_one_call_per_wave():
    target = Target(lambda prompt, seed: REFUSAL)
    guard = SmoothLLM(target, n=5)
    guard.batch([USER, chat(), "tell me about the bells"])
    assert [len(prompts) for prompts, _ in target.calls] == [15]
    target.calls.clear()
    SmoothLLM(target, n=5, early_stop=True).batch([USER, chat()])
    assert [len(prompts) for prompts, _ in target.calls] == [6]


def constant(text, rng):
    return "the same"


def test_equal_copies_are_asked_once_and_counted_each():
    target = Target()
    result = DRSmoothing(target, disrupt=constant, rectify=None, n=7)(USER)
    assert (result.calls, len(result.votes), len(target.asked)) == (1, 7, 1)
    assert {copy.response for copy in result.copies} == {"Sure, the same"}
    alternating = itertools.cycle(["a b", "c d", "e f"])
    target = Target(lambda prompt, seed: REFUSAL if prompt == "a b" else "Sure")
    result = DRSmoothing(target, disrupt=lambda text, rng: next(alternating), rectify=None, n=7)(USER)
    assert (result.calls, result.votes) == (3, (0, 1, 1, 0, 1, 1, 0))


def test_a_later_wave_knows_the_answers_of_the_earlier_ones():
    texts = iter(["a", "b", "a", "b", "a"])
    target = Target(lambda prompt, seed: REFUSAL if prompt == "a" else "Sure")
    result = DRSmoothing(target, disrupt=lambda text, rng: next(texts), rectify=None, n=5, early_stop=True)("x")
    assert (result.calls, result.votes) == (2, (0, 1, 0, 1, 0))


@given(st.integers(0, 2**32), st.integers(1, 9), st.text(alphabet="ab", min_size=1, max_size=5))
@settings(max_examples=60)
def test_neither_merging_nor_stopping_early_changes_a_vote(seed, n, text):
    def vote(prompts):
        return ["Sure" if prompt.count("a") % 2 else REFUSAL for prompt in prompts]

    options = {"disrupt": disrupt_swap(0.5, "ab", min_chars=1), "rectify": None, "n": n, "seed": seed}
    full = DRSmoothing(vote, dedupe=False, **options)(text)
    merged = DRSmoothing(vote, dedupe=True, **options)(text)
    early = DRSmoothing(vote, dedupe=True, early_stop=True, **options)(text)
    assert (merged.votes, merged.response, merged.chosen) == (full.votes, full.response, full.chosen)
    assert early.votes == full.votes[: len(early.votes)]
    assert early.jailbroken == full.jailbroken
    assert merged.calls == len({copy.rectified for copy in full.copies}) <= full.calls == n


@pytest.mark.parametrize(
    ("target", "options", "calls"),
    [
        (Target(), {"sampling": {"temperature": 0.7}}, 5),
        (Target(), {"dedupe": False}, 5),
        (lambda prompts: ["Sure"] * len(prompts), {}, 5),  # how a function samples is not known
        (lambda prompts: ["Sure"] * len(prompts), {"sampling": {"temperature": 0.0}}, 1),
        (lambda prompts: ["Sure"] * len(prompts), {"dedupe": True}, 1),
    ],
)
def test_equal_copies_are_merged_only_where_their_answers_would_be_equal(target, options, calls):
    assert DRSmoothing(target, disrupt=constant, rectify=None, n=5, **options)(USER).calls == calls


def test_every_copy_has_a_seed_of_its_own_and_sampling_is_handed_on():
    target = Target()
    sampling = {"temperature": 0.7, "max_new_tokens": 30, "top_p": 0.9, "stop": ["x"]}
    SmoothLLM(target, n=6, sampling=sampling).batch([USER, USER + "?"])
    _, options = target.calls[0]
    assert len(set(options.pop("seed"))) == 12
    assert options == sampling


def test_judge_tokens_lets_only_the_winner_go_on():
    target = Target(lambda prompt, seed: f"I cannot, and here is why {seed}")
    result = SmoothLLM(target, n=5, judge_tokens=8)(USER)
    (_, first), (prompts, second) = target.calls
    assert first["max_new_tokens"] == 8
    assert "max_new_tokens" not in second
    assert second["seed"] == [first["seed"][result.chosen]]  # the same text, longer
    assert prompts == [result.copies[result.chosen].prompt]
    assert result.copies[0].response == "I cannot"
    assert result.response == f"I cannot, and here is why {second['seed'][0]}"
    assert result.calls == 6


def test_an_answer_whose_rest_is_judged_otherwise_is_cut():
    target = Target(lambda prompt, seed: "No. But here is how")
    judge = lambda text: "how" in text  # noqa: E731
    result = SmoothLLM(target, n=3, judge=judge, judge_tokens=3)(USER)
    assert (result.response, result.jailbroken, result.counts["answers_cut"]) == ("No.", False, 1)


def test_judge_tokens_needs_a_model_that_can_stop():
    with pytest.raises(InputError, match="judge_tokens"):
        SmoothLLM(lambda p: p, judge_tokens=3)(USER)


def test_a_refusal_of_the_rectifier_is_not_continued():
    target = Target()
    result = DRSmoothing(target, rectify=lambda text: REFUSAL, n=3, judge_tokens=2)(USER)
    assert (result.calls, target.calls, result.response) == (0, [], REFUSAL)


# --- theory ----------------------------------------------------------------------------------------------------------


def test_a_planted_unstable_victim_gives_the_predicted_rate():
    """An attack suffix that needs all but k - 1 of its characters: alpha(q) is exact for the swap kernel."""
    goal, suffix, k, q = "a" * 60, "!" * 20, 2, 0.05
    attacked = goal + suffix

    def victim(prompts):
        return ["Sure" if sum(a != b for a, b in zip(p[60:], suffix, strict=True)) < k else REFUSAL for p in prompts]

    alpha = break_probability(80, 20, k, q, 94)
    n, seeds = 11, 300
    guard = SmoothLLM(victim, q=q, alphabet="safe", n=n)
    votes = [vote for seed in range(seeds) for vote in guard(attacked, seed=seed).votes]
    p = 1 - float(alpha)
    assert 0.05 < p < 0.95
    assert abs(np.mean(votes) - p) < 4 * math.sqrt(p * (1 - p) / len(votes))
    safe = np.mean([not guard(attacked, seed=1000 + seed).jailbroken for seed in range(seeds)])
    dsp = float(defense_success_probability(p, n))
    assert abs(safe - dsp) < 4 * math.sqrt(max(dsp * (1 - dsp), 1e-3) / seeds)


def test_a_rectifier_that_restores_the_prompt_gives_no_defence():
    guard = DRSmoothing(lambda p: ["Sure" if t == USER else REFUSAL for t in p], rectify=lambda text: USER, n=7)
    with pytest.warns(SmoothingWarning, match="restores an attack"):
        result = guard(USER)
    assert result.jailbroken
    assert result.p_hat == 1
    assert result.counts["restored"] == 7
    assert not SmoothLLM(lambda p: ["Sure" if t == USER else REFUSAL for t in p], n=7)(USER).jailbroken


# --- failures ---------------------------------------------------------------------------------------------------------


def raising(text):
    raise OSError("no connection")


@pytest.mark.parametrize(
    "rectify",
    [
        lambda text: text * 3, raising, lambda text: None, lambda text: "  ",
        LLMRectifier(lambda prompts: ["{junk"] * len(prompts)), LLMRectifier(lambda prompts: []),
    ],
)  # fmt: skip
def test_a_rectifier_that_fails_falls_back_to_the_disrupted_text_and_is_counted(rectify):
    target = Target()
    result = DRSmoothing(target, rectify=rectify, n=4)(USER)
    assert result.counts["rectifier_failed"] == 4
    assert target.asked == [copy.disrupted for copy in result.copies] == [copy.rectified for copy in result.copies]
    assert {copy.rectifier for copy in result.copies} == {"failed"}


def test_a_rectifier_that_raises_may_be_let_through():
    class Broken:
        def rectify(self, texts, *, seeds=None):
            raise OSError("no connection")

    assert DRSmoothing(Target(), rectify=Broken(), n=2)(USER).counts["rectifier_failed"] == 2
    with pytest.raises(OSError, match="no connection"):
        DRSmoothing(Target(), rectify=Broken(), n=2, on_rectifier_failure="raise")(USER)


def test_a_rectifier_must_answer_for_every_text():
    class Short:
        def rectify(self, texts, *, seeds=None):
            return [Rectified("x")]

    with pytest.raises(InputError, match="1 results for 3 texts"):
        DRSmoothing(Target(), rectify=Short(), n=3)(USER)


def test_a_rectifier_that_refuses_is_a_safe_vote_or_a_fallback():
    target = Target()
    result = DRSmoothing(target, rectify=lambda text: REFUSAL, n=4)(USER)
    assert (result.votes, result.response, target.asked) == ((0, 0, 0, 0), REFUSAL, [])
    assert result.counts["rectifier_refused"] == 4
    result = DRSmoothing(target, rectify=lambda text: REFUSAL, n=4, on_rectifier_refusal="fallback")(USER)
    assert target.asked == [copy.disrupted for copy in result.copies]
    assert {copy.rectifier for copy in result.copies} == {"refused"}


def test_judges_that_raise():
    def judge(text):
        if "7" in text:
            raise OSError("judge down")
        return True

    numbers = {"disrupt": lambda text, rng: str(rng.integers(10)), "rectify": None, "n": 40, "judge": judge}
    with pytest.raises(OSError, match="judge down"):
        DRSmoothing(Target(), **numbers)(USER)
    for policy, vote in (("safe", 0), ("jailbroken", 1)):
        result = DRSmoothing(Target(), on_judge_error=policy, **numbers)(USER)
        failed = ["7" in copy.response for copy in result.copies]
        assert 0 < sum(failed) == result.counts["judge_errors"]
        assert list(result.votes) == [vote if bad else 1 for bad in failed]


class Unsure:
    def __init__(self, verdicts):
        self.verdicts = verdicts

    def batch(self, responses, requests):
        if self.verdicts is None:
            raise OSError("judge down")
        return self.verdicts


def test_judges_of_batches_without_a_verdict():
    with pytest.raises(JudgeError, match="on_judge_error"):
        SmoothLLM(Target(), n=2, judge=Unsure([None, True]))(USER)
    assert SmoothLLM(Target(), n=2, judge=Unsure([None, True]), on_judge_error="safe")(USER).votes == (0, 1)
    assert SmoothLLM(Target(), n=2, judge=Unsure(None), on_judge_error="jailbroken")(USER).votes == (1, 1)
    with pytest.raises(OSError, match="judge down"):
        SmoothLLM(Target(), n=2, judge=Unsure(None))(USER)
    with pytest.raises(InputError, match="1 verdicts for 2"):
        SmoothLLM(Target(), n=2, judge=Unsure([True]))(USER)


def test_the_judge_sees_what_the_user_asked():
    seen = []

    class Judge:
        def batch(self, responses, requests):
            seen.extend(requests)
            return [False] * len(responses)

    SmoothLLM(Target(), n=2, judge=Judge())(chat())
    assert set(seen) == {USER}


@pytest.mark.parametrize("texts", [[], ["a"], [1, 2]])
def test_a_target_must_answer_every_prompt(texts):
    class Wrong(Target):
        def generate(self, prompts, **options):
            return texts

    with pytest.raises(InputError, match="generate must return one string per prompt"):
        SmoothLLM(Wrong(), n=2)(USER)


@pytest.mark.parametrize("noise", [lambda text, rng: 3, lambda text, rng: None])
def test_a_disruption_must_return_text(noise):
    with pytest.raises(InputError, match="disrupt must return a text"):
        DRSmoothing(Target(), disrupt=noise, rectify=None)(USER)


def test_a_copy_left_blank_is_drawn_again():
    draws = iter(["", "  ", "x"])
    result = DRSmoothing(Target(), disrupt=lambda text, rng: next(draws), rectify=None, n=1)(USER)
    assert result.copies[0].disrupted == "x"
    assert DRSmoothing(Target(), disrupt=lambda text, rng: " ", rectify=None, n=1)(USER).copies[0].disrupted == USER


# --- warnings and arguments -------------------------------------------------------------------------------------------


def notes(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = DRSmoothing(**options)(USER)
    assert sorted(str(one.message) for one in caught if one.category is SmoothingWarning) == sorted(result.notes)
    return result.notes


def test_a_share_at_or_above_the_threshold_is_told():
    target, options = voting([1, 0, 1, 0])
    assert "more copies make it worse" in notes(generate=target, n=4, **options)[0]
    target, options = voting([1, 0, 0, 0])
    assert notes(generate=target, n=4, **options) == ()
    target, options = voting([0, 0])
    assert notes(generate=target, n=2, gamma=0.0, **options) == ()


def test_prompts_that_are_not_disrupted_are_told():
    refusing = Target(lambda prompt, seed: REFUSAL)
    assert "not disrupted" in notes(generate=refusing, disrupt=lambda text, rng: text, rectify=None)[0]
    assert "restores an attack" in notes(generate=refusing, rectify=lambda text: USER)[0]
    assert notes(generate=refusing, disrupt=disrupt_swap(0.2), rectify=None) == ()


@pytest.mark.parametrize(
    ("bad", "names"),
    [
        ({"n": 0}, "n "), ({"n": 2.5}, "n "), ({"gamma": 1.0}, "gamma"), ({"gamma": -0.1}, "gamma"),
        ({"judge_tokens": 0}, "judge_tokens"), ({"scope": "all"}, "scope"), ({"dedupe": "yes"}, "dedupe"),
        ({"on_rectifier_failure": "x"}, "on_rectifier_failure"), ({"on_judge_error": "x"}, "on_judge_error"),
        ({"on_rectifier_refusal": "x"}, "on_rectifier_refusal"), ({"choose": "best"}, "choose"),
        ({"sampling": {"n": 3}}, "sampling"), ({"rectify": 3}, "rectify"), ({"judge": 3}, "judge"),
        ({"dedupe": True, "sampling": {"temperature": 1.0}}, "dedupe"), ({"generate": 3}, "generate"),
        ({"disrupt": 3}, "kernels|disrupt"), ({"rectify": "spelling"}, "rectify"),
    ],
)  # fmt: skip
def test_bad_arguments(bad, names):
    with pytest.raises(InputError, match=names):
        DRSmoothing(**{"generate": lambda p: p, **bad})


@pytest.mark.parametrize(("call", "names"), [
    (lambda: DRSmoothing()(USER), "generate is missing"),
    (lambda: SmoothLLM(lambda p: p, q=10), "fraction"),
    (lambda: SmoothLLM(lambda p: p, kind="delete"), "kind"),
    (lambda: SmoothLLM(lambda p: p)(USER, seed=-1), "seed"),
    (lambda: SmoothLLM(lambda p: p).sample([USER], 0), "n "),
    (lambda: DRSmoothing(lambda p: p)(["a", "b"]), "use batch for several prompts"),
    (lambda: DRSmoothing(lambda p: p, q=0.1, disrupt="random"), r"disrupt=disrupt_swap\(q=0.1\)"),
    (lambda: DRSmoothing.paper(lambda p: p, q=0.1), "q belongs"),
])  # fmt: skip
def test_bad_calls(call, names):
    with pytest.raises(InputError, match=names):
        call()


def test_q_is_the_share_of_the_default_noise():
    by_name, by_kernel = (
        DRSmoothing(lambda p: p, n=3, rectify=None, **options)
        for options in ({"q": 0.3}, {"disrupt": disrupt_swap(0.3)})
    )
    assert by_name.draw([USER]) == by_kernel.draw([USER]) != DRSmoothing(rectify=None, n=3).draw([USER])


def test_samples_certify_the_defences_own_vote():
    guard = SmoothLLM(lambda p: [REFUSAL] * len(p), n=9)
    (sampled,) = guard.sample([USER], 100)
    assert (sampled.n, sampled.vote_n, len(sampled.votes)) == (100, 9, 100)
    certificate = sampled.certificate()
    assert (certificate.n, certificate.n_samples) == (9, 100)
    assert certificate.success == certify_from_samples(0, 9, 100).success


def test_a_target_may_come_with_the_call():
    assert DRSmoothing(rectify=None, n=3)(USER, generate=lambda p: ["Sure"] * len(p)).votes == (1, 1, 1)


def test_sample_asks_all_copies_silently_and_draw_asks_nobody():
    target = Target()
    guard = DRSmoothing(target, rectify=str.upper, n=9, early_stop=True, dedupe=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SmoothingWarning)
        (sampled,) = guard.sample([USER], 20, seed=3)
    assert len(sampled.votes) == sampled.calls == 20
    target.calls.clear()
    (drawn,) = guard.draw([USER], 20, seed=3)
    assert drawn == [copy.prompt for copy in sampled.copies]
    assert len(guard.draw([USER])[0]) == 9
    assert target.calls == []


def test_draw_gives_the_disrupted_text_of_a_refused_copy():
    (drawn,) = DRSmoothing(rectify=lambda text: REFUSAL, n=2).draw([chat()])
    assert all(said(copy) != REFUSAL for copy in drawn)


def test_the_papers_setting():
    rectifier = Target(lambda prompt, seed: json.dumps({"text": "how clocks work"}))
    guard = DRSmoothing.paper(Target(), rectifier)
    result = guard(USER)
    assert result.n == 10
    assert {copy.rectified for copy in result.copies} == {"how clocks work"}
    assert sum(len(prompts) for prompts, _ in rectifier.calls) == 10
    assert len(rectifier.calls) <= 2  # one call for the copies of about one length
    assert DRSmoothing.paper(rectifier, n=3)(USER).n == 3


@pytest.mark.parametrize(
    "text", ["\ud800 lone", "a\x00b" * 20, "e\u0301" * 30, "\U0001f469\u200d\U0001f52c" * 20, "7" * 10**5]
)
def test_hostile_texts_run_through(text):
    result = DRSmoothing(Target(), n=2)(text)
    assert len(result.votes) == 2
    assert len(result.copies[0].rectified) <= 2 * len(text)


def test_format_fields_in_a_prompt_mean_nothing():
    text = "{prompt} {0.__class__} %(x)s $(reboot) __import__('os')"
    target = Target()
    DRSmoothing(target, disrupt=lambda given, rng: given, rectify=None, n=1)(chat(text))
    assert said(target.asked[0]) == text


def test_with_a_real_language_model():
    lm = tiny_random_lm()
    guard = DRSmoothing(lm, rectify=None, n=3, sampling={"max_new_tokens": 8, "temperature": 1.0})
    one = guard(chat())
    assert one == guard.batch([USER, chat()])[1]
    assert len({copy.response for copy in one.copies}) == 3
    early = DRSmoothing(lm, rectify=None, n=3, judge_tokens=4, sampling={"max_new_tokens": 12, "temperature": 1.0},
                        judge=lambda text: True)(chat())  # fmt: skip
    assert early.response.startswith(early.copies[early.chosen].response)
    assert len(early.response) > len(early.copies[early.chosen].response)


def test_a_function_is_wrapped_once():
    assert isinstance(DRSmoothing(lambda p: p).generate, CallableLM)
