"""Commands that run cells and read results, end to end on the toy."""

import contextlib
import csv
import io
import json
import os
import pty
import sys

import pytest

from steelyard.bench.results import Results
from steelyard.bench.store import Store
from toys.tools import command_line, counts, ended, environment


def test_weigh_prints_json(steelyard, tmp_path):
    code, out, err = steelyard("weigh", "toys.coin", "--seeds", 3, "--jobs", 1, "--json")
    assert code == 0
    (document,) = json.loads(out)
    results = Results(**document)
    assert (results.method, results.seeds, results.finished) == ("toys.coin", (0, 1, 2), True)
    assert {str(verdict.outcome) for verdict in results.verdicts} >= {"borne out", "reversed", "not testable here"}
    assert f"{results.id}: 6 cells" in err
    (report,) = (tmp_path / ".steelyard" / "reports").glob("*.html")
    assert f"report: {report}" in err
    assert "biased" in report.read_text()


def strictly(constant):
    raise AssertionError(f"{constant} is not JSON")


def test_one_seed_is_json_too(steelyard):
    """Its interval is the whole line, and JSON has no word for that."""
    code, out, _ = steelyard("weigh", "toys.coin", "--seeds", 1, "--jobs", 1, "--json")
    assert code == 0
    (document,) = json.loads(out, parse_constant=strictly)
    assert {(verdict["low"], verdict["high"]) for verdict in document["verdicts"]} == {(None, None)}
    assert Results(**document).seeds == (0,)


def test_nothing_is_planned_when_a_method_cannot_be(steelyard, tmp_path):
    code, _, err = steelyard("weigh", "toys.coin", "toys.robust", "--profile", "clocked", "--store", "s.db")
    assert code == 2
    assert "unknown profile 'clocked'" in err
    with Store(tmp_path / "s.db") as store:
        assert store.weighing_ids() == []


def test_weigh_prints_verdicts_and_the_path_of_the_report(steelyard, tmp_path):
    code, out, err = steelyard("weigh", "toys.coin", "--arms", "biased, fair", "--jobs", 2, "--store", "a/b.db")
    assert code == 0
    assert "biased beats fair" in out
    assert "borne out" in out
    assert f"report: {tmp_path}/a/reports/coin-quick-" in out
    assert "weighing: 12 of 12 cells\n" in err
    assert "\r" not in err
    assert "\x1b" not in out + err


def test_what_is_done_is_not_run_again(steelyard):
    steelyard("weigh", "toys.coin", "--seeds", 2, "--jobs", 1)
    code, out, _ = steelyard("weigh", "toys.coin", "--seeds", 3, "--jobs", 1, "--json")
    assert code == 0
    rows = json.loads(out)[0]["rows"]
    pids = {row["seed"]: row["notes"]["pid"] for row in rows if row["arm"] == "fair"}
    code, out, _ = steelyard("weigh", "toys.coin", "--seeds", 2, "--jobs", 1, "--json")
    assert {row["seed"]: row["notes"]["pid"] for row in json.loads(out)[0]["rows"] if row["arm"] == "fair"} == {
        seed: pid for seed, pid in pids.items() if seed < 2
    }


def test_failed_cells_give_exit_code_one_and_can_be_tried_again(steelyard):
    code, out, err = steelyard("weigh", "toys.coin", "--profile", "bad", "--jobs", 2)
    assert code == 1
    assert "weighing: 8 of 8 cells, 4 failed" in err
    assert "raise" in out
    code, out, _ = steelyard("resume")
    assert (code, out) == (0, "nothing to resume\n")
    code, out, err = steelyard("resume", "--retry-failed", "--jobs", 2)
    assert code == 1
    assert "8 of 8 cells, 4 failed" in err


def test_plan_then_run_then_read(steelyard, tmp_path):
    code, out, _ = steelyard("plan", "toys.coin", "--seeds", 2, "--json")
    assert code == 0
    (planned,) = json.loads(out)
    assert len(planned["cells"]) == 4
    assert {tuple(cell) for cell in planned["cells"]} == {("key", "task", "arm", "seed", "exclusive")}
    assert planned["store"] == str(tmp_path / ".steelyard" / "store.db")

    code, out, _ = steelyard("export")
    assert json.loads(out)[0]["finished"] is False
    code, out, _ = steelyard("report", "-o", "unfinished.html")
    assert (code, out) == (0, f"{tmp_path / 'unfinished.html'}\n")

    assert planned["worker"].startswith("python -m steelyard.bench.worker ")
    words = planned["worker"].split()[1:]
    from toys.tools import python

    assert ended(python(*words))[0] == 0
    assert counts(planned["store"]).done == 4
    code, out, _ = steelyard("resume", planned["weighing"], "--json")
    assert code == 0
    assert json.loads(out)[0]["id"] == planned["weighing"]


