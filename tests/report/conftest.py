import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import builders
from chromium import chromium, open_page  # noqa: F401  (fixtures)


@pytest.fixture(scope="session")
def three():
    return builders.three_methods()


@pytest.fixture(scope="session")
def small():
    return builders.weighing(builders.gdro_plan(2))
