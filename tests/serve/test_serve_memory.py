"""Memory does not grow with the number of requests that were served, refused or left."""

import asyncio
import gc
import tracemalloc

import httpx

from steelyard.serve.chat_api import Completion, completion_body
from steelyard.serve.guard_proxy import Answer, make_app
from steelyard.serve.upstream import Upstream


class Quick(Upstream):
    async def complete(self, payload):
        return Completion(completion_body("m", "answer " * 50))

    async def models(self):
        return []


class Copies:
    def answer(self, messages, complete):
        return Answer(complete([messages] * 3)[0], {"x_smoothing": {"n": 3}})


async def serve_some(client, count):
    for index in range(count):
        fields = {"stream": index % 3 == 1, "n": 5 if index % 7 == 0 else 1, "user": f"user-{index}"}
        payload = {"messages": [{"role": "user", "content": f"question {index}"}], **fields}
        await client.post(f"/v1/chat/completions?x={index}", json=payload)
        if index % 10 == 0:
            await client.get(f"/nowhere/{index}")
            await client.get("/metrics")


def test_memory_is_flat_over_a_thousand_requests():
    async def main():
        transport = httpx.ASGITransport(make_app(Quick(), Copies()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await serve_some(client, 200)
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            await serve_some(client, 1000)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            return grown

    assert asyncio.run(main()) < 200_000  # 200 bytes a request; one answer alone is 350