def test_plan_as_text(steelyard):
    code, out, _ = steelyard("plan", "toys.coin", "--profile", "many", "--store", "s.db")
    assert code == 0
    assert ": 120 cells; run them with: python -m steelyard.bench.worker " in out


@pytest.fixture
def weighed(steelyard):
    steelyard("weigh", "toys.coin", "--seeds", 2, "--jobs", 1)
    return steelyard


def test_export(weighed, tmp_path):
    code, out, _ = weighed("export", "--to", "json")
    assert code == 0
    (document,) = json.loads(out)
    results = Results(**document)
    code, out, _ = weighed("export", results.id, "--to", "csv")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert list(lines[0]) == ["weighing", "method", "task", "arm", "seed", "state", "metric", "value"]
    assert {line["arm"] for line in lines} == {"biased", "fair", "oracle"}
    wanted = {(row.arm, str(row.seed)): row.metrics["score"] for row in results.rows}
    assert {(line["arm"], line["seed"]): float(line["value"]) for line in lines} == wanted
    code, out, _ = weighed("export", "--to", "csv", "-o", "rows.csv")
    assert (code, out) == (0, f"{tmp_path / 'rows.csv'}\n")
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7


def test_a_failed_cell_is_a_line_of_the_csv_too(steelyard):
    steelyard("weigh", "toys.coin", "--profile", "bad", "--arms", "nan", "--seeds", 1, "--jobs", 1)
    _, out, _ = steelyard("export", "--to", "csv")
    (line,) = csv.DictReader(io.StringIO(out))
    assert (line["state"], line["metric"], line["value"]) == ("failed", "", "")


def test_output_that_cannot_be_written(weighed):
    code, out, err = weighed("export", "-o", "no/such/folder.json")
    assert (code, out) == (2, "")
    assert err == "steelyard: --output no/such/folder.json cannot be written: No such file or directory\n"
    code, out, err = weighed("report", "-o", "/proc/x.html")
    assert code == 2
    assert "/proc/x.html" in err
    code, out, err = weighed("weigh", "toys.coin", "--seeds", 2, "--jobs", 1, "-o", "/proc/x.html")
    assert code == 2
    assert "biased beats fair" in out  # the verdicts are there all the same
    assert "Traceback" not in err


def test_report_of_several(weighed, tmp_path):
    weighed("weigh", "toys.coin", "--seeds", 1, "--jobs", 1)
    with Store(tmp_path / ".steelyard/store.db") as store:
        names = store.weighing_ids()
    code, out, _ = weighed("report", *names)
    assert (code, out) == (0, f"{tmp_path}/.steelyard/reports/{'+'.join(names)}.html\n")


def test_the_store_comes_from_the_environment(steelyard, tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_STORE", str(tmp_path / "from_env.db"))
    steelyard("plan", "toys.coin")
    assert (tmp_path / "from_env.db").exists()


def test_your_own_data_and_options_reach_the_bench(steelyard, tmp_path):
    folder = tmp_path / "pack" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "card.py").write_text("from toys.coin.card import CARD\n")
    (folder / "bench.py").write_text(
        "import dataclasses\n"
        "import numpy as np\n"
        "from steelyard.contracts import Task\n"
        "from toys.coin.bench import BENCH as COIN\n"
        "def user_task(data, label):\n"
        "    return Task(name='yours', label=label, load=lambda: {'x': np.loadtxt(data)}, source=data)\n"
        "BENCH = dataclasses.replace(COIN, method='pack.mine', user_task=user_task)\n"
    )
    (tmp_path / "x.txt").write_text("100\n200\n")
    code, out, _ = steelyard("weigh", "pack.mine", "--data", "x.txt", "--label", "My numbers", "--jobs", 2, "--json")
    assert code == 0
    (document,) = json.loads(out)
    assert document["seeds"] == list(range(8))
    assert document["options"] == {"label": "My numbers"}
    (task,) = document["tasks"]
    assert (task["name"], task["label"], task["source"], task["shapes"]) == ("yours", "My numbers", "x.txt", {"x": [2]})
    assert all(row["metrics"]["score"] > 100 for row in document["rows"])
    code, out, _ = steelyard(
        "plan", "pack.mine", "--data", "x.txt", "--label", "My numbers", "--arms", "fair", "--json"
    )
    (planned,) = json.loads(out)
    assert {cell["arm"] for cell in planned["cells"]} == {"fair"}
    assert {cell["task"] for cell in planned["cells"]} == {"yours"}


