"""The generator: the same chat for the same seed, its hardness, labels that do not leak, solvable questions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.agents.groupmembench import generator as module
from steelyard.agents.groupmembench.adversary import bm25_attacker, dense_attacker, hardest, strength
from steelyard.agents.groupmembench.arms import GoldMemory, RandomMemory
from steelyard.agents.groupmembench.asking import ASK, TYPES, WORDINGS, Asked
from steelyard.agents.groupmembench.generator import VERSION, generate_group_chat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.ontology import BLUNT_WORDS, DETAILS, DOMAINS, TOPICS
from steelyard.agents.groupmembench.protocol import GroupMemBench
from steelyard.agents.groupmembench.readers import ABSTAINS
from steelyard.agents.groupmembench.reading import FormReader, correct, kind_of, pattern, read
from steelyard.agents.groupmembench.realise import EASY, OPENERS, TEMPLATES, Event, checked
from steelyard.errors import InputError

SMALL = {"channels": 2, "phases": 2, "questions_per_type": 6, "adversarial_iters": 1, "root": "tuning"}


@pytest.fixture(scope="module")
def made():
    return generate_group_chat(0, root="tuning")


@pytest.fixture(scope="module")
def by_id(made):
    return {message.id: message for message in made.chat.messages}


def test_version_1_writes_what_it_wrote_when_it_was_frozen():
    """Whoever changes a word of the shipped chat gives it another version, and another digest here."""
    digest = hashlib.sha256()
    for domain in ("finance", "healthcare"):
        chat = generate_group_chat(0, root="tuning", domain=domain)
        for one in chat.chat.messages:
            digest.update(repr((one.id, one.author, one.content, one.reply_to, str(one.timestamp))).encode())
        for one in chat.questions:
            fields = one.id, one.type, one.question, one.answer, one.asking_user_id, one.gold_ids, one.hard_negative_ids
            digest.update(repr(fields).encode())
    assert VERSION == "1.0"
    assert digest.hexdigest() == "faf41229a0aa1aeceae0b215b7948b4448ba288ce850a104b480dc61d30084b2"


def test_equal_seeds_give_equal_chats_and_others_do_not():
    one, again, other = (generate_group_chat(seed, **SMALL) for seed in (3, 3, 4))
    assert one.chat.messages == again.chat.messages
    assert one.questions == again.questions
    assert one.chat.messages != other.chat.messages
    assert generate_group_chat(3, **{**SMALL, "root": "evaluation"}).chat.messages != one.chat.messages


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(DOMAINS)), st.integers(2, 30), st.integers(1, 6), st.integers(1, 4), st.integers(20, 60),
    st.floats(0, 0.9), st.sampled_from(("shipped", "easy")), st.integers(0, 2**32),
)  # fmt: skip
def test_any_setting_gives_a_chat_that_holds_together(domain, users, channels, phases, size, noise, hardness, seed):
    made = generate_group_chat(
        seed, domain=domain, users=users, channels=channels, phases=phases, messages_per_phase=size, noise=noise,
        hardness=hardness, questions_per_type=3, adversarial_iters=1, root="tuning",
    )  # fmt: skip
    known = {message.id: message for message in made.chat.messages}
    assert len(known) >= size * channels * phases
    for message in known.values():
        if message.reply_to is not None:
            assert known[message.reply_to].timestamp < message.timestamp
            assert known[message.reply_to].channel == message.channel
    for one in made.questions:
        assert set(one.gold_ids) | set(one.hard_negative_ids) <= set(known)
        assert not set(one.gold_ids) & set(one.hard_negative_ids)
        assert one.asking_user_id in made.chat.users
        assert (not one.gold_ids) == (one.type == "abstention")
        passages = [known[name].content for name in one.gold_ids]
        assert correct(read(one.question, passages), one.answer)


def test_no_change_has_a_cue_word_and_half_of_them_stand_in_another_thread(made, by_id):
    blunt = set(BLUNT_WORDS)
    changes = [one for one in by_id.values() if one.truth["event"] == "change"]
    for template in TEMPLATES["change"]:
        assert not blunt & set(re.findall(r"\w+", template.lower()))
    for opener in sum(OPENERS.values(), ()):
        assert not blunt & set(re.findall(r"\w+", opener.lower()))

    def root(message):
        while message.reply_to is not None:
            message = by_id[message.reply_to]
        return message

    apart = [root(one).truth["event"] != "root" for one in changes]
    assert len(changes) == 48
    assert 0.3 < np.mean(apart) < 0.9
    assert "glossary" not in TEMPLATES
    assert "glossary" in EASY


def test_text_names_the_phase_in_roots_only(made):
    for message in made.chat.messages:
        if message.phase.lower() in message.content.lower():
            assert message.truth["event"] in ("root", "steering")


def test_the_old_decision_is_restated_after_its_change_by_somebody_else(made):
    stories = {}
    for one in made.chat.messages:
        if one.truth["event"] in ("change", "restatement"):
            stories.setdefault((one.truth["entity"], one.phase), {})[one.truth["event"]] = one
    assert len(stories) == 48
    for pair in stories.values():
        assert pair["restatement"].timestamp > pair["change"].timestamp
        assert pair["restatement"].author != pair["change"].author
        assert pair["restatement"].truth["value"] == pair["change"].truth["supersedes"]


def test_the_easy_chat_breaks_the_contract():
    easy = generate_group_chat(0, **SMALL, hardness="easy")
    kinds = {one.truth["event"]: one for one in easy.chat.messages}
    assert "instead of" in kinds["change"].content
    assert "Glossary:" in kinds["glossary"].content
    assert kinds["status"].phase in kinds["status"].content or "status" not in kinds
    assert easy.version.endswith("easy")


def test_term_ambiguity_asks_in_a_name_that_the_answer_does_not_use(made, by_id):
    for one in made.questions:
        if one.type == "term_ambiguity":
            forms = DOMAINS["finance"].entities[by_id[one.gold_ids[0]].truth["entity"]]
            asked = [form for form in forms if form in one.question]
            assert len(asked) == 1
            assert asked[0] not in by_id[one.gold_ids[0]].content.lower()


def test_user_implicit_is_answered_by_the_askers_own_message(made, by_id):
    own = [one for one in made.questions if one.type == "user_implicit"]
    assert own
    assert all(by_id[one.gold_ids[0]].author == one.asking_user_id for one in own)


def test_nobody_tells_what_abstention_asks_for(made):
    names = DOMAINS["finance"].entities
    for one in made.questions:
        if one.type == "abstention":
            kind = kind_of(one.question)
            entity = next(number for number, forms in enumerate(names) if forms[0] in one.question)
            told = [
                message
                for message in made.chat.messages
                if message.truth["entity"] == entity and message.phase in one.question
            ]
            assert not any(pattern(kind).search(message.content) for message in told)
            assert one.answer == ABSTAINS


def test_ids_times_and_order_give_nothing_away(made):
    """Ids are a random draw; gold messages lie anywhere in id order and in time."""
    ids = [message.id for message in made.chat.messages]
    places = {name: place for place, name in enumerate(sorted(ids))}
    order = np.array([places[name] for name in ids])
    assert abs(np.corrcoef(order, np.arange(len(ids)))[0, 1]) < 0.1
    gold = [places[name] / len(ids) for one in made.questions for name in one.gold_ids]
    assert 0.4 < np.mean(gold) < 0.6


def test_public_messages_carry_no_label(made):
    for message in made.public():
        assert message.truth is None
        assert message.is_noise is None
        assert message.decision_type is None
        assert message.topic is None


class Constant(RandomMemory):
    """Always the same messages."""

    def search(self, query, *, asker=None, k=10):
        self._draws = np.random.default_rng(1)
        return super().search(query, asker=asker, k=k)


@pytest.mark.parametrize("kind", [RandomMemory, Constant])
def test_memories_that_do_not_look_score_at_chance(kind):
    answered, recalls = [], []
    for seed in range(3):
        made = generate_group_chat(seed, root="tuning")
        report = GroupMemBench(made.chat, made.questions, reader=FormReader()).run(kind(np.random.default_rng(seed)))
        answered += [row.correct for row in report.rows if row.type != "abstention"]
        recalls.append(report.recall)
    assert np.mean(answered) < 0.06
    assert np.mean(recalls) < 0.03


def test_gold_evidence_answers_everything(made):
    bench = GroupMemBench(made.chat, made.questions, reader=FormReader())
    report = bench.run(GoldMemory({bench.query(one): one.gold_ids for one in made.questions}))
    assert report.micro.estimate == 1
    assert report.recall == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"domain": "law"}, "domain"),
        ({"hardness": "hard"}, "hardness"),
        ({"users": 1}, "users"),
        ({"channels": 7}, "channels"),
        ({"phases": 0}, "phases"),
        ({"messages_per_phase": 5}, "messages_per_phase"),
        ({"p_chain": 0.9, "p_branch": 0.2}, "p_chain"),
        ({"noise": -0.1}, "noise"),
        ({"adversarial_iters": 21}, "adversarial_iters"),
        ({"questions_per_type": 0}, "questions_per_type"),
    ],
)
def test_bad_settings_are_named(change, name):
    with pytest.raises(InputError, match=name):
        generate_group_chat(0, **change)


class TestRealiser:
    """A writer of the user's own, such as a language model."""

    def test_its_words_are_used_and_it_is_told_what_it_needs(self):
        told = []

        def realise(event, persona, audience, history):
            told.append((event.kind, persona.role, audience, len(history)))
            return f"{event.phase}: {event.alias} {event.value or 'well'} by {persona.user}"

        made = generate_group_chat(0, **SMALL, realise=realise)
        assert made.fallbacks == 0
        assert all(message.content.endswith(f"by {message.author}") for message in made.chat.messages)
        assert max(length for *_, length in told) == 10
        assert {role for _, role, _, _ in told} <= set(DOMAINS["finance"].roles)

    def test_a_text_without_its_fact_is_replaced_and_counted(self):
        made = generate_group_chat(0, **SMALL, realise=lambda event, *_: "Something else entirely.")
        facts = [one for one in made.chat.messages if one.truth["value"]]
        roots = [one for one in made.chat.messages if one.truth["event"] == "root"]
        assert made.fallbacks == len(facts) + len(roots)
        assert all(one.truth["value"].lower() in one.content.lower() for one in facts)

    @pytest.mark.parametrize("text", ["", "  ", None, 3, "x" * 2001])
    def test_what_is_no_text_is_refused(self, text):
        with pytest.raises(InputError, match="realise must return 1 to 2000 letters"):
            checked(text, Event("noise"))


