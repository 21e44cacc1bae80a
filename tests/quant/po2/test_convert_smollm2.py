"""The command line on a real model of 135 M parameters: time, memory, error, perplexity and divergence."""

import json
import os
import subprocess
import sys

import pytest

from steelyard.models.smollm2 import gguf_file

pytestmark = pytest.mark.acceptance
TEXT = "The quick brown fox jumps over the lazy dog, and then it walks home to its family near the river. " * 40


def line(*words):
    """Run ``steelyard``; return its JSON, and CPU seconds and peak resident bytes of the process."""
    code = "from steelyard.cli.main import run; run()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words), "--json"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    out = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return json.loads(out), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def test_convert_inspect_and_eval(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    out = tmp_path / "out"
    made, convert_s, convert_peak = line("quant", "convert", gguf_file(), "-o", out)
    seen, inspect_s, _ = line("quant", "inspect", out)
    words = ("--text", tmp_path / "text.txt", "--tokens", 512, "--reference", gguf_file())
    found, eval_s, eval_peak = line("quant", "eval", out, *words)
    print(f"\nconvert {convert_s:.1f} s, {convert_peak / 2**20:.0f} MiB; inspect {inspect_s:.1f} s; "
          f"eval {eval_s:.1f} s, {eval_peak / 2**20:.0f} MiB; {made['memory']}; {found}")  # fmt: skip
    assert convert_s + inspect_s + eval_s < 300
    assert max(convert_peak, eval_peak) < 4 * 2**30
    assert made["memory"]["peak_bytes"] <= made["memory"]["bound_bytes"] == 2 * 4 * 49152 * 576 + 500_000_000
    assert len(made["layers"]) == 210
    assert made["quantized_weights"] == 106_168_320
    assert made["bits_per_weight"] == 4.5
    assert made["stored_bits_per_weight"] == pytest.approx(4.5, abs=1e-3)
    assert made["relative_mse"] == pytest.approx(0.0043, abs=2e-4)  # the family's error on Gaussian groups
    assert seen["layers"] == made["layers"]
    assert 0 < found["kl"] < 0.5
    assert found["top1"] > 0.7
