"""kill -9 during ingest, at random points: every acknowledged message is there, and no batch is there in part."""

import os
import random
import signal
import time

from steelyard.agents.groupmembench.messages import Message
from steelyard.agents.groupmembench.store import MemoryStore

KILLS = 120


def writer(path, start, sizes, log):
    """Fork a process that adds batches and notes each one's number once it is acknowledged."""
    pid = os.fork()
    if pid:
        return pid
    try:
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        store = MemoryStore(path)
        os.write(out, b"open\n")
        for batch, size in enumerate(sizes, start):
            store.add_many([Message(f"{batch}/{size}/{i}", "word " * (i % 50), f"user{i % 3}") for i in range(size)])
            os.write(out, f"{batch} {size}\n".encode())
        os._exit(0)
    finally:
        os._exit(1)


def batches(path):
    found = {}
    with MemoryStore(path) as store:
        for message in store.messages():
            batch, size, i = map(int, message.id.split("/"))
            found.setdefault((batch, size), []).append(i)
    return found


def test_no_acknowledged_message_is_lost(tmp_path):
    rng, path, log = random.Random(7), tmp_path / "s.db", tmp_path / "log"
    log.touch()
    start = amid = 0
    for _ in range(KILLS):
        sizes = [rng.choice([1, 3, 40, 2000]) for _ in range(60)]
        noted = log.stat().st_size
        pid = writer(path, start, sizes, log)
        while log.stat().st_size == noted:  # it is open
            time.sleep(0.001)
        time.sleep(rng.random() * 0.12)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        amid += os.WIFSIGNALED(status)
        start += 60
    acknowledged = {tuple(map(int, line.split())) for line in log.read_text().splitlines() if line != "open"}
    found = batches(path)
    assert amid > KILLS // 2
    assert acknowledged
    assert acknowledged <= set(found)
    assert len(set(found) - acknowledged) <= KILLS  # at most the one that was being acknowledged
    assert all(members == list(range(size)) for (_, size), members in found.items())
