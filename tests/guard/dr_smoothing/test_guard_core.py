"""The vote rule and the disruption kernels: exact laws on tiny texts, counts, white space, bad input."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import string
import warnings
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import guard
from steelyard.errors import InputError, NoEffectWarning
from steelyard.guard.dr_smoothing import arguments, core

DRAWS = 6000
TEXT = "Weigh the brass pan twice, then note\nthe smaller mass on paper. "
EMOJI = "naïve e\u0301 👩\u200d🔬 ｆｕｌｌ \ud800 ﷺ"
texts = st.text(st.characters(), min_size=1, max_size=60)
prose = st.lists(st.text(string.ascii_letters, min_size=1, max_size=6), min_size=1, max_size=12).map(" ".join)
kernels = st.sampled_from(
    [
        core.disrupt_swap(0.3),
        core.disrupt_swap(0.3, "letters"),
        core.disrupt_swap(0.3, mode="bernoulli"),
        core.disrupt_swap(0.3, ("one", "two"), mode="bernoulli", unit="token"),
        core.disrupt_patch(0.3, "printable"),
        core.disrupt_insert(0.3),
        core.disrupt_insert(0.3, quirk=True),
        core.disrupt_mask_words(0.4),
        core.disrupt_mask_words(keep=2),
        core.disrupt_mask_words(keep=0.5),
        core.disrupt_delete_words(0.4),
        core.disrupt_random(0.3),
        core.mixture([core.disrupt_swap(0.3), lambda text, rng: text.upper()]),
    ]
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def quiet(kernel, text, generator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoEffectWarning)
        return kernel(text, generator)


def assert_law(kernel, text: str, law: dict[str, Fraction], draws: int = DRAWS) -> None:
    """Every output's frequency is within 4 sigma of its exact probability, and nothing else comes out."""
    assert sum(law.values()) == 1
    generator = rng(7)
    seen = Counter(kernel(text, generator) for _ in range(draws))
    assert set(seen) <= set(law)
    for outcome, probability in law.items():
        p = float(probability)
        assert abs(seen[outcome] - draws * p) <= 4 * math.sqrt(draws * p * (1 - p)) + 1e-9, outcome


# ---- the vote


def test_a_tie_is_safe_and_one_more_is_not():
    assert not core.majority([1, 1, 0, 0])
    assert core.majority([1, 1, 1, 0])
    assert core.majority([True])
    assert not core.majority([False])
    assert core.majority([1, 0, 0, 0, 0], gamma=0.0)
    assert not core.majority([0, 0], gamma=0.0)


@pytest.mark.parametrize(("n", "gamma", "t"), [(10, 0.5, 5), (9, 0.5, 4), (1, 0.5, 0), (100, 0.29, 29), (3, 1 / 3, 1)])
def test_threshold_is_the_floor(n, gamma, t):
    assert core.vote_threshold(n, gamma) == t


def test_threshold_loses_no_copy_to_rounding_and_never_reaches_n():
    for n in (*range(1, 200), 9_999, 10_000, 100_000, 1_000_000):
        for thousandths in range(0, 1000, 7):
            assert core.vote_threshold(n, thousandths / 1000) == thousandths * n // 1000, (n, thousandths)
    assert core.vote_threshold(100_000, 0.282) == 28_200  # 0.282 * 100_000 is 28199.999999999996
    assert core.vote_threshold(5, 1 - 1e-15) == 4


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 19))
def test_majority_counts_exactly(votes, twentieths):
    gamma = Fraction(twentieths, 20)
    assert core.majority(votes, float(gamma)) == (sum(votes) > math.floor(gamma * len(votes)))


# ---- exact laws on tiny texts, against enumeration


def swap_law(text: str, count: int, alphabet: str) -> dict[str, Fraction]:
    law: dict[str, Fraction] = defaultdict(Fraction)
    ways = math.comb(len(text), count) * len(alphabet) ** count
    for places in itertools.combinations(range(len(text)), count):
        for symbols in itertools.product(alphabet, repeat=count):
            new = list(text)
            for place, symbol in zip(places, symbols, strict=True):
                new[place] = symbol
            law["".join(new)] += Fraction(1, ways)
    return law


