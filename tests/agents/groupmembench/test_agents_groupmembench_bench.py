"""The bench: threads without a leak of people's links, cells and derived arms, the user's chat, card and pictures."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import data
from steelyard.agents.groupmembench import chats, conformance, diagrams, tasks
from steelyard.agents.groupmembench.arms import ABLATIONS, MEMORIES, RUN_ARMS, RandomMemory, derive
from steelyard.agents.groupmembench.bench import BENCH, run
from steelyard.agents.groupmembench.card import CARD
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.config import Config
from steelyard.agents.groupmembench.generator import generate_group_chat
from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.questions import Question
from steelyard.agents.groupmembench.report import QuestionRow
from steelyard.agents.groupmembench.thread_recall import (
    THREAD_ARMS,
    Thread,
    find_threads,
    finders,
    link_quality,
    threads_of,
    with_links,
)
from steelyard.agents.groupmembench.user import user_task
from steelyard.card import Source, decision_of
from steelyard.contracts import CellInput
from steelyard.errors import InputError

FOUR = "one two three four"


def talk(count, channel=None):
    return [Message(str(number), f"{FOUR} {number}", f"user{number % 3}", channel=channel, position=number)
            for number in range(count)]  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return generate_group_chat(0, root="tuning", channels=2, phases=3)


@pytest.fixture(scope="module")
def logs():
    if not os.environ.get("STEELYARD_DATA_MIRROR"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs a mirror folder: set STEELYARD_DATA_MIRROR")
    return data.irc_logs("dev")


class TestThreads:
    def test_a_thread_is_what_links_connect_from_its_first_message_on(self):
        chat = GroupChat(talk(8))
        links = [("0", "2"), ("2", "5"), ("1", "3"), ("4", "4"), ("6", "7")]
        assert threads_of(chat, links) == [Thread("0", ("2", "5"))]
        assert threads_of(chat, links, since=1) == []

    def test_short_roots_and_roots_that_are_no_message_are_left_out(self):
        messages = talk(6)
        messages[0] = replace(messages[0], content="too short")
        messages.pop(3)
        chat = GroupChat(messages)
        assert threads_of(chat, [("0", "1"), ("1", "2")]) == []
        assert threads_of(GroupChat(talk(6)[:3] + talk(9)[4:]), [("3", "4"), ("4", "5"), ("5", "6")]) == []

    def test_several_parents_become_a_reply_and_links(self):
        linked, extra = with_links(talk(4), [("0", "3"), ("1", "3"), ("2", "2"), ("x", "1")])
        assert [one.reply_to for one in linked] == [None, None, None, "1"]
        assert extra == [("0", "3")]

    @given(st.integers(0, 1000), st.integers(3, 12))
    def test_permuting_peoples_links_changes_no_ranking_but_the_oracles(self, seed, size):
        messages = talk(size)
        draws = np.random.default_rng(seed)
        links = [(str(int(draws.integers(child))), str(child)) for child in range(1, size)]
        moved = [(parent, str(int(draws.permutation(size - 1)[0]) + 1)) for parent, _ in links]
        asked, every = [Thread("0", ("1",))], (*THREAD_ARMS, "random")
        one, other = (
            find_threads(finders(messages, some, np.random.default_rng(0), every), GroupChat(messages), asked).ids
            for some in (links, moved)
        )  # fmt: skip
        for arm in one.keys() - {"gold_links"}:
            assert one[arm] == other[arm]

    def test_the_oracle_reads_them(self):
        messages = talk(30)
        asked = [Thread("0", ("20", "25", "29"))]
        links = [("0", "20"), ("20", "25"), ("25", "29")]
        found = find_threads(
            finders(messages, links, np.random.default_rng(0), ("gold_links",)), GroupChat(messages), asked
        )
        assert found.recalls["gold_links"] == [1.0]
        assert found.ids["gold_links"][0][:3] == ("20", "25", "29")

    def test_nothing_hidden_comes_back(self):
        messages = [replace(one, audience=frozenset({"user1"})) if one.id == "2" else one for one in talk(6)]
        found = find_threads(
            finders(messages, [("0", "2")], np.random.default_rng(0), (*THREAD_ARMS, "random")), GroupChat(messages),
            [Thread("0", ("1", "3"))],
        )  # fmt: skip
        for ids in found.ids.values():
            assert "2" not in ids[0]


class TestRealThreads:
    """The number of threads was counted elsewhere, with the same rules."""

    def test_the_threads_of_the_development_logs(self, logs):
        found = 0
        for log in logs:
            messages, links = tasks.irc_chat(log)
            found += len(threads_of(GroupChat(messages), links, tasks.ANNOTATED_FROM))
        assert found == 159

    def test_permuting_the_annotation_changes_no_ranking_but_the_oracles(self, logs):
        messages, links = tasks.irc_chat(logs[0])
        chat = GroupChat(messages)
        asked = threads_of(chat, links, tasks.ANNOTATED_FROM)[:8]
        children = [child for _, child in links]
        mixed = np.random.default_rng(0).permutation(len(children))
        moved = [(parent, children[place]) for (parent, _), place in zip(links, mixed, strict=True)]
        one, other = (
            find_threads(finders(messages, some, np.random.default_rng(0)), chat, asked).ids for some in (links, moved)
        )
        assert one.pop("gold_links") != other.pop("gold_links")
        assert json.dumps(one) == json.dumps(other)

    def test_predicted_links_find_more_than_the_window(self, logs):
        messages, links = tasks.irc_chat(logs[1])
        chat = GroupChat(messages)
        asked = threads_of(chat, links, tasks.ANNOTATED_FROM)
        arms = finders(messages, links, np.random.default_rng(0), ("bm25", "recency", "structured", "gold_links"))
        recall = {name: np.mean(values) for name, values in find_threads(arms, chat, asked).recalls.items()}
        assert recall["gold_links"] > recall["structured"] > recall["recency"] > recall["bm25"]
        quality = link_quality(chat, links, tasks.ANNOTATED_FROM)
        assert 0.4 < quality.precision < 0.8

    def test_a_cell_has_all_arms_and_pictures_for_seed_0(self, logs):
        arrays = BENCH.task("irc").load()
        cell = CellInput("irc", "structured", {}, {"threads": 60}, {}, 0, arrays)
        measured = run(cell)
        found = derive({"structured": measured.metrics})
        assert set(found) == set(THREAD_ARMS) - {"structured"}
        assert {one.name for one in measured.diagrams} == {"thread_structured", "thread_bm25"}
        assert run(replace(cell, arm="gold_evidence")).metrics["recall"] == 1
        assert run(replace(cell, arm="random")).metrics["recall"] < 0.1
        with pytest.raises(InputError, match="no seed 10"):
            run(replace(cell, seed=10))


class TestQuestions:
    @pytest.fixture
    def cell(self):
        data = BENCH.task("circular").load()
        return CellInput("circular", "structured", {}, {"adversarial_iters": 0}, {}, 0, data, root="tuning")

    def test_a_cell_has_every_memory_and_the_floor_lies_below(self, cell):
        measured = run(cell)
        found = {**derive({"structured": measured.metrics}), "structured": measured.metrics}
        assert set(found) == set(MEMORIES)
        assert {"micro", "macro", "recall", "multi_hop", "others_above", "query_ms"} <= set(found["bm25"])
        assert {one.name for one in measured.diagrams} == {"question_structured", "question_bm25"}
        floor, ceiling = (run(replace(cell, arm=arm)).metrics for arm in ("random", "gold_evidence"))
        assert floor["micro"] < measured.metrics["micro"] <= ceiling["micro"] == 1

    def test_chance_shows_nobody_in_particular_only_what_is_public(self):
        memory = RandomMemory(np.random.default_rng(0))
        memory.add_many([*talk(3), Message("secret", "x", "ana", audience=frozenset({"bo"}))])
        assert {hit.id for hit in memory.search("x")} == {"0", "1", "2"}
        assert {hit.id for hit in memory.search("x", asker="bo")} == {"0", "1", "2", "secret"}

    def test_no_memory_sees_a_label(self, made):
        for message in chats.unlabelled(made.chat.messages):
            assert message.truth is None

    def test_the_settings_of_an_ablation_differ_in_one_switch(self):
        whole = MEMORIES["structured"]()
        for name in ABLATIONS:
            part = MEMORIES[name]()
            switch = f"use_{name.removeprefix('no_')}"
            differing = [key for key in vars(whole) if key.startswith("use_") and vars(whole)[key] != vars(part)[key]]
            assert differing == [switch]


class TestArrays:
    @given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=5))
    def test_a_chat_comes_back_from_its_arrays(self, texts):
        messages = [
            Message(
                str(number), text, "ana", audience=frozenset({"bo"}), position=number, reply_to="0" if number else None
            )
            for number, text in enumerate(texts)
        ]
        asked = [Question("1", "temporal", "When?", "2025-01-01", "ana", ("0",), ("1",))]
        arrays = chats.encode(messages, [("0", "1")], asked)
        assert chats.messages_of(arrays) == messages
        assert chats.links_of(arrays) == [("0", "1")]
        assert chats.questions_of(arrays) == asked
        assert [one.reply_to for one in chats.without_links(messages)] == [None] * len(messages)

    def test_times_come_back(self, made):
        assert chats.messages_of(chats.encode(made.public())) == list(made.public())


class TestUser:
    """The user's own chat, in every form."""

    @pytest.fixture
    def jsonl(self, made, tmp_path):
        path = tmp_path / "chat.jsonl"
        rows = [
            {"id": one.id, "text": one.content, "user": one.author, "channel": one.channel, "reply_to": one.reply_to,
             "timestamp": one.timestamp.isoformat()}
            for one in made.public()
        ]  # fmt: skip
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    def test_a_chat_with_links_is_asked_for_its_threads(self, jsonl):
        task = user_task(str(jsonl))
        assert task.name == "user"
        arrays = task.load()
        asked = [
            len(
                tasks.thread_chats(CellInput(task.name, "structured", {}, {"threads": 60}, {}, seed, arrays))[0].threads
            )
            for seed in range(8)
        ]
        assert sum(asked) == len(threads_of(GroupChat.from_jsonl(jsonl), chats.links_of(arrays)))
        cell = CellInput(task.name, "structured", {}, {"threads": 3}, {}, 0, arrays)
        assert set(derive({"structured": run(cell).metrics})) == set(THREAD_ARMS) - {"structured"}
        with pytest.raises(InputError, match="no seed 8"):
            run(replace(cell, seed=8))

    def test_questions_of_ones_own(self, jsonl, made, tmp_path):
        path = tmp_path / "questions.jsonl"
        rows = [
            {"id": one.id, "type": one.type, "question": one.question, "answer": one.answer,
             "asking_user_id": one.asking_user_id, "gold_ids": list(one.gold_ids)}
            for one in made.questions
        ]  # fmt: skip
        path.write_text("\n".join(map(json.dumps, rows)))
        task = user_task(str(jsonl), questions=str(path))
        assert task.name == "user"
        cell = CellInput(task.name, "structured", {}, {}, {}, 1, task.load())
        found = run(cell).metrics
        assert 0 <= found["micro"] <= 1
        assert found["bm25:recall"] > 0
        assert run(replace(cell, arm="gold_evidence")).metrics["recall"] == 1
        path.write_text("\n".join(json.dumps({**row, "gold_ids": ["nowhere"]}) for row in rows))
        with pytest.raises(InputError, match="nowhere"):
            user_task(str(jsonl), questions=str(path))
        path.write_text("\n".join(json.dumps({**row, "gold_ids": []}) for row in rows))
        bare = user_task(str(jsonl), questions=str(path))
        assert run(CellInput(bare.name, "gold_evidence", {}, {}, {}, 0, bare.load())).notes
        path.write_text("\n".join(map(json.dumps, rows[:3])))
        with pytest.raises(InputError, match="at least 16"):
            user_task(str(jsonl), questions=str(path))

    def test_json_lines_are_known_by_their_rows_and_a_chat_may_be_given_as_such(self, jsonl):
        other = jsonl.with_suffix(".txt")
        other.write_bytes(jsonl.read_bytes())
        assert user_task(other).name == user_task(GroupChat.from_jsonl(jsonl)).name == "user"

    def test_claims_are_decided_on_it(self, made):
        own = [claim for claim in CARD.claims if claim.tasks == ("user",)]
        assert {claim.versus for claim in own} >= {"bm25", "bm25_header", "recency", "no_links", "no_recency"}
        messages = [replace(one, channel="c") for one in talk(24 * 6)]
        linked = [
            replace(one, content=f"{one.content} topic{place // 6}", reply_to=str(place - 1) if place % 6 else None)
            for place, one in enumerate(messages)
        ]
        arrays = user_task(linked).load()
        for seed in range(8):
            cell = CellInput("user", "structured", {}, {"threads": 60}, {}, seed, arrays)
            figures = run(cell).metrics
            found = derive({"structured": figures})
            assert figures["queries"] == 3
            for claim in own:
                assert {"structured": figures, **found}[claim.arm][claim.metric] >= 0
                assert found[claim.versus][claim.metric] >= 0

    def test_what_a_thread_needs_is_said(self):
        short = [replace(one, content="three words only", reply_to="0" if one.id != "0" else None) for one in talk(30)]
        with pytest.raises(
            InputError, match=r"0 threads of 3 messages or more, the first of 4 words or more.*at least 16"
        ):
            user_task(short)

    def test_neither_questions_nor_links_is_one_clear_error(self):
        with pytest.raises(InputError, match=r"no questions and 0 threads .* \(--questions\)"):
            user_task(talk(30))

    def test_too_large_a_chat_is_refused(self, monkeypatch):
        monkeypatch.setattr("steelyard.agents.groupmembench.user.LARGEST", 5)
        with pytest.raises(InputError, match="at most 5"):
            user_task(talk(6))

    def test_irc_logs(self, tmp_path):
        lines = [f"[12:{number % 60:02d}] <nick{number % 4}> {FOUR} {number}" for number in range(1120)]
        (tmp_path / "a.ascii.txt").write_text("\n".join(lines))
        starts = range(1000, 1100, 5)
        links = [f"{start + step} {start + step + 1} -" for start in starts for step in range(3)]
        (tmp_path / "a.annotation.txt").write_text("\n".join(links))
        for source in (tmp_path, tmp_path / "a.ascii.txt"):
            arrays = user_task(source).load()
            assert len(tasks.ThreadChat(arrays, int(arrays["since"])).threads) == 20

    def test_a_folder_of_nothing_known(self, tmp_path):
        with pytest.raises(InputError, match="no chat that is known"):
            user_task(tmp_path)

    def test_a_release_needs_its_domain(self, tmp_path):
        here = Path(__file__).parent / "groupmembench_60.json"
        (tmp_path / "questions" / "Finance").mkdir(parents=True)
        shutil.copy(here, tmp_path / "chat_Finance.json")
        with pytest.raises(InputError, match="one of Finance"):
            user_task(tmp_path)
        chat = GroupChat.from_groupmembench(here)
        asker = chat.messages[0].author
        for kind in BENCH.task("six_types").load()["types"].tolist():
            rows = [{"id": f"{kind}{n}", "question": "When?", "answer": "x", "asking_user_id": asker} for n in range(3)]
            (tmp_path / "questions" / "Finance" / f"{kind}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        assert user_task(tmp_path, domain="Finance").name == "user"

    def test_other_exports_are_told_apart(self, tmp_path):
        slack = tmp_path / "slack" / "general"
        slack.mkdir(parents=True)
        rows = [{"user": f"u{n % 3}", "text": f"{FOUR} {n}", "ts": f"{1000 + n}.0", "type": "message",
                 "thread_ts": f"{1000 + n - n % 3}.0"} for n in range(60)]  # fmt: skip
        (slack / "2025-01-01.json").write_text(json.dumps(rows))
        assert user_task(tmp_path / "slack").name == "user"
        talked = [
            {"id": str(n), "author": {"id": f"u{n % 3}", "name": f"u{n % 3}"}, "content": f"{FOUR} {n}",
             "timestamp": f"2025-01-01T10:{n:02d}:00+00:00",
             **({"reference": {"messageId": str(n - n % 3)}} if n % 3 else {})}
            for n in range(60)
        ]  # fmt: skip
        export = {"guild": {"id": "1"}, "channel": {"id": "2", "name": "general"}, "messages": talked}
        folder = tmp_path / "discord"
        folder.mkdir()
        (folder / "x.json").write_text(json.dumps(export))
        assert user_task(folder).name == user_task(folder / "x.json").name == "user"
        with pytest.raises(InputError, match="threads"):
            user_task(Path(__file__).parent / "groupmembench_60.json")


class TestPictures:
    def test_hostile_text_is_short_and_printable(self):
        messages = [replace(one, content=f"\x1b[31m{'<b>' * 200}\n{one.id}", author="a\x00" * 30) for one in talk(40)]
        chat = GroupChat(messages)
        links = [("0", str(number)) for number in range(1, 40)]
        threads = [Thread("0", tuple(str(number) for number in range(1, 40)))]
        (picture,) = diagrams.of_threads(chat, links, threads, {"structured": [("1", "2")]})
        assert len(picture.nodes) <= 60
        for node in picture.nodes:
            assert len(node.label) <= 20
            assert len(node.note) <= 400
            assert node.label.isprintable()
        assert {node.id: node.kind for node in picture.nodes}["0"] == "main"

    def test_who_wrote_what_and_whether_it_was_found(self):
        chat, links = GroupChat(talk(12)), [("0", "1"), ("1", "2")]
        asked = {"structured": [("1", "2", "5")], "bm25": [("7", "2")]}
        pictures = diagrams.of_threads(chat, links, [Thread("0", ("1", "2"))], asked)
        kinds = [{node.id: node.kind for node in one.nodes} for one in pictures]
        assert kinds[0] == {"0": "main", "1": "good", "2": "good", "5": "muted"}
        assert kinds[1] == {"0": "main", "1": "plain", "2": "good", "7": "muted"}
        assert pictures[0].legend["muted"] == "found beside it"
        assert [one.caption.split(".")[0] for one in pictures] == [
            "The structured memory finds 2 of 2",
            "BM25 finds 1 of 2",
        ]
        node = pictures[0].nodes[0]
        assert node.label == "user0: one two thre…"
        assert node.note == f"user0: {FOUR} 0"

    @pytest.mark.parametrize(("right", "kind"), [(True, "muted"), (False, "bad")])
    def test_what_was_found_beside_is_red_only_where_the_answer_is_wrong(self, right, kind):
        chat = GroupChat(talk(12))
        asked = [Question("q", "multi_hop", "Which?", "x", "user0", ("1", "2"))]
        row = QuestionRow("q", "multi_hop", right, False, "x", ("1", "5"), 0.5, "")
        reports = {"structured": SimpleNamespace(rows=[row]), "bm25": SimpleNamespace(rows=[row])}
        ours, baseline = diagrams.of_questions(chat, asked, reports)
        for one in (ours, baseline):
            assert {node.id: node.kind for node in one.nodes} == {"1": "good", "2": "plain", "5": kind}
            assert ("right" if right else "wrong") in one.caption
        assert "structured" in ours.caption
        assert "BM25" in baseline.caption
        assert "structured" not in baseline.caption + baseline.title

    def test_many_speakers_share_a_column(self):
        messages = [replace(one, author=f"user{one.id}") for one in talk(12)]
        links = [("0", str(number)) for number in range(1, 12)]
        threads = [Thread("0", tuple(str(number) for number in range(1, 12)))]
        (picture,) = diagrams.of_threads(GroupChat(messages), links, threads, {"bm25": [("1",)]})
        assert picture.columns[-1] == "others"
        assert max(node.x for node in picture.nodes) == len(picture.columns) - 1

    def test_nothing_to_draw(self):
        chat = GroupChat(talk(3))
        assert diagrams.of_threads(chat, [], [], {}) == ()
        assert diagrams.of_questions(chat, [Question("1", "abstention", "?", "x", "user0")], {}) == ()


class TestConformance:
    @pytest.mark.parametrize("name", ["constant", "random", "identity"])
    def test_dummies_fail_on_generated_chats(self, name):
        with pytest.raises(AssertionError, match="of the questions are answered"):
            conformance.check_questions(conformance.DUMMIES[name])

    @pytest.mark.parametrize("name", ["constant", "random", "identity"])
    def test_dummies_fail_on_real_threads(self, name, logs):
        with pytest.raises(AssertionError, match="recall@10 of threads"):
            conformance.check_threads(conformance.DUMMIES[name])

    def test_probes_give_what_the_checks_ask_for(self):
        probes = conformance.CONFORMANCE
        for name, same in (("noop", True), ("effect", False), ("resumed", True), ("untouched", True)):
            one, other = getattr(probes, name)()
            assert all(one[key].tobytes() == other[key].tobytes() for key in one) is same, name
        assert probes.run(0, "float64")["scores"].dtype == np.float64
        for bad in probes.bad_inputs:
            with pytest.raises(InputError) as caught:
                bad.call()
            assert bad.names in str(caught.value)

    def test_bm25_answers_too_few(self):
        with pytest.raises(AssertionError):
            conformance.check_questions(MEMORIES["bm25"])

    def test_the_memory_passes_also_where_no_logs_are(self, monkeypatch, tmp_path):
        monkeypatch.setenv("STEELYARD_DATA", str(tmp_path))
        monkeypatch.delenv("STEELYARD_DATA_MIRROR", raising=False)
        monkeypatch.setattr(conformance, "irc_logs", missing)
        conformance.acceptance(MEMORIES["structured"])


def missing(split):
    raise conformance.DataMissingError("not here")


class TestCard:
    def test_the_ledger_has_all_decisions(self):
        ids = [decision.id for decision in CARD.decisions]
        assert ids == [f"G{number}" for number in range(1, 25)]
        for decision in CARD.decisions:
            assert decision.knob is not None or decision.source is not Source.RECON
        assert {decision_of(Config, field) for field in Config.model_fields} <= set(ids)
        assert [one.id for one in CARD.decisions if one.source is Source.PAPER] == ["G1"]

    def test_claims_name_what_the_bench_has_and_the_papers_are_marked(self):
        arms, metrics = {arm.name for arm in BENCH.arms}, {metric.name for metric in BENCH.metrics}
        for claim in CARD.claims:
            assert claim.metric in metrics
            if not claim.paper_scale_only:
                assert {name for name in (claim.arm, claim.versus) if isinstance(name, str)} <= arms
        marked = " ".join(claim.paper for claim in CARD.claims if claim.paper_scale_only)
        assert all(figure in marked for figure in ("46.0 %", "27.1 %", "37.7 %", "43.22 %"))
        offsets = {claim.id: claim.offset for claim in CARD.claims}
        assert (offsets["threads_above_bm25"], offsets["threads_above_header"]) == (0.4, 0.3)
        assert (offsets["threads_above_recency"], offsets["above_bm25"]) == (0.1, 0.15)

    @pytest.mark.parametrize("words", ["frozen", "anchored", "circular", "Knowledge update".lower(), "hashed n-grams"])
    def test_limits_say_what_is_unflattering(self, words):
        assert words in " ".join(CARD.limits)

    def test_quick_needs_no_download(self):
        used = {name for block in BENCH.profiles["quick"].blocks for name in block.tasks}
        assert all(BENCH.task(name).dataset is None for name in used)
        assert RUN_ARMS[0] == "structured"

    def test_who_should_leave_it_is_told_what_adds_nothing(self):
        told = " ".join(CARD.avoid_when)
        assert all(words in told for words in ("knowledge update", "BM25", "aliases and supersession", "nothing"))

    def test_usage_runs(self, capsys):
        exec(compile(CARD.usage, "usage", "exec"), {})
        assert capsys.readouterr().out.count("\n") == 2
