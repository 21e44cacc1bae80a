"""Kills, full disks and leftovers: what was finished stays, the rest is done, the files are the same byte for byte."""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quant.po2.small_checkpoints import llama_tensors, write_llama
from steelyard.errors import InputError
from steelyard.models.safefile import PART, write_safe
from steelyard.quant.po2.checkpoints import INDEX
from steelyard.quant.po2.convert import MANIFEST, convert
from steelyard.quant.po2.packed_files import packed_files
from steelyard.rng import generator

pytestmark = pytest.mark.faults
SHARD_BYTES = 1000
SHARDS = "model-*.safetensors"


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A source and its conversion that nothing interrupted."""
    base = tmp_path_factory.mktemp("whole")
    source = base / "m.safetensors"
    write_safe(source, llama_tensors(), {})
    done = convert(source, base / "out", shard_bytes=SHARD_BYTES)
    assert done.shards >= 8
    return source, contents(base / "out")


def in_child(work):
    """Run ``work`` in a forked process; return how it ended (a negative signal, else its exit code)."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def convert_until(source, output, event):
    """Convert and kill this process at the event of that number: a tensor begun, a file synced, a file renamed."""
    count = 0

    def step():
        nonlocal count
        count += 1
        if count == event:
            os.kill(os.getpid(), signal.SIGKILL)

    sync, replace = os.fsync, Path.replace

    def counted_sync(descriptor):
        step()
        sync(descriptor)

    def counted_replace(path, target):
        step()
        replace(path, target)
        step()

    os.fsync, Path.replace = counted_sync, counted_replace
    convert(source, output, shard_bytes=SHARD_BYTES, progress=lambda *_: step())


def finished(output):
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in output.glob(SHARDS)}


@settings(max_examples=25)
@given(events=st.lists(st.integers(1, 70), min_size=1, max_size=3))
def test_killed_at_any_step_and_run_again(tmp_path_factory, whole, events):
    source, expected = whole
    output = tmp_path_factory.mktemp("killed") / "out"
    for event in events:
        ended = in_child(lambda event=event: convert_until(source, output, event))
        assert ended in (0, -signal.SIGKILL)
        for name in finished(output):
            assert (output / name).read_bytes() == expected[name]  # a name means whole
    kept = finished(output) if output.exists() else {}
    done = convert(source, output, shard_bytes=SHARD_BYTES)
    assert done.reused == len(kept)
    assert {name: stat for name, stat in finished(output).items() if name in kept} == kept
    assert contents(output) == expected


def test_killed_at_random_times_from_outside(tmp_path, whole):
    source, expected = whole
    output = tmp_path / "out"
    draws = generator("tests", "kills", 0)
    for _ in range(12):
        child = os.fork()
        if child == 0:
            try:
                convert(source, output, shard_bytes=SHARD_BYTES)
            finally:
                os._exit(0)
        time.sleep(float(draws.uniform(0.0, 0.08)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    kept = finished(output) if output.exists() else {}
    convert(source, output, shard_bytes=SHARD_BYTES)
    assert {name: stat for name, stat in finished(output).items() if name in kept} == kept
    assert contents(output) == expected


def test_an_unfinished_folder_is_not_read(tmp_path, whole):
    source, _ = whole
    in_child(lambda: convert_until(source, tmp_path / "out", 20))
    assert finished(tmp_path / "out")
    with pytest.raises(InputError, match="or its conversion has not ended"):
        packed_files(tmp_path / "out")


@pytest.mark.parametrize("limit", [100, 1500, 3000, 5000])
def test_a_full_disk(tmp_path, limit):
    source, output = write_llama(tmp_path / "in"), tmp_path / "out"
    expected = contents(convert(source, tmp_path / "whole").output)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(InputError, match="cannot be written: File too large") as raised:
            convert(source, output)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(raised.value)
    assert {path.name for path in output.iterdir()} <= {MANIFEST}  # no half shard, under no name
    done = convert(source, output)
    assert done.reused == 0
    assert contents(output) == expected


def test_a_disk_that_fills_up_keeps_what_was_finished(tmp_path):
    """The eighth shard is too large for the limit; the seven before it stay and are not made again."""
    tensors = {f"layer.{number:02}.weight": torch.ones(16, 32) * (number + 1) for number in range(7)}
    tensors["layer.99.weight"] = torch.ones(64, 256)
    write_safe(tmp_path / "m.safetensors", tensors, {})
    output = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
        with pytest.raises(InputError, match="model-00008-of-00008"):
            convert(tmp_path / "m.safetensors", output, shard_bytes=400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(finished(output)) == 7
    assert convert(tmp_path / "m.safetensors", output, shard_bytes=400).reused == 7


def test_a_small_file_system_that_is_full(tmp_path, whole):
    """Where this user may mount one: the error is that of a full disk itself."""
    source, expected = whole
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        return  # the test above shows the same with a limit on files
    try:
        with pytest.raises(InputError, match="cannot be written: No space left on device"):
            convert(source, disk / "out", shard_bytes=SHARD_BYTES)
        assert not list((disk / "out").glob(f"*{PART}"))
        kept = finished(disk / "out")
        subprocess.run(["mount", "-o", "remount,size=1m", str(disk)], check=True)
        assert convert(source, disk / "out", shard_bytes=SHARD_BYTES).reused == len(kept)
        assert contents(disk / "out") == expected
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_leftovers_of_a_killed_run_are_removed(tmp_path, whole):
    source, expected = whole
    output = tmp_path / "out"
    output.mkdir()
    (output / f".model-00001-of-00002.safetensors.123{PART}").write_bytes(b"half")
    convert(source, output, shard_bytes=SHARD_BYTES)
    assert contents(output) == expected


def test_the_manifest_is_not_trusted(tmp_path, whole):
    source, _ = whole
    output = tmp_path / "out"
    output.mkdir()
    (output / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(InputError, match="is damaged"):
        convert(source, output)
    (output / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match="holds a conversion of another checkpoint"):
        convert(source, output)
    convert(source, output, force=True)
    assert (output / INDEX).exists()


def test_the_number_of_threads_changes_no_byte(tmp_path):
    tensors = {"a.weight": torch.linspace(-3, 2, 1 << 19).reshape(512, -1).sin(), "embed.weight": torch.ones(4, 4)}
    write_safe(tmp_path / "m.safetensors", tensors, {})
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            convert(tmp_path / "m.safetensors", tmp_path / str(threads))
    finally:
        torch.set_num_threads(before)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
