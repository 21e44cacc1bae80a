"""NFICallback in a real, tiny Trainer run; the model is built from a config, nothing is downloaded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.optim import NFICallback
from steelyard.optim.nfi.huggingface import find_head

transformers = require("transformers", "hf")


def tiny_model():
    config = transformers.BertConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


def test_trainer_run_is_watched_and_logged(tmp_path):
    model = tiny_model()
    rows = [{"input_ids": torch.arange(8) % 32, "labels": torch.tensor(i % 3)} for i in range(12)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        max_steps=6,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    callback = NFICallback(every=2)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    assert [record.step for record in callback.monitor.history] == [2, 4, 6]
    logged = [entry for entry in trainer.state.log_history if "nfi/sc_frac" in entry]
    assert len(logged) >= 3
    assert logged[0]["nfi/mu_norm"] > 0
    assert callback.monitor.history[-1].update_norm > 0
    assert callback.monitor.history[-1].effective_lr > 0
    assert not model.classifier._forward_hooks


def test_finds_the_classifier():
    assert isinstance(find_head(tiny_model()), nn.Linear)
    with pytest.raises(InputError, match="head was not found in ReLU"):
        find_head(nn.ReLU())


def test_quiet_before_training():
    callback = NFICallback()
    callback.on_log(None, None, None, logs={})
    callback.on_train_end(None, None, None)
    assert callback.monitor is None
