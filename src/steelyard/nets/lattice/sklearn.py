"""The lattice network as a scikit-learn classifier of images."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from steelyard.errors import InputError
from steelyard.nets.lattice.torch_nn import (
    LatticeOutput,
    LatticeRCNN,
    ResourceCost,
    TimeSelection,
    check_price,
    whole_number,
)
from steelyard.nets.lattice.training import train_lattice

_BATCH = 500


class LatticeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Classify images with a :class:`LatticeRCNN` trained by :func:`train_lattice`.

    Images X have values in [0, 1] and shape (N, H, W), (N, C, H, W) or flat (N, features); flat rows are square grey
    images unless ``image_shape`` says otherwise.

    Args:
        max_channels: Channels of every layer.
        max_layers: Layers of the box.
        max_steps: Steps of the box.
        time: "adaptive" or "fixed".
        breadth: Price of breadth.
        depth: Price of depth.
        steps: Price of time.
        q: Power of the norms, 1 or 2.
        ramp: Share of the training over which prices rise.
        pool: Regions of the readout's pooling.
        readout_scale: Factor of the pooled states.
        epochs: Passes over the data.
        lr: Adam's rate.
        halting_lr: Adam's rate of the time selection.
        batch_size: Images per update.
        occlusion: Sides in pixels of the training occluders, or None.
        deep_supervision: Weight of the mean cross-entropy of all steps.
        image_shape: (H, W) or (C, H, W) of flat rows.
        random_state: Seed, a numpy RandomState to draw it from, or None for a fresh one each time.

    Attributes:
        classes_: The labels.
        model_: The trained network.
        history_: What training did.
        n_features_in_: Numbers per image.
    """

    def __init__(
        self,
        max_channels: int = 8,
        max_layers: int = 3,
        max_steps: int = 8,
        time: TimeSelection = "adaptive",
        breadth: float = 0.0,
        depth: float = 0.0,
        steps: float = 0.03,
        q: int = 1,
        ramp: float = 0.4,
        pool: int = 2,
        readout_scale: float = 3.0,
        epochs: int = 9,
        lr: float = 4e-3,
        halting_lr: float = 2e-2,
        batch_size: int = 100,
        occlusion: tuple[int, int] | None = None,
        deep_supervision: float = 0.1,
        image_shape: tuple[int, ...] | None = None,
        random_state: Any = 0,  # a whole number, a RandomState or None
    ) -> None:
        self.max_channels = max_channels
        self.max_layers = max_layers
        self.max_steps = max_steps
        self.time = time
        self.breadth = breadth
        self.depth = depth
        self.steps = steps
        self.q = q
        self.ramp = ramp
        self.pool = pool
        self.readout_scale = readout_scale
        self.epochs = epochs
        self.lr = lr
        self.halting_lr = halting_lr
        self.batch_size = batch_size
        self.occlusion = occlusion
        self.deep_supervision = deep_supervision
        self.image_shape = image_shape
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> Self:
        """Train on images X with labels y of shape (N,)."""
        images = self._images(X)
        check_price("steps", self.steps)  # by its name here, not that of the cost
        seed = self._seed()
        self.classes_, index = _classes(y, len(images))
        if len(self.classes_) < 2:
            raise InputError(f"y holds {len(self.classes_)} class, at least 2 are needed.")
        self.n_features_in_ = math.prod(images.shape[1:])
        self.model_ = LatticeRCNN(
            images.shape[1],
            len(self.classes_),
            self.max_channels,
            self.max_layers,
            self.max_steps,
            self.time,
            self.pool,
            readout_scale=self.readout_scale,
            seed=seed,
        )
        self.history_ = train_lattice(
            self.model_,
            (images, torch.from_numpy(index)),
            ResourceCost(self.breadth, self.depth, self.steps, self.q, self.ramp),
            self.epochs,
            self.lr,
            self.halting_lr,
            self.batch_size,
            deep_supervision=self.deep_supervision,
            occlusion=self.occlusion,
            seed=seed,
        )
        self.model_.eval()
        self._shape = tuple(images.shape[1:])
        return self

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the label of each image, (N,)."""
        best = self.predict_proba(X).argmax(1)  # first, as it says when there has been no fit
        labels: npt.NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return class probabilities of the mixture over steps, (N, K) in the order of ``classes_``."""
        probabilities: npt.NDArray[np.float32] = torch.cat([out.logits.exp() for out in self._outputs(X)]).numpy()
        return probabilities

    def predict_time(self, X: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return the expected number of steps of each image, (N,)."""
        times: npt.NDArray[np.float32] = torch.cat([out.expected_time for out in self._outputs(X)]).numpy()
        return times

    def _outputs(self, X: npt.ArrayLike) -> list[LatticeOutput]:
        check_is_fitted(self, "model_")
        images = self._images(X)
        if tuple(images.shape[1:]) != self._shape:
            raise InputError(f"X has images of shape {tuple(images.shape[1:])}, the fit had {self._shape}.")
        with torch.no_grad():
            return [self.model_(batch) for batch in torch.split(images, _BATCH)]

    def _seed(self) -> int:
        given: Any = self.random_state  # callers need not check their types
        if given is None:  # the operating system's randomness: numpy's global state is not ours to advance
            return int(np.random.SeedSequence().generate_state(1)[0])
        if isinstance(given, numbers.Integral):
            return int(given)
        try:
            return int(check_random_state(given).randint(np.iinfo(np.int32).max))
        except ValueError:
            raise InputError(f"random_state must be a whole number, a RandomState or None, not {given!r}.") from None

    def _images(self, X: npt.ArrayLike) -> Tensor:
        try:
            values = np.asarray(X, dtype=np.float32)
        except (TypeError, ValueError):
            raise InputError("X must hold numbers.") from None
        if values.ndim not in (2, 3, 4) or values.size == 0:
            raise InputError(f"X must be images (N, H, W), (N, C, H, W) or flat (N, features), not {values.shape}.")
        shape = self._flat_shape(values.shape[1]) if values.ndim == 2 else values.shape[1:]
        images = values.reshape(len(values), *((1, *shape) if len(shape) == 2 else shape))
        return torch.from_numpy(np.ascontiguousarray(images))

    def _flat_shape(self, features: int) -> tuple[int, ...]:
        if self.image_shape is not None:
            given: Any = self.image_shape  # callers need not check their types
            if not isinstance(given, Sequence):
                raise InputError(f"image_shape must be (H, W), (C, H, W) or None, not {given!r}.")
            shape = tuple(whole_number("image_shape", side) for side in given)
            if len(shape) not in (2, 3) or math.prod(shape) != features:
                raise InputError(f"image_shape = {shape} does not hold the {features} features of a row of X.")
            return shape
        side = math.isqrt(features)
        if side * side != features:
            raise InputError(f"X has {features} features a row, which is no square; give image_shape.")
        return side, side


def _classes(y: npt.ArrayLike, count: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the classes and each label's index among them."""
    labels = np.asarray(y)
    if labels.shape != (count,):
        raise InputError(f"y must hold one label per image ({count}), not {labels.shape}.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("y holds NaN or infinite values, which are no class labels; leave those images out.")
    try:
        check_classification_targets(labels)
        classes, index = np.unique(labels, return_inverse=True)
    except (TypeError, ValueError) as error:
        told = " ".join(str(error).split())
        raise InputError(f"y must hold class labels without NaN, all text or all whole numbers: {told}") from error
    return classes, index.astype(np.int64)
