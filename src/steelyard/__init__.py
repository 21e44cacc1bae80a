"""steelyard: use methods from NeurIPS 2026, and weigh them against the baselines they claim to beat.

Everything is loaded on first use; ``import steelyard`` alone imports neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.checks import check_method
    from steelyard.report.weighing import Weighing, weigh

__version__ = "0.1.0"

_LAZY = {
    "weigh": "steelyard.report.weighing",
    "Weighing": "steelyard.report.weighing",
    "check_method": "steelyard.checks",
}
_SUBPACKAGES = (
    "agents",
    "bench",
    "card",
    "catalog",
    "checks",
    "contracts",
    "data",
    "errors",
    "fed",
    "graphs",
    "guard",
    "models",
    "nets",
    "optim",
    "policy",
    "quant",
    "report",
    "rng",
    "timing",
    "vision",
)

__all__ = ["Weighing", "__version__", "check_method", "weigh"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"steelyard.{name}")
    raise AttributeError(f"module 'steelyard' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES})
