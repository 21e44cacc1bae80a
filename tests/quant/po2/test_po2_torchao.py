"""torchao's quantize_ takes our configuration."""

import copy

import pytest
import torch
from torch import nn
from torchao.quantization import quantize_

from steelyard.errors import InputError
from steelyard.quant.po2.layers import QuantizedLinear
from steelyard.quant.po2.torch_nn import quantize_model
from steelyard.quant.po2.torchao import PO2WeightOnlyConfig


def model():
    made = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    made.add_module("attention", nn.MultiheadAttention(32, 2))
    return made


def test_quantize_is_quantize_model():
    ours = model()
    theirs = copy.deepcopy(ours)
    quantize_model(ours, "sfp4", 8, search="sweep", scale="fp32")
    quantize_(theirs, PO2WeightOnlyConfig("sfp4", 8, "fp32", "sweep"))
    for index in (0, 2):
        assert isinstance(theirs[index], QuantizedLinear)
        assert torch.equal(theirs[index].weight.codes, ours[index].weight.codes)
    assert not isinstance(theirs.attention.out_proj, QuantizedLinear)


def test_filter_of_torchao():
    made = model()
    quantize_(made, PO2WeightOnlyConfig(), filter_fn=lambda module, name: name == "2")
    assert type(made[0]) is nn.Linear
    assert isinstance(made[2], QuantizedLinear)
    quantize_(made, PO2WeightOnlyConfig(), filter_fn=lambda module, name: isinstance(module, nn.Tanh))
    assert type(made[1]) is nn.Tanh


@pytest.mark.parametrize("options", [{"family": "x"}, {"group_size": 0}, {"scale": "x"}, {"search": "x"}])
def test_bad_options(options):
    with pytest.raises(InputError, match="must be"):
        PO2WeightOnlyConfig(**options)
