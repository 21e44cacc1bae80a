"""Upstreams that hang, redirect, break off or send garbage, and guards that fail: an error leaves, never an answer."""

import asyncio
import logging

import httpx
import openai
import pytest
from serve_upstreams import Stub, served

from steelyard.errors import InputError
from steelyard.models import tiny_random_lm
from steelyard.serve.chat_api import Limits, ProxyError
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import HttpUpstream, LocalUpstream, Upstream

ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
KEY = "operator-secret-key-1"


class Echo:
    def answer(self, messages, complete):
        return Answer(complete([messages])[0], {})


class Score:
    def score(self, messages, text):
        return {"x_discrepancy": {"score": 1.0}}


class Fails:
    """A defence and a detector that does whatever it is given."""

    def __init__(self, act):
        self.act = act

    def answer(self, messages, complete):
        complete([messages])
        return self.act(complete)

    def score(self, messages, text):
        return self.act(None)


def raises(_):
    raise RuntimeError("the prompt was: hello, undefended")


@pytest.fixture(scope="module")
def stub():
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture(autouse=True)
def _as_it_was(stub, monkeypatch):
    monkeypatch.setenv("STEELYARD_API_KEY", KEY)
    stub.mode, stub.delay = "ok", 0.0


def asked_of(app, payload, path="/v1/chat/completions"):
    """Return the response of one request that is made without a socket."""

    async def main():
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return await (client.get(path) if payload is None else client.post(path, json=payload))

    return asyncio.run(main())


def proxy(stub, defence=None, detector=None, timeout=5.0, **limits):
    made = Limits(answer_bytes=100_000, keep_alive_seconds=0.05, **limits)
    return make_app(HttpUpstream(stub.url, limits=made, timeout=timeout), defence, detector, made)