def patch_law(text: str, count: int, alphabet: str) -> dict[str, Fraction]:
    law: dict[str, Fraction] = defaultdict(Fraction)
    starts = len(text) - count + 1
    for start in range(starts):
        for symbols in itertools.product(alphabet, repeat=count):
            law[text[:start] + "".join(symbols) + text[start + count :]] += Fraction(1, starts * len(alphabet) ** count)
    return law


def insert_law(text: str, count: int, alphabet: str, quirk: bool) -> dict[str, Fraction]:
    law: dict[str, Fraction] = defaultdict(Fraction)
    ways = math.perm(len(text), count) * len(alphabet) ** count
    for places in itertools.permutations(range(len(text)), count):
        for symbols in itertools.product(alphabet, repeat=count):
            if quirk:  # SmoothLLM: list.insert in the order of drawing
                new = list(text)
                for place, symbol in zip(places, symbols, strict=True):
                    new.insert(place, symbol)
            else:  # each before the character that it was drawn for
                before = dict(zip(places, symbols, strict=True))
                new = [before.get(i, "") + c for i, c in enumerate(text)]
            law["".join(new)] += Fraction(1, ways)
    return law


@pytest.mark.parametrize(
    ("text", "q", "count"), [("abc", 0.67, 2), ("abxy", 0.5, 2), ("aaaa", 0.25, 1), ("ab", 1.0, 2)]
)
def test_swap_follows_its_law(text, q, count):
    assert_law(core.disrupt_swap(q, "axy"), text, swap_law(text, count, "axy"))


@pytest.mark.parametrize(("text", "q", "count"), [("abcd", 0.5, 2), ("abc", 0.4, 1), ("abc", 1.0, 3)])
def test_patch_follows_its_law(text, q, count):
    assert_law(core.disrupt_patch(q, "axy"), text, patch_law(text, count, "axy"))


@pytest.mark.parametrize("quirk", [False, True])
def test_insert_follows_its_law(quirk):
    assert insert_law("abc", 2, "xy", False) != insert_law("abc", 2, "xy", True)
    assert_law(core.disrupt_insert(0.67, "xy", quirk=quirk), "abc", insert_law("abc", 2, "xy", quirk))


def test_bernoulli_swap_follows_its_law():
    q, alphabet = Fraction(2, 5), "abc"
    law: dict[str, Fraction] = defaultdict(Fraction)
    for new in itertools.product("abcz", repeat=3):
        probability = Fraction(1)
        for old, now in zip("abz", new, strict=True):  # z is outside of the alphabet: any symbol replaces it
            others = [c for c in alphabet if c != old]
            probability *= 1 - q if now == old else q / len(others) if now in others else 0
        if probability:
            law["".join(new)] += probability
    assert_law(core.disrupt_swap(0.4, alphabet, mode="bernoulli"), "abz", law)


def test_bernoulli_token_swap_follows_its_law():
    law = {
        "up  zed": Fraction(1, 4),
        "in  zed": Fraction(1, 4),
        "up  up": Fraction(1, 8),
        "up  in": Fraction(1, 8),
        "in  up": Fraction(1, 8),
        "in  in": Fraction(1, 8),
    }
    kernel = core.disrupt_swap(0.5, ["up", "in"], mode="bernoulli", unit="token")
    assert kernel.vocab == 2
    assert_law(kernel, "up  zed", law)