class TestReading:
    """The reader that knows the forms of answers."""

    def test_every_wording_asks_for_its_kind(self):
        kinds = {"value": "approval process", "detail": "cost code", "commitment": "date", "deadline": "date"}
        for key, wordings in WORDINGS.items():
            topic = {"value": "approval process", "detail": "cost code"}.get(key, "dry run")
            for wording in wordings:
                asked = wording.format(alias="audit trail", phase="Pilot Run", topic=topic, role="Auditor")
                assert kind_of(asked) == kinds.get(key, key), asked

    @given(st.sampled_from(sorted(TOPICS)), st.data())
    def test_the_first_passage_with_an_answer_is_believed(self, topic, data):
        first, second = data.draw(st.permutations(TOPICS[topic]))[:2]
        question = f"What is the current {topic} for x in y?"
        assert read(question, ["nothing", f"It is {first}!", f"or {second}"]) == first
        assert read(question, ["nothing here"]) == ABSTAINS

    @pytest.mark.parametrize("kind", sorted(DETAILS))
    def test_details_match_their_own_form_only(self, kind):
        told = DETAILS[kind][1].format(a=4, b=2, c=7)
        assert [name for name in DETAILS if pattern(name).search(told)] == [kind]

    def test_a_question_of_another_kind_is_refused(self):
        with pytest.raises(InputError, match="give a reader of yours"):
            kind_of("Why?")