EXPECTED = {
    "redirect": 502, "garbage": 502, "not_http": 502, "no_choices": 502, "nan": 502, "html": 502, "half": 502,
    "oversized": 502, "gzip": 502, "error": 502, "wrong_key": 502, "busy": 429, "bad_request": 400, "leaks_key": 400,
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("guard", [{}, {"defence": Echo()}, {"detector": Score()}], ids=["off", "defence", "detector"])
@pytest.mark.parametrize("mode", EXPECTED)
def test_what_a_broken_upstream_becomes(stub, mode, guard, stream, caplog):
    caplog.set_level(logging.DEBUG)
    stub.mode = mode
    reply = asked_of(proxy(stub, **guard), {**ASK, "stream": stream})
    begun = stream and reply.status_code == 200
    if not begun:
        assert reply.status_code == EXPECTED[mode]
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    else:
        assert '"error"' in reply.text
        assert "[DONE]" not in reply.text
        if guard:
            assert "delta" not in reply.text
    for told in (reply.text, caplog.text):
        assert KEY not in told
        assert "secret" not in told
        assert "10.1.2.3" not in told
        assert "\x1b" not in told
    assert all(path == "/v1/chat/completions" for path, _, _ in stub.seen)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("defence", [None, Echo()])
def test_an_upstream_that_hangs_is_a_timeout(stub, defence, stream):
    stub.delay = 5.0
    reply = asked_of(proxy(stub, defence, timeout=0.2), {**ASK, "stream": stream})
    assert reply.status_code == (200 if stream else 504)
    assert '"code":"upstream_timeout"' in reply.text
    assert "[DONE]" not in reply.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("defence", [None, Echo()])
def test_a_request_has_an_end(stub, defence, stream):
    stub.delay = 5.0
    reply = asked_of(proxy(stub, defence, timeout=9, request_seconds=0.2), {**ASK, "stream": stream})
    assert reply.status_code == (200 if stream else 504)
    assert '"code":"timeout"' in reply.text


@pytest.mark.parametrize(("mode", "said"), [("no_end", "in the middle"), ("bad_chunk", "no chunk")])
def test_a_stream_that_is_no_stream_ends_in_an_error(stub, mode, said):
    stub.mode = mode
    reply = asked_of(proxy(stub), {**ASK, "stream": True})
    assert said in reply.text
    assert "[DONE]" not in reply.text


def test_a_stream_without_chunks_is_passed_on(stub):
    stub.mode = "no_chunks"
    assert asked_of(proxy(stub), {**ASK, "stream": True}).text == "data: [DONE]\n\n"


def test_a_list_of_models_that_is_none(stub):
    answer = stub.send
    stub.send = lambda handler, data, *args, **options: answer(handler, [1], *args, **options)
    try:
        reply = asked_of(proxy(stub), None, "/v1/models")
    finally:
        stub.send = answer
    assert reply.status_code == 502


def test_an_upstream_that_is_not_there(stub):
    nowhere = Stub()
    nowhere.close()
    for path, payload in (("/v1/chat/completions", ASK), ("/v1/models", None)):
        reply = asked_of(make_app(HttpUpstream(nowhere.url)), payload, path)
        assert reply.status_code == 502
        assert reply.json()["error"]["code"] == "upstream_error"
        assert str(nowhere.port) not in reply.text


@pytest.mark.parametrize(
    "act",
    [
        raises,
        lambda _: None,
        lambda _: Answer(None, {}),
        lambda _: Answer("echo: hello", {"choices": []}),
        lambda _: Answer("echo: hello", {"x_smoothing": float("nan")}),
        lambda _: Answer("echo: hello", {"x_smoothing": object()}),
        lambda complete: complete([ASK["messages"]] * 1000),
        lambda complete: complete([ASK["messages"]], seeds=[1, 2]),
        lambda complete: complete([ASK["messages"]], seeds=["x"]),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_defence_that_fails_lets_nothing_through(stub, act, stream, caplog):
    reply = asked_of(proxy(stub, Fails(act)), {**ASK, "stream": stream})
    assert '"code":"defence_failed"' in reply.text
    assert "echo" not in reply.text
    assert "hello" not in reply.text + caplog.text
    assert reply.status_code == 500 or (stream and reply.status_code == 200)


@pytest.mark.parametrize("act", [raises, lambda _: None, lambda _: {"y": 1}, lambda _: {"x_d": object()}])
@pytest.mark.parametrize("defence", [None, Echo()])
def test_a_detector_that_fails_lets_nothing_through(stub, act, defence, caplog):
    reply = asked_of(proxy(stub, defence, Fails(act)), ASK)
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "detector_failed"
    assert "echo" not in reply.text
    assert "hello" not in reply.text + caplog.text


def test_a_defence_may_ask_for_nothing(stub):
    reply = asked_of(proxy(stub, Fails(lambda complete: Answer(f"n={len(complete([]))}", {}))), ASK)
    assert reply.json()["choices"][0]["message"]["content"] == "n=0"


def test_a_route_that_breaks_is_an_error_of_the_same_shape(stub, caplog):
    app = proxy(stub)
    app.add_api_route("/breaks", lambda: 1 / 0)
    app.add_api_route("/needs", lambda number: number)
    reply = asked_of(app, None, "/breaks")
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "ZeroDivisionError" in caplog.text
    assert "division by" not in caplog.text
    assert asked_of(app, None, "/needs").json()["error"]["code"] == "invalid_request"


def test_an_answer_that_breaks_after_it_began_is_cut_off(stub, caplog):
    async def breaks(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("hello")

    app = proxy(stub)
    app.mount("/breaks", breaks)
    with served(app) as port, pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"http://127.0.0.1:{port}/breaks/now")
    assert "hello" not in caplog.text


def test_a_stream_that_breaks_inside_is_an_error_event(stub):
    class Odd(Upstream):
        async def complete(self, payload):
            raise ZeroDivisionError

        async def models(self):
            return []

        async def stream(self, payload):
            yield {"choices": []}
            yield {"choices": float("nan")}

    reply = asked_of(make_app(Odd()), {**ASK, "stream": True})
    assert reply.text.endswith('"code":"internal_error"}}\n\n')


def test_the_official_client_sees_an_error_in_a_stream(stub):
    stub.delay = 1.0
    with served(proxy(stub, Echo(), timeout=0.3)) as port:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        with pytest.raises(openai.APIError, match="did not answer in time"):
            list(client.chat.completions.create(**ASK, stream=True))


def test_one_request_too_many_is_refused(stub):
    stub.delay = 1.5
    with served(proxy(stub, timeout=9, concurrency=2)) as port:

        async def main():
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                replies = [client.post("/v1/chat/completions", json=ASK) for _ in range(5)]
                return [reply.status_code for reply in await asyncio.gather(*replies)], await client.get("/healthz")

        statuses, health = asyncio.run(main())
    assert sorted(statuses) == [200, 200, 429, 429, 429]
    assert health.status_code == 200


def test_a_connection_that_the_upstream_closed_is_opened_again(stub):
    calls = []
    answer_ok = stub.answer_ok

    def closes_once(handler, payload):
        calls.append(1)
        if len(calls) == 2:
            handler.close_connection = True
        else:
            answer_ok(handler, payload)

    stub.mode, stub.answer_closes_once = "closes_once", closes_once
    app = proxy(stub)

    async def main():
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return [(await client.post("/v1/chat/completions", json=ASK)).status_code for _ in range(2)]

    assert asyncio.run(main()) == [200, 200]
    assert len(calls) == 3


@pytest.mark.parametrize("key", ["with\nline", "schlüssel"])
def test_a_key_that_is_no_header_is_refused_without_showing_it(key, monkeypatch):
    monkeypatch.setenv("STEELYARD_API_KEY", key)
    with pytest.raises(InputError) as caught:
        HttpUpstream("http://127.0.0.1:1")
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "ftp://a", "127.0.0.1:8000", "http://", "http://user:pass@host", "http://host?a=1", "http://host#a",
            "http://host:99999", "http://ho st", "file:///etc/passwd", "http://[::1"],
)  # fmt: skip
def test_urls_that_are_refused(url):
    with pytest.raises(InputError, match="base_url"):
        HttpUpstream(url)


def test_urls_and_what_they_become(monkeypatch):
    monkeypatch.setenv("STEELYARD_API_KEY", KEY)
    assert "'http://127.0.0.1:1/v1'" in repr(HttpUpstream("http://127.0.0.1:1"))
    upstream = HttpUpstream("https://host/some/path/", model="fixed")
    assert "'https://host/some/path/v1'" in repr(upstream)  # as for OpenAICompatibleLM, which asks beside it
    assert KEY not in repr(upstream) + str(vars(upstream).get("_session"))


def test_the_operators_model_is_the_one_that_is_asked(stub):
    app = make_app(HttpUpstream(stub.url, model="fixed"))
    assert asked_of(app, ASK).json()["model"] == "fixed"
    assert (
        asked_of(make_app(HttpUpstream(stub.url, model="fixed")), None, "/v1/models").json()["data"][0]["id"] == "fixed"
    )


def test_half_a_surrogate_pair_becomes_a_question_mark(stub):
    stub.mode = "surrogate"
    for guard in (None, Echo()):
        assert asked_of(proxy(stub, guard), ASK).json()["choices"][0]["message"]["content"] == "half ?"


class Model:
    """A language model that says what it was asked."""

    is_chat = True

    def __init__(self):
        self.calls = []

    def generate(self, prompts, **options):
        self.calls.append((prompts, options))
        if "bad" in prompts[0][-1]["content"]:
            raise InputError("prompts[0] is \x1b too long")
        if "worse" in prompts[0][-1]["content"]:
            raise MemoryError
        return [f"said {prompt[-1]['content']}" for prompt in prompts]


def local(defence=None):
    model = Model()
    return model, make_app(LocalUpstream(model, "tiny", 32), defence)


def test_a_local_model_answers_in_batches():
    class Three:
        def answer(self, messages, complete):
            return Answer(" ".join(complete([messages] * 3, seeds=[1, 2, 3])), {})

    model, app = local(Three())
    asked = {"messages": [{"role": "developer", "content": "s"}, *ASK["messages"]], "temperature": 0, "stop": "x"}
    reply = asked_of(app, {**asked, "max_tokens": 999, "top_p": 0})
    assert reply.json()["choices"][0]["message"]["content"] == "said hello said hello said hello"
    assert reply.json()["model"] == "tiny"
    ((prompts, options),) = model.calls
    assert prompts[0][0] == {"role": "system", "content": "s"}
    assert options["seed"] == [1, 2, 3]
    assert (options["max_new_tokens"], options["temperature"], options["stop"]) == (128, 0, ["x"])
    assert 0 < options["top_p"] < 0.01


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, 200),
        ({"messages": [{"role": "user", "content": None}]}, 200),
        ({"n": 2}, 400),
        ({"tools": [{"type": "function"}]}, 400),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, 400),
        ({"messages": [{"role": "user", "content": "bad"}]}, 400),
        ({"messages": [{"role": "user", "content": "worse"}]}, 502),
    ],
)
def test_what_a_local_model_reads(fields, status):
    _, app = local()
    reply = asked_of(app, {**ASK, **fields})
    assert reply.status_code == status
    assert "\x1b" not in reply.text


