"""Hostile requests over raw sockets: each is refused with an error in OpenAI's shape, or its connection is closed."""

import json
import socket
import time

import pytest
from serve_upstreams import Stub, served

from steelyard.serve.chat_api import Limits
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import HttpUpstream

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
LENGTH = len(BODY)
LIMITS = Limits(body_bytes=20_000, characters=5000, messages=100, copies=8)


class Echo:
    def answer(self, messages, complete):
        return Answer("guarded " + complete([messages])[0], {})


@pytest.fixture(scope="module")
def stub():
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture(scope="module", params=["off", "on"])
def port(request, stub):
    app = make_app(HttpUpstream(stub.url), Echo() if request.param == "on" else None, limits=LIMITS)
    with served(app) as port:
        yield port


@pytest.fixture(scope="module")
def hasty(stub):
    """The port of a proxy that waits half a second for a head or a body."""
    limits = Limits(header_seconds=0.5, body_seconds=0.5)
    with served(make_app(HttpUpstream(stub.url), limits=limits)) as port:
        yield port


@pytest.fixture
def asked(stub):
    """The number of upstream calls during a test."""
    before = len(stub.seen)
    return lambda: len(stub.seen) - before


def exchange(port, raw, seconds=8.0):
    """Send bytes, return everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(raw)
        return read_all(connection)


def read_all(connection):
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def head(*extra, length=LENGTH, path="/v1/chat/completions", method="POST", host="Host: localhost"):
    lines = [f"{method} {path} HTTP/1.1", host, "Content-Type: application/json", "Connection: close"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return "\r\n".join([line for line in [*lines, *extra] if line] + ["", ""]).encode("latin-1")


def parsed(raw):
    """Return status and JSON of one raw answer."""
    top, _, body = raw.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(body)


def refused(raw, *statuses):
    status, data = parsed(raw)
    assert status in statuses, (status, data)
    assert set(data) == {"error"}
    assert set(data["error"]) == {"message", "type", "param", "code"}
    return data["error"]["code"]


def post(port, payload, *extra, **options):
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return exchange(port, head(*extra, length=len(body), **options) + body)


def chat(**fields):
    return {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}


def test_a_plain_request_like_curls_is_answered(port):
    status, data = parsed(post(port, BODY))
    assert status == 200
    assert data["choices"][0]["message"]["content"].endswith("echo: hello")


@pytest.mark.parametrize("name", ["127.0.0.1", "LOCALHOST", "localhost:1234"])
def test_local_hosts_are_answered(port, name):
    assert parsed(post(port, BODY, host=f"Host: {name}"))[0] == 200


@pytest.mark.parametrize(
    "host", ["Host: evil.example", "Host: localhost.evil.example", "Host: localhost@evil", "Host: [::1]", "Host: "]
)
def test_other_hosts_are_refused(port, host, asked):
    assert refused(post(port, BODY, host=host), 403, 400) in ("bad_host", "bad_header")
    assert asked() == 0


@pytest.mark.parametrize(
    "extra", ["Origin: https://evil.example", "Origin: null", "Origin: http://localhost.evil.example",
              "Sec-Fetch-Site: cross-site"],
)  # fmt: skip
def test_pages_of_other_sites_are_refused(port, extra, asked):
    assert refused(post(port, BODY, extra), 403) == "cross_origin"
    assert asked() == 0


def test_a_local_page_is_answered(port):
    assert parsed(post(port, BODY, "Origin: http://127.0.0.1:9000", "Sec-Fetch-Site: same-site"))[0] == 200


@pytest.mark.parametrize(
    "raw",
    [
        head("Content-Length: 5") + BODY,
        head(f"Content-Length: {len(BODY)}") + BODY,
        head("Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("Transfer-Encoding: chunked", "Transfer-Encoding: identity", length=None) + b"0\r\n\r\n",
        head("Transfer-Encoding: gzip, chunked", length=None) + b"0\r\n\r\n",
        head("Transfer-Encoding: xchunked", length=None) + b"0\r\n\r\n",
        head("X-Folded: one\r\n two") + BODY,
        head("X-Folded: one\r\n\tContent-Length: 3") + BODY,
        head("Content-Length : 3", length=None) + BODY,
        head("Host: evil.example") + BODY,
        head("Host: localhost") + BODY,
        head("Content-Type: text/plain") + BODY,
        head("Origin: http://localhost", "Origin: https://evil.example") + BODY,
        head(length="-5") + BODY,
        head(length="5, 5") + BODY,
        head(length=f"{LENGTH}, {LENGTH}") + BODY,
        head("Transfer-Encoding: chunked", length=None).replace(b"HTTP/1.1", b"HTTP/1.0")
        + b"%x\r\n" % LENGTH
        + BODY
        + b"\r\n0\r\n\r\n",
        head(length="0x10") + BODY,
        head(length="9" * 30) + BODY,
        head("X-Zero: a\0b") + BODY,
        head("X-Return: a\rContent-Length: 3") + BODY,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
        b"GET / SMTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\r\n\r\n\r\n",
    ],
)
def test_ambiguous_and_broken_requests_are_refused(port, raw, asked):
    assert refused(exchange(port, raw), 400, 413)
    assert asked() == 0


def test_a_head_without_end_is_refused(port, asked):
    answer = exchange(port, head("X-Long: " + "a" * 70_000) + BODY)
    assert not answer or refused(answer, 400)  # closing with bytes unread may reset the connection
    assert asked() == 0


def test_a_second_request_behind_the_first_is_framed_as_strictly(port, asked):
    first = head(path="/healthz", method="GET", length=None).replace(b"Connection: close\r\n", b"")
    raw = exchange(port, first + head("Content-Length: 5") + BODY)
    assert b'{"status":"ok"}' in raw
    assert raw.count(b"HTTP/1.1") == 2
    assert b"HTTP/1.1 400" in raw
    assert asked() == 0


@pytest.mark.parametrize(
    "extra",
    [
        {"api_base": "http://evil"}, {"base_url": "http://evil"}, {"api_key": "k"}, {"upstream": "x"}, {"API-Key": "k"},
        {"apiBase": "x"}, {"host": "x"}, {"extra_headers": {}}, {"provider": {"deep": [{"endpoint": "x"}]}},
        {"ａpi_key": "k"}, {"tools": [{"type": "mcp", "server_url": "http://evil"}]}, {"accesskey": None},
        {"proxy": "http://evil"}, {"authorization": "Bearer k"}, {"x": {"parameters": {"base_url": "u"}}},
    ],
)  # fmt: skip
def test_bodies_that_name_hosts_or_keys_are_refused(port, extra, asked):
    assert refused(post(port, chat(**extra)), 400) == "host_or_key"
    assert asked() == 0


@pytest.mark.parametrize("query", ["api_base=http://evil", "a=1&API_KEY=2", "api%5Fkey=1", "api%255Fkey=1", "upstream"])
def test_queries_that_name_hosts_or_keys_are_refused(port, query, asked):
    assert refused(post(port, BODY, path=f"/v1/chat/completions?{query}"), 400) == "host_or_key"
    assert asked() == 0


def test_a_query_of_many_fields_is_refused(port):
    refused(post(port, BODY, path="/v1/chat/completions?" + "&".join("a=1" for _ in range(200))), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b"\xef\xbb\xbf" + BODY, b"[" * 15_000, b'{"a":' * 3000,
        b'{"a":' * 40 + b"1" + b"}" * 40, json.dumps(chat(temperature=float("nan"))).encode(),
        json.dumps(chat(temperature=float("inf"))).encode(), BODY[:-1] + b', "top_p": 1e999}',
        BODY[:-1] + b', "seed": ' + b"9" * 5000 + b"}", BODY[:-1] + b', "x": ' + b"9" * 100 + b"}",
        BODY.replace(b"hello", b"\\ud800"), BODY.replace(b'"model"', b'"\\udfff"'),
    ],
)  # fmt: skip
def test_bodies_that_are_no_usable_json_are_refused(port, body, asked):
    refused(post(port, body), 400)
    assert asked() == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []}, {"messages": "hello"}, {"messages": [{"role": "user", "content": "a"}] * 101},
        {"messages": [{"role": "root", "content": "a"}]}, {"messages": [{"content": "a"}]}, {"messages": [None]},
        {"messages": [{"role": "user", "content": 5}]}, {"n": 10**6}, {"n": 0}, {"n": "2"}, {"n": True}, {"n": 1.5},
        {"temperature": -1}, {"temperature": 3}, {"temperature": "hot"}, {"top_p": 2}, {"max_tokens": 0},
        {"max_tokens": 10**12}, {"max_completion_tokens": -1}, {"seed": 2**63}, {"seed": "x"}, {"stop": ["a"] * 50},
        {"stop": 5}, {"stream": "yes"}, {"stream_options": []}, {"model": ""}, {"model": "m" * 1000}, {"model": 3},
        {"user": 5}, {"presence_penalty": 9}, {"tools": "x"},
    ],
)  # fmt: skip
def test_fields_out_of_range_are_refused(port, fields, asked):
    refused(post(port, chat(**fields)), 400)
    assert asked() == 0


def test_ten_thousand_messages_are_refused(port, asked):
    body = json.dumps({"messages": [{"role": "user", "content": ""}] * 10_000}).encode()
    assert refused(post(port, body), 413) == "too_large"
    assert asked() == 0


def test_too_many_characters_are_refused(port, asked):
    parts = [{"type": "text", "text": "a" * 3000}] * 2
    refused(post(port, chat(messages=[{"role": "user", "content": parts}])), 413)
    assert asked() == 0


@pytest.mark.parametrize("size", [20_001, 300_000, 100_000_000])
def test_large_bodies_are_refused(port, size, asked):
    raw = head(length=size) + b" " * min(size, 300_000)
    assert refused(exchange(port, raw), 413) == "too_large"
    assert asked() == 0


def test_large_bodies_in_chunks_are_refused(port, asked):
    piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    raw = head("Transfer-Encoding: chunked", length=None) + piece * 30 + b"0\r\n\r\n"
    assert refused(exchange(port, raw), 413) == "too_large"
    assert asked() == 0


def test_a_body_in_chunks_is_answered(port):
    raw = head("Transfer-Encoding: chunked", length=None) + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
    assert parsed(exchange(port, raw))[0] == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
             "application/json; charset=utf-16"],
)  # fmt: skip
def test_other_content_types_are_refused(port, kind, asked):
    raw = head().replace(b"Content-Type: application/json", f"Content-Type: {kind}".encode()) + BODY
    assert refused(exchange(port, raw), 415) == "bad_content_type"
    assert refused(post(port, BODY, "Content-Encoding: gzip"), 415) == "bad_content_type"
    assert asked() == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"POST /v1/chat",
        head()[:-2],
        head() + BODY[:-1],
        head("Transfer-Encoding: chunked", length=None) + b"5\r\n",
    ],
)
def test_requests_that_never_end_are_ended(hasty, raw, asked):
    start = time.monotonic()
    assert refused(exchange(hasty, raw), 408) == "slow_request"
    assert time.monotonic() - start < 5
    assert asked() == 0


def test_a_byte_now_and_then_does_not_keep_a_connection(hasty, asked):
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", hasty), timeout=8) as connection:
        try:
            for byte in head():
                connection.sendall(bytes([byte]))
                time.sleep(0.03)
        except OSError:
            pass
        answer = read_all(connection)
    assert time.monotonic() - start < 5
    assert not answer or refused(answer, 408)
    assert asked() == 0


def test_one_connection_too_many_is_refused(stub):
    with served(make_app(HttpUpstream(stub.url), limits=Limits(connections=5))) as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        time.sleep(0.2)
        assert refused(exchange(port, b""), 503) == "too_many_connections"
        for connection in held:
            connection.close()
        time.sleep(1.0)
        assert parsed(post(port, BODY))[0] == 200


def test_half_a_connection_is_no_answer(port):
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(head() + BODY[:-3])
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("DELETE", "/v1/models", 405),
    ("POST", "/v1/completions", 404), ("GET", "/", 404), ("GET", "/docs", 404), ("GET", "/redoc", 404),
    ("GET", "/v1/models/", 404), ("GET", "/v1/../healthz", 404), ("OPTIONS", "/v1/chat/completions", 405),
    ("BREW", "/healthz", 405),
])  # fmt: skip
def test_other_routes_and_methods_are_errors_of_the_same_shape(port, method, path, status):
    refused(exchange(port, head(method=method, path=path) + BODY), status)


def test_an_upgrade_is_not_followed_nor_spoken_of(port, caplog):
    raw = head("Upgrade: websocket", "Sec-WebSocket-Key: x").replace(
        b"Connection: close", b"Connection: upgrade, close"
    )
    assert parsed(exchange(port, raw + BODY))[0] == 200
    assert caplog.messages == []


def test_the_server_listens_on_this_machine_only(port):
    names = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for name in names - {"127.0.0.1"}:
        if not name.startswith("127."):
            with pytest.raises(OSError, match=r"refused|timed out|unreachable"):
                socket.create_connection((name, port), timeout=2)


def test_an_answer_that_nobody_reads_is_given_up(stub):
    app = make_app(HttpUpstream(stub.url), limits=Limits(write_seconds=0.3))
    stub.mode = "large"
    try:
        with served(app) as port, socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(8)
            connection.connect(("127.0.0.1", port))
            connection.sendall(head() + BODY)
            time.sleep(3.0)
            assert len(read_all(connection)) < 7_000_000
            stub.mode = "ok"
            assert parsed(post(port, BODY))[0] == 200
    finally:
        stub.mode = "ok"


def test_a_large_answer_that_is_read_slowly_arrives_whole(stub):
    stub.mode = "large"
    try:
        with served(make_app(HttpUpstream(stub.url))) as port, socket.socket() as connection:
            connection.settimeout(8)
            connection.connect(("127.0.0.1", port))
            connection.sendall(head() + BODY)
            time.sleep(0.3)
            status, data = parsed(read_all(connection))
    finally:
        stub.mode = "ok"
    assert status == 200
    assert len(data["choices"][0]["message"]["content"]) == 7_000_000
