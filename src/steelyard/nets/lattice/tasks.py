"""The bench's data: digits, MNIST at 14x14 pixels, people's reaction times by contrast, and the user's own images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from steelyard import data, rng
from steelyard.card import Frozen
from steelyard.contracts import Arrays, CellInput, Task
from steelyard.errors import InputError

Vector = NDArray[np.float64]
TEST_SHARE = {"digits": 397 / 1797}  # elsewhere a fifth of the images
CONTRASTS = (1.0, 0.5, 0.3, 0.15, 0.1, 0.05)  # networks are trained at these
SHOWN = (*CONTRASTS, 0.03, 0.01)  # what people saw; at the last two their accuracy is .21 and .06
LEAST_ROWS = 20


@dataclass(frozen=True)
class Split:
    """Training and test images (n, channels, height, width) in [0, 1] with classes from 0."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.train_y.max(), self.test_y.max())) + 1

    @property
    def chance(self) -> float:
        """Accuracy in percent of the most frequent training class on the test images."""
        return 100.0 * float((self.test_y == self.train_y.bincount().argmax()).float().mean())


def digits() -> Arrays:
    """Return scikit-learn's digits as images of 8x8 pixels."""
    pixels, labels = data.digits()
    return {"images": (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8), "labels": labels}


def mnist() -> Arrays:
    """Return the MNIST test images, averaged down to 14x14 pixels."""
    images, labels = data.mnist_t10k()
    small = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255.0
    return {"images": small.astype(np.float32)[:, None], "labels": labels.astype(np.int64)}


def mnist_and_people() -> Arrays:
    """Return MNIST with the trials of the people's contrast experiment."""
    trials = data.human_contrast()
    subjects = np.unique(trials.column("subject"), return_inverse=True)[1]
    return {
        **mnist(),
        "human_subject": subjects.astype(np.int64),
        "human_contrast": trials.column("contrast"),
        "human_time": trials.column("reaction_time"),
        "human_correct": trials.column("correct"),
    }


def split(cell: CellInput) -> Split:
    """Return the cell's split; for tuning it is taken from the training images alone.

    The test images are the same for all seeds, so that no tuning run ever sees one; seeds differ in weights, batches
    and occluders.
    """
    images, labels = np.asarray(cell.data["images"]), np.asarray(cell.data["labels"])
    family = "own" if cell.task == "own" else cell.task.partition("_")[0]
    share = TEST_SHARE.get(family, 0.2)
    train, test = _parts(np.arange(len(labels)), share, f"{family}/test")
    if cell.root == "tuning":
        train, test = _parts(train, share, f"{family}/tuning")
    parts = [
        torch.from_numpy(np.ascontiguousarray(array[rows])) for rows in (train, test) for array in (images, labels)
    ]
    return Split(*(part.float() if part.ndim == 4 else part.long() for part in parts))


def _parts(rows: NDArray[np.int64], share: float, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    mixed = rng.generator("lattice", name, 0).permutation(rows)
    count = max(1, round(share * len(rows)))
    return mixed[count:], mixed[:count]


def some_classes(whole: Split, classes: int, images: int, generator: np.random.Generator) -> Split:
    """Return ``images`` training images and all test images of ``classes`` classes drawn at random.

    With the same generator state a smaller number of classes is part of a larger one.
    """
    chosen = torch.from_numpy(generator.permutation(whole.classes)[:classes])
    code = torch.full((whole.classes,), -1, dtype=torch.long)
    code[chosen] = torch.arange(classes)
    train, test = code[whole.train_y], code[whole.test_y]
    kept = torch.nonzero(train >= 0).squeeze(1)[:images]
    return Split(whole.train_x[kept], train[kept], whole.test_x[test >= 0], test[test >= 0])


def at_contrast(x: Tensor, contrast: float | Tensor) -> Tensor:
    """Return images in [0, 1] at a contrast (one for all, or one per image) around mid-grey, as values in [-1, 1]."""
    level = torch.as_tensor(contrast, dtype=x.dtype).reshape(-1, 1, 1, 1)
    return (2 * x - 1) * level


class Options(Frozen):
    """What a weighing on the user's own images takes beside them."""

    label: str = Field(default="y", description="array of an npz file that holds the classes")
    size: int = Field(default=14, ge=8, le=64, description="height and width that images are brought to")
    channels: int = Field(default=1, ge=1, le=3, description="1 for grey, 3 for colour")


def user_task(source: Any, label: str = "y", size: int = 14, channels: int = 1) -> Task:
    """Return the task of a user's folder of images (one subfolder per class) or npz file.

    Raises:
        InputError: The images cannot be read, or are too few.
    """
    pictures = data.read_pictures(source, size, channels=channels, label=label)
    if len(pictures.labels) < LEAST_ROWS:
        raise InputError(f"{pictures.source} has {len(pictures.labels)} images; at least {LEAST_ROWS} are needed")
    counts = np.bincount(pictures.labels)
    if counts.min() < 2:
        lonely = pictures.classes[int(counts.argmin())]
        raise InputError(f"{pictures.source}: class '{lonely}' has one image only; at least 2 are needed")
    arrays = {"images": pictures.images.astype(np.float32) / 255, "labels": pictures.labels}
    name = f"your images, {size} x {size}, {len(pictures.classes)} classes"
    return Task("own", name, lambda: arrays, pictures.source)
