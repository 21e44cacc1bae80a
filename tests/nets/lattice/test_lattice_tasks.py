"""The bench's data: splits that tuning never sees, nested classes, contrasts, and what users may bring."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from steelyard import data
from steelyard.contracts import CellInput
from steelyard.errors import InputError
from steelyard.nets.lattice import tasks


def cell(arrays, task="digits", root="evaluation", seed=0) -> CellInput:
    return CellInput(task, "time", {}, {}, {}, seed, arrays, root)


def marked(count: int = 100):
    """Images whose only pixel values tell their row."""
    images = np.repeat(np.arange(count, dtype=np.float32) / count, 16).reshape(count, 1, 4, 4)
    return {"images": images, "labels": np.arange(count) % 10}


def rows(x: torch.Tensor, count: int = 100) -> set[int]:
    return {round(float(value) * count) for value in x[:, 0, 0, 0]}


def test_tuning_never_sees_a_test_image():
    arrays = marked()
    real, tuning = tasks.split(cell(arrays)), tasks.split(cell(arrays, root="tuning"))
    test = rows(real.test_x)
    assert rows(real.train_x) | test == set(range(100))
    assert not test & (rows(tuning.train_x) | rows(tuning.test_x))
    assert not rows(tuning.train_x) & rows(tuning.test_x)


def test_all_seeds_and_tasks_of_a_family_share_the_split():
    arrays = marked()
    first = tasks.split(cell(arrays, "mnist"))
    for other in (cell(arrays, "mnist", seed=5), cell(arrays, "mnist_classes")):
        assert torch.equal(first.test_x, tasks.split(other).test_x)
    assert len(first.test_y) == 20


def test_labels_go_with_their_images():
    parts = tasks.split(cell(marked()))
    for x, y in ((parts.train_x, parts.train_y), (parts.test_x, parts.test_y)):
        numbers = (x[:, 0, 0, 0] * 100).round().long()
        assert torch.equal(numbers % 10, y)


def test_chance_is_the_most_frequent_training_class():
    x = torch.zeros(6, 1, 4, 4)
    parts = tasks.Split(x, torch.tensor([0, 1, 1, 1, 2, 0]), x[:4], torch.tensor([1, 0, 1, 2]))
    assert parts.chance == 50.0
    assert parts.classes == 3


def test_digits_and_mnist():
    small = tasks.digits()
    assert small["images"].shape == (1797, 1, 8, 8)
    assert (small["images"].min(), small["images"].max()) == (0, 1)
    assert len(tasks.split(cell(small)).test_y) == 397


def test_mnist_is_averaged_down(monkeypatch):
    images = np.zeros((2, 28, 28), dtype=np.uint8)
    images[0, 2, 4] = 255
    monkeypatch.setattr(data, "mnist_t10k", lambda: (images, np.array([3, 4], dtype=np.uint8)))
    arrays = tasks.mnist()
    assert arrays["images"].shape == (2, 1, 14, 14)
    assert arrays["images"][0, 0, 1, 2] == 0.25
    assert arrays["images"].sum() == 0.25
    assert arrays["labels"].dtype == np.int64


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(2, 9))
def test_fewer_classes_are_part_of_more(seed, classes):
    whole = tasks.split(cell(marked()))
    fewer, more = (
        tasks.some_classes(whole, count, 12, np.random.default_rng(seed)) for count in (classes, classes + 1)
    )
    assert rows(fewer.test_x) <= rows(more.test_x)
    assert len(fewer.train_y) <= 12
    assert set(more.test_y.tolist()) <= set(range(classes + 1))
    originals = (fewer.test_x[:, 0, 0, 0] * 100).round().long() % 10
    for code in range(classes):  # one original class behind each new one
        assert len(set(originals[fewer.test_y == code].tolist())) <= 1


@settings(max_examples=25)
@given(st.floats(0.05, 1))
def test_contrast_shrinks_around_grey(contrast):
    x = torch.tensor([0.0, 0.5, 1.0]).reshape(1, 1, 1, 3)
    level = float(torch.tensor(contrast))
    wanted = [-level, 0.0, level]
    assert tasks.at_contrast(x, contrast).flatten().tolist() == pytest.approx(wanted)
    assert tasks.at_contrast(x.repeat(2, 1, 1, 1), torch.tensor([1.0, contrast]))[1].flatten().tolist() == (
        pytest.approx(wanted)
    )


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.full((9, 9), 10 * index + (100 if name == "dog" else 0), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    return tmp_path / "images"


def test_the_users_folder(folder):
    task = tasks.user_task(str(folder), size=8, channels=3)
    arrays = task.load()
    assert task.name == "own"
    assert arrays["images"].shape == (24, 3, 8, 8)
    assert arrays["images"].dtype == np.float32
    assert arrays["images"].max() <= 1
    assert arrays["labels"].tolist() == [0] * 12 + [1] * 12


def test_the_users_npz_with_a_label_of_its_own(tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((20, 6, 6), dtype=np.uint8), kind=np.arange(20) % 2)
    assert tasks.user_task(tmp_path / "x.npz", label="kind").load()["images"].shape == (20, 1, 14, 14)


def test_too_few_images(tmp_path, folder):
    np.savez(tmp_path / "x.npz", images=np.zeros((5, 6, 6), dtype=np.uint8), y=np.arange(5) % 2)
    with pytest.raises(InputError, match="5 images; at least 20"):
        tasks.user_task(tmp_path / "x.npz")
    (folder / "emu").mkdir()
    Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(folder / "emu" / "0.png")
    with pytest.raises(InputError, match="class 'emu' has one image only"):
        tasks.user_task(folder)
