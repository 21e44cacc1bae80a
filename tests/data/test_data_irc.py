"""The IRC logs: source and mirror are the same bytes, and what is in them is what the corpus says."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

from steelyard import data
from steelyard.data.irc import irc_message, read_irc_log
from steelyard.data.registry import DATASETS, Pin, lookup
from steelyard.errors import InputError

NAME = "irc_disentanglement"


def test_the_mirror_holds_the_pinned_bytes(mirror):
    real = lookup(NAME)
    assert len(real.files) == len(real.mirror) == 40
    assert len({file.name for file in real.files}) == 40
    assert real.size == 2_203_722
    for file, copy in zip(real.files, real.mirror, strict=True):
        body = (mirror / copy.path).read_bytes()
        assert (Pin(hashlib.sha256(body).hexdigest(), len(body)),) == file.pins
        assert copy.path.endswith(file.name)
        assert file.url.endswith(f"/data/{file.name}")


def test_fetched_logs_are_the_mirrored_ones(mirror, cache, source, monkeypatch):
    real = lookup(NAME)
    local = [
        dataclasses.replace(file, url=source.body(f"/{file.name}", (mirror / copy.path).read_bytes()))
        for file, copy in zip(real.files, real.mirror, strict=True)
    ]
    monkeypatch.setitem(DATASETS, NAME, dataclasses.replace(real, files=tuple(local)))
    fetched = data.irc_logs("dev"), data.irc_logs("test")
    assert len(source.asked) == 40
    assert (cache / "agents" / NAME / "dev").is_dir()
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(mirror))
    assert fetched == (data.irc_logs("dev"), data.irc_logs("test"))


def test_what_the_logs_hold(mirror, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA_MIRROR", str(mirror))
    for split, links, annotated in (("dev", 2607, 2500), ("test", 5187, 5000)):
        logs = data.irc_logs(split)
        assert len(logs) == 10
        assert [log.name for log in logs] == sorted(log.name for log in logs)
        assert sum(len(log.links) for log in logs) == links
        assert sum(len({later for _, later in log.links}) for log in logs) == annotated
        for log in logs:
            assert all(0 <= earlier <= later < len(log.lines) and later >= 1000 for earlier, later in log.links)
            assert sum(irc_message(line) is not None for line in log.lines) > 500


def test_another_split():
    with pytest.raises(InputError, match="split must be 'dev' or 'test', got 'train'"):
        data.irc_logs("train")


def test_lines():
    assert irc_message("[12:34] <nick> some <b> text") == ("nick", "some <b> text")
    assert irc_message("[12:34] <nick> ") == ("nick", "")
    for line in ("=== nick has joined", "[1:34] <nick> a", "[12:34] * nick waves", "", " [12:34] <nick> a"):
        assert irc_message(line) is None


def test_reading_a_log(write):
    log = write("[00:01] <a> hi\r\n=== b joins\r\n[00:02] <b> hello\r\n", "x.ascii.txt")
    links = write("2 0 -\n\n0 0 - \n", "x.annotation.txt")
    assert read_irc_log(log, links) == (
        "x",
        ("[00:01] <a> hi", "=== b joins", "[00:02] <b> hello"),
        ((0, 2), (0, 0)),
    )
    assert read_irc_log(log).links == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [("0 3 -", "row 1: .* has no line 3"), ("0 x -", "row 1: '0 x -' is no link"), ("0 99999999999 -", "is no link")],
)
def test_a_bad_link_is_named(write, row, message):
    log = write("[00:01] <a> hi\n" * 3, "x.ascii.txt")
    with pytest.raises(InputError, match=message):
        read_irc_log(log, write(row, "x.annotation.txt"))
