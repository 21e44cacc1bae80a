"""steelyard quant: convert, inspect and eval on a small model, their help, and what wrong use ends in."""

import json

import pytest
import torch

from models.tiny_gguf import write_tiny
from quant.po2.small_checkpoints import CONFIG, VOCAB, llama_tensors, write_llama, write_tokenizer
from steelyard.cli import progress, quant
from steelyard.models.safefile import write_safe
from steelyard.quant.po2.storage import save_quantized
from steelyard.quant.po2.torch_nn import QuantizedLinear

TEXT = " ".join(f"w{2 + number * 7 % (VOCAB - 2)}" for number in range(400))


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 1e9)  # on a slow machine they would be among the errors


@pytest.fixture
def model(tmp_path):
    """A folder with a small Llama and a tokenizer, and a text beside it."""
    (tmp_path / "text.txt").write_text(TEXT)
    return write_tokenizer(write_llama(tmp_path / "model"))


@pytest.mark.parametrize("name", ["convert", "inspect", "eval"])
def test_every_help_has_an_example(steelyard, name):
    code, out, err = steelyard("quant", name, "--help")
    assert (code, err) == (0, "")
    assert f"Example: steelyard quant {name}" in out


def test_the_commands(steelyard):
    assert [command.name for command in quant.app.registered_commands] == ["convert", "inspect", "eval"]
    _, out, _ = steelyard("--help")
    assert " quant " in out


