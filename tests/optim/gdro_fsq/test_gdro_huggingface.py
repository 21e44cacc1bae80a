import warnings

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainingArguments

from steelyard.errors import InputError
from steelyard.optim import FlexGroupDRO, GroupDROTrainerMixin


class GroupTrainer(GroupDROTrainerMixin, Trainer):
    pass


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, x, labels=None):
        return {"logits": self.layer(x)}


def items(n=160):
    generator = torch.Generator().manual_seed(0)
    x, groups = torch.randn(n, 4, generator=generator), torch.arange(n) % 4
    labels = (x[:, 0] > 0.5 * (groups - 1.5)).long()
    return [{"x": x[i], "labels": int(labels[i]), "group": int(groups[i])} for i in range(n)]


def arguments(folder, **more):
    settings = {
        "output_dir": str(folder), "max_steps": 30, "per_device_train_batch_size": 8, "remove_unused_columns": False,
        "report_to": [], "use_cpu": True, "save_strategy": "no", "logging_strategy": "no", "learning_rate": 0.1,
        "disable_tqdm": True,
    }  # fmt: skip
    return TrainingArguments(**(settings | more))


def trainer(folder, dro=None, data=None, args=None, **more):
    data = items() if data is None else data
    settings = {"r_schedule": lambda t: 1 + t % 4, "samples_per_group": 4, "batches": 30} | more
    dro = dro or FlexGroupDRO(None, 4, loss_range=20.0)
    return GroupTrainer(
        model=Net(), args=args or arguments(folder), train_dataset=data, eval_dataset=items(40), dro=dro, **settings
    )


def test_a_real_trainer_run(tmp_path):
    one = trainer(tmp_path)
    before = one.evaluate()["eval_loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the player must never fall behind
        one.train()
    assert one.dro.player.rounds == 30
    assert one.dro.player.open_proposals == ()
    assert one.dro.player.weights.std() > 1e-4
    rounds = one.dro.player.rounds
    assert one.evaluate()["eval_loss"] < before - 0.02
    assert one.dro.player.rounds == rounds  # evaluation leaves the player alone


def test_own_loss_and_tuple_outputs(tmp_path):
    dro = FlexGroupDRO(torch.nn.CrossEntropyLoss(reduction="none"), 4, loss_range=20.0)
    one = trainer(tmp_path, dro)
    batch = {"x": torch.zeros(2, 4), "labels": torch.tensor([0, 1]), "group": torch.tensor([0, 1])}
    model = one.model.eval()
    loss, outputs = one.compute_loss(model, batch, return_outputs=True)
    assert loss.item() == pytest.approx(one.compute_loss(lambda_model(model), batch).item())
    assert outputs["logits"].shape == (2, 2)
    assert set(batch) == {"x", "labels", "group"}  # inputs are not changed


def lambda_model(model):
    class Tuples(torch.nn.Module):
        def forward(self, x, labels):
            return torch.zeros(()), model(x)["logits"]

    return Tuples().eval()


def test_equal_seeds_draw_equal_batches(tmp_path):
    drawn = []
    for _ in range(2):
        loader = trainer(tmp_path, r_schedule=2, batches=3).get_train_dataloader()
        seen = []
        for batch in loader.batch_sampler:
            seen.append(batch)
            loader.batch_sampler._player.update([0.5, 0.5])
        drawn.append(seen)
    assert drawn[0] == drawn[1]


class Columns:
    """A data set with columns, as the datasets library has them."""

    column_names = ("x", "labels", "group")

    def __init__(self):
        self.items = items(20)

    def __len__(self):
        return 20

    def __getitem__(self, key):
        return [item[key] for item in self.items] if isinstance(key, str) else self.items[key]


def test_column_of_a_data_set(tmp_path):
    loader = trainer(tmp_path, data=Columns(), rng=np.random.default_rng(0)).get_train_dataloader()
    assert [len(rows) for rows in loader.batch_sampler._members] == [5] * 4


@pytest.mark.parametrize(
    ("more", "word"),
    [({"remove_unused_columns": True}, "remove_unused_columns"), ({"gradient_accumulation_steps": 2}, "accumulation")],
)
def test_arguments_that_contradict_the_method(tmp_path, more, word):
    with pytest.raises(InputError, match=word):
        trainer(tmp_path, args=arguments(tmp_path, **more))


def test_missing_columns(tmp_path):
    one = trainer(tmp_path)
    with pytest.raises(InputError, match="no 'group'"):
        one.compute_loss(one.model, {"x": torch.zeros(1, 4), "labels": torch.zeros(1).long()})
    with pytest.raises(InputError, match="no 'labels'"):
        one.compute_loss(one.model, {"x": torch.zeros(1, 4), "group": torch.zeros(1).long()})
    with pytest.raises(InputError, match="no column 'g'"):
        trainer(tmp_path, group_column="g").get_train_dataloader()
    one.train_dataset = None
    with pytest.raises(InputError, match="train_dataset"):
        one.get_train_dataloader()
