"""Conversion: the same codes as quantising by hand, formats, what is kept, refusals, memory."""

import json
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.tiny_gguf import write_tiny
from quant.po2.small_checkpoints import CONFIG, llama_tensors, write_llama, write_tokenizer
from steelyard.errors import InputError
from steelyard.models.gguf import GGUFFile
from steelyard.models.safefile import SafeFile, write_safe
from steelyard.quant.po2 import hf_files, memory
from steelyard.quant.po2.checkpoints import INDEX
from steelyard.quant.po2.convert import MANIFEST, convert, squared_error
from steelyard.quant.po2.families import FAMILIES
from steelyard.quant.po2.packed_files import PackedFile, packed_files
from steelyard.quant.po2.storage import load_quantized
from steelyard.quant.po2.summary import summarize
from steelyard.quant.po2.tensor import QuantizedTensor, quantize

PROJ = re.compile(r"_proj\.weight$")


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_are_those_of_quantize(tmp_path, shards, dtype):
    source = write_llama(tmp_path / "in", dtype=dtype, shards=shards)
    before = contents(source)
    done = convert(source, tmp_path / "out", "sfp4", search="sweep", shard_bytes=3000)
    assert contents(source) == before
    assert done.shards > 3
    assert done.reused == 0
    loaded = load_quantized(tmp_path / "out")
    for name, tensor in llama_tensors(dtype=dtype).items():
        if PROJ.search(name):
            expected = quantize(tensor, "sfp4", search="sweep")
            assert torch.equal(loaded[name].codes, expected.codes)
            assert torch.equal(loaded[name].scales, expected.scales)
            assert loaded[name].tensor_scale == expected.tensor_scale
        else:
            assert loaded[name].dtype == dtype
            assert torch.equal(loaded[name], tensor)


def test_transformers_loads_the_folder(tmp_path):
    from transformers import AutoModelForCausalLM

    import steelyard.quant.po2.huggingface  # noqa: F401 - registers the format

    convert(write_llama(tmp_path / "in"), tmp_path / "out", "nf4", shard_bytes=3000)
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if PROJ.search(name):
                parameter.copy_(quantize(parameter, "nf4").dequantize())
        ids = torch.arange(24)[None]
        torch.testing.assert_close(packed(ids).logits, plain(ids).logits, atol=1e-4, rtol=1e-4)


def test_figures_are_those_of_the_files(tmp_path):
    done = convert(write_llama(tmp_path / "in"), tmp_path / "out", "mpo2", shard_bytes=4000)
    summary, tensors = done.summary, llama_tensors()
    assert summary.bits_per_weight == 4.5
    spans = [span for file in packed_files(tmp_path / "out") for key, span in file.file.spans.items()
             if PROJ.search(key.rpartition(".")[0])]  # fmt: skip
    stored = sum(span.end - span.begin for span in spans)
    assert summary.stored_bits_per_weight == 8 * stored / summary.weights
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"]["stored_bits_per_weight"] == summary.stored_bits_per_weight
    assert index["metadata"]["quantized_weights"] == summary.weights
    files = {path.name: SafeFile(path) for path in (tmp_path / "out").glob("*.safetensors")}
    assert index["weight_map"] == {key: name for name, file in files.items() for key in file.spans}
    size = sum(span.end - span.begin for file in files.values() for span in file.spans.values())
    assert index["metadata"]["total_size"] == size == summary.data_bytes
    error = power = 0.0
    for layer in summary.layers:
        expected = quantize(tensors[layer.name], "mpo2")
        assert layer.relative_mse == pytest.approx(expected.relative_mse(tensors[layer.name]), rel=1e-8)
        assert layer.histogram == tuple(expected.selector_histogram().tolist())
        assert layer.stored_bits_per_weight == expected.stored_bits_per_weight
        assert 0 <= layer.selector_entropy <= 1
        error += expected.mse(tensors[layer.name]) * layer.weights
        power += float(tensors[layer.name].double().square().sum())
    assert summary.relative_mse == pytest.approx(error / power, rel=1e-8)
    assert summarize(packed_files(tmp_path / "out")) == summary


