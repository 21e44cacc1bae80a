"""A served vision-language model, and a plain function, in the place of one."""

import base64
import http.server
import io
import json
import math
import threading

import numpy as np
import pytest
from PIL import Image

from steelyard.errors import EndpointError, InputError
from steelyard.models import http_client
from steelyard.models.vision.callable_vlm import CallableVLM
from steelyard.models.vision.endpoint_vlm import EndpointVLM
from steelyard.models.vision.protocols import LMDims, VisionLanguageModel
from steelyard.vision import GridProbe


class Server:
    """Answers with the log-probabilities that ``tokens`` holds and writes down what it was sent."""

    def __init__(self, tokens):
        self.sent, self.tokens = [], tokens
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.sent.append(body)
                top = [{"token": token, "logprob": value} for token, value in owner.tokens]
                answer = {"choices": [{"message": {"content": "A"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}
                answer["usage"] = {"prompt_tokens": 7 * len(body["messages"][0]["content"])}
                content = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def served(monkeypatch):
    monkeypatch.delenv(http_client.KEY_VARIABLE, raising=False)
    server = Server([("A", math.log(0.5)), (" A", math.log(0.1)), ("B", math.log(0.3)), ("x", math.log(0.01))])
    model = EndpointVLM(server.url, "vlm", timeout=5)
    yield server, model
    model.close()
    server.http.shutdown()


FRAMES = np.random.default_rng(0).integers(0, 256, (9, 20, 40, 3), dtype=np.uint8)


def test_letters_are_read_from_the_top_log_probabilities(served):
    server, model = served
    assert isinstance(model, VisionLanguageModel)
    found = model.option_logprobs(FRAMES[:3], [0, 1, 2], "Is it?", ("yes", "no"), 200)
    assert np.exp(found) == pytest.approx([0.6, 0.3])
    body = server.sent[0]
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 1)
    *pictures, text = body["messages"][0]["content"]
    sizes = []
    for picture in pictures:
        kind, _, data = picture["image_url"]["url"].partition(",")
        assert kind == "data:image/jpeg;base64"
        sizes.append(Image.open(io.BytesIO(base64.b64decode(data))).size)
    assert sizes == [(20, 10)] * 3, "the sides' ratio is kept"
    assert "A. yes\nB. no" in text["text"]
    assert model.token_count(3, 200, "Is it?", ("yes", "no")) == 28
    assert model.token_count(4, 200, "Is it?", ("yes", "no")) is None, "only what the server has counted"


def test_a_missing_letter_gets_the_least_with_a_warning(served):
    _, model = served
    with pytest.warns(UserWarning, match="letter C is not among the 4"):
        found = model.option_logprobs(FRAMES[:1], [0], "Is it?", ("yes", "no", "both"), None)
    assert np.exp(found[2]) == pytest.approx(0.01)


def test_gridprobe_asks_the_probes_side_by_side(served):
    server, model = served
    found = GridProbe(model, 3, probe_pixels=100).answer(FRAMES, "Is it?", ("yes", "no"))
    assert found.answer == 0
    assert len(server.sent) == 7
    assert found.cost.ratio is None
    assert found.cost.probes.tokens == 6 * 28


@pytest.mark.parametrize("tokens", [[], [("A", float("nan"))], [("A", "x")], [("A", 5.0)]])
def test_an_answer_without_log_probabilities(served, tokens):
    server, model = served
    server.tokens = tokens
    with pytest.raises(EndpointError, match="log-probabilities"):
        model.option_logprobs(FRAMES[:1], [0], "Is it?", ("yes", "no"), None)


def test_what_is_refused(served):
    server, model = served
    with pytest.raises(InputError, match="options"):
        model.option_logprobs(FRAMES[:1], [0], "Is it?", [str(n) for n in range(21)], None)
    with pytest.raises(InputError, match="quality"):
        EndpointVLM(server.url, "vlm", quality=0)


def test_a_plain_function_is_a_model():
    model = CallableVLM(lambda frames, times, question, options, pixels: -np.arange(len(options)), lambda _: 5)
    assert isinstance(model, VisionLanguageModel)
    assert model.option_logprobs(FRAMES, [0], "Is it?", ("a", "b"), None).tolist() == [0.0, -1.0]
    assert model.token_count(4, None, "", ()) == 20
    assert CallableVLM(len).token_count(4, None, "", ()) is None
    assert CallableVLM(len, dims=LMDims(1, 1, 1, 1, 1)).dims.d == 1
    with pytest.raises(InputError, match="function must return 2"):
        CallableVLM(lambda *_: [0.0]).option_logprobs(FRAMES, [0], "Is it?", ("a", "b"), None)
    with pytest.raises(InputError, match="function must be"):
        CallableVLM(5)
