"""Progress: lines where there is no terminal, a bar on one, nothing when quiet."""

import io

from steelyard.bench import progress
from steelyard.bench.store import Counts


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_quiet_shows_nothing():
    with progress.shown(quiet=True) as callback:
        assert callback is None


def test_lines_come_now_and_then_and_at_the_end(monkeypatch, capsys):
    clock = {"now": 100.0}
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock["now"])
    with progress.shown() as show:
        show(Counts(4, 0, 0, 0))
        show(Counts(3, 0, 1, 0))  # too soon
        clock["now"] += progress.LINE_EVERY_S
        show(Counts(2, 0, 1, 1))
        clock["now"] += progress.LINE_EVERY_S
        show(Counts(1, 1, 1, 1))  # nothing new
        show(Counts(0, 0, 3, 1))
        show(Counts(0, 0, 3, 1))
    assert capsys.readouterr().err.splitlines() == [
        "weighing: 0 of 4 cells",
        "weighing: 2 of 4 cells, 1 failed",
        "weighing: 4 of 4 cells, 1 failed",
    ]


def test_a_bar_on_a_terminal(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    with progress.shown() as show:
        show(Counts(3, 1, 0, 0))
        show(Counts(0, 0, 3, 1))
    assert "4/4" in screen.getvalue()
    assert "cells, 1 failed" in screen.getvalue()
