"""OpenAICompatibleLM against a local server that answers well, badly, slowly, or not at all."""

from __future__ import annotations

import asyncio
import collections
import gc
import http.server
import json
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import EndpointError, InputError, UnsupportedError
from steelyard.models import CausalLM, EndpointEmbedder, OpenAICompatibleLM, as_lm, http_client
from steelyard.models.endpoint import _row_seeds
from steelyard.models.http_client import _retry_after, split_url

KEY = "sk-very-secret-key"


class Server:
    """A server on the loopback. ``answer`` maps a request to (status, headers, body); it notes what it was sent."""

    def __init__(self):
        self.requests = []
        self.answer = echo
        self.lock = threading.Lock()
        self.now, self.most = 0, 0
        self.stopped = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append((self.path, dict(self.headers), body))
                    server.now += 1
                    server.most = max(server.most, server.now)
                try:
                    status, headers, content = server.answer(server, self.path, body)
                finally:
                    with server.lock:
                        server.now -= 1
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(content)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None
        self.http.block_on_close = False
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self):
        self.stopped.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def said(*texts):
    return 200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": t}} for t in texts]}).encode()


def echo(server, path, body):
    """Answer with the last message, the seed if there is one, and a number if there are several."""
    text = body["messages"][-1]["content"] + (f" #{body['seed']}" if "seed" in body else "")
    return said(*[text if place == 0 else f"{text} ({place})" for place in range(body.get("n", 1))])


def always(status, content=b"{}", headers=None):
    return lambda *_: (status, headers or {}, content)


def in_turn(*answers):
    rest = collections.deque(answers)
    return lambda *request: rest.popleft()(*request)


def error(message):
    return json.dumps({"error": {"message": message, "type": "some"}}).encode()


@pytest.fixture
def server():
    one = Server()
    yield one
    one.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(http_client, "FIRST_WAIT", 0.01)
    monkeypatch.delenv(http_client.KEY_VARIABLE, raising=False)


@pytest.fixture
def lm(server):
    with OpenAICompatibleLM(server.url, "tiny", api_key=KEY, timeout=5) as one:
        yield one


# --- what is sent, and what comes back -------------------------------------------------------------------------------


def test_texts_come_back_in_order(lm, server):
    prompts = [f"prompt {number}" for number in range(20)]
    assert lm.generate(prompts) == prompts
    assert {path for path, _, _ in server.requests} == {"/v1/chat/completions"}
    assert all(headers["Authorization"] == f"Bearer {KEY}" for _, headers, _ in server.requests)
    body = server.requests[0][2]
    assert body == {"model": "tiny", "max_tokens": 128, "temperature": 0.0, "messages": body["messages"]}
    assert lm.generate([]) == []


def test_it_is_a_language_model(lm):
    assert isinstance(lm, CausalLM)
    assert as_lm(lm) is lm
    assert lm.is_chat
    with pytest.raises(UnsupportedError, match="an endpoint gives no hidden states"):
        lm.hidden_states(["a"], ["b"], [1])
    with pytest.raises(UnsupportedError, match="an endpoint gives no log-probabilities"):
        lm.logprobs(["a"], ["b"])


def test_a_chat_and_every_option(lm, server):
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi", "name": "not sent"}]
    lm.generate([chat], max_new_tokens=7, temperature=0.5, top_p=0.9, stop=["\n"])
    assert server.requests[0][2] == {
        "model": "tiny",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["\n"],
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
    }


def test_equal_prompts_are_asked_once_at_temperature_0(lm, server):
    assert lm.generate(["a", "b", "a"], n=2) == ["a", "a", "b", "b", "a", "a"]
    assert len(server.requests) == 2


def test_several_texts_of_a_prompt(lm, server):
    assert lm.generate(["a", "b"], n=3, temperature=1) == ["a", "a (1)", "a (2)", "b", "b (1)", "b (2)"]
    assert [body["n"] for _, _, body in server.requests] == [3, 3]


def test_a_server_that_gives_one_text_whatever_n(lm, server):
    server.answer = lambda server, path, body: said(f"{body.get('n', 1)} wanted")
    assert lm.generate(["a"], n=3, temperature=1) == ["3 wanted", "1 wanted", "1 wanted"]


