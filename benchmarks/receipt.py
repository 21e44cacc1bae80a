"""Write a benchmark's receipt: the figures, and the machine that gave them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from steelyard.bench import environment

RESULTS = Path(__file__).parent / "results"


def write(name: str, figures: dict[str, Any]) -> Path:
    """Write ``results/<name>.json`` and return its path."""
    receipt = {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "environment": environment.record(),
        "figures": figures,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(receipt, indent=1) + "\n")
    return path