def test_a_bar_on_a_terminal(tmp_path):
    here, there = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="120")
    words = ("weigh", "toys.coin", "--profile", "bad", "--jobs", "2", "--store", tmp_path / "s.db", "--json")
    process = command_line(*words, env=env, stderr=there)
    os.close(there)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed ends in an error
        while chunk := os.read(here, 4096):
            shown += chunk
    os.close(here)
    code, out, _ = ended(process)
    assert code == 1
    json.loads(out)
    text = shown.decode()
    assert "\x1b[" in text
    assert "weighing" in text
    assert "8/8" in text
    assert "4 failed" in text


def test_a_reader_that_leaves_is_no_error(tmp_path):
    process = command_line("list", "--json")
    process.stdout.close()
    process.wait(60)
    assert (process.returncode, process.stderr.read()) == (0, "")
    process.stderr.close()


def test_tune_writes_the_best_setting(steelyard, tmp_path):
    code, out, err = steelyard("tune", "toys.tuned", "--jobs", 2, "-o", "tuned.json", "--store", "s.db")
    assert (code, out) == (0, "tuned settings: tuned.json\n")
    found = json.loads((tmp_path / "tuned.json").read_text())
    assert found["noise"]["biased"]["config"] == {"bias": 3.0}
    code, out, err = steelyard("tune", "toys.tuned", "--jobs", 2, "-o", "/proc/tuned.json", "--store", "s.db")
    assert code == 2
    assert "output /proc/tuned.json cannot be written" in err


def test_all_weighs_every_method(steelyard, monkeypatch):
    from steelyard import catalog

    coin = catalog.Entry("toys.coin", "toys", "", "nothing", "a coin")
    monkeypatch.setattr(catalog, "METHODS", (coin,))
    code, out, _ = steelyard("weigh", "--all", "--seeds", 1, "--jobs", 1, "--json")
    assert code == 0
    assert [document["method"] for document in json.loads(out)] == ["toys.coin"]


def test_the_working_directory_is_on_the_path(steelyard, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    steelyard("list")
    assert sys.path[-1] == str(tmp_path)


def test_resume_leaves_out_what_was_planned_with_other_code(steelyard, tmp_path, monkeypatch):
    steelyard("plan", "toys.coin", "--seeds", 1, "--store", "s.db")
    with Store(tmp_path / "s.db") as store:
        (stale,) = store.weighing_ids()
        store._rows("UPDATE weighing SET plan = json_set(plan, '$.source', 'other')")
    steelyard("plan", "toys.coin", "--seeds", 2, "--store", "s.db")
    code, out, err = steelyard("resume", "--jobs", 1, "--store", "s.db", "--json")
    assert code == 0
    assert [document["id"] == stale for document in json.loads(out)] == [False]
    assert f"{stale}: left out, its code has changed since it was planned; weigh again\n" in err


def test_an_interrupted_weighing_says_how_to_go_on(steelyard, tmp_path, monkeypatch):
    from steelyard.bench import runner

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", interrupted)
    code, out, err = steelyard("weigh", "toys.coin", "--seeds", 1, "--store", "s.db")
    assert (code, out) == (130, "")
    assert "steelyard: interrupted; 0 of 2 cells are kept. Go on with: steelyard resume coin-quick-" in err


def test_an_interrupt_at_any_other_time(steelyard, monkeypatch):
    from steelyard.cli import main

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupted)
    assert steelyard("list") == (130, "", "steelyard: interrupted\n")


def test_a_reader_that_left_is_no_error(steelyard, monkeypatch):
    from steelyard.cli import main

    def left():
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904 - as typer does

    monkeypatch.setattr(main, "app", left)
    assert steelyard("list") == (0, "", "")