def test_letters_alphabet_touches_letters_only_and_rounds_its_count():
    law: dict[str, Fraction] = defaultdict(Fraction)
    for place in (0, 2):
        for symbol in string.ascii_lowercase:
            law["a.b"[:place] + symbol + "a.b"[place + 1 :]] += Fraction(1, 52)
    assert_law(core.disrupt_swap(0.1, "letters"), "a.b", law)
    out = core.disrupt_swap(0.9, "letters")("a1b2.C3", rng())  # round(0.9 * 7) = 6, but there are three letters
    assert (out[1], out[3], out[4], out[6]) == ("1", "2", ".", "3")
    changed = [
        sum(a != b for a, b in zip("x" * 40, core.disrupt_swap(0.2, "letters")("x" * 40, rng(s)), strict=True))
        for s in range(60)
    ]
    assert max(changed) == 8  # round(0.2 * 40), some drawn as themselves
    assert core.disrupt_swap(0.0, "letters")(TEXT, rng()) == TEXT


def test_bernoulli_letters_touches_letters_only():
    out = core.disrupt_swap(1.0, "letters", mode="bernoulli")("ab, c1!", rng())
    assert all(a != b for a, b in zip("abc", (out[0], out[1], out[4]), strict=True))
    assert (out[2], out[3], out[5], out[6]) == (",", " ", "1", "!")


def test_mask_at_a_rate_and_at_a_fixed_number():
    third = {"M b": Fraction(3, 16), "a M": Fraction(3, 16), "a b": Fraction(9, 16), "M M": Fraction(1, 16)}
    assert_law(core.disrupt_mask_words(0.25, mask="M"), "a b", third)
    fixed = {
        " ".join(w if i in kept else "M" for i, w in enumerate("abcd")): Fraction(1, 6)
        for kept in itertools.combinations(range(4), 2)
    }
    assert_law(core.disrupt_mask_words(keep=2, mask="M"), "a b c d", fixed)
    assert_law(core.disrupt_mask_words(keep=0.5, mask="M"), "a b c d", fixed)
    assert core.disrupt_mask_words(keep=9)("a b", rng()) == "a b"
    assert core.disrupt_mask_words(keep=0)("a b", rng()) == "[MASK] [MASK]"
    assert core.disrupt_mask_words(keep=0.29).kept(100) == 29
    assert core.disrupt_mask_words(keep=7).kept(5) == 5
    assert core.disrupt_mask_words().config == {"rate": 0.3, "keep": None, "mask": "[MASK]"}


def test_deleting_words_keeps_the_text_if_none_is_left():
    q = Fraction(1, 4)
    law: dict[str, Fraction] = defaultdict(Fraction)
    for stay in itertools.product([True, False], repeat=3):
        probability = math.prod((1 - q if s else q for s in stay), start=Fraction(1))
        left = " ".join(word for word, s in zip("abc", stay, strict=True) if s)
        law[left or "a b c"] += probability
    assert_law(core.disrupt_delete_words(0.25), "a b c", law)
    assert core.disrupt_delete_words(1.0)("a b", rng()) == "a b"
    assert core.disrupt_delete_words(0.0)(" a  b ", rng()) == " a  b "


def test_deleting_a_word_takes_the_white_space_before_it():
    seen = {core.disrupt_delete_words(0.5)("ab cd\nef", rng(seed)) for seed in range(200)}
    assert seen == {"ab cd\nef", "cd\nef", "ab\nef", "ab cd", "ab", "cd", "ef"}


def test_a_mixture_draws_one_kernel_per_copy():
    ends = [lambda text, rng, end=end: text + end for end in "xyz"]
    assert_law(core.mixture(ends), "a", {"ax": Fraction(1, 3), "ay": Fraction(1, 3), "az": Fraction(1, 3)})


def test_the_random_preset_holds_the_five_operations():
    kernel = core.disrupt_random(0.2, 0.4, "printable")
    settings = kernel.config["kernels"]
    assert [entry["name"] for entry in settings] == ["swap", "insert", "patch", "mask_words", "delete_words"]
    assert [entry.get("q", entry.get("rate")) for entry in settings] == [0.2, 0.2, 0.2, 0.4, 0.4]
    assert kernel.name == "random"
    assert {entry["alphabet"] for entry in settings[:3]} == {"printable"}
    assert core.as_kernel("random") == core.disrupt_random()


