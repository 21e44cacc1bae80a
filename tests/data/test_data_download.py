"""Downloads from a local source: every way they go wrong, and that nothing unchecked is ever left behind."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from steelyard.data import cache as cache_module
from steelyard.data.cache import obtain
from steelyard.data.download import download
from steelyard.data.registry import Pin
from steelyard.errors import ChecksumError, DataMissingError

BODY = bytes(range(256)) * 1024  # four chunks


def test_a_file_is_fetched_once_and_then_cached(source, cache, toy, files_in):
    dataset = toy(source.body("/toy.bin", BODY), BODY)
    seen: list[tuple[str, int, int]] = []
    found = obtain(dataset, lambda *facts: seen.append(facts))
    assert found.origin == "cache"
    assert found.paths == (cache / "optim" / "toy" / "toy.bin",)
    assert found.paths[0].read_bytes() == BODY
    assert seen[-1] == ("toy.bin", len(BODY), len(BODY))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert obtain(dataset).paths == found.paths
    assert source.asked == ["/toy.bin"]
    assert files_in(cache) == ["optim/toy/toy.bin"]


def test_a_body_without_length_is_fetched(source, cache, toy):
    assert obtain(toy(source.body("/a", BODY, announced=-1), BODY)).paths[0].read_bytes() == BODY


def test_a_second_pin_is_accepted(source, cache, toy):
    dataset = toy(source.body("/a", BODY), b"other")
    other = Pin(hashlib.sha256(BODY).hexdigest(), len(BODY))
    file = dataclasses.replace(dataset.files[0], pins=(*dataset.files[0].pins, other))
    assert obtain(dataclasses.replace(dataset, files=(file,))).paths[0].read_bytes() == BODY


def test_a_damaged_cached_file_is_fetched_again(source, cache, toy):
    dataset = toy(source.body("/a", BODY), BODY)
    path = obtain(dataset).paths[0]
    path.write_bytes(BODY[:-1] + b"!")
    assert cache_module.state_of(dataset) == "absent"
    assert obtain(dataset).paths[0].read_bytes() == BODY
    assert len(source.asked) == 2


def test_only_what_is_missing_is_fetched(source, cache, toy, files_in):
    first, second = toy(source.body("/a", BODY), BODY).files[0], toy(source.body("/b", b"b"), b"b").files[0]
    dataset = toy("", b"", files=(dataclasses.replace(first, name="a"), dataclasses.replace(second, name="b")))
    obtain(dataset).paths[1].unlink()
    assert cache_module.state_of(dataset) == "absent"
    obtain(dataset)
    assert source.asked == ["/a", "/b", "/b"]
    assert files_in(cache) == ["optim/toy/a", "optim/toy/b"]


@pytest.mark.parametrize(
    ("name", "arrange", "error", "says"),
    [
        ("wrong bytes", lambda s: s.body("/a", BODY[::-1]), ChecksumError, "is pinned"),
        ("truncated", lambda s: s.body("/a", BODY[:-9], announced=len(BODY)), DataMissingError, "broke off after"),
        ("short", lambda s: s.body("/a", BODY[:-9]), DataMissingError, "broke off after"),
        ("short, no length", lambda s: s.body("/a", BODY[:-9], announced=-1), DataMissingError, "broke off after"),
        ("announced too long", lambda s: s.body("/a", BODY + b"x"), ChecksumError, "announces 262145 bytes"),
        ("too long", lambda s: s.body("/a", BODY + b"x", announced=-1), ChecksumError, "sends more than the pinned"),
        ("404", lambda s: s.body("/a", b"no", status=404), DataMissingError, "the server answers 404"),
        ("500", lambda s: s.body("/a", b"no", status=500), DataMissingError, "the server answers 500"),
        ("empty", lambda s: s.body("/a", b"", status=204), DataMissingError, "broke off after 0"),
        ("other host", lambda s: s.redirect("/a", "http://127.0.0.2/a"), DataMissingError, "redirects to another"),
        ("other port", lambda s: s.redirect("/a", "http://127.0.0.1:9/a"), DataMissingError, "redirects to another"),
        ("file", lambda s: s.redirect("/a", "file:///etc/passwd"), DataMissingError, "is not allowed"),
        ("loop", lambda s: s.redirect("/a", "/a"), DataMissingError, "redirect"),
    ],
)
def test_a_bad_answer_leaves_nothing(source, cache, toy, files_in, name, arrange, error, says):
    dataset = toy(arrange(source), BODY)
    with pytest.raises(error, match=re.escape(says)) as caught:
        obtain(dataset)
    message = str(caught.value)
    assert "toy" in message
    assert "STEELYARD_DATA_MIRROR" in message
    assert "\n" not in message
    assert files_in(cache) == []


def test_a_redirect_within_the_host_is_followed(source, cache, toy):
    source.body("/b", BODY)
    assert obtain(toy(source.redirect("/a", "/b"), BODY)).paths[0].read_bytes() == BODY


def test_nothing_listens(source, cache, toy, files_in):
    url = source.url("/a")
    source.server.server_close()
    with pytest.raises(DataMissingError, match="could not be fetched from 127"):
        obtain(toy(url, BODY))
    assert files_in(cache) == []


@pytest.mark.parametrize("url", ["http://example.org/a", "ftp://127.0.0.1/a", "file:///etc/passwd", "http:///a"])
def test_only_https_or_the_loopback(cache, toy, url, files_in):
    with pytest.raises(DataMissingError, match="only https"):
        obtain(toy(url, BODY))
    assert not cache.exists()


def test_a_named_loopback_is_local(source, cache, toy):
    url = source.body("/a", BODY).replace("127.0.0.1", "localhost")
    assert obtain(toy(url, BODY)).paths[0].read_bytes() == BODY


def test_a_silent_source_is_given_up(source, cache, toy, tmp_path, files_in):
    release = threading.Event()
    source.answers["/a"] = lambda handler: release.wait(30)
    dataset = toy(source.url("/a"), BODY)
    with pytest.raises(DataMissingError, match="no answer in time"):
        download(dataset.files[0], cache / "a", "toy", stall_seconds=0.2)
    release.set()
    assert files_in(cache) == []


def test_a_dripping_source_is_given_up(source, cache, toy, files_in):
    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        for i in range(2000):
            handler.wfile.write(BODY[i : i + 1])
            time.sleep(0.01)

    source.answers["/a"] = drip
    dataset = toy(source.url("/a"), BODY)
    with pytest.raises(DataMissingError, match="too slow"):
        download(dataset.files[0], cache / "a", "toy", total_seconds=0.2)
    assert files_in(cache) == []


def test_an_interrupted_download_leaves_nothing(source, cache, toy, files_in):
    dataset = toy(source.body("/a", BODY), BODY)

    def interrupt(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain(dataset, interrupt)
    assert files_in(cache) == []


def test_the_cache_cannot_be_made(source, cache, toy):
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file where a folder should be")
    with pytest.raises(DataMissingError, match=r"cannot be stored in .*set STEELYARD_DATA to a folder"):
        obtain(toy(source.body("/a", BODY), BODY))


def test_the_target_cannot_be_replaced(source, cache, toy, files_in):
    (cache / "optim" / "toy" / "toy.bin").mkdir(parents=True)
    with pytest.raises(DataMissingError, match="cannot be stored"):
        obtain(toy(source.body("/a", BODY), BODY))
    assert files_in(cache) == []


CHILD = """
import sys
from steelyard.data.cache import obtain
from steelyard.data.registry import Dataset, Pin, RemoteFile
from steelyard.errors import SteelyardError
if sys.argv[4] != "0":
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), int(sys.argv[4])))
file = RemoteFile("toy.bin", sys.argv[1], (Pin(sys.argv[2], int(sys.argv[3])),))
try:
    print(obtain(Dataset("toy", "", "optim", "", "", 1, (file,))).paths[0])
