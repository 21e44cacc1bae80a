"""``steelyard.weigh`` from wherever Python is typed: scripts without a guard, standard input, a shell, a notebook."""

import threading

import pytest

import steelyard
from toys.tools import ended, python

SCRIPT = """\
import steelyard
print("started")
weighing = steelyard.weigh("toys.coin", seeds=2, jobs=2, store={store!r})
print(weighing)
print(len(weighing.results.rows))
"""


def check(process, tmp_path, out_has="started\n"):
    code, out, err = ended(process)
    assert code == 0, err
    assert out.count(out_has) == 1  # a worker that runs the script again would print it again
    assert "<Weighing coin-quick-" in out
    assert "\n6\n" in out
    assert "weighing: 4 of 4 cells" in err


def test_a_script_without_a_guard(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(store=str(tmp_path / "s.db")))
    check(python(tmp_path / "script.py", cwd=tmp_path), tmp_path)


def test_standard_input(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT.format(store=str(tmp_path / "s.db")))
    with open(tmp_path / "script.py") as script:
        check(python("-", stdin=script, cwd=tmp_path), tmp_path)


def test_a_command(tmp_path):
    check(python("-c", SCRIPT.format(store=str(tmp_path / "s.db")), cwd=tmp_path), tmp_path)


def test_an_interactive_shell(tmp_path):
    (tmp_path / "typed.txt").write_text(SCRIPT.format(store=str(tmp_path / "s.db")) + "exit()\n")
    with open(tmp_path / "typed.txt") as typed:
        check(python("-i", "-q", stdin=typed, cwd=tmp_path), tmp_path)


KERNEL = """\
import sys, types, threading
cell = {cell!r}
main = types.ModuleType("__main__")  # what a notebook has: no file, cells compiled one by one
sys.modules["__main__"] = main
sys.path[0] = ""
for number, source in enumerate([cell[:cell.index("weighing =")], cell[cell.index("weighing ="):]]):
    exec(compile(source, f"<ipython-input-{{number}}>", "exec"), main.__dict__)
"""


def test_a_notebook(tmp_path):
    cell = SCRIPT.format(store=str(tmp_path / "s.db"))
    check(python("-c", KERNEL.format(cell=cell), cwd=tmp_path), tmp_path)


def test_a_thread(tmp_path):
    found = []
    store = tmp_path / "s.db"
    thread = threading.Thread(target=lambda: found.append(steelyard.weigh("toys.coin", seeds=1, jobs=1, store=store)))
    thread.start()
    thread.join()
    assert [row.state for row in found[0].results.rows] == ["done"] * 3


def test_a_bench_that_lies_beside_the_script(tmp_path):
    folder = tmp_path / "mine" / "coin"
    folder.mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "card.py").write_text("from toys.coin.card import CARD\n")
    bench = "import dataclasses\nfrom toys.coin.bench import BENCH\n"
    (folder / "bench.py").write_text(bench + "BENCH = dataclasses.replace(BENCH, method='mine.coin')\n")
    script = SCRIPT.format(store=str(tmp_path / "s.db")).replace("toys.coin", "mine.coin")
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "elsewhere").mkdir()
    check(python(tmp_path / "script.py", cwd=tmp_path / "elsewhere"), tmp_path)


@pytest.fixture
def weighing(tmp_path):
    return steelyard.weigh("toys.coin", jobs=2, store=tmp_path / "s.db")


def test_what_weigh_returns(weighing, tmp_path):
    from steelyard.bench.results import Results

    assert [str(verdict.outcome) for verdict in weighing.verdicts] == [
        "borne out", "reversed", "borne out", "not testable here",
    ]  # fmt: skip
    assert "biased beats fair" in weighing.table()
    assert weighing.report(tmp_path / "r.html").read_text().startswith("<!")
    assert Results.model_validate_json(weighing.to_json()) == weighing.results
    assert repr(weighing).startswith(f"<Weighing {weighing.id}: borne out, ")


def test_a_second_weighing_takes_over_what_is_done(weighing, tmp_path):
    again = steelyard.weigh("toys.coin", jobs=1, store=tmp_path / "s.db")
    assert again.id != weighing.id
    assert [row.notes.get("pid") for row in again.results.rows] == [
        row.notes.get("pid") for row in weighing.results.rows
    ]


def test_own_data_and_options(tmp_path):
    found = steelyard.weigh("toys.coin", data=[5.0], label="Mine", seeds=1, jobs=1, store=tmp_path / "s.db")
    assert found.results.options == {"label": "Mine"}
    assert repr(found).startswith("<Weighing coin-quick-")


def test_an_unfinished_weighing_has_no_verdict_yet(tmp_path):
    from steelyard.bench.source import read_results
    from steelyard.bench.store import Store
    from steelyard.report.weighing import Weighing
    from toys.tools import planned

    name = planned(tmp_path / "s.db")
    with Store(tmp_path / "s.db") as store:
        assert repr(Weighing(read_results(store, name))) == f"<Weighing {name}: no verdict yet>"
