"""Rectifiers: the spelling recipe, models with hostile or useless output, masks, chains, and the common checks."""

from __future__ import annotations

import html
import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InputError
from steelyard.guard import Chain, LLMRectifier, MaskFillRectifier, SpellRectifier
from steelyard.guard.dr_smoothing import spelling
from steelyard.guard.dr_smoothing.baselines import Paraphraser
from steelyard.guard.dr_smoothing.ending import RequestEndedError, ended_by
from steelyard.guard.dr_smoothing.rectifiers import (
    CallableRectifier,
    Rectified,
    as_rectifier,
    guarded,
    read_reply,
)
from steelyard.guard.dr_smoothing.semantic_smooth import Transformer

SENTENCE = "Please explain how the members of the committee changed the rules of the competition in 1994"


def spelled(text, **options):
    return SpellRectifier(**options).rectify([text])[0].text


def test_spelling_repairs_words_and_keeps_numbers():
    assert spelled("plaese epxlain the rulse of the game", coherence=False) == "please explain the rules of the game"
    assert spelled("what is 17 times 23", coherence=False) == "what is 17 times 23"
    assert "1994" in spelled(SENTENCE)


def test_spelling_drops_what_is_no_word():
    assert spelled("the xqzjvwkq game ### of the day", coherence=False) == "the game of the day"


def test_nothing_left_gives_the_input_back():
    text = "xqzjvwkqpt ### \u4f60\u597d"
    assert SpellRectifier().rectify([text]) == [Rectified(text, failed=True)]


def test_the_coherence_filter_is_the_written_rule():
    """Against the rule computed from the dictionary's own files: a second path to the same words."""
    known = spelling.lexicon()
    folder = spelling.Path(__import__("symspellpy").__file__).parent
    pairs, counts = set(), {}
    for line in (folder / "frequency_bigramdictionary_en_243_342.txt").read_text("utf-8-sig").splitlines():
        pairs.add(tuple(line.split()[:2]))
    for line in (folder / "frequency_dictionary_en_82_765.txt").read_text("utf-8-sig").splitlines():
        word, count = line.split()
        counts[word] = int(count)
    rng = np.random.default_rng(0)
    vocabulary = sorted(counts)
    for _ in range(50):
        words = [*rng.choice(vocabulary, 6), "the", "end", "of", "1994"]
        rng.shuffle(words)
        kept = [
            word for i, word in enumerate(words)
            if (i > 0 and (words[i - 1], word) in pairs) or (i + 1 < len(words) and (word, words[i + 1]) in pairs)
            or counts.get(word, 0) >= 5e8 or word.isdigit()
        ]  # fmt: skip
        assert known.coherent(words, 5e8) == kept


def test_coherence_drops_gibberish_that_spelling_would_keep():
    text = "tell me about the game zonal quartz vexing bramble"
    assert "quartz" in spelled(text, coherence=False)
    assert "quartz" not in spelled(text)
    assert "tell me about the game" in spelled(text)


def test_min_unigram_is_the_knob_of_the_filter():
    assert spelled("zonal quartz vexing bramble", min_unigram=0) == "zonal quartz vexing bramble"
    with pytest.raises(InputError, match="min_unigram"):
        SpellRectifier(min_unigram=-1)


@given(st.text(max_size=80))
def test_spelling_takes_any_text(text):
    once = SpellRectifier().rectify([text])[0]
    assert once.text == (text if once.failed else once.text.lower())


def test_the_dictionary_is_read_once_and_silently_even_by_many_threads(capfd):
    spelling._loaded.cache_clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(spelling.lexicon())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1
    assert spelling._loaded.cache_info().misses == 1
    assert capfd.readouterr() == ("", "")


def test_endless_words_are_dropped_and_not_kept():
    before = spelling.lexicon()._known.cache_info().currsize
    assert spelled("the " + "a" * 10**6 + " end of the game", coherence=False) == "the end of the game"
    assert spelling.lexicon()._known.cache_info().currsize <= before + 4


def test_a_repair_keeps_a_letter_of_the_word():
    assert spelled("zq fo the game", coherence=False) == "of the game"  # "zq" is two edits from every short word


def test_the_collector_is_left_as_it_was():
    with spelling._no_collections():
        assert not spelling.gc.isenabled()
    assert spelling.gc.isenabled()
    spelling.gc.disable()
    try:
        with spelling._no_collections():
            pass
        assert not spelling.gc.isenabled()
    finally:
        spelling.gc.enable()


def replying(*replies):
    return LLMRectifier(lambda prompts: list(replies))


