"""What the guard proxy costs with no guard on: overhead in an open loop, throughput in a closed one, memory over time.

Stand-in, proxy and load each have a process. The stand-in answers after 200 ms in the open loop, at once in the others.
Open loop: requests start at fixed times whatever came back, so a slow answer delays no other; latency counts from the
time that was due.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from receipt import write

from steelyard.serve.guard_proxy import make_app, make_server
from steelyard.serve.upstream import HttpUpstream

RATE = 160.0
SECONDS = float(os.environ.get("BENCH_SECONDS", "20"))
ROUNDS = 3
LOOP = 32
REQUESTS = int(os.environ.get("BENCH_REQUESTS", "10000"))
BODY = {
    "model": "stand-in",
    "messages": [
        {"role": "system", "content": "You are a careful assistant. " * 10},
        {"role": "user", "content": "What does a steelyard weigh, and how? " * 10},
    ],
    "temperature": 0.7,
    "max_tokens": 128,
}
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "stand-in",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "words " * 100}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200},
}


def stand_in(delay: float, port: Any) -> None:
    """Serve the same completion to every request, ``delay`` seconds after it came."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if delay:
            await asyncio.sleep(delay)
        return web.json_response(ANSWER)

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


def proxy(upstream: str, port: Any) -> None:
    """Serve the proxy with no guard on."""
    server, listener = make_server(make_app(HttpUpstream(upstream)), 0)
    port.send(listener.getsockname()[1])
    server.run(sockets=[listener])


@contextlib.contextmanager
def running(target: Any, argument: Any) -> Iterator[tuple[str, int]]:
    """Run a server in a process; yield its URL and process id."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(argument, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1", process.pid or 0
    finally:
        process.terminate()
        process.join()


async def ask(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(f"{url}/chat/completions", json=BODY) as response:
        data = await response.json()
        assert response.status == 200, data
        assert data["choices"], data


async def open_loop(url: str, seconds: float) -> list[float]:
    """Return the latencies in milliseconds of requests that start ``RATE`` times a second."""
    latencies: list[float] = []

    async def one(session: aiohttp.ClientSession, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await ask(session, url)
        latencies.append(1000 * (time.perf_counter() - due))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(session, url) for _ in range(LOOP)))
        start = time.perf_counter() + 0.2
        await asyncio.gather(*(one(session, start + i / RATE) for i in range(int(RATE * seconds))))
    return latencies


async def closed_loop(url: str, requests: int) -> float:
    """Return the requests per second of ``LOOP`` clients that each ask again as soon as they have their answer."""
    left = iter(range(requests))

    async def client(session: aiohttp.ClientSession) -> None:
        for _ in left:
            await ask(session, url)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.perf_counter()
        await asyncio.gather(*(client(session) for _ in range(LOOP)))
        return requests / (time.perf_counter() - start)


def resident(process: int) -> float:
    """Return a process's resident memory in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def percentile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(1000 * share) - 1]


def measure_overhead() -> dict[str, Any]:
    """Return latency with and without the proxy, in rounds side by side, and the median of the rounds' differences."""
    rounds = []
    with running(stand_in, 0.2) as (upstream, _), running(proxy, upstream) as (url, _):
        asyncio.run(open_loop(url, 2.0))
        for _ in range(ROUNDS):
            bare, through = (asyncio.run(open_loop(address, SECONDS)) for address in (upstream, url))
            rounds.append({
                f"{name}_{label}_ms": round(percentile(values, share), 3)
                for name, values in (("bare", bare), ("proxy", through))
                for label, share in (("p50", 0.5), ("p99", 0.99))
            })  # fmt: skip
    over = {
        f"overhead_{label}_ms": round(
            statistics.median(entry[f"proxy_{label}_ms"] - entry[f"bare_{label}_ms"] for entry in rounds), 3
        )
        for label in ("p50", "p99")
    }
    return {"requests_per_s": RATE, "stand_in_delay_ms": 200, "seconds_per_round": SECONDS, "rounds": rounds, **over}


def measure_throughput_and_memory() -> dict[str, Any]:
    """Return throughput against an instant stand-in, and the proxy's memory after each tenth of the requests."""
    with running(stand_in, 0.0) as (upstream, _), running(proxy, upstream) as (url, process):
        bare = asyncio.run(closed_loop(upstream, 2000))
        asyncio.run(closed_loop(url, 1000))
        memory, rates = [resident(process)], []
        for _ in range(10):
            rates.append(asyncio.run(closed_loop(url, REQUESTS // 10)))
            memory.append(resident(process))
    return {
        "closed_loop_clients": LOOP,
        "bare_requests_per_s": round(bare),
        "proxy_requests_per_s": round(statistics.median(rates)),
        "memory_requests": REQUESTS,
        "memory_mib": [round(value, 2) for value in memory],
        "memory_growth_mib": round(memory[-1] - memory[0], 2),
    }


def main() -> None:
    figures = {**measure_overhead(), **measure_throughput_and_memory()}
    print(figures)
    print(write("speed_guard_proxy", figures))


if __name__ == "__main__":
    main()
