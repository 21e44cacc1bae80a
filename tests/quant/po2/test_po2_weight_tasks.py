"""Tasks on tensors, and the law in the group size."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.quant.po2 import weight_tasks
from steelyard.quant.po2.arms import ARMS
from steelyard.quant.po2.group_sizes import GROUP_SIZES, group_errors, run_group_sizes
from steelyard.quant.po2.tensor import fake_quantize

SMALL = {"shape": np.array([64, 256])}


def cell(task, arm="mpo2", seed=0, data=SMALL, options=None, root="evaluation", **params):
    config = next(one.config for one in ARMS if one.name == arm)
    return CellInput(task, arm, config, params, options or {}, seed, data, root)


@pytest.mark.parametrize("task", ["gaussian", "t5", "t3", "laplace"])
def test_generated_tensors(task):
    found = weight_tasks.run_generated(cell(task)).metrics
    assert 0.003 < found["weight_error"] < 0.02
    assert found["bits"] == 4.5
    assert found == weight_tasks.run_generated(cell(task)).metrics
    assert found != weight_tasks.run_generated(cell(task, seed=1)).metrics
    assert found != weight_tasks.run_generated(cell(task, root="tuning")).metrics
    better = weight_tasks.run_generated(cell(task, options={"search": "sweep"})).metrics["weight_error"]
    assert better < found["weight_error"]  # what the user wishes reaches the arm


def test_the_error_is_the_definition():
    one = cell("gaussian", "nvfp4", seed=3)
    tensor = torch.from_numpy(one.rng("values").standard_normal((64, 256))).float()
    error = (fake_quantize(tensor, "nvfp4") - tensor).double().square().sum() / tensor.double().square().sum()
    assert weight_tasks.run_generated(one).metrics["weight_error"] == pytest.approx(float(error), rel=1e-12)


def test_arms_of_a_seed_see_the_same_values():
    errors = {arm: weight_tasks.run_generated(cell("gaussian", arm)).metrics["weight_error"] for arm in (
        "reference", "mpo2", "mpo2_learned", "lloyd1", "nvfp4", "mxfp4")}  # fmt: skip
    assert errors["reference"] == 0
    assert errors["mpo2_learned"] == pytest.approx(errors["mpo2"], rel=0.05)
    assert errors["mpo2"] < errors["lloyd1"] < errors["nvfp4"] < errors["mxfp4"]


def test_shares_of_rows_are_disjoint_and_complete():
    matrix = torch.arange(50.0)[:, None].repeat(1, 4)
    rows = [weight_tasks._share(matrix, seed)[:, 0].tolist() for seed in range(weight_tasks.SHARES)]
    assert sorted(row for share in rows for row in share) == list(range(50))
    assert weight_tasks._share(matrix.reshape(25, 2, 4), 0).shape[1] == 4


def test_real_weights():
    found = [
        weight_tasks.run_weights(cell("stories_weights", arm, data={})).metrics for arm in ("nvfp4", "mpo2_learned")
    ]
    assert found[1]["weight_error"] < 0.7 * found[0]["weight_error"]
    large = weight_tasks.run_weights(cell("minilm_weights", "nvfp4", data={})).metrics["weight_error"]
    assert large == pytest.approx(0.0089, rel=0.03)  # what torchao's NVFP4 gives on all rows
    with pytest.raises(InputError, match="importance needs a model"):
        weight_tasks.run_weights(cell("stories_weights", data={}, options={"importance": True}))


def test_tuning_reads_rows_that_no_profile_weighs():
    weighed = {weight_tasks._shares(cell("user_weights", seed=seed))[0] for seed in range(10)}
    for seed in range(16):
        ours, learned = weight_tasks._shares(cell("user_weights", seed=seed, root="tuning"))
        assert {ours, learned} <= set(range(weight_tasks.SHARES)) - weighed
        assert ours != learned
    data = {"w": np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)}
    found, tuning = (weight_tasks.run_weights(cell("user_weights", data=data, root=root)).metrics
                     for root in ("evaluation", "tuning"))  # fmt: skip
    assert found["weight_error"] != tuning["weight_error"]


def test_the_users_tensors(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "w.npz"
    np.savez(path, a=rng.normal(size=(40, 32)), b=rng.normal(size=17).astype(np.float16), ids=np.arange(4))
    data = weight_tasks.read_tensors(path)
    assert {name: (array.dtype, array.shape) for name, array in data.items()} == {
        "a": (np.float32, (40, 32)),
        "b": (np.float32, (17,)),
    }
    assert [weight_tasks.rows_of(array) for array in data.values()] == [40, 1]
    data = {"a": data["a"]}
    found = [weight_tasks.run_weights(cell("user_weights", seed=seed, data=data)).metrics for seed in (0, 1)]
    assert found[0] != found[1]
    zeros = {"z": np.zeros((16, 16), np.float32)}
    assert weight_tasks.run_weights(cell("user_weights", "nvfp4", data=zeros)).metrics["weight_error"] == 0


def test_files_that_are_no_tensors(tmp_path, monkeypatch):
    def saved(**arrays):
        np.savez(tmp_path / "w.npz", **arrays)
        return tmp_path / "w.npz"

    with pytest.raises(InputError, match="not a sound npz file"):
        weight_tasks.read_tensors(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("a,b")
    with pytest.raises(InputError, match="not a sound npz file"):
        weight_tasks.read_tensors(tmp_path / "text.npz")
    with pytest.raises(InputError, match="holds Python objects"):
        weight_tasks.read_tensors(saved(o=np.array([{}], dtype=object)))
    with zipfile.ZipFile(tmp_path / "bytes.npz", "w") as archive:
        archive.writestr("w", "no array at all")
    with pytest.raises(InputError, match="'w', which is not an array"):
        weight_tasks.read_tensors(tmp_path / "bytes.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("w.npy", header.getvalue())
    with pytest.raises(InputError, match="promises more data than the file holds"):
        weight_tasks.read_tensors(tmp_path / "huge.npz")
    with pytest.raises(InputError, match="no floating array"):
        weight_tasks.read_tensors(saved(ids=np.arange(3)))
    for bad in (np.array([[np.nan]]), np.zeros((0, 4))):
        with pytest.raises(InputError, match="array 'w': it is empty or holds"):
            weight_tasks.read_tensors(saved(w=bad))
    monkeypatch.setattr(weight_tasks, "_MAX_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes; split it"):
        weight_tasks.read_tensors(saved(w=np.ones(100)))


@given(st.integers(0, 500), st.integers(2, 16), st.integers(1, 20))
def test_group_errors_are_those_of_trying_every_value(seed, levels, size):
    rng = np.random.default_rng(seed)
    values, grid = rng.standard_normal((5, size)), np.sort(rng.uniform(-1, 1, levels))
    scale = np.abs(values).max(1)[:, None]
    tried = (values[..., None] - grid * scale[..., None]) ** 2
    np.testing.assert_allclose(group_errors(values, tuple(grid)), tried.min(-1).mean(1), rtol=1e-9, atol=1e-15)


def test_the_law_in_the_group_size():
    found = run_group_sizes(cell("group_sizes", "by_group", elements=30_000, least_groups=120, root="tuning"))
    sizes, gains = found.traces["gain_by_group"]
    assert sizes == list(GROUP_SIZES)
    assert gains[0] > gains[2] > gains[4]
    assert gains[1] == pytest.approx(0.175, abs=0.03)  # .00577 to .00477 at exact scales
    assert found.metrics["gain_rank"] <= -0.9
    assert -0.7 < found.metrics["gain_slope"] < -0.3
    assert found.metrics["gain_over_price"] > 1
    assert found.metrics["clark_error"] < 0.1
    again = run_group_sizes(cell("group_sizes", "by_group", elements=30_000, least_groups=120, root="tuning"))
    assert again == found
