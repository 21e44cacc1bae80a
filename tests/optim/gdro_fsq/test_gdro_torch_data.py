import io
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from steelyard.errors import InputError
from steelyard.optim import FlexGroupBatchSampler, FlexGroupDRO, PLAPlayer

GROUPS = np.array([0, 1, 2, 0, 1, 2, 0, 0, 3, 3])


def sampler(r=2, player=None, **more):
    return FlexGroupBatchSampler(GROUPS, r, player or PLAPlayer(4), rng=np.random.default_rng(0), **more)


def close(player):
    player.update(np.full(len(player.open_proposals[0].indices), 0.5))


def test_batches_hold_the_chosen_groups():
    player = PLAPlayer(4)
    for t, batch in enumerate(sampler(lambda t: 1 + t % 4, player, samples_per_group=3, batches=12), start=1):
        chosen = player.open_proposals[0].indices
        assert len(chosen) == 1 + t % 4
        assert GROUPS[batch].tolist() == np.repeat(chosen, 3).tolist()
        close(player)
    assert t == 12
    assert player.rounds == 12


def test_epoch_draws_the_size_of_the_data_set():
    player = PLAPlayer(4)
    one = sampler(2, player, samples_per_group=2)
    count = 0
    for _ in one:
        count += 1
        close(player)
    assert count == len(one) == 3  # 12 samples for 10 items
    assert len(sampler(np.int64(2), samples_per_group=2)) == 3
    assert len(sampler(lambda t: 1, batches=7)) == 7
    with pytest.raises(TypeError, match="batches"):
        len(sampler(lambda t: 1))


def test_iterator_goes_on_in_the_next_epoch_and_ends():
    player = PLAPlayer(4)
    one = sampler(iter([1, 2, 3, 4]), player, batches=3)
    sizes = []
    for _ in range(3):
        for batch in one:
            sizes.append(len(batch))
            close(player)
    assert sizes == [1, 2, 3, 4]


def test_abandoned_epoch_leaves_no_round_open():
    player = PLAPlayer(4)
    one = sampler(1, player)
    next(iter(one))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(one))
    assert len(player.open_proposals) == 1


def test_draws_can_be_resumed():
    player = PLAPlayer(4)
    one = sampler(4, player, batches=2)
    state = one.state_dict()
    first = []
    for batch in one:
        first.append(batch)
        close(player)
    fresh = PLAPlayer(4)
    again = sampler(4, fresh, batches=2)
    next(iter(again))
    again.load_state_dict(state)
    fresh.load_state_dict(PLAPlayer(4).state_dict())
    for batch, expected in zip(again, first, strict=True):
        assert batch == expected
        close(fresh)


@pytest.mark.parametrize(
    ("groups", "more", "word"),
    [
        ([0, 1, 3], {}, "group 2 has no items"),
        ([0, 1, 2, 4], {}, "groups must lie in 0..3"),
        ([0, 1, 2, -1], {}, "groups must lie"),
        ([0.0, 1.0, 2.0, 3.0], {}, "integers"),
        ([[0, 1, 2, 3]], {}, "one-dimensional"),
        ([], {}, "groups"),
        (GROUPS, {"r_schedule": 5}, "r_schedule"),
        (GROUPS, {"r_schedule": True}, "r_schedule"),
        (GROUPS, {"samples_per_group": 0}, "samples_per_group"),
        (GROUPS, {"batches": 0}, "batches"),
        (GROUPS, {"player": PLAPlayer(4, "observed")}, "observed"),
    ],
)
def test_refused_samplers(groups, more, word):
    with pytest.raises(InputError, match=word):
        FlexGroupBatchSampler(groups, **({"r_schedule": 1, "player": PLAPlayer(4)} | more))


def test_schedule_out_of_range_is_refused_when_it_comes():
    with pytest.raises(InputError, match="r must"):
        list(sampler([1, 9]))


def dataset():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, 3, generator=generator)
    groups = torch.arange(240) % 4
    y = (x[:, 0] + 0.5 * (groups - 1.5) * x[:, 1] > 0).long()
    return TensorDataset(x, y, groups)


def train(dro, loader, steps=1, lr=0.1):
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        for x, y, groups in loader:
            optimizer.zero_grad()
            dro.from_outputs(model(x), y, groups).backward()
            optimizer.step()
    return model


