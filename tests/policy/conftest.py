"""What tests of the policy room share: the official games, which a mirror folder has."""

import pytest

from steelyard import data


@pytest.fixture(scope="session")
def mirror():
    """The official games, or a skip, which counts as a failure in continuous integration."""
    try:
        return data.locate("alfworld_games")
    except FileNotFoundError as error:
        pytest.skip(str(error))
