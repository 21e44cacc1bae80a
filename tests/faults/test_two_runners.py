"""Two runners at once on one store: every cell runs once, whoever gets it."""

import itertools

import pytest

from toys.tools import Ledger, cells, counts, ended, environment, planned, python


@pytest.mark.parametrize("verbs", [("resume", "resume"), ("weigh", "weigh")])
def test_no_cell_runs_twice(tmp_path, verbs):
    path, log = tmp_path / "s.db", tmp_path / "log.txt"
    if "resume" in verbs:
        planned(path, "many")
    env = environment(TOY_LOG=str(log))
    runners = [python("-m", "toys.drive", path, 2, *verb.split(), env=env) for verb in verbs]
    for runner in runners:
        code, out, err = ended(runner)
        assert (code, err) == (0, "")
        assert "done=120, failed=0" in out
    ledger = Ledger(path, log)
    ledger.look(whole=True)
    assert set(ledger.runs.values()) == {1}
    assert len(ledger.runs) == 120
    for weighing in ledger.weighings:
        assert {cell["attempts"] for cell in cells(path, weighing)} == {1}
        assert len({cell["key"] for cell in cells(path, weighing)}) == 120


def test_both_take_part(tmp_path):
    path = tmp_path / "s.db"
    weighing = planned(path, "slow")
    runners = [python("-m", "toys.drive", path, 1, "resume") for _ in range(2)]
    assert [ended(runner)[0] for runner in runners] == [0, 0]
    assert counts(path).done == 8
    assert {cell["attempts"] for cell in cells(path, weighing)} == {1}


def test_cells_that_measure_time_run_alone_even_across_runners(tmp_path):
    path, log = tmp_path / "s.db", tmp_path / "log.txt"
    planned(path, "clocked")
    env = environment(TOY_LOG=str(log))
    runners = [python("-m", "toys.drive", path, 2, "resume", env=env) for _ in range(2)]
    assert [ended(runner)[0] for runner in runners] == [0, 0]
    starts = sorted(float(line.split()[3]) for line in log.read_text().splitlines())
    assert len(starts) == 4
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(starts))  # a cell sleeps that long
