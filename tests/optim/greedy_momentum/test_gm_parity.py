import itertools

import pytest
import torch
from gm_runs import same, trained

from steelyard.optim import GreedyAdamW, GreedySGD

CASES = list(itertools.product((torch.float32, torch.float64), (None, True, False), (0.0, 0.1), (False, True)))
PARITY = pytest.mark.parametrize(("dtype", "foreach", "decay", "maximize"), CASES)


@PARITY
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_candidate_is_torch_sgd_bit_for_bit(dtype, foreach, decay, maximize, momentum):
    shared = {"lr": 0.01, "weight_decay": decay, "maximize": maximize, "foreach": foreach}
    theirs = trained(lambda params: torch.optim.SGD(params, momentum=momentum, **shared), dtype)
    assert same(theirs, trained(lambda params: GreedySGD(params, momentum=momentum, **shared), dtype))


@PARITY
@pytest.mark.parametrize("decoupled", [True, False])
def test_one_candidate_is_torch_adam_bit_for_bit(dtype, foreach, decay, maximize, decoupled):
    shared = {"lr": 0.01, "weight_decay": decay, "maximize": maximize, "foreach": foreach, "eps": 1e-6}
    peer = torch.optim.AdamW if decoupled else torch.optim.Adam
    theirs = trained(lambda params: peer(params, betas=(0.8, 0.99), **shared), dtype)
    ours = trained(
        lambda params: GreedyAdamW(params, beta1=0.8, beta2=0.99, decoupled_weight_decay=decoupled, **shared), dtype
    )
    assert same(theirs, ours)


@pytest.mark.parametrize("foreach", [None, True, False])
def test_one_candidate_is_torch_in_bfloat16_path_by_path(foreach):
    dtype = torch.bfloat16
    sgd = trained(lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9, foreach=foreach), dtype)
    assert same(sgd, trained(lambda params: GreedySGD(params, lr=0.01, momentum=0.9, foreach=foreach), dtype))
    adam = trained(lambda params: torch.optim.AdamW(params, lr=0.01, foreach=foreach), dtype)
    assert same(adam, trained(lambda params: GreedyAdamW(params, lr=0.01, beta1=0.9, foreach=foreach), dtype))


@pytest.mark.parametrize("score", ["in_sample", "next"])
@pytest.mark.parametrize("first", [0.0, 0.9])
@PARITY
def test_a_run_that_never_switches_is_the_run_of_torch(dtype, foreach, decay, maximize, first, score):
    shared = {"lr": 0.01, "weight_decay": decay, "maximize": maximize, "foreach": foreach}
    knobs = {"score": score, "hysteresis": 10**9}
    sgd = trained(lambda params: torch.optim.SGD(params, momentum=first, **shared), dtype)
    assert same(sgd, trained(lambda params: GreedySGD(params, momentum=(first, 0.99), **shared, **knobs), dtype))
    adam = trained(lambda params: torch.optim.Adam(params, betas=(first, 0.999), **shared), dtype)
    ours = trained(
        lambda params: GreedyAdamW(
            params, beta1=(first, 0.99), decoupled_weight_decay=False, **shared, **knobs
        ), dtype
    )  # fmt: skip
    assert same(adam, ours)
