"""No route skips the checks, every completion route runs the defence, and no generated request is a server error."""

import asyncio
import json

import httpx
import pytest
import schemathesis
from hypothesis import example, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error

from steelyard.errors import InputError
from steelyard.serve import guard_proxy
from steelyard.serve.chat_api import GUARDED, Completion, completion_body
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import Upstream

ROUTES = {
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/healthz"),
    ("GET", "/metrics"),
}
ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Healthy(Upstream):
    """An upstream that answers at once and counts."""

    def __init__(self):
        self.asked = []

    async def complete(self, payload):
        self.asked.append(payload)
        return Completion(completion_body("m", "undefended"))

    async def models(self):
        return [{"id": "m", "object": "model", "created": 0, "owned_by": "me"}]


class Defended:
    def answer(self, messages, complete):
        complete([messages] * 3)
        return Answer("defended", {"x_smoothing": {"complied": False}})


def send(app, method, path, headers=None, **options):
    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(main())


def documented(app):
    return {(method.upper(), path) for path, entry in app.openapi()["paths"].items() for method in entry}


def reachable(routes):
    """Yield the path of every route, those of included routers too."""
    for route in routes:
        path = getattr(route, "path", None)
        if path is not None:
            yield path
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        yield from reachable(inner or ())


@pytest.fixture(params=[None, Defended()], ids=["off", "on"])
def app(request):
    return make_app(Healthy(), request.param, client_key="right")


def test_the_routes_are_those_that_are_known(app):
    assert documented(app) == ROUTES
    assert set(reachable(app.routes)) == {path for _, path in ROUTES} | {"/openapi.json"}


