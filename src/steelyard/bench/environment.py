"""What a weighing ran on: recorded beside the cells, compared when results differ."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import steelyard

_PACKAGES = (
    "numpy",
    "scipy",
    "torch",
    "scikit-learn",
    "pydantic",
    "pyarrow",
    "transformers",
    "matplotlib",
    "numba",
    "gguf",
    "pillow",
)


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def record() -> dict[str, Any]:
    """Return packages, interpreter, machine and, in a git checkout, the commit."""
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "steelyard": steelyard.__version__,
        "commit": _commit(),
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads_per_cell": 1,
        "packages": packages,
    }


def cpu_name() -> str:
    """Return the processor's name as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str | None:
    """Return the commit of the checkout that this package is run from, marked when it has changes; None elsewhere."""
    home = Path(__file__).resolve().parents[3]
    if not (home / ".git").exists():
        return None
    try:
        said = subprocess.run(
            ["git", "-C", str(home), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()
