"""A local page that shows a defence at work: a prompt, its copies and their votes, beside the undefended answer.

The undefended answer is what the page is for: it is a demonstration, not a way to a guarded model (that is the proxy).
"""

from __future__ import annotations

import asyncio
import contextlib
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from steelyard.errors import SteelyardError
from steelyard.report.clean import clean
from steelyard.serve import pages
from steelyard.serve.chat_api import JSON_TYPE, Limits, ProxyError, refused, to_json
from steelyard.serve.guard_proxy import make_server
from steelyard.serve.listening import HOST
from steelyard.serve.metrics import Metrics
from steelyard.serve.request_checks import PAYLOAD, RequestChecks

LIMITS = Limits(body_bytes=64_000, concurrency=8, connections=64)
LONGEST = 4000  # characters of a prompt
_SHOWN = 4000  # characters of a text on the page

Ask = Callable[[str], dict[str, Any]]
"""From a prompt to what the page shows: ``undefended``, ``response``, ``jailbroken``, ``verdict`` and ``bound``
(sentences), ``chosen``, ``calls``, ``notes``, and ``copies``, each with ``disrupted``, ``rectified``, ``response`` and
``vote``. It runs in a worker thread, one call at a time."""


def make_page_app(ask: Ask, about: str, example: str) -> Starlette:
    """Return the page as an ASGI application for 127.0.0.1.

    Args:
        ask: Does the work.
        about: One sentence: which model, which defence.
        example: The prompt that the form holds at first.
    """
    page, policy = _page(about, example), pages.script_policy(pages.own_script("guard.js"))
    one_at_a_time = ThreadPoolExecutor(1)  # no lock on the loop: that of a client who leaves would open too early

    async def index(_: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    async def answer(request: Request) -> Response:
        prompt = _prompt(request.scope[PAYLOAD])
        try:
            shown = await asyncio.get_running_loop().run_in_executor(one_at_a_time, ask, prompt)
        except SteelyardError as error:
            raise ProxyError(502, clean(str(error), 300), "defence_failed") from None
        return Response(to_json(_bounded(shown)), media_type=JSON_TYPE)

    async def failed(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            error = ProxyError(error.status_code, error.detail, "not_found" if error.status_code == 404 else "refused")
        assert isinstance(error, ProxyError)
        return Response(to_json(error.body()), error.status, media_type=JSON_TYPE)

    routes = [Route("/", index), Route("/ask", answer, methods=["POST"])]
    app = Starlette(routes=routes, exception_handlers={ProxyError: failed, HTTPException: failed})
    app.state.limits, app.state.metrics = LIMITS, Metrics()
    app.add_middleware(RequestChecks, limits=LIMITS, metrics=app.state.metrics, client_key=None)
    return app


def _prompt(payload: dict[str, Any]) -> str:
    prompt = payload.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise refused("prompt must be a text", "prompt")
    if len(prompt) > LONGEST:
        raise refused(f"prompt has {len(prompt)} characters; at most {LONGEST} are shown here", "prompt")
    return prompt


def _bounded(value: Any) -> Any:
    """Return ``value`` with every text in it cut and without characters that would steer a page's direction."""
    if isinstance(value, str):
        return clean(value, _SHOWN)
    if isinstance(value, dict):
        return {name: _bounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(entry) for entry in value]
    return value


def _page(about: str, example: str) -> str:
    head = "".join(
        f'<th scope="col" class="l">{name}'
        for name in ("Copy", "Vote", "Its answer", "Disrupted", "Rectified: what the model was asked")
    )
    body = f"""<h1>A vote over damaged copies</h1><p class="lead">{pages.text(about)}</p>
<article><form id="ask"><label for="prompt"><b>A prompt</b></label>
<textarea id="prompt" rows="4" maxlength="{LONGEST}" required>{pages.text(example, LONGEST)}</textarea>
<button id="go" type="submit">Ask with and without the defence</button></form>
<p id="state" class="meta" role="status"></p></article>
<article id="shown" hidden><div class="two"><section><h2>Undefended</h2><p id="plain" class="answer"></p></section>
<section><h2>Defended</h2><p><span id="verdict" class="v"></span></p><p id="answer" class="answer"></p></section></div>
<h3>The bound</h3><p id="bound"></p><ul id="notes" class="plain"></ul>
<h3>The copies</h3><div class="scroll" tabindex="0" role="region" aria-label="Copies and votes"><table><thead><tr>{head}
<tbody id="copies"></table></div></article>"""
    return pages.shell("Guard", body, script=f"<script>{pages.own_script('guard.js')}</script>")


def run(app: Starlette, port: int = 8767, open_browser: bool = False) -> None:
    """Serve the page on 127.0.0.1 until interrupted.

    Raises:
        InputError: The port is taken or out of range.
    """
    server, listener = make_server(app, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}/"
    print(f"The page is at {url} (Ctrl-C stops)", flush=True)
    if open_browser:
        webbrowser.open(url)
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    print("Stopped.")