def test_a_model_repairs():
    seen = []

    def lm(prompts):
        seen.extend(prompts)
        return ['{"text": "how do I bake bread"}', 'Sure: {"text": "a &lt; b"} ok?']

    assert LLMRectifier(lm).rectify(["h0w do I bqke br3ad", "a < b"]) == [
        Rectified("how do I bake bread"), Rectified("a < b")
    ]  # fmt: skip
    assert seen[0][0]["role"] == "system"


@pytest.mark.parametrize(
    "reply",
    [
        "", "not json", "{", '{"text": 3}', '{"text": null}', '{"other": "x"}', '{"text": "a", "more": 1}', "[1]",
        '{"text": ' + "[" * 100_000, '{"text": ' + "9" * 100_000 + "}", "\x00\ud800", '{"text": {"text": "a"}}',
    ],
)  # fmt: skip
def test_junk_is_a_failure_that_gives_the_input_back(reply):
    assert replying(reply).rectify(["x7 y"]) == [Rectified("x7 y", failed=True)]


def test_a_refusal_is_told_apart_and_bounded():
    (result,) = replying("I'm sorry, but I can't assist. " + "x" * 10**6).rectify(["bad"])
    assert result.refused
    assert len(result.text) <= 1000
    assert read_reply("I'm sorry to bother you", "I'm sorry to bothe you", "text").failed  # the user's own words


def test_an_endless_reply_is_not_read_to_its_end():
    assert replying(json.dumps({"text": "y" * 10**7})).rectify(["x"])[0].failed


@given(st.text(max_size=100))
def test_no_text_leaves_its_delimiters(text):
    shown = []
    LLMRectifier(lambda prompts: [shown.append(p[-1]["content"]) or "" for p in prompts]).rectify([text])
    assert shown[0].startswith("<damaged>")
    assert shown[0].endswith("</damaged>")
    assert "<" not in shown[0][9:-10]
    assert html.unescape(shown[0][9:-10]) == html.unescape(html.escape(text, quote=False))


def test_format_fields_in_a_text_mean_nothing():
    text = "{0.__class__} %s {text} ${HOME} {{"
    shown = []
    LLMRectifier(lambda prompts: [shown.append(p[-1]["content"]) or "" for p in prompts]).rectify([text])
    assert shown[0] == f"<damaged>{text}</damaged>"


class Recorder:
    """A language model that notes the options of its calls."""

    is_chat = True

    def __init__(self, reply):
        self.reply, self.calls = reply, []

    def generate(self, prompts, **options):
        self.calls.append((list(prompts), options))
        return [self.reply] * len(prompts)

    def logprobs(self, prompts, responses):
        return []

    def hidden_states(self, prompts, responses, layers):
        return []

    def response_ids(self, text):
        return text.split()


def test_options_reach_the_model():
    lm = Recorder('{"text": "a"}')
    examples = [("a <", "b")]
    rectifier = LLMRectifier(lm, template="Repair.", temperature=0.3, examples=examples)
    rectifier.rectify(["one two three four", "x"], seeds=[5, 6])
    prompts, options = lm.calls[0]
    assert [turn["content"] for turn in prompts[1]] == [
        "Repair.", "<damaged>a &lt;</damaged>", '{"text": "b"}', "<damaged>x</damaged>"
    ]  # fmt: skip
    assert options == {"max_new_tokens": 32, "temperature": 0.3, "seed": [5, 6]}  # 1.5 * 4 + 16, to a power of two
    LLMRectifier(lm).rectify(["word " * 10**5])
    assert lm.calls[1][1]["max_new_tokens"] == 2048
    assert LLMRectifier(lm).rectify([]) == []
    assert len(lm.calls) == 2


@pytest.mark.parametrize(
    "make", [LLMRectifier, MaskFillRectifier, Paraphraser, lambda lm: Transformer(lm, max_new_tokens=300)]
)
def test_the_length_of_a_reply_does_not_depend_on_the_other_texts(make):
    """A long text beside a short one must not give the short one more room, or its repair would depend on it."""
    short, long = "the [MASK] house is very old", "the [MASK] house " + "is very old " * 50

    def asked(texts, seeds):
        lm = Recorder("a red house")
        make(lm).rectify(texts, seeds=seeds)
        return {
            (prompt[-1]["content"], seed): {**options, "seed": seed}
            for prompts, options in lm.calls
            for prompt, seed in zip(prompts, options["seed"], strict=True)
        }

    together = asked([short, long, short], [3, 4, 5])
    assert together == {**asked([short], [3]), **asked([long], [4]), **asked([short], [5])}
    assert len(together) == 3


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": float("nan")}, {"template": " "}, {"template": 3}]
)
def test_bad_options_are_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        LLMRectifier(lambda prompts: [], **options)


