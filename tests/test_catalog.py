"""The catalog: names, packages, and what is said about those that are not there."""

import pytest

from steelyard import catalog
from steelyard.errors import InputError


def test_rows_are_unique_and_say_what_is_needed():
    assert len({row.id for row in catalog.METHODS}) == len(catalog.METHODS)
    for row in catalog.METHODS:
        assert all(row), row
        assert "." not in row.id
        assert catalog.entry(row.id) is row
        assert catalog.package(row.id) == f"steelyard.{row.room}.{row.id}"


@pytest.mark.parametrize("word", ["nfii", "gdro", "greedy-momentum"])
def test_did_you_mean(word):
    with pytest.raises(InputError, match=f"unknown method '{word}'. Did you mean '.+'. Known: greedy_momentum, nfi"):
        catalog.entry(word)


def test_nothing_like_it():
    with pytest.raises(InputError, match=r"^unknown method 'xyzzy'. Known: "):
        catalog.load_bench("xyzzy")


def test_a_package_of_your_own():
    assert catalog.entry("toys.coin").room == "your own"
    assert catalog.package("toys.coin") == "toys.coin"
    assert catalog.load_card("toys.coin").id == "toys.coin"
    assert catalog.load_bench("toys.coin").method == "toys.coin"
    assert catalog.load_conformance("toys.robust").dtypes


@pytest.mark.parametrize(
    ("method", "load", "missing"),
    [
        ("no.such", catalog.load_bench, "no.such.bench"),
        ("toys.nothing", catalog.load_card, "toys.nothing.card"),
        ("toys.coin", catalog.load_conformance, "toys.coin.conformance"),
    ],
)
def test_a_package_of_your_own_that_is_not_there(method, load, missing):
    with pytest.raises(InputError, match=f"no module {missing}: a package of your own needs bench.py and card.py"):
        load(method)


def own(folder, monkeypatch, text):
    home = folder / "lonely" / "one"
    home.mkdir(parents=True)
    (folder / "lonely" / "__init__.py").touch()
    (home / "__init__.py").touch()
    (home / "bench.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    import sys

    for name in [name for name in sys.modules if name.startswith("lonely")]:
        monkeypatch.delitem(sys.modules, name)


def test_an_import_that_fails_inside_keeps_its_error(tmp_path, monkeypatch):
    own(tmp_path, monkeypatch, "import no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        catalog.load_bench("lonely.one")


def test_a_bench_under_another_name(tmp_path, monkeypatch):
    own(tmp_path, monkeypatch, "from toys.coin.bench import BENCH")
    with pytest.raises(InputError, match=r"the bench of 'lonely.one' says method='toys.coin'; it must be 'lonely.one'"):
        catalog.load_bench("lonely.one")