def test_a_local_model_streams_its_answer_whole():
    _, app = local()
    reply = asked_of(app, {**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert "said hello" in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    _, app = local()
    assert asked_of(app, None, "/v1/models").json()["data"][0]["id"] == "tiny"


def test_errors_have_a_type_for_every_status():
    kinds = {status: ProxyError(status, "m", "c").body()["error"]["type"] for status in (400, 401, 403, 429, 500, 502)}
    assert kinds[400] == "invalid_request_error"
    assert kinds[401] == "authentication_error"
    assert kinds[502] == "server_error"


@pytest.mark.parametrize(("stop", "reason"), [(None, "length"), ("", "stop")])
def test_a_local_answer_says_whether_it_was_cut(stop, reason):
    lm = tiny_random_lm()
    asked = [{"role": "user", "content": "Tell me about the moon, please."}]
    ask = {"messages": asked, "max_tokens": 4, "temperature": 0}
    whole = asked_of(make_app(LocalUpstream(lm)), ask).json()["choices"][0]["message"]["content"]
    if stop is not None:
        ask["stop"] = whole[:1]
    assert asked_of(make_app(LocalUpstream(lm)), ask).json()["choices"][0]["finish_reason"] == reason


def test_a_failed_call_and_a_failed_defence_are_one_line_without_a_prompt(caplog):
    class Fails:
        def answer(self, messages, complete):
            raise ValueError(messages[0]["content"])

    class Empty(Upstream):
        async def complete(self, payload):
            raise ProxyError(400, f"the upstream refused {payload['messages']}", "upstream_refused")

        async def models(self):
            return []

    secret = {**ASK, "messages": [{"role": "user", "content": "my secret"}]}
    assert asked_of(make_app(Empty()), secret).status_code == 400
    assert asked_of(make_app(Empty(), Fails()), secret).status_code == 500
    assert asked_of(make_app(Empty(), Echo()), secret).status_code == 400
    said = [record.getMessage() for record in caplog.records if record.name == "steelyard.serve"]
    assert said == [
        "an upstream call failed (400, upstream_refused)",
        "the defence failed (500) with ValueError",
        "an upstream call failed (400, upstream_refused)",
    ]
