import sys

import pytest

from steelyard.cli import main


@pytest.fixture
def steelyard(tmp_path, monkeypatch, capsys):
    """The command line in this process, in an empty folder: words -> (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEELYARD_STORE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERMINAL_WIDTH", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["steelyard", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.run()
        out, err = capsys.readouterr()
        return left.value.code or 0, out, err

    return call
