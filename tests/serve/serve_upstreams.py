"""A stand-in for an upstream server, in its own thread, and a proxy before it: for the tests of the guard proxy."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from steelyard.serve.guard_proxy import make_server


class Stub:
    """An OpenAI-compatible server that answers what it is told to, and keeps what it was sent."""

    def __init__(self):
        self.seen = []
        self.mode = "ok"
        self.delay = 0.0
        self.left = threading.Event()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                stub.post(self)

            def do_GET(self):
                stub.seen.append((self.path, dict(self.headers), None))
                stub.send(self, {"object": "list", "data": [{"id": "stub-model", "object": "model"}]})

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *args: None  # clients that leave are what some tests are about
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def send(self, handler, data, status=200, kind="application/json", **headers):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        with contextlib.suppress(OSError):
            handler.wfile.write(body)

    def post(self, handler):
        payload = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.seen.append((handler.path, dict(handler.headers), payload))
        if self.delay:
            self.wait(handler)
        getattr(self, f"answer_{self.mode}")(handler, payload)

    def wait(self, handler):
        """Sleep, and notice when the other side closes its connection meanwhile."""
        end = time.monotonic() + self.delay
        handler.connection.settimeout(0.02)
        while time.monotonic() < end:
            try:
                if handler.connection.recv(1) == b"":
                    self.left.set()
                    return
            except TimeoutError:
                continue
            except OSError:
                self.left.set()
                return
        handler.connection.settimeout(None)

    def completion(self, payload):
        last = payload["messages"][-1]["content"]
        text = f"echo: {last if isinstance(last, str) else json.dumps(last)}"
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": payload.get("model", "stub-model"),
            "choices": [
                {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
                for i in range(payload.get("n") or 1)
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }

    def chunks(self, payload):
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stub-model"}
        for word in ("echo", ": ", "streamed"):
            yield {**base, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
        yield {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if (payload.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
            yield {**base, "choices": [], "usage": usage}

    def answer_ok(self, handler, payload):
        if not payload.get("stream"):
            self.send(handler, self.completion(payload))
            return
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.chunks(payload)]
        self.send(handler, "".join([": ping\n\n", *lines, "data: [DONE]\n\n"]).encode(), kind="text/event-stream")

    def answer_redirect(self, handler, payload):
        self.send(handler, {}, 307, Location=f"http://127.0.0.1:{self.port}/elsewhere")

    def answer_garbage(self, handler, payload):
        self.send(handler, b"\xff\xfe{]" * 10)

    def answer_not_http(self, handler, payload):
        handler.connection.sendall(b"\x00\x01\x02 what\r\n\r\n")
        handler.close_connection = True

    def answer_no_choices(self, handler, payload):
        self.send(handler, {"choices": []})

    def answer_nan(self, handler, payload):
        self.send(handler, b'{"choices": [{"message": {"content": "x"}}], "created": NaN}')

    def answer_html(self, handler, payload):
        self.send(handler, b"<html>secret undefended text</html>", kind="text/html")

    def answer_half(self, handler, payload):
        head = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: 100000\r\n\r\n"
        if payload.get("stream"):
            part = f"data: {json.dumps(next(self.chunks(payload)))}\n\n"
            handler.wfile.write((head.format("text/event-stream") + part).encode())
        else:
            handler.wfile.write((head.format("application/json") + '{"choices": [').encode())
        handler.close_connection = True

    def answer_oversized(self, handler, payload):
        kind = "text/event-stream" if payload.get("stream") else "application/json"
        line = b"data: " + json.dumps(next(self.chunks(payload))).encode() + b"\n\n"
        self.send(handler, line * 3000 if payload.get("stream") else b" " * 400_000, kind=kind)

    def answer_gzip(self, handler, payload):
        self.send(handler, b"\x1f\x8b" + b"\0" * 50, Content_Encoding="gzip")

    def answer_error(self, handler, payload):
        self.send(handler, {"error": {"message": "cuda died at 10.1.2.3", "type": "server_error"}}, 500)

    def answer_bad_request(self, handler, payload):
        self.send(handler, {"error": {"message": "context length \x1b[31m exceeded"}}, 400)

    def answer_leaks_key(self, handler, payload):
        self.send(handler, {"error": {"message": f"bad {handler.headers['Authorization']}"}}, 400)

    def answer_wrong_key(self, handler, payload):
        self.send(handler, {"error": {"message": f"bad key {handler.headers['Authorization']}"}}, 401)

    def answer_busy(self, handler, payload):
        self.send(handler, {"error": {"message": "slow down"}}, 429)

    def answer_surrogate(self, handler, payload):
        self.send(handler, b'{"choices": [{"message": {"content": "half \\ud800"}}]}')

    def answer_large(self, handler, payload):
        data = self.completion(payload)
        data["choices"][0]["message"]["content"] = "a" * 7_000_000
        self.send(handler, data)

    def answer_no_end(self, handler, payload):
        self.send(handler, f"data: {json.dumps(next(self.chunks(payload)))}\n\n".encode(), kind="text/event-stream")

    def answer_no_chunks(self, handler, payload):
        self.send(handler, b"data: [DONE]\n\n", kind="text/event-stream")

    def answer_bad_chunk(self, handler, payload):
        self.send(handler, b'data: {"error": {"message": "mid"}}\n\n', kind="text/event-stream")


@contextlib.contextmanager
def served(app):
    """Serve ``app`` in a thread; yield the port."""
    server, listener = make_server(app, 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + 10
    while not server.started and time.monotonic() < end:
        time.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(15)
        listener.close()
