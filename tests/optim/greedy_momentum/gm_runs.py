"""Short runs on two kinds of noisy quadratics, shared by the tests of the greedy optimizers."""

import torch

SHAPES = ((5, 7), (7,), (), (3, 2, 4), (0,))


def parameters(dtype=torch.float32, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def descend(params, optimizer, steps=50, seed=1, skip=True):
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) + 0.3 * p.detach()
        if skip and step % 7 == 3:
            params[1].grad = None
        optimizer.step()
    return params


def trained(make, dtype=torch.float32, shapes=SHAPES, steps=50):
    params = parameters(dtype, shapes)
    return descend(params, make(params), steps)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
