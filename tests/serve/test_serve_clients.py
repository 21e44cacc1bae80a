"""The proxy as the official client sees it: plain, streaming, asynchronous, with and without a guard, and errors."""

import asyncio
import threading
import time

import openai
import pytest
from serve_upstreams import Stub, served

from steelyard.guard.dr_smoothing.core import disrupt_swap
from steelyard.guard.dr_smoothing.openai import SmoothingDefence
from steelyard.guard.dr_smoothing.smoothing import DRSmoothing
from steelyard.serve.chat_api import Limits
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import HttpUpstream

ASK = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Vote:
    """A defence that asks three copies and answers with the second."""

    def __init__(self, pause=0.0):
        self.pause = pause

    def answer(self, messages, complete):
        time.sleep(self.pause)
        turns = [[*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}/{i}"}] for i in range(3)]
        texts = complete(turns, seeds=[7, 8, 9], max_tokens=50)
        return Answer(texts[1], {"x_smoothing": {"n": 3, "votes": [0, 0, 0], "complied": False}})


class Length:
    def score(self, messages, text):
        return {"x_discrepancy": {"score": float(len(text))}}


@pytest.fixture
def stub():
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture
def client_for(stub):
    """Return a function that serves a proxy before the stub and returns an official client of it."""
    stack = []

    def make(defence=None, detector=None, key="anything", timeout=120.0, client_key=None, **limits):
        made = Limits(**limits)
        app = make_app(HttpUpstream(stub.url, limits=made, timeout=timeout), defence, detector, made, client_key)
        server = served(app)
        port = server.__enter__()
        stack.append(server)
        return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)

    yield make
    for server in stack:
        server.__exit__(None, None, None)


def test_a_plain_answer_passes_through_unchanged(client_for, stub):
    client = client_for()
    reply = client.chat.completions.create(
        **ASK, temperature=0.5, seed=3, stop=["x"], user="me", extra_body={"top_k": 5}
    )
    assert reply.choices[0].message.content == "echo: hello"
    path, headers, payload = stub.seen[0]
    assert path == "/v1/chat/completions"
    assert payload == {**ASK, "temperature": 0.5, "seed": 3, "stop": ["x"], "user": "me", "top_k": 5}
    assert "Authorization" not in headers
    assert not [name for name in headers if name.lower().startswith("x-stainless")]
    assert [model.id for model in client.models.list()] == ["stub-model"]


def test_a_stream_passes_through(client_for):
    chunks = list(client_for().chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "echo: streamed"
    assert chunks[-1].usage.total_tokens == 5


def test_a_defence_answers_in_the_place_of_the_upstream(client_for, stub):
    client = client_for(Vote(), Length())
    reply = client.chat.completions.create(
        model="m", messages=[{"role": "developer", "content": "be brief"}, *ASK["messages"]], temperature=0.7
    )
    assert reply.choices[0].message.content == "echo: hello/1"
    assert reply.model_extra["x_smoothing"]["n"] == 3
    assert reply.model_extra["x_discrepancy"]["score"] == len("echo: hello/1")
    assert reply.usage.total_tokens == 15
    asked = [payload for _, _, payload in stub.seen]
    assert sorted(payload["seed"] for payload in asked) == [7, 8, 9]
    assert all(p["messages"][0] == {"role": "developer", "content": "be brief"} for p in asked)
    assert all(p["temperature"] == 0.7 and p["max_tokens"] == 50 for p in asked)


def test_the_defence_of_the_guard_room_leaves_the_system_turn_as_it_is(client_for, stub):
    client = client_for(SmoothingDefence(DRSmoothing(disrupt=disrupt_swap(q=0.2), n=5, seed=0)))
    system, user = "Answer in one word, and never about éclairs.", "Please tell me how a steelyard weighs a load"
    reply = client.chat.completions.create(
        model="m", messages=[{"role": "system", "content": system}, {"role": "user", "content": user}]
    )
    record = reply.model_extra["x_smoothing"]
    assert record["n"] == 5
    assert len(record["votes"]) == 5
    asked = [payload["messages"] for _, _, payload in stub.seen]
    assert [turns[0] for turns in asked] == [{"role": "system", "content": system}] * 5
    assert user not in [turns[1]["content"] for turns in asked]
    assert reply.choices[0].message.content in [f"echo: {turns[1]['content']}" for turns in asked]
    stub.mode = "error"
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": user}])
    assert caught.value.status_code == 502


def test_a_guarded_stream_waits_with_comments_and_ends_with_the_record(client_for):
    client = client_for(Vote(pause=0.5), keep_alive_seconds=0.1)
    with client.chat.completions.with_streaming_response.create(**ASK, stream=True) as raw:
        lines = [line for line in raw.iter_lines() if line]
    assert lines[0] == ": keep-alive"
    assert lines[-1] == "data: [DONE]"
    chunks = list(client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "echo: hello/1"
    assert chunks[-1].model_extra["x_smoothing"]["n"] == 3
    assert chunks[-1].usage.total_tokens == 15
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_many_asynchronous_clients(client_for):
    base = str(client_for(Vote()).base_url)

    async def ask():
        async with openai.AsyncOpenAI(base_url=base, api_key="k", max_retries=0) as client:
            replies = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(12)))
            stream = await client.chat.completions.create(**ASK, stream=True)
            streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            return [reply.choices[0].message.content for reply in replies], streamed

    assert asyncio.run(ask()) == (["echo: hello/1"] * 12, "echo: hello/1")


def test_the_clients_key_is_compared_and_never_sent_on(client_for, stub, monkeypatch):
    monkeypatch.setenv("STEELYARD_API_KEY", "operator-secret")
    client = client_for(client_key="right", key="right")
    client.chat.completions.create(**ASK)
    assert stub.seen[0][1]["Authorization"] == "Bearer operator-secret"
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="wrong").chat.completions.create(**ASK)
    assert caught.value.code == "invalid_api_key"


def test_a_client_that_leaves_ends_the_upstream_call(client_for, stub):
    stub.delay = 20.0
    client = client_for()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(**ASK)
    assert stub.left.wait(5)


def test_a_client_that_leaves_ends_the_copies_of_a_defence(client_for, stub):
    stub.delay = 20.0
    ended = threading.Event()

    class Slow(Vote):
        def answer(self, messages, complete):
            try:
                return super().answer(messages, complete)
            finally:
                ended.set()

    client = client_for(Slow())
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).chat.completions.create(**ASK)
    assert stub.left.wait(5)
    assert ended.wait(5)
