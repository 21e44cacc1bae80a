"""A client cannot make the proxy work for ever: what a guard works through is bounded, and ends with its request."""

import json
import random
import socket
import string
import sys
import threading
import time

import httpx
import pytest
from serve_upstreams import Stub, served

from steelyard.guard import DRSmoothing, SmoothingDefence
from steelyard.serve.chat_api import Limits
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import HttpUpstream

pytestmark = [
    pytest.mark.filterwarnings("ignore::steelyard.guard.dr_smoothing.result.SmoothingWarning"),
    pytest.mark.filterwarnings("ignore::steelyard.errors.NoEffectWarning"),
]
LIVE = 20.0  # seconds: a bound on "never", not on speed


@pytest.fixture(scope="module")
def stub():
    stub = Stub()
    yield stub
    stub.close()


def made_up(characters):
    draw = random.Random(0)
    return "".join(draw.choices(string.ascii_lowercase + "  ", k=characters))


def asking(text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def post(port, text):
    body = {"messages": [{"role": "user", "content": text}]}
    return httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=LIVE)


def leave(port, text):
    """Send a request and close the connection once it is there."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(asking(text))
        time.sleep(0.05)


def until(condition):
    end = time.monotonic() + LIVE
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


def spellers():
    """Return how many threads of the proxy are in a defence's work."""
    frames = sys._current_frames()
    names = {thread.ident for thread in threading.enumerate() if thread.name.startswith("steelyard-guard")}
    return sum("rectify" in _functions(frame) for ident, frame in frames.items() if ident in names)


def _functions(frame):
    found = set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


@pytest.mark.parametrize("parts", [1, 3])
def test_characters_count_once_for_every_copy(stub, parts):
    limits = Limits(guarded_characters=2700)
    turns = [{"role": "user", "content": "a" * (302 // parts + 1)}, {"role": "assistant", "content": "a" * 900}] * parts
    turns = [{"role": "system", "content": "a" * 5000}, *turns[:-1]]
    asked = len(stub.seen)
    for defence, status in ((SmoothingDefence(DRSmoothing(n=9)), 413), (SmoothingDefence(DRSmoothing(n=3)), 200)):
        with served(make_app(HttpUpstream(stub.url), defence, limits=limits)) as port:
            reply = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json={"messages": turns}, timeout=LIVE)
        assert reply.status_code == status
        if status == 413:
            assert len(stub.seen) == asked
            assert "at most 300 are accepted while a guard is on" in reply.json()["error"]["message"]


def test_the_default_holds_a_long_text_off_and_lets_it_pass_without_a_guard(stub):
    with served(make_app(HttpUpstream(stub.url), SmoothingDefence(DRSmoothing(n=9)))) as port:
        assert post(port, made_up(990_000)).status_code == 413
        assert post(port, "hello " * 20).status_code == 200
    with served(make_app(HttpUpstream(stub.url))) as port:
        assert post(port, made_up(990_000)).status_code == 200


def test_a_thread_that_outlives_its_request_keeps_its_place(stub):
    begun, release = threading.Semaphore(0), threading.Event()

    class Stubborn:
        def answer(self, messages, complete):
            begun.release()
            release.wait(LIVE)
            return Answer("done", {})

    with served(make_app(HttpUpstream(stub.url), Stubborn(), limits=Limits(concurrency=2))) as port:
        try:
            for _ in range(2):
                leave(port, "hello")
                assert begun.acquire(timeout=LIVE)
            time.sleep(0.2)
            reply = post(port, "hello")
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_many_requests")
            assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=LIVE).status_code == 200
        finally:
            release.set()
        until(lambda: post(port, "hello").status_code == 200)


def test_abandoned_work_ends_and_the_proxy_lives(stub):
    limits = Limits(guarded_characters=10**8)
    text = made_up(300_000)
    with served(make_app(HttpUpstream(stub.url), SmoothingDefence(DRSmoothing(n=9)), limits=limits)) as port:
        post(port, "warm")  # reads the dictionary
        waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(24)]
        for connection in waiting:
            connection.sendall(asking(text))
        until(lambda: spellers() > 0)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=LIVE).status_code == 200
        for connection in waiting:
            connection.close()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=LIVE).status_code == 200
        until(lambda: spellers() == 0)
        assert post(port, "hello").status_code == 200
