"""The structured memory: what each switch does, replies against the closed form, supersession, aliases, threads."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.groupmembench import cues
from steelyard.agents.groupmembench.alias import coreference_pairs, glossary_pairs, merged, table_pairs
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.core import reply_propagation
from steelyard.agents.groupmembench.lexical import BM25Memory
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.replies import Links, lend
from steelyard.agents.groupmembench.structured import StructuredGroupMemory
from steelyard.agents.groupmembench.table import MessageTable
from steelyard.agents.groupmembench.threads import ThreadWeights
from steelyard.errors import InputError

START = datetime(2025, 6, 19, tzinfo=UTC)
OFF = dict.fromkeys(("use_alias", "use_scope", "use_speaker", "use_reply", "use_supersession", "use_abstain"), False)


def say(id, text, author="ana", minute=0, **more):
    return Message(id, text, author, timestamp=START + timedelta(minutes=minute), **more)


def ids(memory, query, k=3, **options):
    return [hit.id for hit in memory.search(query, k=k, **options)]


def both(messages, query, switch, k=3, **options):
    """Ids with the switch as the only one on, and with all off."""
    found = []
    for flags in ({**OFF, switch: True}, OFF):
        memory = StructuredGroupMemory(alias_tau=None, **flags)
        memory.add_many(messages)
        found.append(ids(memory, query, k, **options))
    return found


FILLER = [say(f"f{i}", f"filler number{i} about nothing{i}", "zoe") for i in range(12)]


def test_without_switches_it_is_bm25():
    r = random.Random(0)
    messages = [say(f"m{i}", " ".join(r.choices("abcdefghijklmnopqrs", k=6)), minute=i) for i in range(40)]
    plain, off = BM25Memory(), StructuredGroupMemory(**OFF)
    for memory in (plain, off):
        memory.add_many(messages)
    for query in ("a b", "h"):
        pairs = [[(hit.id, max(hit.score, 0.0)) for hit in memory.search(query, k=8)] for memory in (plain, off)]
        assert pairs[0] == pairs[1]


def test_scope():
    messages = [
        *FILLER,
        say("in", "budget cap", phase="Vendor Evaluation"),
        say("out", "budget cap budget", phase="Rollout"),
    ]
    on, off = both(messages, "budget in vendor evaluation", "use_scope", 2)
    assert (on, off) == (["in", "out"], ["out", "in"])
    risk = [*FILLER, say("in", "budget cap", phase="Risk: Cutover"), say("out", "budget cap budget", phase="Rollout")]
    assert both(risk, "budget at cutover", "use_scope", 1)[0] == ["in"]
    channel = [*FILLER, say("in", "budget cap", channel="fin-ops"), say("out", "budget cap budget", channel="dev")]
    assert both(channel, "budget in #fin-ops", "use_scope", 1)[0] == ["in"]


def test_speaker_first_person_and_named():
    messages = [
        *FILLER,
        say("mine", "blocker is the key", "ana"),
        say("theirs", "blocker blocker key", "bob", role="DataEngineer"),
    ]
    on, off = both(messages, "what blocker did I flag", "use_speaker", 2, asker="ana")
    assert (on[0], off[0]) == ("mine", "theirs")
    named = [
        *FILLER,
        say("a", "blocker is key", "bob", role="DataEngineer"),
        say("b", "blocker key", "cleo", role="Lawyer"),
    ]
    on, off = both(named, "which blocker key did the data engineer see", "use_speaker", 1)
    assert (on, off) == (["a"], ["b"])
    assert both(named, "which blocker key did bob see", "use_speaker", 1)[0] == ["a"]
    assert both(named, "bob which blocker key", "use_speaker", 1, asker="bob")[0] == ["b"]  # the protocol's prefix


def test_replies():
    messages = [
        *FILLER,
        say("root", "who owns the ledger migration"),
        say("child", "Cleo, by Friday", "bob", 1, reply_to="root"),
        say("noise", "lol", "bob", 2, reply_to="root", is_noise=True),
        say("below", "thanks", "ana", 3, reply_to="noise"),
    ]
    memory = StructuredGroupMemory(alias_tau=None)
    memory.add_many(messages)
    hits = {hit.id: hit for hit in memory.search("ledger migration owner", k=4)}
    assert hits["child"].score == pytest.approx(0.9 * hits["root"].score)
    assert hits["child"].why["lent_by"] == "root"
    assert hits["below"].score == pytest.approx(0.81 * hits["root"].score)
    assert hits.get("noise") is None or hits["noise"].score == 0
    on, off = both(messages, "ledger migration owner", "use_reply", 2)
    assert "child" in on
    assert "child" not in off


def test_supersession():
    messages = [
        *FILLER,
        say("before", "we go with Acme for hosting", minute=0, channel="c"),
        say("decision", "decided: we go with Acme for hosting", minute=1, channel="c"),
        say("doubt", "hm are you sure", "bob", 2, reply_to="decision", channel="c"),
        say("change", "Bolt instead", "bob", 3, reply_to="doubt", channel="c"),
        say("after", "we go with Acme for hosting he said", "zoe", 9, channel="c"),
    ]
    on, off = both(messages, "what is the current hosting, Acme?", "use_supersession", 4)
    assert on[0] == "change"
    assert "change" not in off[:3]
    memory = StructuredGroupMemory(**{**OFF, "use_supersession": True})
    memory.add_many(messages)
    hits = {hit.id: hit for hit in memory.search("what is the current hosting, Acme?", k=5)}
    assert hits["change"].score == pytest.approx(1.2 * hits["decision"].why["base"])
    assert hits["change"].why["supersedes"] == "decision"
    assert hits["decision"].score == pytest.approx(0.6 * hits["decision"].why["base"])
    assert hits["before"].why["superseded_by"] == "change"
    assert hits["before"].score == pytest.approx(0.6 * hits["before"].why["base"])
    assert "superseded_by" not in hits["after"].why
    assert ids(memory, "hosting Acme", 1) != ["change"]
    past = memory.search("current hosting Acme", k=1, at=START + timedelta(minutes=2))[0]
    assert past.id in ("before", "decision")


def test_a_change_of_a_change_takes_over_from_both():
    messages = [
        *FILLER,
        say("d", "decided on Acme hosting", minute=1),
        say("c1", "Bolt instead", minute=2, reply_to="d"),
        say("c2", "switching to Coil", minute=3, reply_to="c1"),
    ]
    memory = StructuredGroupMemory(alias_tau=None)
    memory.add_many(messages)
    hits = {hit.id: hit.score for hit in memory.search("current Acme hosting", k=3)}
    assert hits["c2"] > hits["c1"] > hits["d"]


def test_a_hidden_step_breaks_the_way_to_the_decision():
    messages = [
        *FILLER,
        say("d", "decided on Acme hosting", minute=1),
        say("secret", "psst", minute=2, reply_to="d", audience=frozenset({"zoe"})),
        say("c", "Bolt instead", "bob", minute=3, reply_to="secret"),
    ]
    memory = StructuredGroupMemory(alias_tau=None)
    memory.add_many(messages)
    assert ids(memory, "current Acme hosting", 1, asker="bob") == ["d"]
    assert ids(memory, "current Acme hosting", 1, asker="zoe") == ["c"]


def test_own_detector_of_changes():
    memory = StructuredGroupMemory(change_act=lambda message: message.decision_type == "changed")
    memory.add_many(
        [*FILLER, say("d", "decided on Acme"), say("c", "Bolt it is", minute=1, reply_to="d", decision_type="changed")]
    )
    assert ids(memory, "current Acme choice", 1) == ["c"]
    memory.forget("zoe")
    assert ids(memory, "current Acme choice", 1) == ["c"]


def test_alias_by_table_by_glossary_and_hidden_glossary():
    messages = [*FILLER, say("hit", "finance ops owner is Cleo"), say("decoy", "financial report about operations")]
    table = StructuredGroupMemory(aliases={"financial operations": ["finance ops"]})
    table.add_many(messages)
    assert ids(table, "owner of financial operations", 1) == ["hit"]
    glossary = say("g", "Finance ops stands for financial operations.", "cleo", audience=frozenset({"bob"}))
    on, off = both([*messages, glossary], "who has financial operations", "use_alias", 2, asker="bob")
    assert "hit" in on
    assert off[0] in ("decoy", "g")
    on, off = both([*messages, glossary], "who has financial operations", "use_alias", 14, asker="zoe")
    assert on == off


def test_aliases_of_roles_in_the_same_threads():
    r, documents, roles, threads = random.Random(0), [], [], []
    topics = [["ledger", "audit", "invoice", "payment", "supplier"], ["robot", "gripper", "sensor", "torque", "arm"]]
    names = {
        ("fin", 0): "finance ops",
        ("dev", 0): "money workflow",
        ("fin", 1): "floor machines",
        ("dev", 1): "factory bots",
    }
    for thread in range(60):
        for role in ("fin", "dev"):
            one, two, three = r.sample(topics[thread % 2], 3)
            documents.append(f"{one} for the {names[role, thread % 2]} with {two} and {three}".split())
            roles.append(role)
            threads.append(thread)
    pairs = [("finance ops", "money workflow"), ("floor machines", "factory bots")]
    assert coreference_pairs(documents, roles, threads, tau=0.5) == pairs
    assert coreference_pairs(documents, roles, threads, tau=0.999) == []
    assert coreference_pairs(documents, ["one"] * 120, threads, tau=0.1) == []
    assert coreference_pairs(documents, [None] * 120, threads, tau=0.1) == []
    assert coreference_pairs(documents, roles, list(range(120)), tau=0.1) == []
    assert coreference_pairs([], [], [], tau=0.1) == []
    vectors = np.array([[1, 0] if thread % 2 else [0, 1] for thread in threads], np.float32)
    assert coreference_pairs(documents, roles, threads, tau=0.5, vectors=vectors) == pairs
    memory = StructuredGroupMemory()
    memory.add_many(
        Message(str(i), " ".join(words), role, role=role, reply_to=str(i - 1) if i % 2 else None)
        for i, (words, role) in enumerate(zip(documents, roles, strict=True))
    )
    memory.add(Message("x", "the money workflow owner is Cleo", "dev"))
    assert ids(memory, "finance ops owner", 1) == ["x"]


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("finance ops stands for financial operations.", [("finance ops", "financial operations")]),
        ('Glossary: "finance ops" means "the operational finance"', [("finance ops", "operational finance")]),
        ("Ledger Two (aka LT) is late", [("ledger two", "lt")]),
        ("this means trouble", []),
        ("No reply means no.", []),
        ("nothing of the kind", []),
    ],
)
def test_glossary_lines(text, pairs):
    assert glossary_pairs(text) == pairs


def test_groups_and_tables():
    assert merged([("a", "b"), ("c", "d"), ("b", "e")]) == [("a", "b", "e"), ("c", "d")]
    assert table_pairs({"A B": ["c-d"]}) == [("a b", "c d")]
    for table in ({"a": "b"}, {"a": ["!"]}, {3: ["b"]}):
        with pytest.raises(InputError, match="aliases"):
            StructuredGroupMemory(aliases=table)


def test_cues():
    assert cues.is_first_person("What did I flag?")
    assert cues.is_first_person("tell me")
    assert not cues.is_first_person("the phase, i.e. the third")
    assert cues.asks_for_current("What is the LATEST plan")
    assert not cues.asks_for_current("who knows")
    names = cues.Names([("Evaluation", 1), ("Vendor Evaluation", 2), ("!", 3)])
    assert len(names) == 2
    assert names.find(["the", "vendor", "evaluation", "evaluation"]) == [(1, 3, {2}), (3, 4, {1})]


ODD_WORDS = [
    "instead",
    "any",
    "more",
    "rather",
    "than",
    "no",
    "longer",
    "We'll",
    "scratch",
    "that",
    "sign-off",
    "MOVED",
]
ODD_WORDS += ["over", "plan", "new", "final", "the", "x", "update", "anymore"]


@given(st.lists(st.sampled_from(ODD_WORDS), max_size=6), st.sampled_from([" ", "-", ", "]))
def test_the_words_looked_for_first_miss_no_pattern(words, between):
    text = between.join(words)
    assert cues.is_change(text) == (cues._CHANGE.search(text) is not None)
    assert cues.is_decision(text) == (cues._DECISION.search(text) is not None)


@given(seed=st.integers(0, 10_000), hops=st.integers(0, 4), hidden=st.booleans())
def test_lending_around_all_hits_is_the_closed_form(seed, hops, hidden):
    r = np.random.default_rng(seed)
    n = int(r.integers(1, 25))
    table = MessageTable()
    seen = r.random(n) < 0.7 if hidden else np.ones(n, bool)
    table.extend(
        [Message(str(i), "x", "ana", reply_to=str(r.integers(0, n)) if r.random() < 0.8 else None) for i in range(n)]
    )
    scores, noise = r.integers(0, 4, n).astype(float), r.random(n) < 0.2
    links = Links(table, np.zeros(n, bool))
    visible = np.flatnonzero(seen)
    lent = lend(links, visible, scores, noise=noise, seen=seen if hidden else None, decay=0.9, hops=hops)
    parents = np.where((links.parents >= 0) & seen[links.parents], links.parents, -1)
    expected = reply_propagation(np.where(seen, scores, 0), parents, 0.9, hops, skip=noise)
    assert lent.rows.tolist() == visible.tolist()
    assert np.allclose(lent.scores, expected[visible])
    for row, origin in zip(lent.rows, lent.origin, strict=True):
        assert lent.origin_of(int(row)) == origin
        assert origin < 0 or scores[origin] > scores[row]


def test_k_widens_who_lends():
    messages = [
        *FILLER,
        say("a", "ledger ledger"),
        say("b", "ledger of the other kind"),
        say("c", "yes", minute=1, reply_to="b"),
    ]
    for top_m in (1, 50):
        memory = StructuredGroupMemory(top_m=top_m)
        memory.add_many(messages)
        best = memory.search("ledger", k=1)[0]
        assert best.id == "a"
        scores = {hit.id: hit.score for hit in memory.search("ledger", k=3)}
        assert scores["c"] == pytest.approx(0.9 * scores["b"])  # k widens what top_m narrows


def test_abstention_by_split_conformal():
    memory = StructuredGroupMemory()
    memory.add_many([*FILLER, say("a", "the ledger owner is Cleo")])
    unanswerable = [(f"vendor{i} price {'filler' if i % 3 else ''}", None) for i in range(19)]
    threshold = memory.calibrate_abstention(unanswerable, alpha=0.1)
    assert memory.abstain == threshold
    answered = sum(bool(memory.search(query)) for query, _ in unanswerable)
    assert answered <= 0.1 * 20
    assert ids(memory, "ledger owner", 1) == ["a"]
    memory.use_abstain = False
    assert memory.search("vendor1")
    with pytest.raises(InputError, match="too few"):
        memory.calibrate_abstention(unanswerable[:3], alpha=0.1)
    assert memory.abstain == threshold


def thread_chat():
    return [
        Message("m0", "gamma", "ana", position=10, reply_to="m1"),
        Message("m1", "alpha beta", "ana", position=11),
        Message("m2", "delta", "bob", position=12, reply_to="m1"),
        Message("m3", "alpha", "cleo", position=13),
        Message("m4", "epsilon", "ana", position=15),
        Message("m5", "zeta", "dora", position=17, reply_to="m2"),
        Message("m6", "eta", "dora", position=9),
    ]


def test_thread_mode_against_numbers_by_hand():
    memory = StructuredGroupMemory()
    memory.add_many(thread_chat())
    scores = {hit.id: hit.score for hit in memory.search("alpha beta", k=9, anchor="m1")}
    assert scores == pytest.approx(
        {
            "m0": 3 * 0.8,  # one link, before the anchor
            "m2": 3 * 0.8 + 0.3 / 2,
            "m3": 0.3 / 3 + 0.05,  # the best words beside the anchor's own
            "m4": 0.3 / 5 + 0.5 / 5,  # the same speaker
            "m5": 3 * 0.64 + 0.3 / 7,  # two links
            "m6": 0.0,
        }
    )
    assert [hit[:2] for hit in memory.thread_of("m1", k=9)] == [
        hit[:2] for hit in memory.search("alpha beta", k=9, anchor="m1")
    ]
    assert ids(memory, "alpha beta", 1, anchor="m1") == ["m2"]


def test_thread_mode_switches_and_certain_links():
    def score(id, **options):
        memory = StructuredGroupMemory(**options)
        memory.add_many(thread_chat())
        memory.add_links([("m1", "m6"), ("m1", "nowhere")])
        return {hit.id: hit.score for hit in memory.search("alpha beta", k=9, anchor="m1")}[id]

    assert score("m2", use_reply=False) == pytest.approx(0.3 / 2)
    assert score("m4", use_speaker=False) == pytest.approx(0.3 / 5)
    assert score("m2", thread=ThreadWeights(recency=0)) == pytest.approx(2.4)
    assert score("m6") == pytest.approx(2.4)
    assert score("m5", thread=ThreadWeights(depth=1)) == pytest.approx(0.3 / 7)


def test_thread_mode_counts_seen_messages_where_there_are_no_lines():
    messages = [say(f"m{i}", "word", "ana" if i == 0 else "bob", i) for i in range(4)]
    messages[1] = say("m1", "word", "bob", 1, audience=frozenset({"cleo"}))
    messages.append(say("far", "word", "bob", 2, channel="elsewhere"))
    memory = StructuredGroupMemory(thread=ThreadWeights(lexical=0))
    memory.add_many(messages[::-1])
    for asker, second in (("ana", 1 / 2), ("cleo", 1 / 3)):
        scores = {hit.id: hit.score for hit in memory.search("word", asker=asker, k=9, anchor="m0")}
        assert scores["m2"] == pytest.approx(0.3 * second)
        assert scores["far"] == 0
    with pytest.raises(InputError, match="anchor"):
        memory.thread_of("m1", asker="ana")
    with pytest.raises(InputError, match="anchor"):
        memory.thread_of("nowhere")


@given(seed=st.integers(0, 1000))
def test_thread_mode_sees_what_the_visible_chat_shows(seed):
    r = random.Random(seed)
    messages = [
        Message(
            f"m{i}", "word", r.choice(["ana", "bob"]), position=i, reply_to=f"m{r.randint(0, i)}" if i else None,
            audience=frozenset({"bob"}) if i and r.random() < 0.3 else None,
        )
        for i in range(15)
    ]  # fmt: skip
    whole, visible = StructuredGroupMemory(), StructuredGroupMemory()
    whole.add_many(messages)
    visible.add_many(GroupChat(messages, on_bad_reply="ignore").visible_to("ana"))
    options = {"asker": "ana" if any(m.author == "ana" for m in messages) else None, "k": 20, "anchor": "m0"}
    got = [(hit.id, pytest.approx(hit.score)) for hit in whole.search("nothing shared", **options)]
    assert [(hit.id, hit.score) for hit in visible.search("nothing shared", **options)] == got


@pytest.mark.parametrize(
    "options",
    [
        {"scope_out": 2},
        {"speaker_out": -1},
        {"superseded": 1.1},
        {"decay": 2},
        {"hops": -1},
        {"top_m": 0},
        {"change_boost": 0.5},
    ],
)
def test_bad_numbers(options):
    with pytest.raises(InputError, match=next(iter(options))):
        StructuredGroupMemory(**options)


def test_circles_of_replies_end():
    memory = StructuredGroupMemory()
    memory.add_many(
        [
            say("a", "ledger instead", reply_to="b"),
            say("b", "decided ledger", reply_to="a"),
            say("c", "yes", reply_to="a"),
            *FILLER,
        ]
    )
    assert set(ids(memory, "current ledger", 3)) == {"a", "b", "c"}
    assert set(ids(memory, "ledger", 3, anchor="c")) >= {"a"}
