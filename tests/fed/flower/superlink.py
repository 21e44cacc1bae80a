"""A real federation on loopback: Flower's own SuperLink and SuperNodes as processes that are always stopped."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "federated-learning.md"
BIN = Path(sys.executable).parent


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        return [taken.getsockname()[1] for taken in sockets]
    finally:
        for taken in sockets:
            taken.close()


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def write_app_of_the_page(folder: Path) -> None:
    """Write the files of the documentation's example, and its settings."""
    text = PAGE.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(# file: .*?)^```$", text, re.MULTILINE | re.DOTALL):
        path = folder / code.splitlines()[0].removeprefix("# file: ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    (folder / "linear_app" / "__init__.py").touch()
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (folder / "pyproject.toml").write_text(settings, encoding="utf-8")


class Federation:
    """A SuperLink and its SuperNodes; each is the leader of a process group of its own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.folder, self.nodes = folder, nodes
        self.port, *self.node_ports = free_ports(1 + nodes)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def start_link(self) -> None:
        self.start(
            "superlink",
            *("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        )
        wait_until(self._answers, 60, "the SuperLink listens")

    def start_node(self, client: int) -> None:
        self.start(
            f"node-{client}",
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"),
            *("--port", str(self.node_ports[client]), "--node-config"),
            f"partition-id={client} num-partitions={self.nodes}",
        )

    def kill_node(self, client: int) -> None:
        """Kill -9 a SuperNode alone; what it started leaves by itself, or is made to."""
        process = self.processes.pop(f"node-{client}")
        process.kill()
        process.wait(30)
        end = time.monotonic() + 30
        while _signal_group(process, 0) and time.monotonic() < end:
            time.sleep(0.1)
        _signal_group(process, signal.SIGKILL)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        running = list(self.processes.values())
        for process in running:
            _signal_group(process, signal.SIGTERM)
        end = time.monotonic() + 10
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            _signal_group(process, signal.SIGKILL)
            process.wait(10)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal a process and what it started; False when none of them is left."""
    try:
        os.killpg(process.pid, number)  # its own session: nobody else's processes are in it
    except ProcessLookupError:
        return False
    return True


@contextmanager
def federation(folder: Path, nodes: int) -> Iterator[Federation]:
    running = Federation(folder, nodes)
    try:
        running.start_link()
        for client in range(nodes):
            running.start_node(client)
        yield running
    finally:
        running.stop()
