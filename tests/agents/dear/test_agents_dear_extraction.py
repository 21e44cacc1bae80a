"""What an agent answered: read, matched to options, put together."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.dear.extraction import MAX_REPLY, Clusters, as_number, canonical, match_option, read_reply

CITIES = ["Lyon", "Paris", "New York", "York"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris is the capital.\nAnswer: B", "B"),
        ("**Final answer:** Paris", "Paris"),
        ("Answer: A\nNo, wait.\nAnswer: B", "B"),
        ("Peer said 'Answer: C'. I disagree.\nanswer = D", "D"),
        ("So \\boxed{42}.", "42"),
        ("Answer: \\boxed{7}", "7"),
        ("Answer: B Confidence: 0.8", "B"),
        ("a line of thought\nParis", "Paris"),
        ("The answer is Paris.", "Paris."),
        ("", None),
        (" \n \t", None),
        ("x" * 600, None),
        ("Answer:", "Answer:"),
    ],
)
def test_the_answer_is_the_last_one_stated(text, answer):
    assert read_reply(text).answer == answer


def test_the_argument_is_what_states_neither_answer_nor_confidence():
    reply = read_reply("Seine runs there.\nThus the answer is Paris\nConfidence: 85%\nend")
    assert reply == ("Paris", "Seine runs there.\nThus the\nend", 0.85)


@pytest.mark.parametrize(
    ("text", "confidence"),
    [
        ("confidence: .5", None),
        ("Confidence: 0.5", 0.5),
        ("confidence is 90", 0.9),
        ("Confidence: 900%", None),
        ("", None),
    ],
)
def test_a_confidence_is_a_share_or_a_percentage(text, confidence):
    assert read_reply(text).confidence == confidence


def test_a_huge_reply_is_read_from_its_end_and_in_linear_time():
    began = time.process_time()
    assert read_reply("answer " * 300_000 + "\nAnswer: B").answer == "B"
    assert read_reply("answer:" * 300_000).argument in ("", ":")
    assert read_reply("\\boxed{" * 300_000).answer is None
    assert time.process_time() - began < 10  # quadratic work on two million characters takes hours
    assert MAX_REPLY < 1e6


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("B", 1), ("b", 1), ("(B)", 1), ("**B**", 1), ("B.", 1), ("B) Paris", 1), ("Paris", 1), ("the paris.", 1),
        ("It is Paris, France", 1), ("New York", 2), ("york", 3), ("the city of New York", 2), ("B) Lyon", None),
        ("not Paris", None), ("Paris or Lyon", None), ("E", None), ("Rome", None), ("", None), ("?!", None),
        ("A dog", None),
    ],
)  # fmt: skip
def test_an_option_is_found_by_label_or_text_or_not_at_all(said, place):
    assert match_option(said, CITIES) == place


def test_numbers_among_options_are_compared_as_numbers():
    assert match_option("1,000", ["100", "1000", "10"]) == 1
    assert match_option("1/2", ["0.5", "2"]) == 0
    assert match_option("5", ["50", "500"]) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,234.5", 1234.5), ("$5", 5.0), ("-3", -3.0), ("1e3", 1000.0), (".5", 0.5), ("1e999", None), ("1/4", 0.25),
     ("1/0", None), ("x", None), ("e5", None), ("", None), ("1,23", None)],
)  # fmt: skip
def test_numbers(text, number):
    assert as_number(text) == number


@given(st.text(max_size=80))
def test_canonical_settles(text):
    once = canonical(text)
    assert len(canonical(once)) <= len(once)


@given(st.text(max_size=300))
def test_nothing_that_is_written_makes_the_reader_fail(text):
    reply = read_reply(text)
    assert reply.answer is None or reply.answer.strip()
    assert match_option(text, CITIES) in (None, 0, 1, 2, 3)
    assert as_number(text) is None or as_number(text) == as_number(text)


ANSWERS = st.lists(
    st.one_of(st.none(), st.sampled_from(["Paris", "the Paris", "paris.", "3", "3.0", "3.0000001", "4", "Lyon"])),
    min_size=1, max_size=8,
)  # fmt: skip


@given(ANSWERS, st.randoms(use_true_random=False))
def test_clusters_do_not_depend_on_the_order_of_agents(answers, random):
    order = list(range(len(answers)))
    random.shuffle(order)
    straight, mixed = Clusters(), Clusters()
    places = straight.place(answers)
    assert [places[index] for index in order] == mixed.place([answers[index] for index in order])
    assert straight.texts == mixed.texts


def test_clusters_join_what_is_the_same_and_keep_their_numbers():
    clusters = Clusters()
    assert clusters.place(["Paris", "PARIS ", None, "2"]) == [1, 1, -1, 0]
    assert clusters.place(["Lyon", "2.0", "Paris"]) == [2, 0, 1]
    assert clusters.place(["2.0000001", "2.1"]) == [0, 3]


def test_a_canonicaliser_of_the_users_decides():
    clusters = Clusters(canonicalise=lambda text: text[0])
    assert clusters.place(["abc", "axe", "b"]) == [0, 0, 1]
