"""Write a benchmark's receipt: the figures, and the machine that gave them."""

from __future__ import annotations

import json
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write(name: str, figures: dict[str, Any]) -> Path:
    """Write ``results/<name>.json`` and return its path."""
    packages = {}
    for package in ("numpy", "torch", "scipy", "scikit-learn"):
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    receipt = {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cpu": _cpu_name()},
        "packages": packages,
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(receipt, indent=1) + "\n")
    return path


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
