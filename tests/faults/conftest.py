import tempfile

import pytest


@pytest.fixture(autouse=True)
def _killed_runners_leave_nothing_elsewhere(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
