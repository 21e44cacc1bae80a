"""Commands that only look."""

import json
import subprocess
import sys
import urllib.error

import pytest

from steelyard import catalog, data
from steelyard.cli import look


def test_list(steelyard):
    code, out, err = steelyard("list")
    assert (code, err) == (0, "")
    for row in catalog.METHODS:
        assert row.id in out
        assert row.summary in out
        assert f"steelyard[{row.extra}]" in out


def test_list_as_json(steelyard):
    _, out, _ = steelyard("list", "--json")
    assert json.loads(out) == [row._asdict() for row in catalog.METHODS]


def test_card(steelyard):
    code, out, err = steelyard("card", "toys.coin")
    assert (code, err) == (0, "")
    assert out.startswith("# ")
    assert "biased beats fair by 9" in out
    _, out, _ = steelyard("card", "toys.coin", "--json")
    assert json.loads(out)["decisions"][0]["id"] == "C1"


def test_card_on_a_terminal(steelyard, monkeypatch):
    monkeypatch.setattr(look.sys.stdout, "isatty", lambda: True, raising=False)
    code, out, _ = steelyard("card", "toys.coin")
    assert code == 0
    assert "Biased coin" in out
    assert "| ---" not in out  # drawn, not written


def test_doctor(steelyard):
    code, out, _ = steelyard("doctor")
    assert code == 0
    assert out.startswith("steelyard ")
    assert "optim" in out
    _, out, _ = steelyard("doctor", "--json")
    found = json.loads(out)
    assert set(found) == {"environment", "extras", "missing_weights"}
    assert found["extras"]["guard"] == found["extras"]["models"] == []  # what a nested extra brings is counted
    assert found["environment"]["packages"]["numpy"]


def test_data_list(steelyard):
    code, out, _ = steelyard("data", "list")
    assert code == 0
    for name in ("adult", "mnist_t10k", "digits", "breast_cancer"):
        assert name in out
    _, out, _ = steelyard("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert rows["digits"]["here"] == "embedded"
    assert rows["adult"]["licence"] == "CC BY 4.0"
    assert [rows[name]["from"] for name in ("adult", "advbench", "digits")] == ["download", "mirror only", "package"]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No mirror, an empty cache, no network."""
    monkeypatch.delenv("STEELYARD_DATA_MIRROR", raising=False)
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "cache"))

    def offline(*_, **__):
        raise urllib.error.URLError("network is unreachable")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", offline)


def test_data_that_is_not_here(steelyard, nowhere):
    code, out, err = steelyard("data", "path", "adult")
    assert (code, out) == (3, "")
    assert err == "steelyard: data set 'adult' is not here yet; get it with: steelyard data fetch adult\n"
    code, out, err = steelyard("data", "fetch", "adult")
    assert (code, out) == (3, "")
    assert "adult" in err
    assert "Traceback" not in err


def test_data_that_only_a_mirror_has(steelyard, nowhere):
    for command in ("path", "fetch"):
        code, out, err = steelyard("data", command, "advbench")
        assert (code, out) == (3, "")
        assert "data set 'advbench' is not here, and it is in a mirror folder only" in err
        assert "Traceback" not in err


def test_data_fetch_shows_where_it_is(steelyard, monkeypatch, tmp_path):
    seen = []

    def fetch(name, progress):
        progress("a.csv", 10, 100)
        progress("a.csv", 100, 100)
        seen.append(name)
        return data.Located("downloaded", (tmp_path / "a.csv",))

    monkeypatch.setattr(data, "fetch", fetch)
    code, out, _ = steelyard("data", "fetch", "adult")
    assert (code, seen) == (0, ["adult"])
    assert out == f"adult: downloaded\n{tmp_path / 'a.csv'}\n"


def test_data_inside_a_package_needs_no_fetching(steelyard):
    assert steelyard("data", "fetch", "digits")[:2] == (0, "digits: embedded\n")


def test_data_path(steelyard, monkeypatch, tmp_path):
    monkeypatch.setattr(data, "path", lambda _: tmp_path)
    assert steelyard("data", "path", "adult")[:2] == (0, f"{tmp_path}\n")


def test_view_serves_the_store(steelyard, monkeypatch, tmp_path):
    served = []
    monkeypatch.setattr("steelyard.serve.view.serve", lambda *args, **kwargs: served.append((args, kwargs)))
    code, _, _ = steelyard("view", "--store", "s.db", "--port", 0, "--open")
    assert code == 0
    assert served == [(("s.db",), {"port": 0, "open_browser": True})]


def test_a_working_directory_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from steelyard.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-P", "-c", program, "list"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "steelyard: the working directory has been removed; change to another one\n"
