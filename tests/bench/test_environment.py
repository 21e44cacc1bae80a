"""The record of what a weighing ran on."""

import json
import subprocess
from importlib import metadata

import steelyard
from steelyard.bench import environment


def test_record_is_plain_json():
    record = environment.record()
    assert json.loads(json.dumps(record)) == record
    assert record["steelyard"] == steelyard.__version__
    assert record["packages"]["numpy"] == metadata.version("numpy")
    assert record["cores"] >= 1
    assert record["threads_per_cell"] == 1


def test_packages_that_are_not_there_are_left_out(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment.metadata, "version", missing)
    assert environment.record()["packages"] == {}


def test_the_processor_without_proc(monkeypatch):
    assert environment.cpu_name()

    def refuse(_):
        raise OSError

    monkeypatch.setattr(environment.Path, "read_text", refuse)
    monkeypatch.setattr(environment.platform, "processor", lambda: "")
    monkeypatch.setattr(environment.platform, "machine", lambda: "abacus")
    assert environment.cpu_name() == "abacus"
    monkeypatch.setattr(environment.Path, "read_text", lambda _: "flags: none\n")
    assert environment.cpu_name() == "abacus"


def test_cores_without_affinity(monkeypatch):
    monkeypatch.delattr(environment.os, "sched_getaffinity")
    monkeypatch.setattr(environment.os, "cpu_count", lambda: None)
    assert environment.usable_cores() == 1


def test_commit(monkeypatch, tmp_path):
    home = tmp_path / "checkout"
    monkeypatch.setattr(environment, "__file__", str(home / "src" / "steelyard" / "bench" / "environment.py"))
    assert environment._commit() is None
    (home / ".git").mkdir(parents=True)
    monkeypatch.setattr(
        environment.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess((), 0, "abc123-dirty\n", "")
    )
    assert environment._commit() == "abc123-dirty"

    def no_git(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(environment.subprocess, "run", no_git)
    assert environment._commit() is None
