"""What the cells of all tasks share: from a cell's settings to quantised weights and quantised inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.quant.po2.baselines import LEARNED, Quantiser, adjusted, learning, quantiser
from steelyard.quant.po2.calibration import second_moments
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.selection import output_heads
from steelyard.quant.po2.torch_nn import fit_activation_grids, quantize_activations

_POOL_GROUPS = 8000  # groups of 16 that grids are learned on, over all layers


def config_of(cell: CellInput) -> Config:
    """Return the arm's settings: what makes the arm, over what the user wished, over the defaults."""
    wished = {name: cell.options[name] for name in Config.model_fields if cell.options.get(name) is not None}
    return Config(**{**wished, **cell.config})


def quantiser_of(cell: CellInput, pool: Sequence[Tensor]) -> Quantiser:
    """Return the cell's quantiser; grids that it learns are learned on ``pool``."""
    return quantiser(config_of(cell), pool, cell.seed, cell.torch_rng("selector"))


def check_seed(cell: CellInput, there: int) -> None:
    """Refuse a seed for which a task has no data of its own.

    Raises:
        InputError: The seed is not below ``there``.
    """
    if cell.seed >= there:
        raise InputError(f"seed {cell.seed}: the data of task '{cell.task}' are enough for the seeds 0 to {there - 1}")


def linear_layers(model: nn.Module, head: bool = False) -> dict[str, nn.Linear]:
    """Return name -> linear layer of all that are quantised: no unused pooler, an output layer only with ``head``."""
    is_head = output_heads(model)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name and (head or not is_head(module, name))
    }


def quantise_weights(
    cell: CellInput, model: nn.Module, layers: Mapping[str, nn.Linear], batches: Sequence[Any]
) -> Quantiser:
    """Put fake-quantised weights into ``layers``: the same numbers as packed ones, at the speed of dense ones.

    Args:
        cell: Gives the settings.
        model: What the layers are part of.
        layers: Name -> layer.
        batches: What importance weights are measured on.
    """
    quantise = quantiser_of(cell, [_sampled(layer.weight, len(layers)) for layer in layers.values()])
    moments: Mapping[str, Tensor] = {}
    if quantise.config.importance:
        moments = second_moments(model, layers, batches)
    for name, layer in layers.items():
        layer.weight = nn.Parameter(quantise(layer.weight, moments.get(name)), requires_grad=False)
    return quantise


def _sampled(weight: Tensor, layers: int) -> Tensor:
    """Return some rows of one of ``layers`` matrices, evenly spaced."""
    rows = max(1, 16 * _POOL_GROUPS // layers // weight.shape[1])
    return weight[:: max(1, len(weight) // rows)][:rows]


def with_inputs(cell: CellInput, quantise: Quantiser) -> bool:
    """Say whether this profile weighs the arm with quantised inputs too: a family that chooses by its own rule."""
    wanted = cell.params.get("w4a4", "all")
    chooses = quantise.family is not None and quantise.config.selector == "best"
    return chooses and (wanted == "all" or cell.arm in wanted)


def quantise_inputs(
    model: nn.Module, layers: Mapping[str, nn.Linear], quantise: Quantiser, batches: Sequence[Any], seed: int
) -> None:
    """Have the inputs of ``layers`` quantised from now on.

    Learned grids are learned once more, on the inputs that ``batches`` give: those of weights do not suit them.

    Args:
        model: What the layers are part of, its weights quantised already.
        layers: Name -> layer.
        quantise: What was done to the weights; of a family.
        batches: Tuning data.
        seed: Of the learned grids.
    """
    config, family = quantise.config, quantise.family
    assert family is not None

    def chosen(module: nn.Module, name: str) -> bool:
        return name in layers

    if config.family == LEARNED:
        groups = max(1, _POOL_GROUPS // len(layers))
        learned = fit_activation_grids(
            model, batches, chosen, config.group_size or 16, groups, seed, **learning(config)
        )
        family = adjusted(learned.family, config)
    calibrate = batches if config.activation_scale == "calibrated" else None
    quantize_activations(model, family, chosen, calibrate, config.group_size, config.scale, config.search)
