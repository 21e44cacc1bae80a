"""The world of made-up videos, and the small model: rules of the questions, time, causality, checkpoints."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.data.cache import file_sha256
from steelyard.errors import InputError
from steelyard.models.safefile import write_safe
from steelyard.models.vision.protocols import VisionLanguageModel
from steelyard.models.vision.tiny_training import Recipe, accuracy, train
from steelyard.models.vision.tiny_vlm import (
    CHECKPOINTS,
    FULL,
    LOW,
    SEEDS,
    TOKEN,
    TinyVLM,
    option_tokens,
    question_tokens,
)
from steelyard.models.vision.world import (
    ANSWERS,
    BRIGHT,
    DIM,
    KINDS,
    MASKS,
    NONE,
    SHAPES,
    draw_events,
    render,
    tiny_videos,
    wording,
)


@given(st.integers(0, 10**6), st.sampled_from([16, 64, 144]))
def test_the_right_answer_follows_from_what_is_shown(seed, length):
    events = draw_events(np.random.default_rng(seed), 10, length)
    for video in range(10):
        kind, shown = KINDS[events.kind[video]], events.shape[video]
        right = int(events.options[video][events.answer[video]])
        runs = shown[np.flatnonzero((np.diff(shown, prepend=NONE) != 0) & (shown != NONE))]
        if kind == "specific":
            assert right == events.colours[video][events.about[video]]
            assert events.about[video] in shown
        elif kind == "scene":
            assert right == events.background[video]
        elif kind == "negation":
            assert right not in shown
            assert set(events.options[video].tolist()) - {right} <= set(shown.tolist())
        elif kind == "count":
            slots = shown.reshape(8, -1)
            assert right + 1 == sum((slot == events.about[video]).any() for slot in slots)
        else:
            assert right == runs[0]
        assert len(set(events.options[video].tolist())) == 4
        evidence = events.evidence(video)
        assert len(evidence)
        assert (np.diff(evidence) > 0).all()
        assert events.choices(video)[events.answer[video]] == ANSWERS[kind][right]


def test_events_keep_to_slots_of_their_own():
    events = draw_events(np.random.default_rng(0), 200, 64)
    for shown in events.shape:
        for slot in shown.reshape(8, 8):
            inside = slot[slot != NONE]
            assert len(inside) <= 4
            assert len(set(inside.tolist())) <= 1


def test_pictures_show_the_shape_in_its_colour():
    events = draw_events(np.random.default_rng(1), 5, 16)
    frames = np.tile(np.arange(16), (5, 1))
    images = render(events, frames, np.random.default_rng(2), noise=0.0)
    for video in range(5):
        ground = DIM[events.background[video]]
        for frame in range(16):
            shape, image = events.shape[video, frame], images[video, frame]
            differs = np.abs(image - ground).max(-1) > 1e-6
            if shape == NONE:
                assert not differs.any()
            else:
                colour = BRIGHT[events.colours[video, shape]]
                assert any((differs == (mask > 0)).all() for mask in MASKS[shape])
                assert np.allclose(image[differs], colour)


def test_answers_cannot_be_told_from_the_options():
    events = draw_events(np.random.default_rng(3), 4000, 16)
    for kind in range(len(KINDS)):
        places = np.bincount(events.answer[events.kind == kind], minlength=4)
        assert places.min() > 0.2 * places.sum(), "no place is likelier than another"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 20}, "multiple"),
        ({"length": 8}, "multiple"),
        ({"kinds": ("why",)}, "kinds"),
        ({"longest": 0}, "longest"),
    ],
)
def test_worlds_that_cannot_be(options, words):
    with pytest.raises(InputError, match=words):
        draw_events(np.random.default_rng(0), 2, **{"length": 16, **options})


def test_a_question_as_a_user_brings_it():
    one = tiny_videos(np.random.default_rng(0), 5, 64)[3]
    assert one.frames.shape == (64, 16, 16, 3)
    assert one.kind == "count"
    assert one.question == wording("count", one.about)
    assert question_tokens(one.question) == (TOKEN["count"], TOKEN[SHAPES[one.about]])


def test_the_model_answers_by_the_protocol():
    model = TinyVLM(0)
    assert isinstance(model, VisionLanguageModel)
    one = tiny_videos(np.random.default_rng(0), 1, 64)[0]
    logs = model.option_logprobs(one.frames, one.timestamps, one.question, one.options)
    assert logs.shape == (4,)
    assert (logs < 0).all()
    features = model.encode_frames(one.frames, LOW)
    cached = model.option_logprobs(features, one.timestamps, one.question, one.options, LOW)
    plain = model.option_logprobs(one.frames, one.timestamps, one.question, one.options, LOW)
    np.testing.assert_allclose(cached, plain, atol=1e-6)
    batch = model.option_logprobs_batch(
        [features.take([0, 5]), features.take([1, 9])], [one.timestamps[[0, 5]], one.timestamps[[1, 9]]],
        one.question, one.options, LOW,
    )  # fmt: skip
    single = model.option_logprobs(one.frames[[1, 9]], one.timestamps[[1, 9]], one.question, one.options, LOW)
    np.testing.assert_allclose(batch[1], single, atol=1e-6)


def test_a_low_resolution_is_the_mean_of_four_pixels():
    model = TinyVLM(0)
    frame = torch.rand(1, 16, 16, 3, generator=torch.Generator().manual_seed(0))
    pooled = frame.reshape(1, 8, 2, 8, 2, 3).mean((2, 4))
    torch.testing.assert_close(model.patches(frame, LOW)[0, 0], model.patch(pooled.reshape(1, -1))[0])
    corner = frame[:, :8, 8:].reshape(1, -1)
    torch.testing.assert_close(model.patches(frame, FULL)[0, 1], model.patch(corner)[0])


def test_time_counts_and_what_is_said_is_read_causally():
    model = TinyVLM(0)
    frames = torch.rand(1, 6, 16, 16, 3, generator=torch.Generator().manual_seed(0))
    features, question = model.patches(frames, LOW), torch.tensor([[0, 5]])
    early, late = torch.arange(6)[None] / 64, (torch.arange(6)[None] + 50) / 64
    assert not torch.allclose(model.read(question, features, early), model.read(question, features, late))
    alone = model.read(question, features, early)
    longer = model.read(question, features, early, torch.tensor([[7, 8]]))
    assert longer.shape == (1, 3, len(TOKEN))
    torch.testing.assert_close(longer[:, 0], alone[:, 0])


def test_a_short_training_learns_and_repeats():
    recipe = Recipe(pictures=40, visible=10, parts=4, contrast=20, tokens=256)
    one, history = train(0, recipe)
    again, _ = train(0, recipe)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert set(history.losses) == {"pictures", "visible", "parts", "contrast"}
    assert history.losses["pictures"][0] < 6.0
    assert not any(weight.requires_grad for weight in one.parameters())


@pytest.mark.parametrize("seed", [0, 1])
def test_checkpoints_answer_far_above_chance(seed):
    model = TinyVLM.load_default(seed)
    found = accuracy(model, 64, resolution=FULL, questions=100)
    assert found["scene"] > 0.95
    assert found["specific"] > 0.7
    assert min(found["negation"], found["order"]) > 0.5
    assert np.mean(list(found.values())) > 0.65


def test_words_are_nearer_to_what_they_name():
    model = TinyVLM.load_default(0)
    for one in tiny_videos(np.random.default_rng(0), 5, 64, kinds=("specific",)):
        scores = model.similarity(one.frames, (SHAPES[one.about],))
        assert scores[one.evidence].mean() > np.delete(scores, one.evidence).mean() + 0.2


def test_all_checkpoints_are_those_of_the_receipt():
    for seed in range(SEEDS):
        path = CHECKPOINTS / f"tiny_vlm_{seed}.safetensors"
        figures = json.loads(path.with_suffix(".json").read_text())
        assert file_sha256(path) == figures["sha256"]
        assert path.stat().st_size < 420_000


def test_what_a_model_refuses(tmp_path):
    model = TinyVLM(0)
    one = tiny_videos(np.random.default_rng(0), 1, 16)[0]
    for call, words in (
        (lambda: model.option_logprobs(one.frames, one.timestamps, "Why?", one.options), "question"),
        (lambda: model.option_logprobs(one.frames, one.timestamps, one.question, ("mauve", "red")), "options"),
        (lambda: model.option_logprobs(one.frames, one.timestamps[:3], one.question, one.options), "timestamps"),
        (lambda: model.option_logprobs(one.frames[..., :2], one.timestamps, one.question, one.options), "frames"),
        (lambda: model.option_logprobs(one.frames, one.timestamps, one.question, one.options, 100), "resolution"),
        (lambda: model.option_logprobs(model.encode_frames(one.frames, LOW), one.timestamps, one.question, one.options,
                                       FULL), "resolution"),
        (lambda: TinyVLM.load_default(10), "seed"),
        (lambda: option_tokens(["maroon"]), "no word"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            call()
    write_safe(tmp_path / "x.safetensors", {"a": torch.zeros(2)}, {})
    with pytest.raises(InputError, match="does not hold the weights"):
        TinyVLM.load(tmp_path / "x.safetensors")
    shutil.copy(CHECKPOINTS / "tiny_vlm_0.safetensors", tmp_path / "cut.safetensors")
    with (tmp_path / "cut.safetensors").open("r+b") as stream:
        stream.truncate(1000)
    with pytest.raises(InputError):
        TinyVLM.load(tmp_path / "cut.safetensors")
