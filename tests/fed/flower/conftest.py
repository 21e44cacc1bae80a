"""These tests run in an environment of their own (``make test-fed``), since Flower pins older packages than we need.

Elsewhere, where flwr is missing, nothing is collected here; a run of this folder alone then fails for want of tests.
"""

import importlib.util

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]


@pytest.fixture
def task(monkeypatch):
    """This process as a task of a run, as which alone Flower lets messages be made."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