def test_alphabets():
    assert core.disrupt_swap(alphabet="printable").vocab == 100
    assert core.disrupt_swap(alphabet="letters").vocab == 26
    safe = core.disrupt_swap().symbols
    assert len(safe) == 94
    assert all(c.isprintable() and not c.isspace() for c in safe)
    assert core.disrupt_swap(alphabet="αβ").vocab == 2
    drawn = set(core.disrupt_swap(1.0, "αβ")("x" * 50, rng()))
    assert drawn == {"α", "β"}
    assert set(core.disrupt_swap(1.0)("x" * 3000, rng())) == set(safe)  # each symbol is drawn


# ---- counts, white space, code points


@given(texts, st.integers(0, 20), st.integers(0, 2**32))
def test_swap_and_patch_keep_the_length_and_change_at_most_the_floor(text, twentieths, seed):
    most = twentieths * len(text) // 20
    for make in (core.disrupt_swap, core.disrupt_patch):
        out = quiet(make(twentieths / 20), text, rng(seed))
        assert len(out) == len(text)
        changed = [i for i, (a, b) in enumerate(zip(text, out, strict=True)) if a != b]
        assert len(changed) <= most
        if make is core.disrupt_patch and changed:
            assert changed[-1] - changed[0] < most
    inserted = quiet(core.disrupt_insert(twentieths / 20), text, rng(seed))
    assert len(inserted) == len(text) + most
    left = iter(inserted)
    assert all(c in left for c in text)  # the text is a subsequence


@given(kernels, texts, st.integers(0, 2**32))
def test_every_kernel_takes_any_text_and_repeats_itself(kernel, text, seed):
    first, again = (quiet(kernel, text, rng(seed)) for _ in range(2))
    assert isinstance(first, str)
    assert first
    assert first == again


@given(prose, st.integers(0, 2**32))
def test_word_kernels_keep_words_whole_and_in_order(text, seed):
    words = text.split()
    masked = core.disrupt_mask_words(0.5, mask="<>")(text, rng(seed)).split()
    assert all(now in (old, "<>") for old, now in zip(words, masked, strict=True))
    kept = core.disrupt_mask_words(keep=3, mask="<>")(text, rng(seed)).split()
    assert sum(word != "<>" for word in kept) == min(3, len(words))
    left = iter(words)
    assert all(word in left for word in core.disrupt_delete_words(0.5)(text, rng(seed)).split())


def test_white_space_stays_where_words_change():
    out = core.disrupt_mask_words(1.0, mask="_")("\t a\n\nb  c ", rng())
    assert out == "\t _\n\n_  _ "


def test_hostile_texts_take_time_in_proportion():
    spaces = " " * 300_000
    for kernel in (core.disrupt_delete_words(0.5), core.disrupt_mask_words(0.5), core.disrupt_insert(0.5)):
        assert len(kernel("a" + spaces + "b", rng(2))) >= 1
    assert core.disrupt_delete_words(0.5)(spaces + "b" + spaces, rng(2)).endswith(spaces)  # all dropped: as it was


def test_code_points_are_the_characters():
    joined = "👩\u200d🔬"  # one sign on the screen, three code points
    seen = {core.disrupt_swap(0.34, "x")(joined, rng(seed)) for seed in range(40)}
    assert seen == {"x\u200d🔬", "👩x🔬", "👩\u200dx"}
    for make in (core.disrupt_swap, core.disrupt_patch, core.disrupt_insert):
        make(0.4)(EMOJI, rng()).encode("utf-8", "surrogatepass")


def test_nothing_happens_at_strength_zero():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in (core.disrupt_swap, core.disrupt_patch, core.disrupt_insert):
            assert make(0.0)(TEXT, rng()) == TEXT
            assert make(0.0, min_chars=3)(TEXT, rng()) == TEXT
        assert core.disrupt_swap(0.0, mode="bernoulli")(TEXT, rng()) == TEXT
        assert core.disrupt_mask_words(0.0)(TEXT, rng()) == TEXT


def test_a_short_prompt_warns_and_min_chars_disrupts_it():
    for make in (core.disrupt_swap, core.disrupt_patch, core.disrupt_insert):
        with pytest.warns(NoEffectWarning, match="min_chars=1"):
            assert make(0.1)("hello you", rng()) == "hello you"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert make(0.1, "#", min_chars=1)("hello you", rng()).count("#") == 1
            assert make(0.1, "#", min_chars=5)("abc", rng()).count("#") == 3
            assert make(0.5, "#", min_chars=2)("hello you!", rng()).count("#") == 5
    assert core.disrupt_swap(0.01, "letters", min_chars=4)("abcdefgh", rng(3)) != "abcdefgh"


def test_texts_without_words_or_letters_warn():
    for kernel in (core.disrupt_mask_words(), core.disrupt_delete_words()):
        with pytest.warns(NoEffectWarning, match="no word"):
            assert kernel(" \n", rng()) == " \n"
    with pytest.warns(NoEffectWarning, match="no letter"):
        assert core.disrupt_swap(0.5, "letters")("123", rng()) == "123"


def test_kernels_are_values():
    kernel = core.disrupt_swap(0.2, "printable")
    assert kernel == core.disrupt_swap(0.2, "printable")
    assert kernel != core.disrupt_swap(0.3, "printable")
    with pytest.raises(AttributeError):
        kernel.q = 0.5
    assert kernel.config == {"q": 0.2, "alphabet": "printable", "min_chars": 0, "mode": "fixed", "unit": "char"}
    for made in (kernel, core.disrupt_insert(quirk=True), core.disrupt_mask_words(keep=3), core.disrupt_random()):
        json.dumps(made.config)
        assert pickle.loads(pickle.dumps(made))(TEXT, rng(5)) == made(TEXT, rng(5))
        assert core.as_kernel(made) is made
    words = core.disrupt_swap(0.2, ["a", "b"], mode="bernoulli", unit="token")
    assert words.config["alphabet"] == "2 words"
    assert len(repr(core.disrupt_swap())) < 200
    for made in (core.disrupt_swap(min_chars=np.int64(2)), core.disrupt_patch(min_chars=np.int64(2))):
        assert json.loads(json.dumps(made.config))["min_chars"] == 2
    assert json.dumps(core.disrupt_mask_words(keep=np.int64(2)).config)