def test_gguf(tmp_path):
    source = write_tiny(tmp_path / "tiny.gguf", "llama", "Q8_0")
    before = source.read_bytes()
    done = convert(source, tmp_path / "out", "mpo2")
    assert source.read_bytes() == before
    loaded, file = load_quantized(tmp_path / "out"), GGUFFile(source)
    assert set(loaded) == set(file.tensors)
    q = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(loaded[q].codes, quantize(torch.from_numpy(file.read(q)), "mpo2").codes)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    quantization = config.pop("quantization_config")
    assert config == file.config()
    assert quantization["quant_method"] == "po2"
    assert len(quantization["modules"]) == len(done.summary.layers) == 14


def test_a_bare_file(tmp_path):
    write_safe(tmp_path / "m.safetensors", llama_tensors(), {})
    done = convert(tmp_path / "m.safetensors", tmp_path / "out", "nvfp4")
    assert {layer.name for layer in done.summary.layers} == {name for name in llama_tensors() if PROJ.search(name)}
    assert not (tmp_path / "out" / "config.json").exists()
    assert done.notes == ("no tokenizer and no config.json: a bare safetensors file has none beside it",)


@pytest.mark.parametrize(
    "config",
    [
        {**CONFIG, "architectures": ["NoSuchModel"]},
        {**CONFIG, "architectures": ["AutoConfig"]},
        {**CONFIG, "num_hidden_layers": 10**9},
        {**CONFIG, "text_config": {"num_hidden_layers": 10**9}},
        {**CONFIG, "depths": [2, 10**9]},
        {**CONFIG, "hidden_size": "many"},
        {**CONFIG, "architectures": [3]},
        {},
    ],
)
def test_without_a_usable_config_names_tell(tmp_path, config):
    done = convert(write_llama(tmp_path / "in", config=config), tmp_path / "out", "nvfp4")
    assert {layer.name for layer in done.summary.layers} == {name for name in llama_tensors() if PROJ.search(name)}