def test_training_end_to_end_lowers_the_worst_groups_loss():
    data = dataset()
    dro = FlexGroupDRO(torch.nn.CrossEntropyLoss(reduction="none"), 4, loss_range=20.0)
    batches = FlexGroupBatchSampler(
        data.tensors[2], lambda t: 1 + t % 4, dro.player, 8, rng=np.random.default_rng(0), batches=150
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no stale weights without workers
        model = train(dro, DataLoader(data, batch_sampler=batches))
    assert dro.player.rounds == 150
    assert dro.player.open_proposals == ()
    x, y, groups = data.tensors
    losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
    assert max(losses[groups == i].mean() for i in range(4)) < 0.6
    assert dro.player.weights.min() < 0.24


def test_workers_draw_ahead_and_the_player_says_so():
    data = dataset()
    dro = FlexGroupDRO(torch.nn.CrossEntropyLoss(reduction="none"), 4, loss_range=5.0)
    batches = FlexGroupBatchSampler(data.tensors[2], 2, dro.player, 4, rng=np.random.default_rng(0), batches=12)
    loader = DataLoader(data, batch_sampler=batches, num_workers=2)
    with pytest.warns(UserWarning, match="num_workers=0") as caught:
        train(dro, loader)
    assert sum("stale" in str(one.message) for one in caught) == 1
    assert dro.player.rounds == 12
    assert dro.player.open_proposals == ()


def proposed(r=2, **player):
    dro = FlexGroupDRO(None, 4, player=PLAPlayer(4, **player), loss_range=2.0)
    dro.player.propose(r, np.random.default_rng(0))
    return dro, dro.player.open_proposals[0]


@pytest.mark.parametrize("gradient", ["rb", "single", "iw"])
@pytest.mark.parametrize("round_weight", ["uniform", "samples"])
def test_loss_is_the_weighted_sum_of_group_means(gradient, round_weight):
    player = PLAPlayer(4, round_weight=round_weight)
    dro = FlexGroupDRO(None, 4, player=player, gradient=gradient)
    player.propose(4, np.random.default_rng(1))
    player.update([0.1, 0.9, 0.4, 0.3])
    player.propose(2, np.random.default_rng(3))
    one = player.open_proposals[0]
    a, b = one.indices.tolist()
    twin = PLAPlayer(4, round_weight=round_weight)
    twin.load_state_dict(player.state_dict())
    losses = torch.tensor([0.2, 0.6, 0.4], requires_grad=True)
    loss = dro(losses, torch.tensor([b, a, b]))
    q = one.q[one.indices]
    factors = {"rb": q / q.sum(), "single": np.array([1.0, 0.0]), "iw": q / one.probs}[gradient]
    scale = 0.5 if round_weight == "samples" else 1.0
    assert float(loss.detach()) == pytest.approx(scale * (factors[0] * 0.6 + factors[1] * 0.3), rel=1e-6)
    loss.backward()
    assert losses.grad.tolist() == pytest.approx([scale * factors[1] / 2, scale * factors[0], scale * factors[1] / 2])
    twin.update([0.6, 0.3])
    assert player.weights == pytest.approx(twin.weights, rel=1e-6)


def test_losses_above_the_range_are_clipped_counted_and_told():
    dro, one = proposed(4)
    groups = torch.tensor(one.indices)
    with pytest.warns(UserWarning, match="losses above loss_range = 2 were clipped for the q-player, 2 so far"):
        loss = dro(torch.tensor([1.0, 3.0, 5.0, 0.5]), groups)
    assert dro.clipped == 2
    assert float(loss) == pytest.approx(9.5 / 4)  # the gradient's loss is not clipped
    for _ in range(2):  # the next warning comes at 10
        dro.player.propose(4, np.random.default_rng(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dro(torch.full((4,), 3.0), groups) if dro.clipped < 6 else dro(torch.full((4,), 1.0), groups)
    dro.player.propose(4, np.random.default_rng(0))
    with pytest.warns(UserWarning, match="10 so far"):
        dro(torch.full((4,), 3.0), groups)


def test_evaluation_leaves_the_player_alone():
    dro = FlexGroupDRO(None, 4).eval()
    assert float(dro(torch.tensor([0.25, 0.75]), torch.tensor([0, 3]))) == 0.5
    assert dro.player.rounds == 0


def test_observed_batches_need_probabilities():
    dro = FlexGroupDRO(None, 4, player=PLAPlayer(4, "observed"))
    assert dro.gradient == "iw"
    losses, groups = torch.tensor([0.5, 1.0, 0.0]), torch.tensor([3, 1, 3])
    with pytest.raises(InputError, match="inclusion_probs are needed"):
        dro(losses, groups)
    loss = dro(losses, groups, inclusion_probs=np.full(4, 0.5))
    assert float(loss) == pytest.approx(0.25 / 0.5 * (1.0 + 0.25))
    assert dro.player.rounds == 1
    with pytest.raises(InputError, match="gradient='iw'"):
        FlexGroupDRO(None, 4, player=PLAPlayer(4, "observed"), gradient="rb")


@pytest.mark.parametrize(
    ("losses", "groups", "words"),
    [
        ([0.1, 0.2], [0, 1], "player chose"),
        ([0.1], None, "player chose"),
        ([0.1, -0.2], None, "sample 1"),
        ([0.1, float("nan")], None, "nan"),
        ([0.1, float("inf")], None, "inf"),
        ([[0.1, 0.2]], None, "reduction='none'"),
        ([], [], "reduction='none'"),
        ([0.1, 0.2], [0.0, 1.0], "integers"),
        ([0.1, 0.2], [0], "2 integers"),
        ([0.1, 0.2], [0, 4], "0..3"),
        ([0.1, 0.2], [-1, 0], "0..3"),
    ],
)
def test_refused_batches(losses, groups, words):
    dro, one = proposed(2)
    if groups is None:
        groups = one.indices[: len(losses)].tolist() if np.ndim(losses) == 1 else one.indices.tolist()
    if sorted(groups) == sorted(one.indices.tolist()) and "chose" in words:
        groups = [i for i in range(4) if i not in groups]
    with pytest.raises(InputError, match=words):
        dro(torch.tensor(losses), torch.tensor(groups))
    assert len(dro.player.open_proposals) == 1


def test_batches_from_elsewhere_are_refused():
    dro = FlexGroupDRO(None, 4)
    with pytest.raises(InputError, match=r"not chosen by the player.*mode='observed'"):
        dro(torch.tensor([0.1]), torch.tensor([0]))
    with pytest.raises(InputError, match="inclusion_probs were given"):
        dro(torch.tensor([0.1]), torch.tensor([0]), inclusion_probs=np.ones(4))


def test_refused_settings():
    with pytest.raises(InputError, match="m = 3"):
        FlexGroupDRO(None, 3, player=PLAPlayer(4))
    with pytest.raises(InputError, match="loss_range"):
        FlexGroupDRO(None, 3, loss_range=0.0)
    with pytest.raises(InputError, match="model_loss is None"):
        FlexGroupDRO(None, 3).from_outputs(torch.zeros(1, 2), torch.zeros(1).long(), torch.zeros(1).long())


def test_state_dict_survives_a_safe_load():
    dro, one = proposed(4)
    dro(torch.tensor([0.1, 0.9, 1.4, 0.3]), torch.tensor(one.indices))
    dro.player.propose(2, np.random.default_rng(0))
    buffer = io.BytesIO()
    torch.save(dro.state_dict(), buffer)
    buffer.seek(0)
    twin = FlexGroupDRO(None, 4, loss_range=2.0)
    twin.load_state_dict(torch.load(buffer, weights_only=True))
    assert twin.player.state_dict() == dro.player.state_dict()
    assert twin.clipped == dro.clipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_loss_keeps_its_type(dtype):
    dro, one = proposed(2)
    assert dro(torch.tensor([0.25, 0.5], dtype=dtype), torch.tensor(one.indices)).dtype == dtype


def test_global_random_state_is_left_alone():
    data = dataset()
    state = torch.random.get_rng_state()
    dro = FlexGroupDRO(None, 4, loss_range=5.0)
    batches = FlexGroupBatchSampler(data.tensors[2], 2, dro.player, rng=np.random.default_rng(0), batches=3)
    for batch in batches:
        dro(torch.full((2,), 0.5), data.tensors[2][batch])
    assert torch.equal(torch.random.get_rng_state(), state)
