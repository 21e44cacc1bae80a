"""Tasks on whole models: divergence of language models, drift of sentence embeddings, with 4-bit weights and inputs.

A cell gets tokens only; it opens the model from the package, the cache or the user's folder itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# Here, before workers fork: each cell would pay 2 s for them otherwise.
import transformers.models.bert.modeling_bert
import transformers.models.llama.modeling_llama  # noqa: F401
from torch import Tensor, nn

from steelyard import rng
from steelyard.contracts import Arrays, CellInput, Measured
from steelyard.data import locate, plain_wikitext, wikitext2
from steelyard.data.cache import file_sha256
from steelyard.models import llama2c, minilm, smollm2
from steelyard.models.hugging_face import load_causal_lm
from steelyard.quant.po2.baselines import UNQUANTISED
from steelyard.quant.po2.cells import (
    check_seed,
    config_of,
    linear_layers,
    quantise_inputs,
    quantise_weights,
    with_inputs,
)
from steelyard.quant.po2.evaluate import Divergence, LanguageModel, compare

SEEDS = 16  # streams that are prepared; a seed beyond them is refused
_SEQUENCES, _LENGTH = 16, 128
_CHARACTERS = 40_000
_WORDS, _LONG_LINE = 40, 200
_SENTENCES = 40  # for each seed

Ids = npt.NDArray[np.int32]


def stories() -> Arrays:
    """Return the checksum of the stories model, which keys the cells."""
    return {"model": np.array(file_sha256(locate("stories260k").paths[0]))}


def prepare_stories(data: Arrays) -> Arrays:
    """Return text that the model writes itself: (seeds, sequences, tokens), and two such sets for tuning."""
    model = llama2c.stories260k()

    def written(root: str, sets: int) -> Ids:
        stream = rng.torch_generator(root, "stories/text", 0)
        text = llama2c.sample(model, sets * _SEQUENCES, _LENGTH, stream)
        return text.reshape(sets, _SEQUENCES, _LENGTH).numpy().astype(np.int32)

    return {"windows": written("evaluation", SEEDS), "tuning": written("tuning", 2)}


def minilm_weights() -> Arrays:
    """Return the checksum of MiniLM's weights, which keys the cells."""
    return {"model": np.array(minilm.check())}


def wikitext() -> Arrays:
    """Return the tokens of WikiText-2 for SmolLM2: test for the verdicts, validation for tuning."""
    return {
        "model": np.array(smollm2.check()),
        "tokens": _smollm2_tokens(wikitext2("test")),
        "tuning": _smollm2_tokens(wikitext2("valid")),
    }


def _smollm2_tokens(lines: list[str]) -> Ids:
    text = plain_wikitext("\n".join(lines))[:_CHARACTERS]
    return np.array(smollm2.tokenizer()(text).input_ids, dtype=np.int32)


def sentences() -> Arrays:
    """Return long lines of WikiText-2, cut to 40 words, as MiniLM's tokens: disjoint sets for the seeds and tuning."""
    ids, mask = _minilm_tokens(wikitext2("test"), SEEDS * _SENTENCES)
    tuning_ids, tuning_mask = _minilm_tokens(wikitext2("valid"), 2 * _SENTENCES)
    return {"model": np.array(minilm.check()), "ids": ids, "mask": mask, "tuning_ids": tuning_ids,
            "tuning_mask": tuning_mask}  # fmt: skip


def _minilm_tokens(lines: list[str], count: int) -> tuple[Ids, Ids]:
    chosen = [" ".join(line.split()[:_WORDS]) for line in lines if len(line) > _LONG_LINE][:count]
    ids, mask = minilm.tokenise(chosen)
    return ids.numpy().astype(np.int32), mask.numpy().astype(np.int32)


_OPEN: Mapping[str, Callable[[CellInput], nn.Module]] = {
    "stories": lambda cell: llama2c.stories260k(),
    "smollm2": lambda cell: smollm2.load(),
    "user": lambda cell: load_causal_lm(Path(str(cell.data["folder"]))),
}


