"""What tests of the policy room share: the official games, which a mirror folder has."""

import os
from pathlib import Path

import pytest
from conftest import skip_unless_ci


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The mirror folder with the official games."""
    folder = os.environ.get("STEELYARD_DATA_MIRROR")
    if not folder:
        skip_unless_ci("needs a mirror folder: set STEELYARD_DATA_MIRROR")
    return Path(folder)