class TestAdversary:
    """Of several wordings the one that attackers fail on."""

    messages = (
        Message("a", "alpha status is parked", "u"),
        Message("b", "beta counts as delayed", "v"),
        Message("c", "beta coffee", "v"),
    )

    def asked(self, question):
        return Asked("term_ambiguity", question, "parked", "u", ("a",), ("b",))

    def test_the_harder_wording_is_kept(self):
        easy, hard = self.asked("alpha status"), self.asked("beta counts status")
        kept = list(hardest([[easy, hard], [hard, easy]], self.messages, [bm25_attacker], 5))
        assert kept == [hard, hard]

    def test_no_iteration_keeps_the_first_and_asks_nobody(self):
        def never(messages):
            raise AssertionError("no attacker is needed")

        easy, hard = self.asked("alpha status"), self.asked("beta counts status")
        assert list(hardest([[easy, hard]], self.messages, [never], 0)) == [easy]

    @pytest.mark.parametrize("maker", [bm25_attacker, dense_attacker])
    def test_strength_counts_right_answers_and_ranks(self, maker):
        right, rank = strength(self.asked("alpha status"), self.messages, [maker(self.messages)])
        assert right == 1
        assert rank == 1
        assert strength(replace(self.asked("alpha status"), gold=()), self.messages, []) == (0, 0.0)

    def test_the_search_makes_chats_harder_for_its_attackers(self):
        def answered(iterations):
            made = generate_group_chat(1, **{**SMALL, "adversarial_iters": iterations, "questions_per_type": 24})
            messages = made.chat.messages
            attack = bm25_attacker(messages)
            return np.mean([
                correct(
                    read(one.question, [messages[at].content for at in attack(f"{one.asking_user_id} {one.question}")]),
                    one.answer,
                )
                for one in made.questions
            ])  # fmt: skip

        assert answered(5) < answered(0)


def test_every_type_has_a_constructor():
    assert tuple(ASK) == TYPES
    assert module.generate_group_chat is generate_group_chat