def run_language_model(cell: CellInput) -> Measured:
    """Quantise a language model's weights, then its inputs as well, and compare with the unquantised one."""
    reference, model = _OPEN[cell.task](cell), _OPEN[cell.task](cell)
    windows, tuning = _windows(cell)
    batches, layers = list(tuning[:, None]), _layers(cell, model)
    quantise = quantise_weights(cell, model, layers, batches)
    candidates: dict[str, LanguageModel] = {"w4a16": model}
    if with_inputs(cell, quantise):
        twin = _with_weights_of(cell, model)
        quantise_inputs(twin, _layers(cell, twin), quantise, batches, cell.seed)
        candidates["w4a4"] = twin
    found = compare(reference, candidates, windows)
    if quantise.config.family == UNQUANTISED:
        found["w4a4"] = found["w4a16"]
    metrics = {"bits": quantise.bits_per_weight, "model_weight_error": _weight_error(_layers(cell, reference), layers)}
    for name, divergence in found.items():
        metrics |= _named(name, divergence)
    return Measured(metrics, steps=windows.numel() * (1 + len(candidates)))


def _windows(cell: CellInput) -> tuple[Tensor, Tensor]:
    """Return the seed's windows and those that grids may be learned on, each int64 (windows, length).

    A cell of the tuning root never sees text that a verdict is read from.
    """
    tuning = cell.root == "tuning"
    if cell.task == "stories":
        check_seed(cell, 1 if tuning else SEEDS)
        count, learn = int(cell.params["sequences"]), cell.data["tuning"]
        own = learn[1] if tuning else cell.data["windows"][cell.seed]
        return _int64(own[:count]), _int64(learn[0][:count])
    length = int(cell.options.get("window") or cell.params["window"])
    tokens = cell.data["tuning"][length:] if tuning else cell.data["tokens"]
    check_seed(cell, len(tokens) // length)
    return _int64(tokens[cell.seed * length :][:length])[None], _int64(cell.data["tuning"][:length])[None]


def _int64(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))


def _layers(cell: CellInput, model: nn.Module) -> dict[str, nn.Linear]:
    return linear_layers(model, head=config_of(cell).layers == "all")


def _with_weights_of(cell: CellInput, model: nn.Module) -> nn.Module:
    """Return the same model once more, on the same tensors."""
    twin = _OPEN[cell.task](cell)
    weights = dict(model.named_modules())
    for name, layer in _layers(cell, twin).items():
        layer.weight = weights[name].weight
    return twin


def _weight_error(truth: Mapping[str, nn.Linear], ours: Mapping[str, nn.Linear]) -> float:
    """Return the relative squared error of all weights."""
    error = power = 0.0
    for name, layer in truth.items():
        error += float(torch.dist(ours[name].weight, layer.weight)) ** 2
        power += float(layer.weight.norm()) ** 2
    return error / power


def _named(name: str, found: Divergence) -> dict[str, float]:
    return {f"kl_{name}": found.kl, f"ppl_{name}": found.perplexity, f"top1_{name}": found.top1}


def run_embeddings(cell: CellInput) -> Measured:
    """Quantise the sentence encoder and measure 1 - cos between its embeddings and the unquantised ones."""
    tuning = cell.root == "tuning"
    check_seed(cell, 1 if tuning else SEEDS)
    count = int(cell.params["sentences"])
    names, start = (("tuning_ids", "tuning_mask"), 1) if tuning else (("ids", "mask"), cell.seed)
    ids, mask = (_int64(cell.data[name][start * _SENTENCES :][:count]) for name in names)
    learn = [{"input_ids": _int64(cell.data["tuning_ids"][:count]),
              "attention_mask": _int64(cell.data["tuning_mask"][:count])}]  # fmt: skip
    model, reference = minilm.load(), minilm.load()
    truth = minilm.embed(reference, ids, mask)
    layers = _layers(cell, model)
    quantise = quantise_weights(cell, model, layers, learn)
    metrics = {
        "cos_w4a16": _drift(truth, minilm.embed(model, ids, mask)),
        "bits": quantise.bits_per_weight,
        "model_weight_error": _weight_error(_layers(cell, reference), layers),
    }
    passes = 2
    if quantise.config.family == UNQUANTISED:
        metrics["cos_w4a4"] = metrics["cos_w4a16"]
    elif with_inputs(cell, quantise):
        quantise_inputs(model, layers, quantise, learn, cell.seed)
        metrics["cos_w4a4"] = _drift(truth, minilm.embed(model, ids, mask))
        passes += 1
    return Measured(metrics, steps=ids.numel() * passes)


def _drift(truth: Tensor, ours: Tensor) -> float:
    """Return the mean of 1 - cos over rows of unit length, as half the squared distance: exactly 0 when equal."""
    return float((truth - ours).double().square().sum(1).mean() / 2)