def test_convert_inspect_eval(steelyard, model):
    code, out, err = steelyard("quant", "convert", model, "-o", "out", "--family", "mpo2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert sum(" mpo2 g16 " in line for line in lines) == 14
    assert any("model.layers.1.mlp.down_proj.weight" in line and "32x44" in line for line in lines)
    assert "14 layers, 14,592 weights: 4.5 bits a weight (4.6" in out
    assert "7 other tensors as they were" in out
    assert "out: 1 shards, " in out
    assert "bound 500 MB" in out
    code, again, _ = steelyard("quant", "convert", model, "-o", "out")
    assert code == 0
    assert "out: 1 shards, 1 of them there already" in again
    code, seen, err = steelyard("quant", "inspect", "out")
    assert (code, err) == (0, "")
    assert seen.splitlines() == lines[: len(seen.splitlines())]
    code, out, err = steelyard("quant", "eval", "out", "--text", "text.txt", "--tokens", "128", "--window", "32")
    assert code == 0
    assert out.startswith("124 tokens in windows of 32\nperplexity ")
    assert "reference" not in out
    code, out, err = steelyard(
        "quant", "eval", "out", "--text", "text.txt", "--tokens", "128", "--window", "32", "--reference", model
    )
    assert code == 0
    assert "KL(reference||it)" in out
    assert "top-1 agreement" in out


def test_json(steelyard, model):
    code, out, err = steelyard(
        "quant", "convert", model, "-o", "out", "--family", "sfp4", "--group-size", "8", "--json"
    )
    assert (code, err) == (0, "")
    made = json.loads(out)
    assert made["families"] == ["sfp4"]
    assert made["bits_per_weight"] == 5.0
    assert made["memory"]["bound_bytes"] == 500_000_000 + 2 * 4 * 44 * 32
    assert made["memory"]["start_bytes"] <= made["memory"]["peak_bytes"]
    assert (made["shards"], made["reused_shards"], made["notes"]) == (1, 0, [])
    seen = json.loads(steelyard("quant", "inspect", "out", "--json")[1])
    for key in ("layers", "bits_per_weight", "stored_bits_per_weight", "relative_mse", "file_bytes", "kept"):
        assert seen[key] == made[key]
    assert len(seen["layers"][0]["histogram"]) == 3
    words = ("--text", "text.txt", "--tokens", "128", "--window", "32", "--reference", model, "--json")
    found = json.loads(steelyard("quant", "eval", "out", *words)[1])
    assert found["tokens"] == 124
    assert found["kl"] > 0
    assert 0 < found["top1"] <= 1
    assert found["reference_perplexity"] > 1


def test_eval_is_that_of_the_dequantised_model(steelyard, model, tmp_path):
    """KL and perplexity against a float model that holds the dequantised weights: the closed form of the packed one."""
    from transformers import AutoModelForCausalLM

    from steelyard.quant.po2.evaluate import compare, token_windows
    from steelyard.quant.po2.tensor import quantize

    steelyard("quant", "convert", model, "-o", "out")
    words = ("--text", "text.txt", "--tokens", "96", "--window", "32", "--reference", model, "--json")
    found = json.loads(steelyard("quant", "eval", "out", *words)[1])
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rounded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in rounded.named_parameters():
            if "_proj" in name:
                parameter.copy_(quantize(parameter).dequantize())
    ids = torch.tensor([int(word[1:]) for word in TEXT.split()])
    expected = compare(plain, {"q": rounded}, token_windows(ids, 32, 3))["q"]
    assert found["kl"] == pytest.approx(expected.kl, rel=1e-3)
    assert found["perplexity"] == pytest.approx(expected.perplexity, rel=1e-4)
    assert found["top1"] == expected.top1


def test_gguf(steelyard, tmp_path):
    write_tiny(tmp_path / "tiny.gguf", "llama", "Q8_0")
    code, out, err = steelyard("quant", "convert", "tiny.gguf", "-o", "out")
    assert (code, err) == (0, "")
    assert "14 layers" in out
    (tmp_path / "text.txt").write_text("".join(f"t{number * number % 7}" for number in range(300)))
    words = ("--text", "text.txt", "--tokens", "96", "--window", "32", "--reference", "tiny.gguf")
    code, out, err = steelyard("quant", "eval", "out", *words)
    assert code == 0
    assert "93 tokens in windows of 32" in out
    assert "KL(reference||it)" in out
    assert err == "note: a GGUF reference is itself quantised, as its file says; the loss is against that\n"


def test_inspect_a_saved_file(steelyard, tmp_path):
    save_quantized(QuantizedLinear(16, 2), tmp_path / "one.safetensors")
    code, out, err = steelyard("quant", "inspect", "one.safetensors")
    assert (code, err) == (0, "")
    assert "relative squared error unknown" in out


def test_outliers_and_notes_are_told(steelyard, tmp_path):
    tensors = llama_tensors()
    tensors["model.layers.0.mlp.up_proj.weight"] *= 1e-3
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    write_safe(tmp_path / "m.safetensors", tensors, {})
    code, out, err = steelyard("quant", "convert", "m.safetensors", "-o", "out")
    assert code == 0
    assert "!: an outlier sets this tensor's scale" in out
    assert err == "note: no tokenizer and no config.json: a bare safetensors file has none beside it\n"
    code, _, err = steelyard("quant", "eval", "out", "--text", "m.safetensors")
    assert code == 2


def test_progress_off_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with progress.counted("converting") as show:
        show(1, 4, "layer")
    assert capsys.readouterr().err == "converting: 25 %, layer\n"


def test_progress_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress.counted("converting") as show:
        show(1, 4, "[bold]layer")
        show(4, 4, "")
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("convert none -o out", "there is no checkpoint at none"),
        ("convert model", "--output"),
        ("convert model -o out --family mpo3", "Did you mean 'mpo2'?"),
        ("convert model -o out --search hard", "search must be one of"),
        ("convert model -o out --scale e9", "scale must be one of"),
        ("convert model -o out --group-size 0", "--group-size"),
        ("convert model -o out --keep half", "keep must be 'same'"),
        ("convert model -o model", "would mix with the checkpoint"),
        ("convert model -o .", "would mix with the checkpoint"),
        ("convert model -o out --filter (", "is no regular expression"),
        ("inspect model", "it is no converted checkpoint"),
        ("inspect none", "none cannot be read: No such file"),
        ("eval model --text text.txt", "is no converted folder"),
        ("eval null --text text.txt", "is no converted folder"),
        ("eval none --text text.txt", "cannot be read: No such file"),
        ("eval out --text none.txt", "the text none.txt cannot be read"),
        ("eval out --text broken.txt", "is not UTF-8"),
        ("eval out --text text.txt --tokens 100", "tokens must be at least one window of 512"),
        ("eval out --text text.txt --tokens 512", "too few for 1 windows of 512"),
        ("eval out --text text.txt --tokens 100 --window 100", "longer than the model's context of 64"),
        ("eval out --text text.txt --tokens 64 --window 32 --reference none", "neither a Hugging Face folder nor"),
        ("eval out --text text.txt --tokens 64 --window 32 --reference empty", "cannot be loaded as a causal language"),
        ("eval lost --text text.txt --tokens 64 --window 32", "a model.safetensors that the conversion did not write"),
    ],
)
def test_wrong_use(steelyard, model, tmp_path, line, said):
    (tmp_path / "broken.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "empty").mkdir()
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "config.json").write_text('{"quantization_config": null}')
    if "eval out" in line:
        steelyard("quant", "convert", model, "-o", "out")
    if "lost" in line:
        write_tokenizer(tmp_path / "lost")
        quantization = {"quant_method": "po2", "modules": ["model.layers.0.mlp.up_proj"]}
        (tmp_path / "lost" / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
        write_safe(tmp_path / "lost" / "model.safetensors", {"lm_head.weight": torch.ones(24, 32)}, {"format": "pt"})
    code, out, err = steelyard("quant", *line.split())
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    if err.startswith("steelyard: "):
        assert err.count("\n") == 1


def test_an_interrupted_conversion_says_how_to_go_on(steelyard, model, monkeypatch):
    from steelyard.quant.po2 import convert

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(convert, "convert", interrupted)
    code, out, err = steelyard("quant", "convert", model, "-o", "out")
    assert (code, out) == (130, "")
    assert err == "steelyard: interrupted; finished shards are kept, the same command goes on with the rest\n"