def test_masks_are_filled_by_a_function_or_deleted_where_they_are_many():
    filler = MaskFillRectifier(lambda text: text.replace("[MASK]", "red"))
    texts = ["the [MASK] house is old", "[MASK] [MASK] [MASK] house", "no mask", "[MASK] [MASK]"]
    assert filler.rectify(texts) == [
        Rectified("the red house is old"), Rectified("house"), Rectified("no mask"),
        Rectified("[MASK] [MASK]", failed=True),
    ]  # fmt: skip
    assert MaskFillRectifier(lambda text: "x", delete_above=0.0).rectify(["a [MASK] b"]) == [Rectified("a b")]


def test_masks_are_filled_by_a_model_in_one_call():
    lm = Recorder("<masked>the red house</masked>")
    texts = ["the [MASK] house", "no mask", "a [MASK] b"]
    results = MaskFillRectifier(lm).rectify(texts, seeds=[1, 2, 3])
    assert results == [Rectified("the red house"), Rectified("no mask"), Rectified("the red house")]
    assert len(lm.calls) == 1
    assert lm.calls[0][1]["seed"] == [1, 3]
    assert MaskFillRectifier(lm).rectify(["none"]) == [Rectified("none")]
    assert len(lm.calls) == 1


@pytest.mark.parametrize("reply", ["", "still [MASK] here"])
def test_masks_left_are_a_failure(reply):
    assert MaskFillRectifier(Recorder(reply)).rectify(["the [MASK] house"])[0] == Rectified("the [MASK] house", True)


@pytest.mark.parametrize(
    ("bad", "names"), [(("x",), "generate"), ((len, " "), "mask"), ((len, "m", 2), "delete_above")]
)
def test_bad_mask_fillers(bad, names):
    with pytest.raises(InputError, match=names):
        MaskFillRectifier(*bad)


def test_a_chain_hands_on_what_failed_and_stops_at_a_refusal():
    def broken(text):
        raise OSError

    refusing = LLMRectifier(lambda prompts: ["I'm sorry, I can't help"] * len(prompts))
    assert Chain(str.upper, broken, lambda text: text + "!").rectify(["a"]) == [Rectified("A!", failed=True)]
    assert Chain(refusing, str.upper).rectify(["a"])[0] == Rectified("I'm sorry, I can't help", refused=True)
    lm = Recorder('{"text": "b"}')
    assert Chain(str.upper, LLMRectifier(lm)).rectify(["a", "c"], seeds=[1, 2]) == [Rectified("b"), Rectified("b")]
    assert lm.calls[0][1]["seed"] == [1, 2]
    with pytest.raises(InputError, match="stages"):
        Chain()


def test_functions_as_rectifiers():
    assert CallableRectifier(lambda text: 3).rectify(["a"]) == [Rectified("a", failed=True)]
    with pytest.raises(InputError, match="rectify"):
        as_rectifier(3)


@given(st.text(max_size=60), st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_what_passes_the_checks_is_bounded(output, disrupted, original):
    result = guarded(Rectified(output), disrupted, original)
    if result.failed:
        assert result.text == disrupted
    elif not result.refused:
        assert result.text.strip()
        assert len(result.text) <= 2 * len(disrupted)


def test_an_answer_in_the_place_of_a_repair_falls_back():
    assert guarded(Rectified("x" * 21), "y" * 10, "z") == Rectified("y" * 10, failed=True)
    assert guarded(Rectified("x" * 20), "y" * 10, "z") == Rectified("x" * 20)
    assert guarded(Rectified("x" * 90), "y" * 10, "z", max_ratio=10) == Rectified("x" * 90)
    assert guarded(Rectified("junk", failed=True), "y", "z") == Rectified("y", failed=True)
    assert guarded(Rectified("I'm sorry, but no"), "y", "z").refused


def test_spelling_ends_between_words_once_its_request_has_ended():
    looked = iter([False] * 5 + [True] * 10**6)
    with ended_by(lambda: next(looked)), pytest.raises(RequestEndedError, match="the request has ended"):
        SpellRectifier().rectify(["one two three", "four five six", "seven"])
    assert next(looked)
    assert [result.text for result in SpellRectifier().rectify(["how do i make it"])] == ["how do i make it"]