def test_what_beside_the_weights_is_carried(tmp_path):
    source = write_tokenizer(write_llama(tmp_path / "in"))
    (source / "evil.py").write_text("raise SystemExit")
    done = convert(source, tmp_path / "out")
    assert done.notes == ()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "config.json", INDEX, MANIFEST} < names
    assert "evil.py" not in names
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_tokenizer_out_of_a_gguf_file(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    source = write_tiny(tmp_path / "tiny.gguf", "llama", "Q8_0")
    assert convert(source, tmp_path / "out").notes == ()
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("t1t9")["input_ids"] == theirs("t1t9")["input_ids"]

    def broken(*args, **options):
        raise Exception("no\nvocabulary")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", broken)
    (note,) = convert(source, tmp_path / "two").notes
    assert note == "no tokenizer: transformers cannot make it from tiny.gguf (no vocabulary)"


def test_without_transformers_names_tell(tmp_path, monkeypatch):
    found = hf_files.importlib.util.find_spec
    monkeypatch.setattr(
        hf_files.importlib.util, "find_spec", lambda name: None if name == "transformers" else found(name)
    )
    done = convert(write_tiny(tmp_path / "tiny.gguf", "llama", "Q8_0"), tmp_path / "out")
    assert len(done.summary.layers) == 14
    assert done.notes == (
        "no tokenizer: making it from a GGUF file needs transformers (pip install 'steelyard[quant]')",
    )


def test_filter_and_keep(tmp_path):
    done = convert(write_llama(tmp_path / "in"), tmp_path / "out", filter=r"layers\.1\..*mlp", keep="bfloat16")
    assert len(done.summary.layers) == 3
    loaded = load_quantized(tmp_path / "out")
    kept = {name: tensor for name, tensor in loaded.items() if not isinstance(tensor, QuantizedTensor)}
    assert {tensor.dtype for tensor in kept.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    write_safe(tmp_path / "m.safetensors", {**llama_tensors(), "ids": torch.arange(4)}, {})
    convert(tmp_path / "m.safetensors", tmp_path / "two", keep="float32")
    assert torch.equal(load_quantized(tmp_path / "two")["ids"], torch.arange(4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "mpo"}, "Did you mean 'mpo2'"),
        ({"search": "all"}, "search must be one of"),
        ({"scale": "e5m2"}, "scale must be one of"),
        ({"group_size": 0}, "group_size must be an integer >= 1"),
        ({"keep": "float64"}, "keep must be 'same'"),
        ({"shard_bytes": 0}, "shard_bytes must be a positive"),
        ({"shard_bytes": True}, "shard_bytes must be a positive"),
        ({"filter": "("}, "is no regular expression"),
        ({"filter": "nothing"}, "has no linear weight that the filter 'nothing' takes"),
    ],
)
def test_wrong_options(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        convert(write_llama(tmp_path / "in"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_refused(tmp_path):
    source = write_llama(tmp_path / "a" / "in")
    write_safe(tmp_path / "a" / "m.safetensors", llama_tensors(), {})
    (tmp_path / "link").symlink_to(source)
    for output in (source, source / "below", tmp_path / "a", tmp_path / "link", tmp_path / "link" / "x", source / ".."):
        with pytest.raises(InputError, match="would mix with the checkpoint"):
            convert(source, output)
    with pytest.raises(InputError, match="would mix with the checkpoint"):
        convert(tmp_path / "a" / "m.safetensors", tmp_path / "a" / "m.safetensors")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; name a folder"):
        convert(source, tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        convert(source, tmp_path / "file" / "x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "full" / ".download.17.part").touch()
    for force in (False, True):
        with pytest.raises(InputError, match=r"holds other files \(thesis.tex\)"):
            convert(source, tmp_path / "full", force=force)
    assert len(list((tmp_path / "full").iterdir())) == 2


def test_another_conversion_is_replaced_by_force_only(tmp_path):
    source, out = write_llama(tmp_path / "in"), tmp_path / "out"
    convert(source, out, shard_bytes=2000)
    first = contents(out)
    for other in ({"family": "nf4"}, {"group_size": 8}, {"search": "sweep"}, {"keep": "bfloat16"}):
        with pytest.raises(InputError, match="holds a conversion of another checkpoint or with other settings"):
            convert(source, out, shard_bytes=2000, **other)
    with pytest.raises(InputError, match="holds a conversion of another checkpoint"):
        convert(write_llama(tmp_path / "two", seed=1), out, shard_bytes=2000)
    assert contents(out) == first
    (out / "mine.txt").write_text("stays")
    convert(source, out, "nf4", force=True)
    convert(source, tmp_path / "fresh", "nf4")
    assert (out / "mine.txt").read_text() == "stays"
    (out / "mine.txt").unlink()
    assert contents(out) == contents(tmp_path / "fresh")


def test_twice_is_once(tmp_path):
    source = write_llama(tmp_path / "in")
    first = convert(source, tmp_path / "out", shard_bytes=3000)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.safetensors")}
    again = convert(source, tmp_path / "out", shard_bytes=3000)
    assert (again.reused, again.shards) == (first.shards, first.shards)
    assert again.summary == first.summary
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_damaged_shard_is_made_again(tmp_path):
    source, out = write_llama(tmp_path / "in"), tmp_path / "out"
    done = convert(source, out, shard_bytes=3000)
    good = contents(out)
    shards = sorted(out.glob("*.safetensors"))
    whole = bytearray(shards[0].read_bytes())
    whole[-1] ^= 1
    shards[0].write_bytes(whole)
    shards[1].write_bytes(shards[1].read_bytes()[:-3])
    shards[2].write_bytes(shards[3].read_bytes())  # whole, but another one's
    assert convert(source, out, shard_bytes=3000).reused == done.shards - 3
    assert contents(out) == good


def test_nan_ends_in_a_sentence(tmp_path):
    tensors = llama_tensors()
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = float("nan")
    write_safe(tmp_path / "m.safetensors", tensors, {})
    with pytest.raises(InputError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' holds NaN"):
        convert(tmp_path / "m.safetensors", tmp_path / "out")


def test_an_outlier_is_noted(tmp_path):
    tensors = llama_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] *= 1e-3
    tensors[name][0, 0] = 1e6
    write_safe(tmp_path / "m.safetensors", tensors, {})
    done = convert(tmp_path / "m.safetensors", tmp_path / "out")
    assert [layer.name for layer in done.summary.layers if layer.raised] == [name]


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    rows=st.integers(1, 9),
    columns=st.integers(1, 70),
    size=st.integers(1, 40),
)
def test_errors_block_by_block(family, rows, columns, size):
    from steelyard.rng import torch_generator

    weight = torch.randn(rows, columns, generator=torch_generator("tests", "blocks", rows * columns))
    packed = quantize(weight, family, size)
    error, power = squared_error(packed, weight)
    assert error == pytest.approx(packed.mse(weight) * weight.numel(), rel=1e-9)
    assert power == pytest.approx(float(weight.double().square().sum()), rel=1e-9)


@settings(max_examples=20)
@given(size=st.integers(1, 30_000), shards=st.integers(1, 4))
def test_how_it_is_cut_changes_nothing(tmp_path_factory, size, shards):
    base = tmp_path_factory.mktemp("cut")
    source = write_llama(base / "in", shards=shards, config=None)
    done = convert(source, base / "out", shard_bytes=size)
    found = load_quantized(base / "out")
    assert set(found) == set(llama_tensors())
    for layer in done.summary.layers:
        assert torch.equal(found[layer.name].codes, quantize(llama_tensors()[layer.name]).codes)
    sizes = [path.stat().st_size for path in (base / "out").glob("*.safetensors")]
    assert len(sizes) == done.shards
    assert done.shards == 1 or size < sum(sizes)


def test_progress_counts_every_weight_once(tmp_path):
    seen = []
    convert(write_llama(tmp_path / "in"), tmp_path / "out", progress=lambda *step: seen.append(step))
    total = sum(tensor.numel() for tensor in llama_tensors().values())
    assert [step[0] for step in seen] == sorted(step[0] for step in seen)
    assert seen[0][0] == 0
    assert seen[-1] == (total, total, "")
    assert {step[2] for step in seen[:-1]} == set(llama_tensors())


def test_memory_stays_below_the_model(tmp_path):
    """Largest tensor 32 MB as float32, whole model 384 MB: what counts is the tensor."""
    million = 1 << 20
    shape = (2048, 4 * million // 1024)
    values = torch.linspace(-1, 1, shape[0] * shape[1]).reshape(shape).bfloat16()
    tensors = {f"embed.{number}.weight": values for number in range(9)}
    tensors |= {f"layer.{number}.weight": values for number in range(3)}
    write_safe(tmp_path / "big.safetensors", tensors, {})
    # In a process of its own: what other tests left in this one's memory is not the conversion's.
    script = (
        "import json, sys, pathlib, torch\n"
        "from steelyard.quant import convert\n"
        "torch.set_num_threads(1)\n"
        "folder, million = pathlib.Path(sys.argv[1]), 1 << 20\n"
        "options = {'keep': 'float32', 'shard_bytes': 16 * million}\n"
        "convert(folder / 'big.safetensors', folder / 'warm', **options)\n"  # loads and compiles, not the model's
        "done = convert(folder / 'big.safetensors', folder / 'out', **options)\n"
        "print(json.dumps([done.memory_start, done.memory_peak, done.largest_bytes, done.summary.file_bytes]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    start, peak, largest, written = json.loads(ran.stdout.splitlines()[-1])
    assert largest == 32 * million
    assert peak - start < 2 * 32 * million + 40 * million
    assert written > 9 * 32 * million


def test_memory_where_the_system_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    with memory.PeakMemory() as seen:
        seen.sample()
    assert (seen.start, seen.peak) == (None, None)


def test_a_file_without_reports(tmp_path):
    from steelyard.quant.po2.packed_files import write_packed

    write_packed(tmp_path / "a", {"w": quantize(torch.ones(2, 3), "mpo2")}, {})
    found = summarize([PackedFile(tmp_path / "a")])
    assert found.relative_mse is None
    assert found.layers[0].relative_mse is None
    zero = {"w": {"error": 0.0, "power": 0.0}}
    write_packed(tmp_path / "b", {"w": quantize(torch.zeros(2, 3), "mpo2")}, {}, zero)
    assert summarize([PackedFile(tmp_path / "b")]).relative_mse == 0.0
    for bad in ("x", True, -1.0, None):
        write_packed(tmp_path / "c", {"w": quantize(torch.ones(2, 3), "mpo2")}, {}, {"w": {"error": bad, "power": 1.0}})
        assert summarize([PackedFile(tmp_path / "c")]).relative_mse is None