def test_seeds_belong_to_rows(lm, server):
    first = lm.generate(["a", "b"], n=2, temperature=1, seed=5)
    again = lm.generate(["a", "b", "c"], n=2, temperature=1, seed=5)
    assert again[:4] == first
    assert len({text.split("#")[1] for text in again}) == 6
    assert lm.generate(["a", "b"], temperature=1, seed=[7, 7]) == ["a #7", "b #7"]
    assert all("n" not in body for _, _, body in server.requests)
    with pytest.raises(InputError, match="seed must be one number or one for each of 2 texts, got 3"):
        lm.generate(["a", "b"], temperature=1, seed=[1, 2, 3])


@given(st.integers(0, 2**63), st.integers(0, 20), st.integers(0, 20))
def test_the_seed_of_a_row_does_not_depend_on_how_many_there_are(seed, rows, more):
    longer = _row_seeds(seed, rows + more)
    assert _row_seeds(seed, rows) == longer[:rows]
    assert all(0 <= value < 2**31 for value in longer)


def test_a_base_model(server):
    server.answer = lambda server, path, body: (
        200,
        {},
        json.dumps({"choices": [{"text": body["prompt"] + " more"}]}).encode(),
    )
    with OpenAICompatibleLM(server.url, "base", is_chat=False) as lm:
        assert lm.generate(["once"]) == ["once more"]
        assert server.requests[0][0] == "/v1/completions"
        assert "Authorization" not in server.requests[0][1]
        with pytest.raises(InputError, match=r"prompts\[0\] is a chat, but base continues plain text"):
            lm.generate([[{"role": "user", "content": "Hi"}]])
        server.answer = always(200, b'{"choices": [{"text": null}]}')
        with pytest.raises(EndpointError, match="a choice holds no text"):
            lm.generate(["once"])


def test_a_message_without_content(lm, server):
    server.answer = always(200, b'{"choices": [{"message": {"content": null, "refusal": "I will not."}}]}')
    assert lm.generate(["a"]) == ["I will not."]
    server.answer = always(200, b'{"choices": [{"message": {"content": null}}]}')
    assert lm.generate(["a"]) == [""]
    server.answer = always(200, b'{"choices": [{"message": {"content": "half \\ud800 pair"}}]}')
    assert lm.generate(["a"]) == ["half ? pair"]


@pytest.mark.parametrize(
    "given_url",
    ["{}", "{}/", "{}/v1", "{}/v1/", "{}/v1/chat/completions", " {}/v1 "],
)
def test_with_and_without_v1(server, given_url):
    with OpenAICompatibleLM(given_url.format(server.url), "tiny") as lm:
        assert lm.generate(["a"]) == ["a"]
    assert server.requests[0][0] == "/v1/chat/completions"


@pytest.mark.parametrize(
    ("url", "base", "query"),
    [
        ("https://h/openai", "https://h/openai/v1", ""),
        ("https://h/api/v2", "https://h/api/v2", ""),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai", ""),
        ("http://[::1]:8000", "http://[::1]:8000/v1", ""),
        ("https://h/v1?api-version=3&code=secret#part", "https://h/v1", "?api-version=3&code=secret"),
    ],
)
def test_urls(url, base, query):
    assert split_url(url) == (base, query)


# --- the key and the URL stay out of every message -------------------------------------------------------------------


def everything_shown(lm, error):
    return repr(lm) + str(lm) + "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "answer",
    [
        always(401, error(f"Incorrect API key provided: {KEY}.")),
        always(400, error(f"bad header Bearer {KEY.upper()}")),
        always(302, headers={"Location": "http://elsewhere/?key=query-secret"}),
        always(500, json.dumps({"detail": KEY + " " + "x" * 500}).encode()),
        always(200, KEY.encode()),
        always(200, json.dumps({"choices": KEY}).encode()),
        lambda *_: 1 / 0,  # the connection breaks
    ],
)
def test_no_message_holds_the_key(server, answer):
    server.answer = answer
    with OpenAICompatibleLM(f"{server.url}/v1?code=query-secret", "tiny", api_key=KEY, retries=0) as lm:
        with pytest.raises(EndpointError) as caught:
            lm.generate(["a"])
        shown = everything_shown(lm, caught.value)
    assert server.requests[0][0] == "/v1/chat/completions?code=query-secret"
    assert server.url in str(caught.value)
    assert KEY not in shown.lower()
    assert "query-secret" not in shown
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_the_key_from_the_environment(server, monkeypatch):
    monkeypatch.setenv(http_client.KEY_VARIABLE, "from-the-environment")
    for key, sent in ((None, "from-the-environment"), ("argument", "argument")):
        with OpenAICompatibleLM(server.url, "tiny", api_key=key) as lm:
            lm.generate(["a"])
            assert server.requests[-1][1]["Authorization"] == f"Bearer {sent}"
            assert sent not in repr(lm)


