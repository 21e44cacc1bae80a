"""The adapter for transformers, on tiny random models and inputs made by hand: their processors need torchvision."""

import numpy as np
import pytest
import torch

from steelyard.errors import InputError
from steelyard.models.hugging_face import import_transformers
from steelyard.models.tiny import byte_tokenizer
from steelyard.models.vision.pictures import resized
from steelyard.models.vision.protocols import VisionLanguageModel
from steelyard.models.vision.transformers_vlm import TransformersVLM, multiple_choice
from steelyard.vision import GridProbe

import_transformers("transformers")
import transformers  # noqa: E402

VIDEO, START, END = 501, 502, 503
OPTIONS = ("a cat", "a dog", "a hen")


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def started(config, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForImageTextToText.from_config(config).eval()


@pytest.fixture(scope="module")
def qwen(tokenizer):
    config = transformers.Qwen3VLConfig(
        text_config={
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
            "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True},
        },
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        video_token_id=VIDEO, image_token_id=500, vision_start_token_id=START, vision_end_token_id=END,
    )  # fmt: skip

    def prepare(frames, timestamps, prompt, resolution):
        """Two frames are one group of four tokens; a last odd frame is doubled."""
        side = 32
        pictures = np.stack([np.asarray(resized(frame, side * side, square=True)) for frame in frames]) / 255
        if len(pictures) % 2:
            pictures = np.concatenate([pictures, pictures[-1:]])
        groups, patches = len(pictures) // 2, side // 8
        cut = pictures.reshape(groups, 2, patches // 2, 2, 8, patches // 2, 2, 8, 3)
        rows = cut.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(groups * patches**2, 3 * 2 * 64)
        ids = [id for _ in range(groups) for id in (START, *[VIDEO] * 4, END)]
        ids += tokenizer(prompt, add_special_tokens=False).input_ids
        tokens = torch.tensor([ids])
        return {
            "input_ids": tokens, "attention_mask": torch.ones_like(tokens),
            "mm_token_type_ids": torch.where(tokens == VIDEO, 2, 0),
            "pixel_values_videos": torch.tensor(rows, dtype=torch.float32),
            "video_grid_thw": torch.tensor([[groups, patches, patches]]),
        }  # fmt: skip

    return TransformersVLM(started(config), tokenizer, prepare=prepare)


@pytest.fixture(scope="module")
def smol(tokenizer):
    config = transformers.SmolVLMConfig(
        image_token_id=500, scale_factor=2,
        text_config={
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
        },
        vision_config={
            "image_size": 32, "patch_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 2,
        },
    )  # fmt: skip

    def prepare(frames, timestamps, prompt, resolution):
        pictures = np.stack([np.asarray(resized(frame, 1024, square=True)) for frame in frames]) / 255
        ids = [500] * (4 * len(pictures)) + tokenizer(prompt, add_special_tokens=False).input_ids
        return {
            "input_ids": torch.tensor([ids]), "attention_mask": torch.ones((1, len(ids)), dtype=torch.long),
            "pixel_values": torch.tensor(pictures.transpose(0, 3, 1, 2)[None], dtype=torch.float32),
        }  # fmt: skip

    return TransformersVLM(started(config), tokenizer, prepare=prepare)


def video(count=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", ["qwen", "smol"])
def test_options_get_log_probabilities(name, request):
    model = request.getfixturevalue(name)
    assert isinstance(model, VisionLanguageModel)
    logs = model.option_logprobs(video(), np.arange(8.0), "What is it?", OPTIONS, None)
    assert logs.shape == (3,)
    assert (logs < 0).all()
    assert np.exp(logs).sum() < 1
    other = model.option_logprobs(video(seed=1), np.arange(8.0), "What is it?", OPTIONS, None)
    assert not np.allclose(logs, other), "what is seen counts"
    inputs = model._prepare(video(), np.arange(8.0), multiple_choice("What is it?", OPTIONS), None)
    assert model.token_count(8, None, "What is it?", OPTIONS) == inputs["input_ids"].shape[1]
    assert model.token_count(5, None, "What is it?", OPTIONS) is None, "nothing is known of frames as they come"
    assert model.token_count(6, 1024, "What is it?", OPTIONS) > model.token_count(4, 1024, "What is it?", OPTIONS)


def test_sizes_are_read_from_the_configuration(qwen, smol):
    assert qwen.dims == (64, 128, 32, 2, 1000, None, 3)
    assert smol.dims.d_kv == 32


def test_a_letter_is_the_sum_of_its_forms(qwen, tokenizer):
    inputs = qwen._prepare(video(), np.arange(8.0), multiple_choice("What is it?", OPTIONS), None)
    with torch.no_grad():
        logs = qwen.model(**inputs).logits[0, -1].float().log_softmax(-1)
    firsts = {tokenizer(form, add_special_tokens=False).input_ids[0] for form in ("A", " A", "(A", "A.", " A.", "A)")}
    found = qwen.option_logprobs(video(), np.arange(8.0), "What is it?", OPTIONS, None)
    assert found[0] == pytest.approx(float(logs[sorted(firsts)].logsumexp(0)), abs=1e-5)


@pytest.mark.parametrize("name", ["qwen", "smol"])
def test_options_texts_can_be_scored(name, request, tokenizer):
    model = request.getfixturevalue(name)
    by_text = TransformersVLM(model.model, tokenizer, prepare=model._prepare, scorer="options")
    found = by_text.option_logprobs(video(), np.arange(8.0), "What is it?", OPTIONS, None)
    inputs = dict(model._prepare(video(), np.arange(8.0), multiple_choice("What is it?", OPTIONS), None))
    said = tokenizer(" a dog", add_special_tokens=False).input_ids
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([said])], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        inputs["mm_token_type_ids"] = torch.where(inputs["input_ids"] == VIDEO, 2, 0)
    with torch.no_grad():
        logs = model.model(**inputs).logits[0].float().log_softmax(-1)
    by_hand = np.mean([float(logs[place - len(said) - 1, token]) for place, token in enumerate(said)])
    assert found[1] == pytest.approx(by_hand, abs=1e-4)


def test_gridprobe_runs_on_it(qwen):
    found = GridProbe(qwen, 3, probe_pixels=256, focus_pixels=1024).answer(video(9), "What is it?", OPTIONS)
    assert found.importance.shape == (3, 3)
    assert found.answer in (0, 1, 2)
    assert found.cost.ratio > 0


def test_pictures_are_resized():
    picture = np.zeros((40, 80, 3), np.uint8)
    assert resized(picture, 800).size == (40, 20)
    assert resized(picture, 784, square=True, multiple=28).size == (28, 28)
    assert resized(picture, None).size == (80, 40)
    assert resized(np.ones((4, 4, 3)), None).getpixel((0, 0)) == (255, 255, 255)


def test_what_is_refused(qwen, tokenizer, tmp_path):
    for call, words in (
        (lambda: TransformersVLM(qwen.model, tokenizer), "processor"),
        (lambda: TransformersVLM(qwen.model, tokenizer, prepare=len, scorer="votes"), "scorer"),
        (lambda: qwen.option_logprobs(video(), [0], "Why?", ["one"], None), "options"),
        (lambda: resized(np.zeros((4, 4, 3)), 0), "resolution"),
        (lambda: TransformersVLM.from_pretrained(str(tmp_path)), "processor cannot be built"),
    ):
        with pytest.raises(InputError, match=words):
            call()
