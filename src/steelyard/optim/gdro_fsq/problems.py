"""Convex group problems: logistic or softmax regression on rows that carry a group, and the tables they come from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from steelyard.contracts import Arrays
from steelyard.errors import InputError
from steelyard.optim.gdro_fsq.player import Floats, Ints

if TYPE_CHECKING:
    from steelyard.data import Table

MAX_GROUPS = 1000
MAX_CLASSES = 100
Gradients = Callable[[Floats], Floats]


@dataclass(frozen=True)
class GroupProblem:
    """Empirical group DRO over a finite pool whose rows are sorted by group, so that risks are exact.

    Two classes give logistic regression (w: [d]), more give softmax regression (w: [d, K]). Losses are raw; risks are
    divided by ``loss_range``. It is the sampler of its own groups.
    """

    features: Floats  # [n, d]
    labels: Ints  # [n]
    starts: Ints  # [m] first row of each group
    sizes: Ints  # [m]
    classes: int
    loss_range: float
    radius: float

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> GroupProblem:
        """Build the problem from a task's arrays; raises InputError that names a group without rows."""
        groups = arrays["groups"]
        sizes = np.bincount(groups, minlength=int(arrays["m"]))
        if sizes.min() == 0:
            raise InputError(f"group {int(sizes.argmin())} has no rows: remove it or give it data.")
        order = np.argsort(groups, kind="stable")
        return cls(
            features=np.asarray(arrays["features"], dtype=np.float64)[order],
            labels=np.asarray(arrays["labels"], dtype=np.int64)[order],
            starts=np.concatenate(([0], np.cumsum(sizes)[:-1])),
            sizes=sizes,
            classes=int(arrays["classes"]),
            loss_range=float(arrays["loss_range"]),
            radius=float(arrays["radius"]),
        )

    @property
    def m(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    @property
    def w0(self) -> Floats:
        """The start, all zeros."""
        d = self.features.shape[1]
        return np.zeros(d if self.classes == 2 else (d, self.classes))

    def lipschitz(self, kind: Literal["mean", "max"]) -> float:
        """Return the gradient norm of the scaled loss, for the row of mean or of largest norm.

        A logistic gradient is at most ||x||, a softmax gradient at most sqrt(2) ||x||.
        """
        norms = np.linalg.norm(self.features, axis=1)
        factor = 1.0 if self.classes == 2 else math.sqrt(2)
        return factor * float(norms.mean() if kind == "mean" else norms.max()) / self.loss_range

    def draw(self, groups: Ints, rng: np.random.Generator) -> Ints:
        """Return one random row of each of the ``groups``."""
        sizes = self.sizes[groups]
        rows: Ints = self.starts[groups] + (rng.random(len(groups)) * sizes).astype(np.int64)
        return rows

    def draw_pooled(self, count: int, rng: np.random.Generator) -> Ints:
        """Return ``count`` random rows, whatever their group."""
        return rng.integers(0, len(self.labels), count)

    def loss_grad(self, w: Floats, rows: Ints) -> tuple[Floats, Gradients]:
        """Return raw losses [r] and the function weights [r] -> weighted sum of the gradients."""
        x, y = self.features[rows], self.labels[rows]
        losses, slopes = _losses(x @ w, y, self.classes)
        if self.classes == 2:
            return losses, lambda weights: (weights * slopes) @ x
        return losses, lambda weights: x.T @ (weights[:, None] * slopes)

    def risks(self, w: Floats) -> Floats:
        """Return the exact risk of every group, [m], divided by the loss range and never clipped."""
        losses, _ = _losses(self.features @ w, self.labels, self.classes)
        return self._group_risks(losses)

    def risks_and_slope(self, w: Floats) -> tuple[Floats, Gradients]:
        """Return the risks [m] and the function q [m] -> gradient of sum_i q_i R_i(w)."""
        losses, slopes = _losses(self.features @ w, self.labels, self.classes)

        def slope(q: Floats) -> Floats:
            weights = np.repeat(q / (self.sizes * self.loss_range), self.sizes)
            if self.classes == 2:
                return (weights * slopes) @ self.features
            return self.features.T @ (weights[:, None] * slopes)

        return self._group_risks(losses), slope

    def accuracies(self, w: Floats) -> Floats:
        """Return the share of right predictions in every group, [m]."""
        scores = self.features @ w
        predicted = (scores > 0) if self.classes == 2 else scores.argmax(axis=1)
        shares: Floats = np.add.reduceat((predicted == self.labels).astype(np.float64), self.starts) / self.sizes
        return shares

    def _group_risks(self, losses: Floats) -> Floats:
        risks: Floats = np.add.reduceat(losses, self.starts) / (self.sizes * self.loss_range)
        return risks


def _losses(scores: Floats, labels: Ints, classes: int) -> tuple[Floats, Floats]:
    """Return losses [n] and their derivatives with respect to the scores ([n] or [n, K])."""
    if classes == 2:
        signs = np.where(labels == 1, 1.0, -1.0)
        margins: Floats = signs * scores
        losses = np.logaddexp(0.0, -margins)
        slopes: Floats = np.exp(-margins - losses)  # sigmoid(-margin) = exp(-margin - loss)
        slopes *= -signs
        return losses, slopes
    shifted: Floats = scores - scores.max(axis=1, keepdims=True)
    exponentials: Floats = np.exp(shifted)
    totals = exponentials.sum(axis=1)
    rows = np.arange(len(labels))
    slopes = exponentials / totals[:, None]
    slopes[rows, labels] -= 1.0
    return np.log(totals) - shifted[rows, labels], slopes


def synthetic(spread: float, most_flips: float, loss_range: float) -> dict[str, Any]:
    """Return 20 groups of 2000 points in 10 dimensions, each with its own direction and share of flipped labels.

    Group i labels y = sign(x . w_i) with w_i the normalised sum of a common unit direction and ``spread`` times noise;
    flips run linearly from 0 to ``most_flips`` over the groups, shuffled. The instance is fixed.
    """
    m, d, n = 20, 10, 2000
    rng = np.random.default_rng(20)
    common = rng.standard_normal(d)
    common /= np.linalg.norm(common)
    directions = common + spread * rng.standard_normal((m, d)) / math.sqrt(d)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    flips = rng.permutation(np.linspace(0, most_flips, m))
    x = rng.standard_normal((m, n, d))
    labels = (np.einsum("gnd,gd->gn", x, directions) > 0) ^ (rng.random((m, n)) < flips[:, None])
    groups = np.repeat(np.arange(m), n)
    return _arrays(x.reshape(-1, d), labels.ravel(), groups, m, 2, loss_range, 4.0)


def digits_by_class() -> dict[str, Any]:
    """Return scikit-learn's digits with the ten classes as groups: pixels/16, a bias, rows of mean norm 2."""
    from steelyard import data

    pixels, labels = data.digits()
    return _arrays(with_bias(pixels / 16.0), labels, labels, 10, 10, 4.0, 4.0)


def mnist_by_class() -> dict[str, Any]:
    """Return the 10,000 MNIST test images with the ten classes as groups: pixels/255, a bias, rows of mean norm 2."""
    from steelyard import data

    images, labels = data.mnist_t10k()
    features = with_bias(images.reshape(len(images), -1) / 255.0).astype(np.float32)
    return _arrays(features, labels, labels, 10, 10, 4.0, 4.0)


def adult_by_race_sex_age() -> dict[str, Any]:
    """Return Adult with race (White, Black, other) x sex x age (below 30, 30-44, 45 and more) as 18 groups.

    The 93 features: age, fnlwgt, education-num, log1p of both capital columns and hours-per-week, standardised; one-hot
    workclass, education, marital-status, occupation and native-country without their missing values; a bias. Race,
    sex and relationship are no features. Rows have mean norm 2.
    """
    from steelyard import data

    table = data.adult()
    numeric = [table.column(name) for name in ("age", "fnlwgt", "education-num", "hours-per-week")]
    numeric += [np.log1p(table.column(name)) for name in ("capital-gain", "capital-loss")]
    blocks = [np.stack([(column - column.mean()) / column.std() for column in numeric], axis=1)]
    for name in ("workclass", "education", "marital-status", "occupation", "native-country"):
        column = table.column(name)
        blocks.append((column[:, None] == np.unique(column[column != ""])).astype(np.float64))
    race, age = table.column("race"), table.column("age")
    groups = np.select([race == "White", race == "Black"], [0, 1], 2) * 6
    groups += (table.column("sex") == "Male") * 3 + np.digitize(age.astype(np.float64), [30, 45])
    labels = table.column("income") == ">50K"
    return _arrays(with_bias(np.concatenate(blocks, axis=1)), labels, groups, 18, 2, 2.0, 3.0)


def table_by_group(table: Table, group: str, label: str, loss_range: float, radius: float) -> dict[str, Any]:
    """Return a user's table as a group problem.

    Args:
        table: Numeric and categorical columns, with missing values.
        group: Column whose values are the groups; a missing value is a group of its own.
        label: Column whose values are the classes.
        loss_range: Range B of the cross-entropy.
        radius: Radius D of the ball for the weights.

    Raises:
        InputError: A column is missing (with the closest name), the table is empty, labels are missing or of one class,
            there is one group only, or a column has too many values to be a group or a class.
    """
    from steelyard import data

    group_values, label_values = table.column(group), table.column(label)
    if group == label:
        raise InputError(f"group and label are the same column '{group}': choose two.")
    missing = _missing(label_values)
    if missing.any():
        row = int(missing.argmax()) + 1
        raise InputError(
            f"label column '{label}' has no value in {int(missing.sum())} rows (the first is data row {row}): "
            "fill or drop them."
        )
    groups = _codes(group_values, group, "group", MAX_GROUPS)
    labels = _codes(label_values, label, "label", MAX_CLASSES)
    features = data.encode_features(table, exclude=(group, label)).matrix
    m, classes = int(groups.max()) + 1, int(labels.max()) + 1
    return _arrays(with_bias(features), labels, groups, m, classes, loss_range, radius)


def _codes(values: np.ndarray[Any, Any], column: str, role: str, most: int) -> Ints:
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) < 2:
        raise InputError(f"{role} column '{column}' has one value only ({distinct[0]!s}): it needs at least two.")
    if len(distinct) > most:
        raise InputError(
            f"{role} column '{column}' has {len(distinct)} distinct values, at most {most} are possible: bin it first."
        )
    return codes.astype(np.int64)


def _missing(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    missing: np.ndarray[Any, np.dtype[np.bool_]] = np.isnan(values) if values.dtype.kind == "f" else values == ""
    return missing


def with_bias(features: Floats) -> Floats:
    """Append a column of ones and scale all rows by one factor, so that their mean norm is 2."""
    matrix = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    return matrix * (2.0 / float(np.linalg.norm(matrix, axis=1).mean()))


def _arrays(
    features: np.ndarray[Any, Any], labels: Any, groups: Any, m: int, classes: int, loss_range: float, radius: float
) -> dict[str, Any]:
    return {
        "features": features,
        "labels": np.asarray(labels, dtype=np.int64),
        "groups": np.asarray(groups, dtype=np.int64),
        "m": np.array(m),
        "classes": np.array(classes),
        "loss_range": np.array(float(loss_range)),
        "radius": np.array(float(radius)),
    }
