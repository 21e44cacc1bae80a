"""``steelyard vision``: a made-up video, asked and selected from; what cannot be used is said in a sentence."""

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from steelyard.cli.main import app
from steelyard.errors import InputError
from steelyard.models.vision.callable_vlm import CallableVLM

run = CliRunner().invoke


@pytest.fixture
def clip(tmp_path):
    folder = tmp_path / "clip"
    said = run(app, ["vision", "sample", str(folder), "--json"])
    assert said.exit_code == 0, said.output
    return folder, json.loads(said.stdout)


def options(asked):
    return [word for option in asked["options"] for word in ("-o", option)]


def test_a_question_is_answered(clip, tmp_path):
    folder, asked = clip
    out = tmp_path / "frames"
    said = run(app, ["vision", "ask", str(folder), asked["question"], *options(asked), "--probe-pixels", "64",
                     "--out", str(out), "--json"])  # fmt: skip
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["answer"] == asked["answer"]
    assert set(asked["evidence"]) & set(found["frames"])
    assert np.shape(found["importance"]) == (8, 8)
    assert found["cost"]["ratio"] > 1 > found["cost"]["ratio_with_fine_probes"]
    names = sorted(path.name for path in out.iterdir())
    assert names == [f"frame_{number:06d}.png" for number in found["frames"]]


def test_frames_are_selected_and_described(clip):
    folder, asked = clip
    said = run(
        app, ["vision", "select", str(folder), asked["question"], *options(asked), "--probe-pixels", "64", "-k", "1"]
    )
    assert said.exit_code == 0, said.output
    assert "the probes alone say" in said.output
    assert "1 frame of 64 sampled" in said.output
    assert "times as much" in said.output


def test_a_short_video_is_noted(tmp_path):
    for number in range(5):
        Image.fromarray(np.full((16, 16, 3), 40, np.uint8)).save(tmp_path / f"{number}.png")
    said = run(app, ["vision", "select", str(tmp_path), "What colour is the background?", "-o", "red", "-o", "blue",
                     "--probe-pixels", "64"])  # fmt: skip
    assert said.exit_code == 0, said.output
    assert "59 frames short of the grid" in said.output


def test_a_sample_says_what_to_ask(tmp_path):
    said = run(app, ["vision", "sample", str(tmp_path / "clip"), "--kind", "scene", "--frames", "16"])
    assert "steelyard vision ask" in said.output
    assert "right answer:" in said.output
    assert len(list((tmp_path / "clip").iterdir())) == 16


def test_other_models_are_opened(clip, monkeypatch):
    seen = []
    model = CallableVLM(lambda frames, *_: [0.0, -1.0])
    monkeypatch.setattr("steelyard.cli.vision._model", lambda name, upstream: seen.append((name, upstream)) or model)
    said = run(app, ["vision", "ask", str(clip[0]), "Is it there?", "-o", "yes", "-o", "no", "--model", "m",
                     "--upstream", "http://127.0.0.1:9", "--probe-pixels", "64"])  # fmt: skip
    assert said.exit_code == 0, said.output
    assert seen == [("m", "http://127.0.0.1:9")]
    assert said.output.startswith("yes (73%)")
    assert "times as much" not in said.output, "operations are not known"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask", "nowhere", "Why?", "-o", "a", "-o", "b", "--probe-pixels", "64"], "no file and no folder"),
        (["ask", "CLIP", "Why?", "-o", "a", "-o", "b"], "--probe-pixels"),
        (["ask", "CLIP", "Why?", "-o", "red", "-o", "blue", "--probe-pixels", "64"], "question"),
        (["ask", "CLIP", "What colour is the background?", "-o", "red", "--probe-pixels", "64"], "options"),
        (
            ["ask", "CLIP", "What colour is the background?", "-o", "red", "-o", "mauve", "--probe-pixels", "64"],
            "mauve",
        ),
        (["ask", "CLIP", "Why?", "-o", "a", "-o", "b", "--model", "/nowhere", "--probe-pixels", "64"], "processor"),
        (["sample", "CLIP"], "exists"),
        (["sample", "OTHER", "--kind", "why"], "kinds"),
        (["sample", "OTHER", "--frames", "17"], "multiple of 8"),
    ],
)
def test_what_cannot_be_used(clip, tmp_path, arguments, words):
    folder, _ = clip
    names = {"CLIP": str(folder), "OTHER": str(tmp_path / "other")}
    said = run(app, ["vision", *(names.get(word, word) for word in arguments)])
    assert said.exit_code != 0
    assert isinstance(said.exception, InputError | SystemExit)
    assert words in f"{said.exception}{said.output}"


def test_a_page_shows_the_map_over_the_frames(clip, tmp_path):
    folder, asked = clip
    page = tmp_path / "map.html"
    said = run(app, ["vision", "ask", str(folder), asked["question"], *options(asked), "--probe-pixels", "64",
                     "--html", str(page)])  # fmt: skip
    assert said.exit_code == 0, said.output
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 64
    assert "Frames selected" in text
    assert asked["question"] in text