@pytest.mark.parametrize("key", ["two words", "line\r\nX-Evil: 1", "", "käse"])
def test_a_key_that_does_not_fit_a_header(key):
    with pytest.raises(InputError, match="must be printable ASCII text without spaces") as caught:
        OpenAICompatibleLM("http://h", "tiny", api_key=key)
    assert not key or key not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "h:8000",
        "ftp://h/v1",
        "file:///etc/passwd",
        "http://",
        "http://h:port/v1",
        "http://a..b",
        "http://" + "a" * 300,
        "http://[::1/v1",
        "http://user:password@h/v1",
        "http://h\r\nX: 1/",
        7,
    ],
)
def test_urls_that_are_refused(url):
    with pytest.raises(InputError, match="base_url") as caught:
        OpenAICompatibleLM(url, "tiny")
    assert "password@" not in "".join(traceback.format_exception(caught.value))


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_client_error_is_not_tried_again(lm, server, status):
    server.answer = always(status, error("there is no model\x1b[31m 'tiny'"))
    with pytest.raises(EndpointError) as caught:
        lm.generate(["a"])
    expected = rf"{server.url}/v1/chat/completions answered {status}: there is no model\x1b[31m 'tiny'"
    assert str(caught.value) == expected
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_busy_server_is_tried_again(lm, server, status):
    server.answer = in_turn(always(status), always(status), echo)
    assert lm.generate(["a"]) == ["a"]
    assert len(server.requests) == 3


@pytest.mark.parametrize("body", [b"", b"<html>busy</html>", b"[]", b'{"error": 3}', b'{"error": {"message": []}}'])
def test_a_server_that_stays_busy(lm, server, body):
    server.answer = always(503, body)
    with pytest.raises(EndpointError, match=r"/v1/chat/completions answered 503$"):
        lm.generate(["a"])
    assert len(server.requests) == 3


def test_retry_after_is_kept_to(lm, server, monkeypatch):
    server.answer = in_turn(always(429, headers={"Retry-After": "0.2"}), echo)
    start = time.monotonic()
    assert lm.generate(["a"]) == ["a"]
    assert time.monotonic() - start >= 0.2
    server.answer = always(429, headers={"Retry-After": "3600"})
    with pytest.raises(EndpointError, match="answered 429 and asks for a pause of 3600 s"):
        lm.generate(["a"])
    assert len(server.requests) == 3


def test_ways_to_say_retry_after():
    assert _retry_after(None) == _retry_after("soon") == _retry_after("-4") == _retry_after("nan") == 0
    assert _retry_after("1.5") == 1.5
    assert 8 < _retry_after(formatdate(time.time() + 10, usegmt=True)) <= 10
    assert _retry_after(formatdate(time.time() - 10, usegmt=True)) == 0
    assert _retry_after("Mon, 99 Foo 20999999 00:00:00 GMT") == 0


def test_a_slow_server(server):
    server.answer = lambda server, *_: (server.stopped.wait(20), said("late"))[1]
    with OpenAICompatibleLM(server.url, "tiny", timeout=0.2) as lm:
        with pytest.raises(EndpointError, match=r"did not answer within 0\.2 s"):
            lm.generate(["a"])
        assert len(server.requests) == 1
    server.stopped.set()


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        OpenAICompatibleLM(f"http://127.0.0.1:{port}", "tiny") as lm,
        pytest.raises(
            EndpointError, match=rf"127\.0\.0\.1:{port}/v1/chat/completions cannot be reached \(Connection refused\)"
        ),
    ):
        lm.generate(["a"])


def test_a_redirect_is_not_followed(lm, server):
    server.answer = always(307, headers={"Location": f"{server.url}/v1/other"})
    with pytest.raises(EndpointError, match="answered 307, a redirect, which is not followed"):
        lm.generate(["a"])
    assert [path for path, _, _ in server.requests] == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    "body", [b"", b"no json", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"1" * 5000 + b"}"]
)
def test_garbage_instead_of_json(lm, server, body):
    server.answer = always(200, body)
    with pytest.raises(EndpointError, match="answered 200, but not with a JSON object"):
        lm.generate(["a"])


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "with no 'choices' where 1 were asked for"),
        ({"choices": []}, "with 0 choices where 1 were asked for"),
        ({"choices": [{"message": {"content": "a"}}] * 2}, "with 2 choices where 1 were asked for"),
        ({"choices": ["text"]}, "a choice holds no text"),
        ({"choices": [{"message": "text"}]}, "a choice holds no text"),
        ({"choices": [{"message": {"content": ["text"]}}]}, "a choice holds no text"),
        ({"choices": [{"text": "of the other protocol"}]}, "a choice holds no text"),
    ],
)
def test_a_wrong_number_or_kind_of_choices(lm, server, body, what):
    server.answer = always(200, json.dumps(body).encode())
    with pytest.raises(EndpointError, match=f"answered 200, but {what}"):
        lm.generate(["a"])


