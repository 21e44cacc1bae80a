"""Save and load: the same codes, the same outputs; ties, activation quantisers, hostile files."""

import json

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from steelyard.errors import InputError
from steelyard.models.safefile import SafeFile, write_safe
from steelyard.quant.po2.families import FAMILIES
from steelyard.quant.po2.packed_files import KEY, PackedFile, packed_files, write_packed
from steelyard.quant.po2.storage import load_quantized, save_quantized
from steelyard.quant.po2.tensor import QuantizedTensor, quantize
from steelyard.quant.po2.torch_nn import QuantizedLinear, quantize_model
from steelyard.rng import torch_generator


class Net(nn.Module):
    """Linear layers with and without bias, a convolution, a norm with buffers, an embedding tied to the head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 20)
        self.conv = nn.Conv1d(20, 24, 3)
        self.norm = nn.BatchNorm1d(24)
        self.inner = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 20, bias=False))
        self.lm_head = nn.Linear(20, 11, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, ids):
        hidden = self.norm(self.conv(self.embed(ids).mT)).mT
        return self.lm_head(self.inner(hidden))


def net(seed=0, device=None):
    generator = torch_generator("tests", "net", seed)
    with torch.device("meta"):
        made = Net()
    if device == "meta":
        return made.eval()
    made = made.to_empty(device="cpu")
    made.lm_head.weight = made.embed.weight
    for value in made.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
        else:
            value.zero_()
    return made.eval()


IDS = torch.tensor([[1, 2, 3, 4, 5, 10]])


def same(a, b):
    return (
        torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales) and a.tensor_scale == b.tensor_scale
        and (a.family, a.group_size, a.scale_format, a.shape, a.axis) == (b.family, b.group_size, b.scale_format,
                                                                          b.shape, b.axis)
        and (a.side is None) == (b.side is None) and (a.side is None or torch.equal(a.side, b.side))
    )  # fmt: skip


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    scale=st.sampled_from([None, "e4m3", "e3m3", "e8m0", "fp16", "fp32"]),
    size=st.integers(1, 33),
    rows=st.integers(1, 5),
    columns=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_codes_come_back(tmp_path_factory, family, scale, size, rows, columns, seed):
    path = tmp_path_factory.getbasetemp() / "codes.safetensors"
    layer = nn.Linear(columns, rows, bias=False, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.copy_(torch.randn(rows, columns, generator=torch_generator("tests", "codes", seed)))
    packed = QuantizedLinear.from_quantized(quantize(layer.weight, family, size, scale))
    save_quantized(packed, path)
    assert same(load_quantized(path)["weight"], packed.weight)
    assert same(load_quantized(path, layer).weight, packed.weight)
    assert PackedFile(path).stored_bytes("weight") == packed.weight.stored_bytes


@pytest.mark.parametrize("activations", [None, "sfp4"])
def test_a_model_comes_back(tmp_path, activations):
    model = quantize_model(net(), "mpo2", activations=activations)
    if activations:
        model.inner[0].activations.observe(torch.tensor(3.0))
    save_quantized(model, tmp_path / "m.safetensors")
    expected = model(IDS)
    for other in (net(1), net(device="meta"), quantize_model(net(1), "nvfp4", 8)):
        loaded = load_quantized(tmp_path / "m.safetensors", other)
        assert loaded is other
        assert not loaded.training
        assert torch.equal(loaded(IDS), expected)
        assert loaded.lm_head.weight is loaded.embed.weight
        assert same(loaded.conv.weight, model.conv.weight)
        if activations:
            assert float(loaded.inner[0].activations.amax) == 3.0
    again = tmp_path / "again.safetensors"
    save_quantized(loaded, again)
    assert again.read_bytes() == (tmp_path / "m.safetensors").read_bytes()


def test_without_a_model_there_are_tensors(tmp_path):
    save_quantized(quantize_model(net(), "nf4"), tmp_path / "m.safetensors")
    found = load_quantized(tmp_path / "m.safetensors")
    assert isinstance(found["inner.2.weight"], QuantizedTensor)
    assert torch.equal(found["lm_head.weight"], found["embed.weight"])
    assert "scratch" not in found
    theirs = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert theirs["inner.0.weight.codes"].dtype == theirs["inner.0.weight.scales"].dtype == torch.uint8
    assert "lm_head.weight" not in theirs  # a tied tensor is stored once


def test_shared_packed_weights_are_stored_once(tmp_path):
    two = nn.ModuleList([nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)])
    two[1].weight = two[0].weight
    save_quantized(quantize_model(two), tmp_path / "t.safetensors")
    assert list(PackedFile(tmp_path / "t.safetensors").table) == ["0.weight"]
    fresh = nn.ModuleList([nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)])
    loaded = load_quantized(tmp_path / "t.safetensors", fresh)
    assert loaded[0].codes.data_ptr() == loaded[1].codes.data_ptr()


def test_bits_in_the_file(tmp_path):
    model = quantize_model(net(), "mpo2")
    save_quantized(model, tmp_path / "m.safetensors")
    file = PackedFile(tmp_path / "m.safetensors")
    for name, module in (("conv", model.conv), ("inner.0", model.inner[0])):
        spans = [span for key, span in file.file.spans.items() if key.startswith(f"{name}.weight.")]
        size = sum(span.end - span.begin for span in spans)
        assert module.weight.stored_bits_per_weight == 8 * size / torch.Size(module.weight.shape).numel()


def test_models_that_do_not_fit(tmp_path):
    path = tmp_path / "m.safetensors"
    save_quantized(quantize_model(net(), "mpo2"), path)
    wider = net()
    wider.inner[0] = nn.Linear(24, 33)
    with pytest.raises(InputError, match=r"'inner\.0\.weight' of shape \(32, 24\), but the model has \(33, 24\)"):
        load_quantized(path, wider)
    with pytest.raises(InputError, match="but the model has no layer"):
        load_quantized(path, nn.Linear(3, 3))
    other = net()
    other.inner[0] = nn.ReLU()
    with pytest.raises(InputError, match="is a ReLU, which cannot hold one"):
        load_quantized(path, other)
    surplus = net()
    surplus.more = nn.Linear(2, 2)
    with pytest.raises(InputError, match=r"'more\.bias' is no such tensor there, \(2,\) in the model"):
        load_quantized(path, surplus)
    less = net()
    del less.norm
    with pytest.raises(InputError, match=r"'norm\.bias' is \(24,\) there, no such tensor in the model"):
        load_quantized(path, less)

    class Odd(nn.Linear):
        def get_extra_state(self):
            return 3

        def set_extra_state(self, state):
            pass

    with pytest.raises(InputError, match="'0', a Odd, has an extra state"):
        save_quantized(nn.Sequential(Odd(2, 2)), path)


def rewritten(path, change):
    """Change the JSON of the header of a saved file, with the digest left right."""
    file = SafeFile(path)
    header = json.loads(file.metadata[KEY])
    tensors = {name: file.read(name).clone() for name in file.spans}
    header = change(header, tensors) or header
    write_safe(path, tensors, {KEY: header if isinstance(header, str) else json.dumps(header)})


def drop(table, *keys):
    for key in keys[:-1]:
        table = table[key]
    del table[keys[-1]]


def put(table, *keys):
    for key in keys[:-2]:
        table = table[key]
    table[keys[-2]] = keys[-1]


ROW = ("tensors", "inner.0.weight")
ACTIVATIONS = {
    "family": FAMILIES["nf4"].to_json(), "group_size": 16, "scale": "e4m3", "search": "none", "axis": -1
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda h, t: put(h, "version", "2"), "has the format version '2'; this version of steelyard reads '1'"),
        (lambda h, t: put(h, "version", 1), "has the format version '1'"),
        (lambda h, t: "[1]", "has the format version 'None'"),
        (lambda h, t: "{", "damaged"),
        (lambda h, t: put(h, "families", {}), "lacks the families or the tensors"),
        (lambda h, t: put(h, "model", 1), "lacks the families or the tensors"),
        (lambda h, t: put(h, "model", {"tied": 1}), "'tied' of its header is no table"),
        (lambda h, t: put(h, "families", 0, {}), "family"),
        (lambda h, t: put(h, *ROW, "family", 7), "lacks a field"),
        (lambda h, t: put(h, *ROW, "family", True), "lacks a field"),
        (lambda h, t: put(h, *ROW, "report", 1), "lacks a field"),
        (lambda h, t: drop(h, *ROW, "shape"), "lacks a field"),
        (lambda h, t: put(h, "tensors", "a\n", h["tensors"]["inner.0.weight"]), "lacks a field"),
        (lambda h, t: put(h, *ROW, "shape", "[32, 1000000]"), "'scales'"),
        (lambda h, t: put(h, *ROW, "shape", "[-1]"), "shape"),
        (lambda h, t: put(h, *ROW, "axis", "9"), "axis"),
        (lambda h, t: put(h, *ROW, "group_size", "0"), "group_size"),
        (lambda h, t: put(h, *ROW, "scale_format", "int3"), "scale"),
        (lambda h, t: put(h, *ROW, "version", "9"), "format '9'"),
        (lambda h, t: drop(t, "inner.0.weight.codes"), "'codes' of a quantised tensor is missing"),
        (lambda h, t: put(t, "inner.0.weight.codes", torch.zeros(3, 3)), "'codes'"),
        (lambda h, t: put(t, "inner.0.weight.scales", torch.full((32, 2), 127, dtype=torch.uint8)), "no scale"),
        (lambda h, t: put(t, "inner.0.weight.tensor_scale", torch.tensor([float("nan")])), "tensor_scale"),
        (lambda h, t: put(h, "model", {"activations": {"inner.0": {"family": "x"}}}), "activation quantiser of 'inner"),
        (lambda h, t: put(h, "model", {"activations": {"no": {}}}), "activation quantiser of 'no"),
        (lambda h, t: put(h, "model", {"activations": {"norm": ACTIVATIONS}}), "no packed weight"),
    ],
)  # fmt: skip
def test_hostile_headers(tmp_path, change, said):
    path = tmp_path / "m.safetensors"
    save_quantized(quantize_model(net(), "mpo2"), path)
    rewritten(path, change)
    with pytest.raises(InputError, match=said.replace("[", r"\[").replace("(", r"\(")) as raised:
        load_quantized(path, net())
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_of_another_kind(tmp_path):
    write_safe(tmp_path / "p.safetensors", {"a": torch.ones(2)}, {})
    with pytest.raises(InputError, match="holds no quantised tensors"):
        load_quantized(tmp_path / "p.safetensors")
    with pytest.raises(InputError, match=r"holds no model\.safetensors\.index\.json"):
        packed_files(tmp_path)
    path = tmp_path / "m.safetensors"
    save_quantized(quantize_model(net(), "mpo2"), path)
    with pytest.raises(InputError, match="holds no quantised tensor 'x'"):
        PackedFile(path).read("x")
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        load_quantized(path)
    with pytest.raises(InputError, match="is in the way of a part of"):
        write_packed(path, {"a.weight": QuantizedLinear(16, 2).weight}, {"a.weight.codes": torch.ones(1)})


def test_an_encoder_runs_in_inference_mode_with_and_without_a_mask(tmp_path):
    def encoder():
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()

    quantized = quantize_model(encoder())
    save_quantized(quantized, tmp_path / "encoder.safetensors")
    loaded = load_quantized(tmp_path / "encoder.safetensors", encoder())
    x, mask = torch.ones(2, 5, 32), torch.tensor([[False] * 5, [False, False, True, True, True]])
    with torch.inference_mode():
        assert torch.equal(loaded(x), quantized(x))
        assert torch.equal(loaded(x, src_key_padding_mask=mask), quantized(x, src_key_padding_mask=mask))
