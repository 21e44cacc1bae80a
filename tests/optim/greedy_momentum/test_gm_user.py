import sys
import textwrap

import pytest
import torch

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.optim.greedy_momentum import user
from steelyard.optim.greedy_momentum.bench import BENCH

GOOD = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def make_model():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def make_loaders(seed):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(60, 4, generator=generator)
        y = x[:, :3].argmax(dim=1)
        return DataLoader(TensorDataset(x[:40], y[:40]), batch_size=8, shuffle=True), [(x[40:], y[40:])]

    def one_loader():
        return [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]

    def no_batches():
        return [], []

    def triples():
        return [(1, 2, 3)], []

    def soft_labels():
        return [(torch.zeros(2, 4), torch.zeros(2, 3))], []

    def far_labels():
        return [(torch.zeros(2, 4), torch.tensor([0, 7]))], []

    def spent():
        return iter([(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]), []

    def not_a_model():
        return 3

    def flat_model():
        return nn.Flatten(0)

    number = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    def write(text=GOOD, name="gm_user_module"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        sys.modules.pop(name, None)
        return name

    monkeypatch.chdir(tmp_path)
    yield write
    for name in ("gm_user_module", "gm_broken", "gm_needs"):
        sys.modules.pop(name, None)


def run(data, arm="robust_global", seed=0, **options):
    monkey = CellInput("own", arm, BENCH.arm(arm).config, BENCH.profiles["quick"].params, options, seed, data)
    return BENCH.run(monkey)


def test_a_task_of_the_users_own(module, monkeypatch, tmp_path):
    name = module()
    options = {"model": f"{name}:make_model", "steps": 20}
    task = BENCH.user_task(f"{name}:make_loaders", **options)
    state = torch.get_rng_state()
    data = task.load()
    assert torch.equal(state, torch.get_rng_state())
    assert str(data["data"]) == f"{name}:make_loaders"
    monkeypatch.syspath_prepend(str(tmp_path))
    for arm in ("robust_global", "paper_per_param", "fixed_09", "random"):
        found = run(data, arm, **options)
        assert found.metrics == run(data, arm, **options).metrics
        assert found.steps == 80
    assert torch.equal(state, torch.get_rng_state())
    assert run(data, lrs=[0.1], optimizer="adamw", **options).steps == 20


def test_arms_start_from_equal_weights_and_batches(module, monkeypatch, tmp_path):
    name = module()
    monkeypatch.syspath_prepend(str(tmp_path))
    options = {"model": f"{name}:make_model", "steps": 1}
    data = BENCH.user_task(f"{name}:make_loaders", **options).load()
    assert run(data, "fixed_05", **options).metrics == run(data, "paper_global", **options).metrics


def test_the_hash_follows_the_source(module):
    hashes = []
    for extra in ("", "\n    changed = 1\n"):
        name = module(GOOD + extra)
        data = BENCH.user_task(f"{name}:make_loaders", model=f"{name}:make_model").load()
        hashes.append(str(data["source_sha256"]))
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ("make_loaders", "M:make_model", "module:callable"),
        ("no_such_module:f", "M:make_model", "no module 'no_such_module'"),
        ("M:no_such", "M:make_model", "no callable 'no_such'"),
        ("M:number", "M:make_model", "no callable 'number'"),
        ("M:one_loader", "M:make_model", "two iterables"),
        ("M:no_batches", "M:make_model", "no batch"),
        ("M:triples", "M:make_model", "inputs, labels"),
        ("M:soft_labels", "M:make_model", "one whole number"),
        ("M:far_labels", "M:make_model", "0..2"),
        ("M:make_loaders", "M:not_a_model", "torch.nn.Module"),
        ("M:make_loaders", "M:flat_model", "scores"),
        ("M:make_loaders", "gm_broken:f", "ZeroDivisionError"),
        ("M:make_loaders", "gm_needs:f", "needs 'no_such_dependency'"),
    ],
)
def test_each_mistake_is_one_sentence(module, data, model, message):
    name = module()
    module("1 / 0", "gm_broken")
    module("import no_such_dependency", "gm_needs")
    with pytest.raises(InputError, match=message) as caught:
        BENCH.user_task(data.replace("M:", f"{name}:"), model=model.replace("M:", f"{name}:")).load()
    assert "\n" not in str(caught.value)


def test_data_must_be_a_name():
    with pytest.raises(InputError, match="module:callable"):
        BENCH.user_task(3, model="a:b")


def test_a_loader_that_cannot_start_again():
    with pytest.raises(InputError, match="cannot start again"):
        list(user.endless(iter([(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]), 5, "m:f"))


@pytest.mark.parametrize("lrs", ["0.1,0.01", "0.1 0.1", "-1", "", [0.1, 0.2, 0.3, 0.4, 0.5]])
def test_rates_must_be_sorted_and_positive(lrs):
    with pytest.raises(ValueError, match="lrs"):
        user.UserOptions(model="a:b", lrs=lrs)


def test_options():
    assert user.UserOptions(model="a:b", lrs="0.01, 0.1").rates == (0.01, 0.1)
    assert user.UserOptions(model="a:b", optimizer="adamw").rates == (1e-3, 3e-3)