def test_a_huge_body(lm, server, monkeypatch):
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", 100_000)
    server.answer = always(200, b" " * 300_000)
    with pytest.raises(EndpointError, match="answered 200 with more than 100000 bytes"):
        lm.generate(["a"])
    assert len(server.requests) == 1


def test_a_compressed_body_is_not_unpacked(lm, server):
    server.answer = always(200, b"bomb", headers={"Content-Encoding": "gzip"})
    with pytest.raises(EndpointError, match="in a compressed form that was not asked for"):
        lm.generate(["a"])
    assert server.requests[0][1]["Accept-Encoding"] == "identity"


def test_the_first_failure_ends_the_rest(lm, server):
    server.answer = lambda server, path, body: (
        echo(server, path, body) if body["messages"][0]["content"] != "bad" else (400, {}, error("no"))
    )
    with pytest.raises(EndpointError, match="answered 400: no"):
        lm.generate(["bad", *(f"good {number}" for number in range(200))])
    assert len(server.requests) < 200
    assert lm.generate(["good"]) == ["good"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": "text"}, "prompts must be a list"),
        ({"prompts": [""]}, r"prompts\[0\] is empty"),
        ({"max_new_tokens": 0}, "max_new_tokens and n must be at least 1"),
        ({"temperature": -1}, "temperature must be a finite number"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"top_p": 0}, "top_p must lie in"),
        ({"stop": [""]}, "stop must be a list of non-empty strings"),
        ({"n": 0}, "max_new_tokens and n must be at least 1"),
    ],
)
def test_arguments_out_of_range(lm, server, options, message):
    with pytest.raises(InputError, match=message):
        lm.generate(**{"prompts": ["a"], **options})
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be a positive number"),
        ({"timeout": float("inf")}, "timeout must be"),
        ({"max_concurrency": 0}, "max_concurrency must be from 1"),
        ({"retries": -1}, "retries must be from 0"),
        ({"model": " "}, "model must be the name"),
    ],
)
def test_settings_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        OpenAICompatibleLM(**{"base_url": "http://h", "model": "tiny", **options})


# --- loops, threads, and the end -------------------------------------------------------------------------------------


def test_inside_a_running_loop(lm):
    async def notebook():
        assert lm.generate(["sync"]) == ["sync"]
        return await asyncio.gather(lm.agenerate(["one"]), lm.agenerate(["two"], temperature=1, n=2))

    assert asyncio.run(notebook()) == [["one"], ["two", "two (1)"]]
    assert asyncio.run(lm.agenerate(["another loop"])) == ["another loop"]


def test_cancelling_ends_the_request(server):
    server.answer = lambda server, *_: (server.stopped.wait(20), said("late"))[1]

    async def give_up(lm):
        await asyncio.wait_for(lm.agenerate(["a"]), 0.1)

    with OpenAICompatibleLM(server.url, "tiny") as lm, pytest.raises(TimeoutError):
        asyncio.run(give_up(lm))
    server.stopped.set()


def test_many_threads_and_the_cap(server):
    def slow_echo(server, path, body):
        time.sleep(0.005)
        return echo(server, path, body)

    server.answer = slow_echo
    with OpenAICompatibleLM(server.url, "tiny", max_concurrency=3) as lm, ThreadPoolExecutor(16) as pool:
        asked = [[f"{thread} {number}" for number in range(5)] for thread in range(16)]
        assert list(pool.map(lm.generate, asked)) == asked
    assert 1 < server.most <= 3
    assert len(server.requests) == 80


def endpoint_threads():
    return [thread for thread in threading.enumerate() if thread.name == "steelyard-endpoint"]


def test_closing(server):
    before = len(endpoint_threads())
    lm = OpenAICompatibleLM(server.url, "tiny")
    lm.close()  # before it was used
    lm = OpenAICompatibleLM(server.url, "tiny")
    lm.generate(["a"])
    assert len(endpoint_threads()) == before + 1
    lm.close()
    lm.close()
    assert len(endpoint_threads()) == before
    with pytest.raises(InputError, match=r"was closed; make a new one"):
        lm.generate(["a"])
    with pytest.raises(InputError, match=r"was closed; make a new one"):
        asyncio.run(lm.agenerate(["a"]))