def test_names_and_lists_of_kernels():
    def mine(text, rng):
        return text

    mixed = core.as_kernel([core.disrupt_patch(), mine])
    assert [entry["name"] for entry in mixed.config["kernels"]] == ["patch", "mine"]
    assert mixed.name == "mixture"
    assert [k.name for k in mixed.kernels if k is not mine] == ["patch"]
    assert guard.disrupt_swap is core.disrupt_swap


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: core.disrupt_swap(10), r"q is a fraction.*for 10 percent say 0.1"),
        (lambda: core.disrupt_swap(-0.1), "q is a fraction"),
        (lambda: core.disrupt_swap(float("nan")), "q is a fraction"),
        (lambda: core.disrupt_swap(True), "q is a fraction"),
        (lambda: core.disrupt_swap("0.1"), "q is a fraction"),
        (lambda: core.disrupt_patch(1.5), "q is a fraction"),
        (lambda: core.disrupt_insert(150), r"q is a fraction between 0 and 1, not 150$"),
        (lambda: core.disrupt_delete_words(30), "q is a fraction.*30 percent"),
        (lambda: core.disrupt_random(rate=30), "rate is a fraction"),
        (lambda: core.disrupt_swap(min_chars=-1), "min_chars"),
        (lambda: core.disrupt_patch(min_chars=1.5), "min_chars"),
        (lambda: core.disrupt_swap(mode="bernouli"), "mode is one of.*bernoulli"),
        (lambda: core.disrupt_swap(unit="word"), "unit is one of"),
        (lambda: core.disrupt_swap(unit=3), "unit is one of"),
        (lambda: core.disrupt_swap(unit="token"), "unit=.token. needs mode"),
        (lambda: core.disrupt_swap(mode="bernoulli", min_chars=1), "min_chars has no meaning"),
        (lambda: core.disrupt_swap(mode="bernoulli", unit="token"), "alphabet is a list of words"),
        (lambda: core.disrupt_swap(0.1, ["a", "a"], mode="bernoulli", unit="token"), "alphabet holds a word twice"),
        (lambda: core.disrupt_swap(0.1, ["a", "b c"], mode="bernoulli", unit="token"), "alphabet holds something"),
        (lambda: core.disrupt_swap(0.1, ["a", ""], mode="bernoulli", unit="token"), "alphabet holds something"),
        (lambda: core.disrupt_swap(0.1, ["a", 3], mode="bernoulli", unit="token"), "alphabet holds something"),
        (lambda: core.disrupt_swap(0.1, "x", mode="bernoulli"), "alphabet has one symbol"),
        (lambda: core.disrupt_swap(0.1, "aba"), "alphabet"),
        (lambda: core.disrupt_insert(0.1, ""), "alphabet"),
        (lambda: core.disrupt_insert(0.1, 5), "alphabet"),
        (lambda: core.disrupt_mask_words(0.3, 4), "rate and keep exclude"),
        (lambda: core.disrupt_mask_words(30), "rate is a fraction.*30 percent"),
        (lambda: core.disrupt_mask_words(keep=-1), "keep is an integer"),
        (lambda: core.disrupt_mask_words(keep=1.5), "keep is a fraction"),
        (lambda: core.disrupt_mask_words(mask=" "), "mask is empty"),
        (lambda: core.disrupt_mask_words(mask=None), "mask is empty"),
        (lambda: core.disrupt_mask_words().kept(4), "keep is not set"),
        (lambda: core.mixture([]), "kernels"),
        (lambda: core.mixture("swap"), "kernels"),
        (lambda: core.mixture([core.disrupt_swap(), 3]), r"kernels\[1\] is not callable"),
        (lambda: core.as_kernel("swap"), "disrupt is one of random"),
        (lambda: core.as_kernel(0.1), "kernels"),
        (lambda: core.disrupt_swap()("", rng()), "text is empty"),
        (lambda: core.disrupt_swap()(b"abc", rng()), "text is empty or no string"),
        (lambda: core.disrupt_random()("abc", 0), "rng is no numpy.random.Generator"),
        (lambda: core.vote_threshold(0), "n is an integer of at least 1"),
        (lambda: core.vote_threshold(True), "n is an integer"),
        (lambda: core.vote_threshold(2.0), "n is an integer"),
        (lambda: core.vote_threshold(3, 1.0), "gamma is a fraction below 1"),
        (lambda: core.vote_threshold(3, 50), "gamma is a fraction.*50 percent"),
        (lambda: core.majority([]), "votes is empty"),
        (lambda: core.majority([0, 2]), "votes holds something else"),
        (lambda: core.majority([0, None]), "votes holds something else"),
        (lambda: core.majority(3), "votes is no list of votes"),
        (lambda: core.majority(np.zeros((2, 2))), "votes is no list of votes"),
    ],
)
def test_bad_input_is_named(call, named):
    with pytest.raises(InputError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value)


@given(st.integers(0, 10_000_000), st.integers(0, 1000))
def test_a_share_of_a_whole_is_the_exact_floor(total, thousandths):
    share = thousandths / 1000
    assert arguments.share_of(total, share) == thousandths * total // 1000
    many = arguments.shares_of(np.array([total, total // 2]), share)
    assert many.tolist() == [thousandths * total // 1000, thousandths * (total // 2) // 1000]
