"""Optional dependencies: import a module or say how to install it; export names that load on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from types import ModuleType
from typing import Any

from steelyard.errors import MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which comes with ``steelyard[extra]`` or needs what comes with it.

    Args:
        module: Dotted module name, e.g. ``"torch"`` or ``"steelyard.optim.nfi.core"``.
        extra: Name of the extra that brings it, e.g. ``"optim"``.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: A third-party module is not installed. One that is installed but fails inside keeps its own
            error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        ours = module.partition(".")[0] == "steelyard"
        if missing in ("", "steelyard") or (not ours and missing != module.partition(".")[0]):
            raise
        raise MissingExtraError(missing_extra_message(missing, extra), name=missing) from None


def missing_extra_message(package: str, extra: str) -> str:
    """Return the sentence that names the missing ``package`` and the command that installs it."""
    return f"{package} is not installed; install it with: pip install 'steelyard[{extra}]'"


def lazy_exports(
    package: str, homes: Mapping[str, tuple[str, ...]], extra: str, apart: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` (PEP 562) of a room whose names load on first use.

    Args:
        package: The room's dotted name.
        homes: Module relative to the room -> names that it defines, e.g. ``{"nfi.core": ("exact_cross_entropy",)}``.
        extra: The extra that a missing dependency is installed with.
        apart: Modules that need another extra than ``extra``: their names stay out of ``__all__``, so that
            ``from … import *`` works without it.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(require(f"{package}.{home_of[name]}", extra), name)

    names = sorted(home_of)
    return get, lambda: names, [name for name in names if home_of[name] not in apart]