def test_closing_ends_what_is_under_way(server):
    server.answer = lambda server, *_: (server.stopped.wait(20), said("late"))[1]
    lm = OpenAICompatibleLM(server.url, "tiny")

    async def asking():
        await lm.agenerate(["b"])

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lm.generate, ["a"]), pool.submit(asyncio.run, asking())]
        while len(server.requests) < 2:
            time.sleep(0.01)
        lm.close()
        for one in waiting:
            with pytest.raises(EndpointError, match="was closed while it was asked"):
                one.result(10)
    server.stopped.set()


def test_one_that_is_forgotten_leaves_no_thread(server):
    before = len(endpoint_threads())
    lm = OpenAICompatibleLM(server.url, "tiny")
    lm.generate(["a"])
    del lm
    gc.collect()
    assert len(endpoint_threads()) == before


def test_it_may_be_collected_on_its_own_loop(lm):
    """The last to hold an endpoint may be a request of its own that was given up."""
    lm.generate(["a"])
    running = lm._endpoint._running

    async def forget():
        running.stop()

    running.submit(forget())
    running._thread.join(5)
    assert not running._thread.is_alive()


def test_a_process_of_its_own_has_a_thread_of_its_own(lm, monkeypatch):
    """After a fork the thread of the parent is not there."""
    before = len(endpoint_threads())
    assert lm.generate(["a"]) == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr(http_client.os, "getpid", lambda: -1)
        assert lm.generate(["b"]) == ["b"]
        assert len(endpoint_threads()) == before + 2
        lm.close()


def test_what_is_no_http():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def speak():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n")

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        with (
            OpenAICompatibleLM(f"http://127.0.0.1:{listening.getsockname()[1]}", "tiny", retries=0) as lm,
            pytest.raises(EndpointError, match=r"cannot be reached \(.+\)"),
        ):
            lm.generate(["a"])
        thread.join()


# --- embeddings ------------------------------------------------------------------------------------------------------


def vectors(server, path, body):
    """One vector per text, out of order: the text's length and 1."""
    rows = [{"index": place, "embedding": [len(text), 1]} for place, text in enumerate(body["input"])]
    return 200, {}, json.dumps({"data": rows[::-1]}).encode()


def test_embeddings(server):
    server.answer = vectors
    encoder = EndpointEmbedder(server.url, "encoder", api_key=KEY)
    assert encoder.encode([]).shape == (0, 0)
    found = encoder.encode(["a", "abc", "abcde"], batch_size=2)
    assert found.shape == (3, 2)
    assert found.dtype.name == "float32"
    for row, length in zip(found, (1, 3, 5), strict=True):
        assert row.tolist() == pytest.approx([length / (length**2 + 1) ** 0.5, 1 / (length**2 + 1) ** 0.5])
    assert {path for path, _, _ in server.requests} == {"/v1/embeddings"}
    assert encoder.encode([]).shape == (0, 2)
    assert repr(encoder) == f"EndpointEmbedder('{server.url}/v1', model='encoder')"
    encoder.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "one vector for each of 2 texts"),
        ([], "one vector for each of 2 texts"),
        (["x", "y"], "item 0 of 'data' has no list of finite numbers"),
        ([{"embedding": []}] * 2, "no list of finite numbers"),
        ([{"embedding": [True]}] * 2, "no list of finite numbers"),
        ([{"embedding": ["1"]}] * 2, "no list of finite numbers"),
        ([{"embedding": [float("nan")]}] * 2, "no list of finite numbers"),
        ([{"embedding": [1e300]}] * 2, "no list of finite numbers"),
        ([{"embedding": [10**400]}] * 2, "no list of finite numbers"),
        ([{"embedding": [1.0]}], "one vector for each of 2 texts"),
        ([{"embedding": [1.0], "index": 0}] * 2, "one vector for each of 2 texts"),
        ([{"embedding": [1.0], "index": 5}, {"embedding": [1.0], "index": 0}], "one vector for each of 2 texts"),
        ([{"embedding": [1.0]}, {"embedding": [1.0, 2.0]}], "a vector has not 1 numbers like the first"),
    ],
)
def test_embeddings_that_are_none(server, data, message):
    server.answer = always(200, json.dumps({"data": data}).encode())
    encoder = EndpointEmbedder(server.url, "encoder", retries=0)
    with pytest.raises(EndpointError, match=message):
        encoder.encode(["a", "b"])
    encoder.close()
