"""From the settings of an arm to what it does to a tensor: families of grids, learned grids, and rows that are neither.

Single grids (NVFP4, MXFP4, NF4, four over six, LLOYD1), the adaptive IF4 and scale search are families of the core;
here are the controls of the selector, GGUF's own 4-bit blocks as reference rows, and grids learned in the cell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steelyard.errors import InputError
from steelyard.extras import require
from steelyard.quant.po2.config import Config
from steelyard.quant.po2.families import GridFamily, sfp4_family
from steelyard.quant.po2.families import family as find_family
from steelyard.quant.po2.fitting import fit_grids
from steelyard.quant.po2.tensor import fake_quantize, quantize

GGUF_BITS = {"q4_0": 4.5, "q4_1": 5.0}  # a float16 scale (and a float16 minimum) for 32 codes
UNQUANTISED = "none"
LEARNED = "learned"
_GGUF_GROUP = 32
_SHIFTED = ("sfp4", "sfp4_pair")


@dataclasses.dataclass(frozen=True)
class Quantiser:
    """What an arm does to a tensor whose groups run along its last axis.

    Attributes:
        config: The arm's settings.
        family: Its grids; None for GGUF blocks and for the unquantised arm.
        generator: Of the random selector.
    """

    config: Config
    family: GridFamily | None
    generator: torch.Generator

    @property
    def bits_per_weight(self) -> float:
        """The nominal figure that formats are compared by: codes, group scale and selector bits."""
        if self.family is None:
            return GGUF_BITS.get(self.config.family, 32.0)
        group = self.config.group_size or self.family.default_group
        return quantize(torch.ones(1, group), self.family, **self.options).bits_per_weight

    @property
    def options(self) -> dict[str, Any]:
        """The options that ``quantize`` and ``fake_quantize`` take beside the family."""
        return {"group_size": self.config.group_size, "scale": self.config.scale, "search": self.config.search}

    def __call__(self, t: Tensor, importance: Tensor | None = None) -> Tensor:
        """Return ``t`` quantised and dequantised, float32 of the same shape.

        Args:
            t: Weights.
            importance: Weights >= 0 of the squared errors along the last axis, or None.
        """
        if self.family is None:
            return t if self.config.family == UNQUANTISED else gguf_blocks(t, self.config.family)
        if self.config.selector == "random":
            return self._at_random(t)
        return fake_quantize(t, self.family, importance=importance, **self.options)

    def _at_random(self, t: Tensor) -> Tensor:
        """Give every group one of the family's grids by lot: the floor that any selector must beat."""
        assert self.family is not None
        each = torch.stack([fake_quantize(t, _only(self.family, grid), **self.options) for grid in range(self.grids)])
        group = self.config.group_size or self.family.default_group
        columns = t.shape[-1]
        lots = torch.randint(self.grids, (*t.shape[:-1], -(-columns // group)), generator=self.generator)
        return each.gather(0, lots.repeat_interleave(group, -1)[None, ..., :columns])[0]

    @property
    def grids(self) -> int:
        """Grids that a group may take."""
        return 1 if self.family is None else self.family.n_grids


def quantiser(config: Config, pool: Sequence[Tensor], seed: int, generator: torch.Generator) -> Quantiser:
    """Return what ``config`` stands for.

    Args:
        config: Settings of an arm.
        pool: What grids are learned on where the settings ask for that; used for nothing else.
        seed: Of the restarts of that.
        generator: Of the random selector.

    Raises:
        InputError: No such family, or settings that do not go together.
    """
    if config.family == UNQUANTISED or config.family in GGUF_BITS:
        return Quantiser(config, None, generator)
    family = adjusted(_learned(config, pool, seed) if _learns(config) else _named(config), config)
    return Quantiser(config, _only(family, 0) if config.selector == "first" else family, generator)


def adjusted(family: GridFamily, config: Config) -> GridFamily:
    """Return ``family`` with the criterion, the cap and the rule that ``config`` asks for."""
    changes: dict[str, Any] = {} if config.criterion == "mse" else {"criterion": config.criterion}
    if config.cap is not None:
        changes["cap"] = config.cap
    if config.rule is not None and family.rule != "ocp":
        changes["rule"] = config.rule
    return dataclasses.replace(family, **changes)


def learning(config: Config) -> dict[str, Any]:
    """Return how ``config`` has grids learned: the options of ``fit_grids`` beside group size and seed."""
    return {
        "n_grids": config.n_grids, "init": config.init, "n_restarts": config.n_restarts, "pin_ends": config.pin_ends,
        "explicit_zero": config.explicit_zero, "mirror": config.mirror, "tol": config.tol, "scale": config.scale,
        "rule": config.rule or "absmax",
    }  # fmt: skip


def _learns(config: Config) -> bool:
    return config.family == LEARNED or config.companion == "learned"


def _named(config: Config) -> GridFamily:
    if config.family in _SHIFTED and config.shift != 0.5:
        return sfp4_family(config.shift, pair=config.family == "sfp4_pair", name=config.family)
    return find_family(config.family)


def _learned(config: Config, pool: Sequence[Tensor], seed: int) -> GridFamily:
    options = {**learning(config), "group_size": config.group_size or 16, "seed": seed}
    if config.family == LEARNED:
        return fit_grids(list(pool), **options).family
    member = find_family(config.family)
    if len(member.grids) != 2 or member.signed_scale or member.rule == "ocp":
        raise InputError(f"companion='learned' needs a family of two grids, not '{config.family}'")
    fixed = tuple(value / member.unit for value in member.grids[0])
    options |= {"n_grids": 2, "mirror": False, "rule": member.rule}
    return fit_grids(list(pool), fixed=(fixed,), **options).family


def _only(family: GridFamily, grid: int) -> GridFamily:
    """Return a family of one of the grids, everything else as it is."""
    return dataclasses.replace(family, grids=(family.search_grids[grid],), signed_scale=False)


def gguf_blocks(t: Tensor, kind: str) -> Tensor:
    """Return ``t`` through GGUF's own quantiser: blocks of 32 along the last axis, which is filled up with zeros.

    Args:
        t: Weights.
        kind: ``"q4_0"`` or ``"q4_1"``.

    Raises:
        MissingExtraError: The package gguf is not installed.
    """
    gguf = require("gguf", "quant")
    rows = t.detach().float().reshape(-1, t.shape[-1])
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % _GGUF_GROUP))
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    decoded = gguf.dequantize(gguf.quantize(padded.numpy(), type_), type_)
    return torch.from_numpy(np.ascontiguousarray(decoded[:, : rows.shape[1]])).reshape(t.shape)
