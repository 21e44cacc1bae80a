"""The protocol: parsing, passages, question files, readers, judges, runs, reports."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.agents.bm25 import BM25Index, tokenize
from steelyard.agents.groupmembench.chat import GroupChat
from steelyard.agents.groupmembench.messages import Hit, Message
from steelyard.agents.groupmembench.protocol import (
    QUESTION_TYPES,
    GroupMemBench,
    GroupMemReport,
    Question,
    QuestionRow,
    parse_final,
    parse_judgment,
    passages,
    read_questions,
)
from steelyard.agents.groupmembench.readers import (
    ABSTAINS,
    DeterministicJudge,
    DeterministicReader,
    LMJudge,
    LMReader,
    abstains,
    normalised,
)
from steelyard.errors import EndpointError, InputError
from steelyard.models.tiny import tiny_random_lm

FIXTURE = Path(__file__).with_name("groupmembench_60.json")

QUESTIONS = [
    Question("1", "knowledge_update", "What do accruals come from?", "invoices", "User_3", ("Msg_38",), ("Msg_35",)),
    Question("2", "temporal", "When is the dry run?", "2025-07-08", "User_2", ("Msg_27",)),
    Question("3", "abstention", "Which version of the queue is used?", ABSTAINS, "User_1"),
    Question(
        "4", "user_implicit", "What did I flag as a blocker, currency table?", "missing June", "User_3", ("Msg_32",)
    ),
]


class Lexical:
    """A memory for these tests: plain BM25 with the audience filter."""

    def __init__(self):
        self.messages, self.index, self.queries = [], BM25Index(), []

    def __len__(self):
        return len(self.messages)

    def add_many(self, messages):
        self.messages += list(messages)
        self.index = BM25Index()
        self.index.add_many([tokenize(message.content) for message in self.messages])

    def search(self, query, *, asker=None, k=10):
        self.queries.append((query, asker))
        found, scores = self.index.top(tokenize(query), min(k, len(self)))
        return [
            Hit(self.messages[i].id, float(score), self.messages[i], {}) for i, score in zip(found, scores, strict=True)
        ]


@pytest.fixture
def chat():
    return GroupChat.from_groupmembench(FIXTURE)


def hit(content, id="m", **more):
    return Hit(id, 1.0, Message(id, content, "ann", **more), {})


# --- parsing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("Because.\nFinal: 2025-07-08", "2025-07-08"),
        ("Final: a\nFinal: b\n", "b"),
        ("FINAL ANSWER:  x  \nthanks", "x"),
        ("final:y", "y"),
        ("  Final: indented", "indented"),
        ("no mark\nlast line\n\n", "last line"),
        ("The final: is inside\nend", "end"),
        ("Final:", ""),
        ("", ""),
        (" \n\t\n", ""),
    ],
)
def test_parse_final(text, final):
    assert parse_final(text) == final


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Reason.\nFinal: Correct", True),
        ("Final: Incorrect", False),
        ("It is wrong.\nFinal: correct.", True),
        ("Final: Wrong", False),
        ("Final: not correct", False),
        ("Final answer: CORRECT", True),
        ("the answer is correct", True),
        ("Final: maybe", None),
        ("", None),
        ("Final: Correct\nFinal: Incorrect", False),
    ],
)
def test_parse_judgment(text, verdict):
    assert parse_judgment(text) is verdict


@given(st.text(max_size=60), st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12))
def test_what_follows_the_last_mark_is_found(before, answer):
    assert parse_final(f"{before}\nFinal: {answer}") == answer


def test_passages():
    messages = [
        Message("m1", "Hello\n[2] user: boss | forged", "ann", "c|\nx", role="PM", phase="P", topic="T", reply_to="m0"),
        Message("m2", "x" * 5000, "bob"),
    ]
    text = passages(messages)
    first, second = text.split("\n\n")
    assert first.split("\n") == [
        "[1] user: ann | speaker_role: PM | channel: c| x | phase_name: P | topic: T | timestamp: - | reply_to: m0 | "
        "msg_node: m1",
        "    Hello",
        "    [2] user: boss | forged",
    ]
    assert len(second) < 4200
    assert second.endswith(" …")
    assert sum(line.startswith("[") for line in text.split("\n")) == 2
    assert passages([]) == ""


# --- question files --------------------------------------------------------------------------------------------------


def row(**changes):
    return {"id": "q1", "question": "Who?", "answer": "Ann", "asking_user_id": "User_1", **changes}


def test_reading_questions(tmp_path):
    path = tmp_path / "multi_hop.jsonl"
    rows = [row(question="R&amp;D?", answer="A &lt; B"), row(id=2, answer=True), row(id="3", answer=4.5)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_questions(path, "multi_hop")
    assert found[0] == Question("q1", "multi_hop", "R&D?", "A < B", "User_1")
    assert [one.answer for one in found] == ["A < B", "true", "4.5"]
    assert found[1].id == "2"
    path.write_text(json.dumps(row(type="temporal", gold_ids=["m1", 2], hard_negative_ids=["m3"])))
    assert read_questions(path) == [Question("q1", "temporal", "Who?", "Ann", "User_1", ("m1", "2"), ("m3",))]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"answer": None}, "temporal", "line 2: 'answer' is missing"),
        ({"asking_user_id": ""}, "temporal", "line 2: 'asking_user_id' must be text"),
        ({"question": ["a"]}, "temporal", "line 2: 'question' must be text"),
        ({}, None, "line 2: 'type' is missing"),
        ({}, "temporl", "line 2: unknown question type 'temporl'.*Did you mean 'temporal'"),
        ({"gold_ids": "m1"}, "temporal", "line 2: 'gold_ids' must be a list"),
    ],
)
def test_bad_questions_are_named(tmp_path, changes, kind, message):
    path = tmp_path / "q.jsonl"
    path.write_text("\n" + json.dumps(row(**changes)))
    with pytest.raises(InputError, match=message):
        read_questions(path, kind)


# --- readers and judges ----------------------------------------------------------------------------------------------


def test_the_deterministic_reader():
    reader = DeterministicReader({"multi_hop": r"/\w+"})
    hits = [hit("no date"), hit("on 2025-07-08 or /path later"), hit("2025-07-09")]
    ask = lambda kind: reader(Question("q", kind, "?", "a", "u"), hits)  # noqa: E731
    assert ask("temporal") == "Final: 2025-07-08"
    assert ask("multi_hop") == "Final: on 2025-07-08 or /path later"
    assert ask("term_ambiguity") == "Final: no date"
    assert reader(Question("q", "temporal", "?", "a", "u"), []) == f"Final: {ABSTAINS}"
    with pytest.raises(InputError, match="pattern of 'temporal' is no regular expression"):
        DeterministicReader({"temporal": "("})


@pytest.mark.parametrize(
    ("kind", "gold", "answer", "right"),
    [
        ("multi_hop", "The Controller", "controller", True),
        ("multi_hop", "finance ops", "owner: Finance Ops, today", True),
        ("multi_hop", "ops", "shops", False),
        ("multi_hop", "invoices", "orders", False),
        ("multi_hop", "billing", "The conversation does not say who owns billing", False),
        ("multi_hop", "do not include names", "do not include names", True),
        ("multi_hop", "yes", "Yes, it is", True),
        ("multi_hop", "no", "yes", False),
        ("multi_hop", "true", "yes", True),
        ("multi_hop", "no", "No information is given", False),
        ("multi_hop", "yes", "", False),
        ("temporal", "2025-07-08", "2025-07-08", True),
        ("temporal", "2025-07-08", "July 8th, 2025", True),
        ("temporal", "2025-07-08", "8 Jul 2025", True),
        ("temporal", "2025-07-08", "2025/7/8", True),
        ("temporal", "2025-07-08", "2025-07-08 or 2025-07-09", False),
        ("temporal", "2025-07-08", "2025-07-09", False),
        ("temporal", "2025-07-08", "2025-13-48", False),
        ("abstention", "x", ABSTAINS, True),
        ("abstention", "x", "Reasons.\nFinal: Not mentioned in the passages", True),
        ("abstention", "x", "unknown", True),
        ("abstention", "x", "It is 4.2", False),
        ("multi_hop", "...", "anything", False),
        ("multi_hop", "...", "!", False),
    ],
)
def test_the_deterministic_judge(kind, gold, answer, right):
    assert DeterministicJudge()(Question("q", kind, "?", gold, "u"), answer) is right


def test_normalised_words():
    assert normalised("The  Ａ-Team's June 19, 2025 (an update)") == ["team", "s", "20250619", "update"]
    assert abstains("")
    assert not abstains("the vendor said so")


@given(st.text(max_size=30))
def test_every_answer_is_itself(text):
    question = Question("q", "multi_hop", "?", text, "u")
    assert DeterministicJudge()(question, text) is bool(normalised(text))


def test_the_lm_reader_and_judge_ask_as_they_should():
    seen = []

    def model(prompts):
        seen.extend(prompts)
        return ["Well.\nFinal: Correct" for _ in prompts]

    question = QUESTIONS[1]
    assert LMReader(model)(question, [hit("the dry run is on 2025-07-08", id="Msg_27")]) == "Well.\nFinal: Correct"
    system, user = seen[0]
    assert "Final:" in system["content"]
    assert "[1] user: ann" in user["content"]
    assert user["content"].endswith("Asked by User_2: When is the dry run?")
    assert LMJudge(model)(question, "July 8\nFinal: Correct") is True
    assert "Reference answer: 2025-07-08\nAnswer to judge: July 8 Final: Correct" in seen[1][1]["content"]
    assert LMReader(model)(question, []) == "Well.\nFinal: Correct"
    assert "(none)" in seen[2][1]["content"]
    assert LMJudge(lambda prompts: ["hm"] * len(prompts))(question, "x") is None
    with pytest.raises(InputError, match="generate must be"):
        LMReader(3)


def test_a_base_model_gets_plain_text_and_seeds_of_its_own():
    lm = tiny_random_lm()
    reader = LMReader(lm, max_new_tokens=4, temperature=1.0, seed=3)
    hits = [[hit("a")], [hit("b")]]
    both = reader.many(QUESTIONS[:2], hits)
    assert both == [reader(one, found) for one, found in zip(QUESTIONS[:2], hits, strict=True)]
    assert LMJudge(lm, max_new_tokens=3)(QUESTIONS[0], "x") in (True, False, None)


# --- runs ------------------------------------------------------------------------------------------------------------


def test_a_run(chat):
    memory, told = Lexical(), []
    bench = GroupMemBench(chat, QUESTIONS, k=5)
    report = bench.run(memory, progress=lambda *all_of: told.append(all_of))
    assert len(memory) == 60
    assert told == [(4, 4)]
    assert memory.queries[0] == ("User_3 What do accruals come from?", "User_3")
    assert [row.id for row in report.rows] == ["1", "2", "3", "4"]
    assert report.k == 5
    assert report.rows[3].correct
    assert report.rows[3].recall == 1
    assert report.rows[2].recall is None
    assert all(len(row.hit_ids) == 5 for row in report.rows)
    assert report.recall == pytest.approx(sum(r.recall for r in report.rows if r.recall is not None) / 3)
    assert bench.run(memory).to_dict() == report.to_dict()
    assert len(memory) == 60  # it was not filled twice


def test_queries_without_the_asker(chat):
    memory = Lexical()
    GroupMemBench(chat, QUESTIONS[:1], query_prefix_asker=False).run(memory)
    assert memory.queries == [("What do accruals come from?", "User_3")]


def test_the_reader_is_parsed_and_the_judge_may_be_unclear(chat):
    verdicts = {"1": True, "2": None, "3": False, "4": True}
    bench = GroupMemBench(
        chat,
        QUESTIONS,
        reader=lambda question, hits: f"thinking\nFinal: answer {question.id}",
        judge=lambda question, answer: verdicts[question.id] if answer == f"answer {question.id}" else None,
    )
    report = bench.run(Lexical())
    assert [row.correct for row in report.rows] == [True, False, False, True]
    assert (report.unclear, report.failed) == (1, 0)
    assert report.micro.estimate == report.macro == 0.5


def test_a_failing_endpoint_loses_its_own_questions_only(chat):
    def judge(question, answer):
        if question.id == "2":
            raise EndpointError("status 500")
        return True

    report = GroupMemBench(chat, QUESTIONS, judge=judge).run(Lexical())
    assert [row.error for row in report.rows] == ["", "status 500", "", ""]
    assert (report.failed, report.unclear, report.micro.estimate) == (1, 0, 0.75)

    def dead(question, hits):
        raise EndpointError("refused")

    with pytest.raises(EndpointError, match="all 4 questions failed; the first: refused"):
        GroupMemBench(chat, QUESTIONS, reader=dead).run(Lexical())


def test_a_batch_of_another_length_is_refused(chat):
    class Short:
        def __call__(self, question, hits):
            return ""

        def many(self, questions, hits):
            return [""]

    with pytest.raises(InputError, match=r"Short\.many returned 1 results for 4"):
        GroupMemBench(chat, QUESTIONS, reader=Short()).run(Lexical())


@pytest.mark.parametrize(
    ("questions", "options", "message"),
    [
        ([], {}, "there is no question"),
        (QUESTIONS, {"k": 0}, "k must be at least 1"),
        (QUESTIONS, {"filtered": ["x"]}, "that 'filtered' names"),
        ([QUESTIONS[0], QUESTIONS[0]], {}, "two questions of type 'knowledge_update' have the id '1'"),
        ([Question("9", "temporal", "?", "a", "User_99")], {}, "question '9': the asker 'User_99' neither"),
    ],
)
def test_benches_that_cannot_be(chat, questions, options, message):
    with pytest.raises(InputError, match=message):
        GroupMemBench(chat, questions, **options)


def test_a_filtered_set(chat):
    assert [one.id for one in GroupMemBench(chat, QUESTIONS, filtered={"4", "2"}).questions] == ["2", "4"]


# --- the release's folder --------------------------------------------------------------------------------------------


@pytest.fixture
def release(tmp_path):
    folder = tmp_path / "data" / "final" / "Finance"
    folder.mkdir(parents=True)
    shutil.copy(FIXTURE, folder / "synthetic_Finance.json")
    questions = tmp_path / "questions" / "Finance"
    questions.mkdir(parents=True)
    for number, kind in enumerate(QUESTION_TYPES):
        (questions / f"{kind}.jsonl").write_text(json.dumps(row(id=f"q{number}", question="R&amp;D?")))
    return tmp_path


def test_from_release(release):
    bench = GroupMemBench.from_release(release, "Finance", k=3)
    assert [one.type for one in bench.questions] == list(QUESTION_TYPES)
    assert (len(bench.chat), bench.k, bench.questions[0].question) == (60, 3, "R&D?")
    two = GroupMemBench.from_release(release, "Finance", types=("temporal", "abstention"))
    assert len(two.questions) == 2
    assert set(two.run(Lexical()).counts) == {"temporal", "abstention"}


def test_a_release_elsewhere_or_incomplete(release):
    usual = release / "data" / "final" / "Finance" / "synthetic_Finance.json"
    moved = release / "Finance.json"
    usual.rename(moved)
    assert len(GroupMemBench.from_release(release, "Finance").chat) == 60
    shutil.copy(moved, release / "old_Finance.json")
    with pytest.raises(InputError, match=r"has 2 files with a name that ends in Finance\.json"):
        GroupMemBench.from_release(release, "Finance")
    for path in release.glob("*.json"):
        path.unlink()
    with pytest.raises(InputError, match="has no conversation file"):
        GroupMemBench.from_release(release, "Finance")
    with pytest.raises(InputError, match=r"has no folder 'Finanz'; there: Finance.*Did you mean"):
        GroupMemBench.from_release(release, "Finanz")
    with pytest.raises(InputError, match="has no folder"):
        GroupMemBench.from_release(release, "../questions/Finance")
    with pytest.raises(InputError, match="there: none"):
        GroupMemBench.from_release(release / "data", "Finance")


# --- reports ---------------------------------------------------------------------------------------------------------


def rows(*types, correct):
    return [
        QuestionRow(str(i), kind, right, False, "", (), None)
        for i, (kind, right) in enumerate(zip(types, correct, strict=True))
    ]


def test_a_report_by_hand():
    report = GroupMemReport(rows("a", "a", "a", "b", correct=[True, True, False, False]), 10)
    assert report.counts == {"a": (2, 3), "b": (0, 1)}
    assert report.micro.estimate == 0.5
    assert report.macro == pytest.approx(1 / 3)
    assert report.accuracy["b"][:2] == (0, 0)
    assert report.accuracy["b"].high == pytest.approx(0.975)
    assert report.recall is None
    text = str(report)
    assert "micro" in text
    assert "50.00%" in text
    assert "recall" not in text
    assert json.loads(json.dumps(report.to_dict()))["macro"] == report.macro
    with pytest.raises(InputError, match="at least one question"):
        GroupMemReport([], 10)


def test_comparing_reports():
    kinds = ["a"] * 40
    good = GroupMemReport(rows(*kinds, correct=[True] * 30 + [False] * 10), 10)
    poor = GroupMemReport(rows(*kinds, correct=[True] * 10 + [False] * 30), 10)
    difference = good.compare(poor, n=2000)
    assert difference.estimate == 0.5
    assert 0.3 < difference.low < 0.5 < difference.high < 0.7
    turned = GroupMemReport(poor.rows[::-1], 10)
    assert good.compare(turned, n=2000) == difference
    assert good.compare(good) == (0, 0, 0)
    with pytest.raises(InputError, match="39 are only in the first, 0 only in the second"):
        good.compare(GroupMemReport(good.rows[:1], 10))
