"""Optional dependencies: the sentence when one is missing, and names that load on first use."""

import importlib
import sys

import pytest

from steelyard.errors import MissingExtraError
from steelyard.extras import lazy_exports, missing_extra_message, require

SENTENCE = "no_such_package is not installed; install it with: pip install 'steelyard[optim]'"


def test_what_is_there_is_imported():
    import json

    assert require("json", "optim") is json


def test_what_is_missing_has_its_command():
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_package", "optim")
    assert str(caught.value) == SENTENCE == missing_extra_message("no_such_package", "optim")
    assert (caught.value.name, caught.value.exit_code) == ("no_such_package", 3)
    assert isinstance(caught.value, ImportError)
    with pytest.raises(MissingExtraError, match="no_such_package"):
        require("no_such_package.deep.inside", "optim")


def installed(folder, monkeypatch, text):
    (folder / "brought_along.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "brought_along", raising=False)
    return "brought_along"


def test_an_installed_package_that_fails_inside_keeps_its_error(tmp_path, monkeypatch):
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught:
        require(installed(tmp_path, monkeypatch, "import no_such_package"), "optim")
    assert not isinstance(caught.value, MissingExtraError)
    with pytest.raises(ZeroDivisionError):
        require(installed(tmp_path, monkeypatch, "1 / 0"), "optim")


def test_a_module_of_ours_that_does_not_exist_is_our_mistake():
    with pytest.raises(ModuleNotFoundError) as caught:
        require("steelyard.no_such_module", "optim")
    assert not isinstance(caught.value, MissingExtraError)


def test_a_module_of_ours_that_needs_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "steelyard.optim.nfi.core", raising=False)
    with pytest.raises(MissingExtraError, match=r"torch is not installed; install it with: pip install 'steelyard"):
        require("steelyard.optim.nfi.core", "optim")


def test_names_that_need_another_extra_stay_out_of_a_star_import():
    _, names, exported = lazy_exports("steelyard", {"errors": ("InputError",), "rng": ("stream",)}, "optim", ["rng"])
    assert (names(), exported) == (["InputError", "stream"], ["InputError"])
    import steelyard.optim as room

    assert set(dir(room)) - set(room.__all__) == {"GroupDROTrainerMixin", "NFICallback"}


def test_lazy_exports():
    get, names, exported = lazy_exports("steelyard", {"errors": ("InputError", "did_you_mean")}, "optim")
    from steelyard.errors import InputError

    assert get("InputError") is InputError
    assert names() == exported == ["InputError", "did_you_mean"]
    with pytest.raises(AttributeError, match="module 'steelyard' has no attribute 'StoreError'"):
        get("StoreError")


@pytest.mark.parametrize("name", ["nets", "optim", "quant"])
def test_every_name_that_a_room_promises_is_there(name):
    room = importlib.import_module(f"steelyard.{name}")
    assert set(room.__all__) <= set(dir(room))
    for public in dir(room):
        assert getattr(room, public) is not None, public


def test_a_name_that_a_room_does_not_have():
    import steelyard.optim as room

    assert "GreedySGD" in room.__all__
    with pytest.raises(AttributeError, match=r"module 'steelyard.optim' has no attribute 'SGD'"):
        _ = room.SGD


def test_the_package_itself():
    import steelyard

    assert set(steelyard.__all__) <= set(dir(steelyard))
    assert steelyard.catalog.METHODS
    with pytest.raises(AttributeError, match="module 'steelyard' has no attribute 'nothing'"):
        _ = steelyard.nothing
