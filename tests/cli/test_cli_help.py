"""Help, versions, wrong use: every command has an example, every mistake a sentence and exit code 2."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import steelyard as package
from steelyard.cli import data, look, weigh

COMMANDS = [(command.name,) for command in (*look.COMMANDS, *weigh.COMMANDS)]
DATA = [("data", name) for name in ("list", "fetch", "path")]


@pytest.mark.parametrize("words", [*COMMANDS, *DATA])
def test_every_help_has_an_example(steelyard, words):
    code, out, err = steelyard(*words, "--help")
    assert (code, err) == (0, "")
    assert "Example: steelyard " + " ".join(words) in out


def test_the_commands_are_those_that_are_promised(steelyard):
    _, out, _ = steelyard("--help")
    for name in ("list", "card", "weigh", "resume", "report", "view", "export", "plan", "doctor", "tune", "data"):
        assert f" {name} " in out
    assert [command.name for command in data.app.registered_commands] == ["list", "fetch", "path"]
    for code in ("0 done", "1 some cells failed", "2 wrong use", "3 an extra", "130 interrupted"):
        assert code in out


def test_nothing_said_shows_the_help(steelyard):
    code, out, err = steelyard()
    assert code == 2
    assert "Usage" in out + err


def test_version(steelyard):
    assert steelyard("--version") == (0, f"{package.__version__}\n", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("wiegh", "Did you mean 'weigh'?"),
        ("card nfii", "unknown method 'nfii'. Did you mean 'nfi'?"),
        ("weigh gdro-fsq", "unknown method 'gdro-fsq'. Did you mean 'gdro_fsq'?"),
        ("weigh nothing_like_it", "Known: greedy_momentum, nfi, gdro_fsq"),
        ("plan nfii", "Did you mean 'nfi'?"),
        ("tune nfii", "Did you mean 'nfi'?"),
        ("weigh no.such", "no module no.such.bench: a package of your own needs bench.py and card.py"),
        ("card no.such", "no module no.such.card"),
        ("weigh", "name a method to weigh, or use --all"),
        ("weigh toys.coin --quick --full", "choose one of --quick, --full and --profile"),
        ("weigh toys.coin --full --profile many", "choose one of --quick, --full and --profile"),
        ("weigh toys.coin --profile quik", "unknown profile 'quik'. Did you mean 'quick'? toys.coin has: quick,"),
        ("weigh toys.coin --profile gpu", "is a recipe to run by hand: buy a GPU"),
        ("weigh toys.coin --arms biassed", "unknown arm 'biassed'. Did you mean 'biased'?"),
        ("weigh toys.coin --arms die", "none of the arms die is part of the quick profile of toys.coin"),
        ("weigh toys.coin --seeds 0", "--seeds"),
        ("weigh toys.coin --seeds three", "--seeds"),
        ("weigh toys.coin --jobs 0", "--jobs"),
        ("weigh toys.coin --jobs -1", "--jobs"),
        ("weigh toys.coin --sedes 3", "unknown option --sedes. Did you mean '--seeds'?"),
        ("weigh toys.coin --label y", "unknown option --label. The options of a bench go with --data"),
        ("weigh toys.coin nfi --data x.csv", "--data goes with one method, got 2"),
        ("weigh toys.coin --data x.csv", "option 'label' is missing (--label …)"),
        ("weigh toys.coin --data x.csv --lable y", "unknown option 'lable'. Did you mean 'label'? Options: label"),
        ("weigh toys.coin --data x.csv --label", "option --label needs a value"),
        ("weigh toys.coin --data x.csv --label y z", "unexpected 'z' after the options of the bench"),
        ("resume nothing", "there is no store at .steelyard/store.db"),
        ("report", "there is no store at .steelyard/store.db"),
        ("export", "there is no store at .steelyard/store.db"),
        ("view --no-open", "there is no store at .steelyard/store.db"),
        ("export --to xml", "--to"),
        ("view --port 70000", "--port"),
        ("tune toys.coin", "toys.coin has no grid to tune"),
        ("data path nope", "unknown data set 'nope'"),
        ("data path digits", "comes inside scikit-learn"),
        ("data fetch nope", "unknown data set 'nope'"),
        ("weigh toys.coin --store /proc/s.db", "the store /proc/s.db cannot be written"),
    ],
)
def test_wrong_use(steelyard, line, said):
    code, out, err = steelyard(*line.split())
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    if err.startswith("steelyard: "):
        assert err.count("\n") == 1


def test_an_empty_store_says_how_to_start(steelyard, tmp_path):
    from steelyard.bench.store import Store

    Store(tmp_path / "s.db").close()
    for command in ("export", "report"):
        code, _, err = steelyard(command, "--store", "s.db")
        assert (code, err) == (2, "steelyard: the store holds no weighing yet; start with: steelyard weigh METHOD\n")
    code, _, err = steelyard("resume", "nothing", "--store", "s.db")
    assert (code, err) == (2, "steelyard: no weighing 'nothing' in s.db; the newest are: none\n")


@pytest.mark.parametrize(
    ("words", "names", "options"),
    [
        (["a", "b"], ["a", "b"], {}),
        (["a", "--group", "g", "--label=y"], ["a"], {"group": "g", "label": "y"}),
        (["a", "--two-words", "-1"], ["a"], {"two_words": "-1"}),
        (["a", "--formula=x=y"], ["a"], {"formula": "x=y"}),
        (["a", "--empty="], ["a"], {"empty": ""}),
        (["--x", "1"], [], {"x": "1"}),
    ],
)
def test_split_options(words, names, options):
    assert weigh.split_options(words) == (names, options)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    program = shutil.which("steelyard", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    env = {**os.environ, "_STEELYARD_COMPLETE": f"source_{shell}"}
    script = subprocess.run([program], env=env, capture_output=True, text=True, check=True).stdout
    assert "_STEELYARD_COMPLETE" in script
    assert "steelyard" in script


def test_completion_knows_the_commands():
    program = shutil.which("steelyard", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    env = {**os.environ, "_STEELYARD_COMPLETE": "complete_bash", "COMP_WORDS": "steelyard wei", "COMP_CWORD": "1"}
    assert subprocess.run([program], env=env, capture_output=True, text=True, check=False).stdout.split() == ["weigh"]
