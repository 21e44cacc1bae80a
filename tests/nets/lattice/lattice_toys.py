"""Small networks and the naive loop that the lattice tests compare with."""

from __future__ import annotations

import torch
from torch.nn import functional

from steelyard.data import digits
from steelyard.nets.lattice.torch_nn import LatticeRCNN


def images(count, size=8, channels=1, seed=0, dtype=torch.float32):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def stirred(*args, seed=0, kappa=3.0, scale=0.15, **kwargs):
    """A network with every parameter away from its start, so that biases and time depend on something."""
    net = LatticeRCNN(*args, **kwargs)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * scale)
        if net.time == "adaptive":
            net.kappa.fill_(kappa)
    return net


def naive_states(net, x):
    """All states h_{l,t} by the formula, one convolution per edge and step."""
    sizes = net.sizes(*x.shape[2:])
    state = [torch.zeros(len(x), c, *size, dtype=x.dtype) for c, size in zip(net.widths, sizes, strict=True)]
    states = []
    for _ in range(net.max_steps):
        new = []
        for layer, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
            below, own, above = torch.split(weight, list(net.fan_in(layer)), 1)
            source = state[layer - 1] if layer else x
            z = functional.conv2d(source, below, bias, stride=net.strides[layer], padding=1)
            z = z + functional.conv2d(state[layer], own, padding=1)
            if above.shape[1]:
                up = functional.interpolate(state[layer + 1], size=sizes[layer])
                z = z + functional.conv2d(up, above, padding=1)
            new.append(torch.relu(z))
        state = new
        states.append(state)
    return states


def naive_readouts(net, x):
    """Readouts y_t of shape (B, T, K)."""
    readouts = []
    for state in naive_states(net, x):
        y = net.readout_bias.expand(len(x), -1)
        for h, columns in zip(state, net.readout_by_channel(), strict=True):
            pooled = functional.adaptive_avg_pool2d(h, net.pool).flatten(2)
            y = y + net.readout_scale * torch.einsum("bcp,ckp->bk", pooled, columns)
        readouts.append(y)
    return torch.stack(readouts, 1)


def digits_split(train=1400):
    """Digits as images in [0, 1]: (train images, train labels, test images, test labels)."""
    x, y = digits()
    x = torch.as_tensor(x, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.as_tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order[:train]], y[order[:train]], x[order[train:]], y[order[train:]]
