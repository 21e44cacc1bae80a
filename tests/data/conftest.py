"""A local source to download from, and the mirror folder that some tests need."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from steelyard import data
from steelyard.data import Table
from steelyard.data.registry import Dataset, Pin, RemoteFile
from steelyard.errors import DataMissingError

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Source:
    """An HTTP server on the loopback that answers each path as it was told to, and counts what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                source.asked.append(self.path)
                try:
                    source.answers[self.path](self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def body(self, path: str, body: bytes, status: int = 200, announced: int | None = None) -> str:
        """Answer ``path`` with ``body``; ``announced`` is the Content-Length if it is to differ (-1: none)."""

        def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            length = len(body) if announced is None else announced
            if length >= 0:
                handler.send_header("Content-Length", str(length))
            handler.end_headers()
            handler.wfile.write(body)

        self.answers[path] = answer
        return self.url(path)

    def redirect(self, path: str, to: str) -> str:
        def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", to)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        self.answers[path] = answer
        return self.url(path)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def source() -> Iterator[Source]:
    server = Source()
    yield server
    server.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, no mirror, no proxy."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("STEELYARD_DATA", str(folder))
    monkeypatch.delenv("STEELYARD_DATA_MIRROR", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The mirror folder, without which there is nothing to rebuild the sources from."""
    folder = os.environ.get("STEELYARD_DATA_MIRROR")
    if not folder:
        skip_unless_ci("needs a mirror folder: set STEELYARD_DATA_MIRROR")
    return Path(folder)


@pytest.fixture(scope="session")
def real_data() -> tuple[Table, tuple[Any, Any]]:
    """Adult and the MNIST test images from wherever they can be had."""
    try:
        return data.adult(), data.mnist_t10k()
    except DataMissingError as error:
        skip_unless_ci(str(error))


def skip_unless_ci(reason: str) -> NoReturn:
    """Skip with one line; where everything must run, fail instead."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def make_dataset(url: str, body: bytes, name: str = "toy", file: str = "toy.bin", **changes: Any) -> Dataset:
    """A data set of one file whose pin is that of ``body``."""
    pin = Pin(hashlib.sha256(body).hexdigest(), len(body))
    fields: dict[str, Any] = {
        "name": name,
        "title": "a toy",
        "room": "optim",
        "licence": "CC0",
        "attribution": "nobody",
        "rows": 1,
        "files": (RemoteFile(file, url, (pin,)),),
    }
    return Dataset(**{**fields, **changes})


@pytest.fixture
def toy() -> Callable[..., Dataset]:
    return make_dataset


def leftovers(folder: Path) -> list[str]:
    """Every file below ``folder``, however it is called."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.fixture
def files_in() -> Callable[[Path], list[str]]:
    return leftovers


@pytest.fixture(scope="session")
def adult_source(mirror: Path) -> bytes:
    """``adult.data`` as its source has it, rebuilt from the mirror's converted copy."""
    converted = gzip.decompress((mirror / "optim/adult/adult.csv.gz").read_bytes()).decode()
    header, *rows = converted.splitlines()
    header = header.removesuffix("income") + "Salary"
    return ("\n".join(line.replace(",", ", ") for line in [header, *rows]) + "\n\n").encode()


@pytest.fixture(scope="session")
def mnist_source(mirror: Path) -> Callable[[str], bytes]:
    """The gzip files of MNIST as their source has them: GNU gzip -6, with the old name and time in the wrapper."""
    wrappers = {
        "t10k-images-idx3-ubyte": (885_827_245, b"t10k-images.idx3-ubyte\0"),
        "t10k-labels-idx1-ubyte": (885_827_268, b"t10k-labels.idx1-ubyte\0"),
    }

    def rebuild(name: str) -> bytes:
        raw = gzip.decompress((mirror / "optim/mnist_t10k" / f"{name}.gz").read_bytes())
        program = shutil.which("gzip")
        assert program is not None, "the test rebuilds the source with the gzip program"
        packed = subprocess.run([program, "-6", "-n", "-c"], input=raw, capture_output=True, check=True).stdout
        time, old_name = wrappers[name]
        return b"\x1f\x8b\x08\x08" + time.to_bytes(4, "little") + b"\x00\x03" + old_name + packed[10:]

    return rebuild


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file into a new folder and return its path."""

    def writer(content: bytes | str, name: str = "t.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer
