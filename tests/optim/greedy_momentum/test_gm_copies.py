"""Half precision on the CPU, copies, and states that are not ours."""

import copy

import pytest
import torch

from steelyard.errors import InputError
from steelyard.optim import GreedyAdamW, GreedySGD


def test_candidates_are_not_rounded_to_half_precision():
    p = torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    optimizer = GreedySGD([p], 0.0, (0.5, 0.997))  # in bfloat16 .997 is .996, and 129 * .996 rounds to 128
    for gradient in (129.0, 0.0):
        p.grad = torch.full_like(p, gradient)
        optimizer.step()
    assert optimizer.state[p]["momentum_buffers"][1].item() == 129.0


@pytest.mark.parametrize("make", [GreedySGD, GreedyAdamW])
def test_copies_keep_reduce(make):
    def twice(sums):
        sums.mul_(2)

    optimizer = copy.deepcopy(make([torch.ones(2, requires_grad=True)], reduce=twice))
    assert optimizer._reduce is twice


@pytest.mark.parametrize("make", [GreedySGD, GreedyAdamW])
def test_the_state_of_torchs_own_optimizer_is_refused(make):
    p = torch.ones(2, requires_grad=True)
    optimizer = make([p])
    with pytest.raises(InputError, match="state_dict was not made by Greedy"):
        optimizer.load_state_dict(torch.optim.SGD([p], 0.1).state_dict())
    p.grad = torch.ones(2)
    optimizer.step()