except SteelyardError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def start_child(url: str, limit: int = 0) -> subprocess.Popen[str]:
    arguments = [url, hashlib.sha256(BODY).hexdigest(), str(len(BODY)), str(limit)]
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_full_disk_is_named(source, cache, files_in):
    child = start_child(source.body("/a", BODY), limit=70_000)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 1
    assert said.startswith("DataMissingError: data set 'toy' cannot be stored in ")
    assert said.count("\n") == 1
    assert files_in(cache) == []


def test_a_killed_download_leaves_no_file_under_its_name(source, cache, toy, files_in):
    half_sent, release = threading.Event(), threading.Event()

    def half(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(BODY[: len(BODY) // 2])
        handler.wfile.flush()
        half_sent.set()
        release.wait(60)

    source.answers["/a"] = half
    child = start_child(source.url("/a"))
    assert half_sent.wait(60)
    folder = cache / "optim" / "toy"
    while not any(path.stat().st_size for path in folder.glob("*") if path.exists()) and child.poll() is None:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=60)
    release.set()
    (part,) = files_in(cache)
    assert part.endswith(".part")
    dataset = toy(source.body("/a", BODY), BODY)
    assert cache_module.state_of(dataset) == "absent"
    old = time.time() - 48 * 3600
    os.utime(cache / part, (old, old))
    assert obtain(dataset).paths[0].read_bytes() == BODY
    assert files_in(cache) == ["optim/toy/toy.bin"]  # the old part was swept away


def test_a_young_part_of_another_process_is_left_alone(source, cache, toy, files_in):
    folder = cache / "optim" / "toy"
    folder.mkdir(parents=True)
    (folder / ".toy.bin.1.abc.part").write_bytes(b"half")
    obtain(toy(source.body("/a", BODY), BODY))
    assert files_in(cache) == ["optim/toy/.toy.bin.1.abc.part", "optim/toy/toy.bin"]


def test_two_processes_fetch_at_once(source, cache, files_in):
    both = threading.Barrier(2)

    def together(handler: http.server.BaseHTTPRequestHandler) -> None:
        both.wait(60)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(BODY)

    source.answers["/a"] = together
    children = [start_child(source.url("/a")) for _ in range(2)]
    for child in children:
        said, complained = child.communicate(timeout=120)
        assert child.returncode == 0, complained
        assert Path(said.strip()).read_bytes() == BODY
    assert files_in(cache) == ["optim/toy/toy.bin"]
