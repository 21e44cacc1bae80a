import json
import os

import pytest
from scipy.stats import binomtest

from steelyard.errors import InputError
from steelyard.guard.dr_smoothing.replay import Line, check_apart, count_kept, read_artifacts, replay


class Answered:
    def __init__(self, response, calls):
        self.response, self.calls = response, calls
        self.counts = {"rectifier_calls": 2 * calls}


class Upper:
    """Complies with prompts that hold a capital; counts what it was asked."""

    def __init__(self, calls=3, n=1):
        self.asked, self.calls, self.n = [], calls, n

    def batch(self, prompts):
        self.asked += prompts
        return [Answered("yes" if prompt != prompt.lower() else "no", self.calls) for prompt in prompts]


def complies(answer):
    return answer == "yes"


PROMPTS = [f"{'A' if index % 4 == 0 else 'a'} {index}" for index in range(21)]


def test_the_table_counts_what_the_judge_says():
    lines = replay(PROMPTS, {"one": Upper(), "two": Upper(9)}, complies)
    interval = binomtest(6, 21).proportion_ci(0.95, "exact")
    for line, calls in zip(lines, (3, 9), strict=True):
        assert (line.prompts, line.complied, line.calls_per_prompt) == (21, 6, calls)
        assert line.repairs_per_prompt == 2 * calls
        assert line.rate == 6 / 21
        assert (line.low, line.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    all_, none = (replay(PROMPTS, {"x": Upper()}, lambda _, said=said: said)[0] for said in (True, False))
    assert (all_.rate, all_.high, none.rate, none.low) == (1, 1, 0, 0)
    assert isinstance(all_, Line)


def test_what_is_kept_is_not_asked_again(tmp_path):
    kept, seen = tmp_path / "kept.jsonl", []
    first = Upper()
    whole = replay(PROMPTS, {"one": first}, complies, "s", kept, lambda *counts: seen.append(counts))
    assert len(first.asked) == 21
    assert seen[-1] == (21, 21, "one")
    assert "yes" not in kept.read_text()  # outcomes only, no answers
    again = Upper()
    assert replay(PROMPTS, {"one": again}, complies, "s", kept) == whole
    assert again.asked == []
    replay(PROMPTS, {"one": again}, complies, "another model", kept)
    assert len(again.asked) == 21


def test_a_cut_line_is_asked_again(tmp_path):
    kept = tmp_path / "kept.jsonl"
    whole = replay(PROMPTS, {"one": Upper()}, complies, "", kept)
    kept.write_bytes(kept.read_bytes()[:-9])
    for _ in range(2):  # the second time the cut line stands in the middle
        defence = Upper()
        assert replay(PROMPTS, {"one": defence}, complies, "", kept) == whole
    assert defence.asked == []


def test_an_interruption_keeps_what_was_asked(tmp_path):
    class Breaks(Upper):
        def batch(self, prompts):
            if len(self.asked) >= 6:
                raise KeyboardInterrupt
            return super().batch(prompts)

    with pytest.raises(KeyboardInterrupt):
        replay(PROMPTS, {"one": Breaks(n=5)}, complies, "", tmp_path / "kept")
    assert count_kept(PROMPTS, ["one"], "", tmp_path / "kept") == 6
    after = Upper()
    replay(PROMPTS, {"one": after}, complies, "", tmp_path / "kept")
    assert after.asked == PROMPTS[6:]


def test_another_file_is_not_written_to(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("my notes\nof today\n")
    with pytest.raises(InputError, match=r"notes\.txt.*first line is not an outcome"):
        replay(PROMPTS, {"one": Upper()}, complies, "", other)
    with pytest.raises(InputError, match="cannot be written"):
        replay(PROMPTS, {"one": Upper()}, complies, "", tmp_path / "none" / "kept")


@pytest.mark.parametrize("shape", ["object", "list", "strings"])
def test_artifacts(tmp_path, shape):
    rows = [{"prompt": "p", "goal": "g"}, {"prompt": None}, {"prompt": "q"}]
    content = {"object": {"jailbreaks": rows}, "list": rows, "strings": ["p", "q", None]}[shape]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    found = read_artifacts(path)
    assert (found.prompts, found.without) == (("p", "q"), 1)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "no list 'jailbreaks'"),
        ('[{"prompt": 3}]', "row 0"),
        ('[{"prompt": null}]', "all 1 rows are null"),
    ],
)
def test_other_files_are_refused(tmp_path, content, said):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        read_artifacts(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_artifacts(tmp_path / "none.json")


def test_progress_goes_by_prompts_where_copies_are_many():
    seen = []
    replay(PROMPTS[:3], {"one": Upper(n=50)}, complies, progress=lambda *counts: seen.append(counts))
    assert seen == [(1, 3, "one"), (2, 3, "one"), (3, 3, "one")]


def test_answers_are_written_where_asked_for(tmp_path):
    path = tmp_path / "answers.jsonl"
    replay(PROMPTS, {"one": Upper()}, complies, answers=path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == PROMPTS
    assert rows[0] == {"defence": "one", "prompt": "A 0", "response": "yes", "complied": True}


@pytest.mark.parametrize(
    "content", ["my only line", "my only line\n", '{"jailbreaks": []}', "{\n", '{"key": 5}\n', "[1]", "\n"]
)
def test_one_line_of_something_else_is_not_written_to(tmp_path, content):
    other = tmp_path / "notes.txt"
    other.write_text(content)
    with pytest.raises(InputError, match=r"notes\.txt.*first line is not an outcome"):
        replay(PROMPTS, {"one": Upper()}, complies, "", other)
    assert other.read_text() == content


@pytest.mark.parametrize("left", [12, 40, 50, 100])
def test_a_first_line_that_was_cut_short_is_passed_over(tmp_path, left):
    kept = tmp_path / "kept.jsonl"
    whole = replay(PROMPTS, {"one": Upper()}, complies, "", kept)
    kept.write_bytes(kept.read_bytes().splitlines()[0][:left])
    for _ in range(2):
        assert replay(PROMPTS, {"one": Upper()}, complies, "", kept) == whole


@pytest.mark.parametrize(
    "change",
    [
        {"calls": float("inf")}, {"calls": float("nan")}, {"calls": -1}, {"calls": 1.5}, {"calls": "3"},
        {"calls": True}, {"calls": 10**400}, {"repairs": -5}, {"repairs": None}, {"complied": "false"},
        {"complied": 1}, {"complied": None},
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1])
def test_an_outcome_that_cannot_be_is_asked_again(tmp_path, change, number):
    kept = tmp_path / "kept.jsonl"
    whole = replay(PROMPTS, {"one": Upper()}, complies, "", kept)
    rows = kept.read_text().splitlines()
    rows[number] = json.dumps({**json.loads(rows[number]), **change})
    kept.write_text("\n".join(rows) + "\n")
    again = Upper()
    assert replay(PROMPTS, {"one": again}, complies, "", kept) == whole
    assert again.asked == [PROMPTS[number]]


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/null", tmp_path):
        with pytest.raises(InputError, match="is not a regular file"):
            read_artifacts(path)
        for where in ("kept", "answers"):
            defence = Upper()
            with pytest.raises(InputError, match="is not a regular file"):
                replay(PROMPTS, {"one": defence}, complies, **{where: path})
            assert not defence.asked


def test_large_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(["p"] * 100))
    monkeypatch.setattr("steelyard.guard.dr_smoothing.replay.MAX_FILE_BYTES", 100)
    with pytest.raises(InputError, match="larger than"):
        read_artifacts(path)
    with pytest.raises(InputError, match="larger than"):
        replay(PROMPTS, {"one": Upper()}, complies, kept=path)


def test_files_of_a_replay_are_different_ones(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[]")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for same in (path, tmp_path / "link", tmp_path / "hard", tmp_path / "." / "a.json"):
        with pytest.raises(InputError, match="are one file"):
            check_apart(path, kept=same)
        with pytest.raises(InputError, match="are one file"):
            check_apart(path, answers=same)
    with pytest.raises(InputError, match="--kept and --answers"):
        check_apart(path, kept=tmp_path / "new", answers=tmp_path / "x" / ".." / "new")
    check_apart(path, kept=tmp_path / "b", answers=tmp_path / "c")
    check_apart(path)
