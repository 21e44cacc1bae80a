"""The settings of an arm, each the knob of a decision of the ledger."""

from __future__ import annotations

from typing import Literal

from steelyard.card import Frozen, knob


class Config(Frozen):
    """Settings of an arm; every field names its decision in the ledger.

    ``family`` is a registered family, ``learned`` (grids learned in the cell), ``q4_0`` or ``q4_1`` (GGUF's own
    blocks) or ``none`` (unquantised). The fields from ``n_grids`` to ``tol`` are read where grids are learned.
    """

    family: str = knob("N1", "mpo2")
    selector: Literal["best", "first", "random"] = knob("N2", "best")
    group_size: int | None = knob("N3", None, ge=1)
    scale: Literal["e4m3", "e4m3_side", "e3m3", "e4m2", "e3m4", "e8m0", "fp16", "fp32"] | None = knob("Q3", None)
    rule: Literal["absmax", "fit"] | None = knob("Q5", None)
    cap: float | None = knob("Q6", None, gt=0, le=448)
    search: Literal["none", "4o6", "sweep", "window"] = knob("Q7", "none")
    importance: bool = knob("Q8", False)
    criterion: Literal["mse", "mae", "max"] = knob("Q8", "mse")
    shift: float = knob("Q16", 0.5, ge=0, lt=6)
    companion: Literal["pinned", "learned"] = knob("Q15", "pinned")
    n_grids: int = knob("Q1", 2, ge=1, le=8)
    init: Literal["nf4-mirror", "nf4-uniform", "tight-uniform", "uniform", "residual"] = knob("Q11", "nf4-mirror")
    n_restarts: int = knob("Q11", 3, ge=1)
    mirror: bool = knob("Q12", False)
    pin_ends: bool = knob("Q13", False)
    explicit_zero: bool = knob("Q14", False)
    tol: float = knob("Q18", 1e-4, ge=0, lt=1)
    layers: Literal["inner", "all"] = knob("Q19", "inner")
    activation_scale: Literal["actual", "calibrated"] = knob("Q20", "actual")
    hadamard: bool = knob("Q21", False)
    stochastic_gradients: bool = knob("Q21", False)
