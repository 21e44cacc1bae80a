"""The real collections of skills, where they can be had."""

from __future__ import annotations

import os

import pytest

from steelyard import data
from steelyard.data.skills import SKILL_SETS
from steelyard.errors import DataMissingError


@pytest.fixture(scope="session")
def skill_folders():
    try:
        return {name: data.skill_library_folder(name) for name in SKILL_SETS}
    except DataMissingError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
