"""Real data that come inside scikit-learn and need no download."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steelyard.data.table import Table
from steelyard.extras import require


def digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return scikit-learn's handwritten digits.

    Returns:
        Pixels float64 [1797, 64] in 0..16 and labels int64 [1797] in 0..9.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    bunch = require("sklearn.datasets", "optim").load_digits()
    return np.asarray(bunch.data, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)


def breast_cancer() -> Table:
    """Return scikit-learn's breast cancer data: 569 rows, 30 numeric columns, and ``diagnosis``.

    ``diagnosis`` is "malignant" or "benign".

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    bunch = require("sklearn.datasets", "optim").load_breast_cancer()
    matrix = np.asarray(bunch.data, dtype=np.float64)
    columns = {str(name): matrix[:, j].copy() for j, name in enumerate(bunch.feature_names)}
    diagnosis = np.asarray(bunch.target_names, dtype=np.str_)[bunch.target]
    return Table({**columns, "diagnosis": diagnosis}, "breast_cancer")