@pytest.mark.parametrize(("method", "path"), [*sorted(ROUTES), ("GET", "/openapi.json"), ("GET", "/nowhere")])
def test_every_route_passes_the_checks(app, method, path):
    key = {"authorization": "Bearer right"}
    body = {"json": ASK} if method == "POST" else {}
    good = send(app, method, path, key, **body)
    assert good.status_code == (404 if path == "/nowhere" else 200)
    assert good.headers["x-content-type-options"] == "nosniff"
    assert good.headers["cache-control"] == "no-store"
    for bad, status in (
        ({"host": "evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
    ):
        reply = send(app, method, path, {**key, **bad}, **body)
        assert reply.status_code == status
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert send(app, method, f"{path}?api_base=x", key, **body).status_code == 400
    for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic right"}, {"authorization": "right"}):
        assert send(app, method, path, wrong, **body).status_code == (200 if path == "/healthz" else 401)


@pytest.mark.parametrize("stream", [False, True])
def test_every_completion_route_runs_the_defence(stream):
    posts = {path for method, path in documented(make_app(Healthy())) if method == "POST"}
    assert posts == {"/v1/chat/completions"}
    for path in posts:
        upstream = Healthy()
        reply = send(make_app(upstream, Defended()), "POST", path, json={**ASK, "stream": stream})
        assert reply.status_code == 200
        assert "defended" in reply.text
        assert "undefended" not in reply.text
        assert "x_smoothing" in reply.text
        assert len(upstream.asked) == 3
        assert not any("stream" in payload for payload in upstream.asked)


SENT = {
    "messages": ASK["messages"], "model": "m", "temperature": 1.5, "top_p": 0.5, "max_tokens": 9, "stop": ["x"],
    "max_completion_tokens": 9, "seed": 5, "n": 1, "stream": True, "stream_options": {"include_usage": True},
    "presence_penalty": -1, "frequency_penalty": 1, "user": "me", "metadata": {"a": "b"},
    "response_format": {"type": "json_object"}, "modalities": ["text"], "reasoning_effort": "low", "verbosity": "low",
    "safety_identifier": "me", "service_tier": "flex", "prompt_cache_key": "k", "store": True, "cache_prompt": True,
    "chat_template_kwargs": {"enable_thinking": False}, "top_k": 5, "min_p": 0.1, "typical_p": 0.5, "top_n_sigma": 1,
    "repetition_penalty": 1.1, "repeat_penalty": 1.1, "repeat_last_n": 64, "mirostat": 2, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
}  # fmt: skip


def test_every_field_that_is_sent_on_has_a_value_here():
    assert set(SENT) == set(GUARDED)


@given(st.sets(st.sampled_from(sorted(SENT))))
@example(set(SENT))
def test_no_accepted_fields_lead_past_the_defence(names):
    upstream = Healthy()
    fields = {**ASK, **{name: SENT[name] for name in names}}
    reply = send(make_app(upstream, Defended()), "POST", "/v1/chat/completions", json=fields)
    assert reply.status_code == 200
    assert "undefended" not in reply.text
    assert "x_smoothing" in reply.text
    assert len(upstream.asked) == 3
    dropped = ("stream", "stream_options", "n")
    for payload in upstream.asked:
        assert payload == {name: value for name, value in fields.items() if name not in dropped}


@pytest.mark.parametrize("name", sorted(SENT))
def test_no_accepted_field_leads_past_the_defence(name):
    test_no_accepted_fields_lead_past_the_defence.hypothesis.inner_test({name})


def test_what_is_counted():
    app = make_app(Healthy(), Defended())
    send(app, "POST", "/v1/chat/completions", json=ASK)
    send(app, "POST", "/v1/chat/completions", json={**ASK, "n": 5})
    page = send(app, "GET", "/metrics").text
    for line in (
        'requests_total{route="/v1/chat/completions",status="200"} 1.0',
        'requests_total{route="/v1/chat/completions",status="400"} 1.0',
        'refusals_total{reason="unsupported_with_guard"} 1.0',
        "upstream_calls_total 3.0",
        'verdicts_total{verdict="refused"} 1.0',
        'request_seconds_count{route="/v1/chat/completions"} 2.0',
    ):
        assert f"steelyard_guard_{line}" in page
    assert "upstream_calls_total 3.0" not in send(make_app(Healthy()), "GET", "/metrics").text


def test_a_websocket_is_closed():
    sent = []

    async def main():
        async def send(message):
            sent.append(message)

        await make_app(Healthy())({"type": "websocket", "path": "/", "headers": []}, None, send)

    asyncio.run(main())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_handler_refuses_a_request_that_was_not_checked():
    with pytest.raises(guard_proxy.ProxyError, match="not checked"):
        guard_proxy._payload({"type": "http"})


def test_an_empty_key_is_refused():
    with pytest.raises(InputError, match="client_key"):
        make_app(Healthy(), client_key=" ")


def test_ports_that_cannot_be_used():
    server, listener = guard_proxy.make_server(make_app(Healthy()), 0)
    with pytest.raises(InputError, match="choose another port"):
        guard_proxy.make_server(make_app(Healthy()), listener.getsockname()[1])
    with pytest.raises(InputError, match="choose another port"):
        guard_proxy.make_server(make_app(Healthy()), 70_000)
    assert listener.getsockname()[0] == "127.0.0.1"
    assert server.config.proxy_headers is False
    listener.close()


def test_run_says_where_it_listens(capsys, monkeypatch):
    def stop(self, sockets):
        assert sockets
        raise KeyboardInterrupt

    monkeypatch.setattr(guard_proxy.uvicorn.Server, "run", stop)
    guard_proxy.run(make_app(Healthy()), 0)
    out = capsys.readouterr().out
    assert "http://127.0.0.1:" in out
    assert out.endswith("Stopped.\n")


def on_localhost(app):
    """Return ``app`` under the name that its clients use; the tool's own is another."""

    async def named(scope, receive, send):
        if scope["type"] == "http":
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope = {**scope, "headers": [*headers, (b"host", b"localhost")]}
        await app(scope, receive, send)

    return named


schema_off = schemathesis.openapi.from_asgi("/openapi.json", on_localhost(make_app(Healthy())))
schema_on = schemathesis.openapi.from_asgi("/openapi.json", on_localhost(make_app(Healthy(), Defended())))


@schema_off.parametrize()
@settings(max_examples=60)
def test_no_generated_request_is_a_server_error(case):
    case.call_and_validate(checks=[not_a_server_error])


@schema_on.parametrize()
@settings(max_examples=60)
def test_no_generated_request_is_a_server_error_with_a_guard_on(case):
    reply = case.call_and_validate(checks=[not_a_server_error])
    assert "undefended" not in json.dumps(reply.text)
