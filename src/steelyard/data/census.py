"""UCI Adult (census income): one table from the mirror's CSV and from the source's own form."""

from __future__ import annotations

from pathlib import Path

from steelyard.data.cache import locate
from steelyard.data.columns import MAX_TABLE_BYTES
from steelyard.data.csvfile import parse_csv
from steelyard.data.limits import gunzip
from steelyard.data.registry import Progress
from steelyard.data.table import Table

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)


def adult(progress: Progress | None = None) -> Table:
    """Return the training part of UCI Adult: 32,561 rows under the 15 standard column names.

    Numeric: age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week. All others are text; "?" is read as
    missing. The label is ``income``, "<=50K" or ">50K".

    Args:
        progress: Called with (file name, bytes done, bytes in all) during a download.

    Raises:
        DataMissingError: Neither mirrored, cached nor reachable.
        ChecksumError: The bytes are not the pinned ones.
    """
    (path,) = locate("adult", progress).paths
    return load_adult(path)


def load_adult(path: Path) -> Table:
    """Read either form: with a header row (whatever it calls the label) or without, gzipped or not."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gunzip(data, str(path), MAX_TABLE_BYTES)
    if data.startswith(b"age,"):
        data = data.partition(b"\n")[2]
    return parse_csv(",".join(COLUMNS).encode() + b"\n" + data, "adult", MAX_TABLE_BYTES)
