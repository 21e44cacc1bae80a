"""What importing transformers writes where torchao is installed: nothing of ours, and nothing of the user's is lost."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from steelyard.errors import MissingExtraError
from steelyard.models.hugging_face import import_transformers, quiet_import


def test_a_model_is_made_without_a_word():
    made = "from steelyard.models.tiny import tiny_random_lm; print(tiny_random_lm().num_layers)"
    done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "2\n"
    assert "torchao" not in done.stderr
    assert "_pytree" not in done.stderr


@pytest.mark.parametrize("name", ["torchao", "torch.utils._pytree"])
def test_warnings_are_kept_back_inside_only(name, caplog, monkeypatch):
    logger = logging.getLogger(name)
    monkeypatch.setattr(logger, "level", logging.WARNING)  # a command that ran before may have raised it
    logger.manager._clear_cache()
    before = list(logger.filters)
    logger.addHandler(caplog.handler)  # torch's loggers hand nothing on
    try:
        with quiet_import():
            logger.warning("a kernel of another machine")
            logger.error("inside")
            logging.getLogger("mine").warning("mine")
        logger.warning("outside")
    finally:
        logger.removeHandler(caplog.handler)
    said = list(dict.fromkeys(record.getMessage() for record in caplog.records))
    assert said == ["inside", "mine", "outside"]
    assert logger.filters == before


def test_transformers_itself_comes_back(monkeypatch):
    assert import_transformers().__name__ == "transformers"
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils", raising=False)
    with pytest.raises((MissingExtraError, ModuleNotFoundError)):
        import_transformers()
