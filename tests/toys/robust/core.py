import numpy as np

from steelyard.errors import InputError


def median_of_means(values, blocks=5):
    """Return the median of the means of ``blocks`` parts of ``values``, in their dtype."""
    values = np.asarray(values)
    if values.size == 0:
        raise InputError("values are empty")
    if not np.isfinite(values).all():
        raise InputError("values hold a number that is not finite")
    if not 1 <= blocks <= values.size:
        raise InputError(f"blocks must be from 1 to the number of values, got {blocks}")
    return np.median([part.mean() for part in np.array_split(values, blocks)]).astype(values.dtype)


class Running:
    """A mean over a stream that can be stopped and taken up again."""

    def __init__(self, state=(0.0, 0)):
        self.total, self.count = state

    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1

    def state(self):
        return self.total, self.count
