"""The loss module, the zero-sum hook and head centering."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional

from steelyard.errors import InputError
from steelyard.optim import ExactCrossEntropyLoss, center_head_, exact_cross_entropy, zero_sum_hook


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_takes_the_arguments_of_torchs_loss():
    theirs = list(inspect.signature(nn.CrossEntropyLoss.__init__).parameters)
    assert list(inspect.signature(ExactCrossEntropyLoss.__init__).parameters) == [*theirs, "validate"]
    logits, target = torch.randn(6, 4, generator=generator()), torch.tensor([0, 1, 2, 3, -1, 0])
    weight = torch.tensor([1.0, 2.0, 0.5, 1.0])
    for options in ({}, {"reduction": "sum"}, {"label_smoothing": 0.1}, {"weight": weight}, {"reduce": False}):
        ours = ExactCrossEntropyLoss(ignore_index=-1, **options)
        torch.testing.assert_close(
            ours(logits, target), nn.CrossEntropyLoss(ignore_index=-1, **options)(logits, target)
        )
    assert isinstance(ours, nn.CrossEntropyLoss)


def test_state_round_trip_and_validate():
    loss = ExactCrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    other = ExactCrossEntropyLoss(weight=torch.ones(2), validate=False)
    other.load_state_dict(loss.state_dict())
    logits, target = torch.tensor([[1.0, 0.0], [0.5, 0.0]]), torch.tensor([1, 0])
    assert torch.equal(loss(logits, target), other(logits, target))
    with pytest.raises(InputError, match="NaN"):
        loss(logits * torch.nan, target)
    assert other(logits * torch.nan, target).isnan()


def test_zero_sum_hook_spreads_what_is_left_of_a_collapsed_row():
    K, margin = 5, 25.0
    logits = torch.zeros(2, K)
    logits[:, 0] = margin
    leaf = logits.requires_grad_()
    z = leaf * 1
    handle = zero_sum_hook(z)
    (gradient,) = torch.autograd.grad(functional.cross_entropy(z, torch.tensor([0, 0]), reduction="sum"), leaf)
    eps = (K - 1) * torch.exp(torch.tensor(-margin))
    torch.testing.assert_close(gradient[:, 0], (-eps / K).expand(2), rtol=1e-5, atol=0)
    assert abs(float(gradient.double().sum())) < 1e-7 * float(eps)
    handle.remove()
    with pytest.raises(InputError, match="logits need no gradient"):
        zero_sum_hook(torch.zeros(2, 3))


def test_zero_sum_hook_is_linear_and_takes_any_class_dimension():
    x = torch.randn(2, 3, 4, generator=generator())
    for dim, axis in ((None, 1), (-1, -1), (0, 0)):
        leaf = x.clone().requires_grad_()
        z = leaf * 1
        zero_sum_hook(z, dim)
        (gradient,) = torch.autograd.grad((z * x).sum() * 1024, leaf)
        torch.testing.assert_close(gradient, 1024 * (x - x.mean(axis, keepdim=True)))
    leaf = x[0, 0].clone().requires_grad_()
    z = leaf * 1
    zero_sum_hook(z)
    (gradient,) = torch.autograd.grad((z * x[0, 0]).sum(), leaf)
    assert float(gradient.sum()) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_centering_leaves_probabilities_alone(dtype):
    head = nn.Linear(4, 3).to(dtype)
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, 4, generator=generator(1)))
        head.bias.copy_(torch.tensor([1.0, 2.0, 6.0]))
    x = torch.randn(5, 4, generator=generator(2)).to(dtype)
    before = torch.softmax(head(x).float(), 1)
    center_head_(head)
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-6
    assert float(head.weight.float().mean(0).abs().max()) < tolerance
    assert float(head.bias.float().mean().abs()) < tolerance
    torch.testing.assert_close(
        torch.softmax(head(x).float(), 1), before, rtol=0.1 if tolerance > 0.01 else 1e-5, atol=tolerance
    )


def test_centering_as_an_optimizer_hook():
    head = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: center_head_(head))
    exact_cross_entropy(head(torch.randn(5, 4, generator=generator())), torch.tensor([0, 1, 2, 0, 1])).backward()
    optimizer.step()
    assert float(head.weight.mean(0).abs().max()) < 1e-7


def test_centering_asks_before_it_moves_tied_embeddings():
    embedding = nn.Embedding(7, 4)
    head = nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    model = nn.ModuleList([embedding, head])
    for arguments in ((head, model), (embedding,)):
        with pytest.raises(InputError, match="shares its weight with an input embedding"):
            center_head_(*arguments)
    center_head_(head, model, allow_tied=True)
    assert float(embedding.weight.mean(0).abs().max()) < 1e-6
    free = nn.Linear(4, 7)
    center_head_(free, nn.ModuleList([embedding, free]))
    with pytest.raises(InputError, match="linear must have a weight"):
        center_head_(nn.ReLU())
