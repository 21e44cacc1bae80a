"""Tables from files and from memory: round trips, and every refusal with its file, row and column."""

from __future__ import annotations

import datetime
import decimal
import io
import math
import os
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from steelyard.data.tables import Table, read_table
from steelyard.errors import InputError


def same(column, values):
    np.testing.assert_array_equal(column, np.array(values))


# --- files that are no tables ----------------------------------------------------------------------------------------


def test_a_missing_file_is_suggested(write, tmp_path):
    write("a\n1", "train.csv")
    with pytest.raises(InputError, match=r"there is no file .*trian\.csv\. Did you mean 'train\.csv'\?"):
        read_table(tmp_path / "trian.csv")
    with pytest.raises(InputError, match="there is no file"):
        read_table(tmp_path / "nowhere" / "t.csv")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("t.pkl", r"'\.pkl' is not a table format; use one of \.csv"),
        ("t.parqet", r"Did you mean '\.parquet'\?"),
        ("t", "'' is not a table format"),
        ("t.json.gz", r"'\.json\.gz' is not a table format"),
    ],
)
def test_an_unknown_ending(write, name, says):
    with pytest.raises(InputError, match=says):
        read_table(write("a\n1", name))


def test_folders_and_pipes(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path)
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        read_table(tmp_path / "d.csv")
    os.mkfifo(tmp_path / "p.csv")
    with pytest.raises(InputError, match="is not a regular file"):
        read_table(tmp_path / "p.csv")


def test_a_file_that_may_not_be_read(write, monkeypatch):
    def refuse(self):
        raise PermissionError(13, "Permission denied")

    path = write("a\n1")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"t\.csv cannot be read \(Permission denied\)"):
        read_table(path)


# --- npz -------------------------------------------------------------------------------------------------------------


def test_npz(tmp_path):
    path = tmp_path / "t.npz"
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.savez_compressed(
        path, X=matrix, y=np.array(["a", "?", " b"]), k=np.array([True, False, True]), s=[b"u", b"", b"v"]
    )
    table = read_table(path)
    assert list(table.columns) == ["X_0", "X_1", "y", "k", "s"]
    same(table.column("X_1"), [1.0, 3.0, 5.0])
    same(table.column("y"), ["a", "", "b"])
    same(table.column("k"), [1.0, 0.0, 1.0])
    same(table.column("s"), ["u", "", "v"])


class Planted:
    """Unpickled, it would leave a mark."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (self.mark,))


def test_a_planted_pickle_is_never_run(tmp_path):
    mark = tmp_path / "ran"
    np.savez(tmp_path / "t.npz", x=np.array([Planted(str(mark))], dtype=object), y=np.array([1.0]))
    with pytest.raises(InputError, match=r"t\.npz, array 'x': it holds Python objects \(a pickle\)"):
        read_table(tmp_path / "t.npz")
    np.save(tmp_path / "u.npy", np.array([Planted(str(mark))], dtype=object), allow_pickle=True)
    (tmp_path / "u.npy").rename(tmp_path / "u.npz")
    with pytest.raises(InputError, match=r"u\.npz is not a sound npz file"):
        read_table(tmp_path / "u.npz")
    assert not mark.exists()


def npz_of(path, members):
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def test_npz_refusals(tmp_path):
    path = tmp_path / "t.npz"
    promising = npy_bytes(np.zeros(4)).replace(b"(4,), }", b"(9999999999999,), }")[:200]
    bad = [
        ({}, "has no arrays"),
        ({"a.txt": b"x"}, "holds 'a.txt', which is not an array"),
        ({"a.npy": b"junk"}, "is not a sound npz file"),
        ({"a.npy": promising}, "array 'a': its header promises more data"),
        ({"a.npy": npy_bytes(np.zeros((2, 2, 2)))}, "array 'a': it has 3 dimensions"),
        ({"a.npy": npy_bytes(np.float64(1))}, "array 'a': it has 0 dimensions"),
        ({"a.npy": npy_bytes(np.zeros(0))}, "no rows"),
        ({"a.npy": npy_bytes(np.zeros((3, 0)))}, "no columns"),
        (
            {"a.npy": npy_bytes(np.zeros(2)), "b.npy": npy_bytes(np.zeros(3))},
            "column 'b': it has 3 rows where column 'a' has 2",
        ),
        ({"X.npy": npy_bytes(np.zeros((2, 1))), "X_0.npy": npy_bytes(np.zeros(2))}, "two columns called 'X_0'"),
        ({"a.npy": npy_bytes(np.array(["2020-01-01"], dtype="M8[D]"))}, "row 1, column 'a': values of type datetime64"),
        ({"a.npy": npy_bytes(np.array([1j]))}, "values of type complex128"),
        ({"a.npy": npy_bytes(np.array([1.0, -np.inf]))}, "row 2, column 'a': the number is infinite"),
        ({"a.npy": npy_bytes(np.array([2**53 + 1]))}, "row 1, column 'a': 9007199254740993 is too large"),
        ({"a.npy": npy_bytes(np.array([b"ok", b"\xff"]))}, "row 2, column 'a': the bytes are not UTF-8"),
        ({"a.npy": npy_bytes(np.zeros(200_000))}, "unpacks to more than 1000000 bytes"),
    ]
    for members, says in bad:
        with pytest.raises(InputError) as caught:
            read_table(npz_of(path, members), max_bytes=1_000_000)
        assert "t.npz" in str(caught.value)
        assert says in str(caught.value)


def test_a_damaged_npz(tmp_path):
    path = npz_of(tmp_path / "t.npz", {"a.npy": npy_bytes(np.random.default_rng(0).normal(size=500))})
    sound = path.read_bytes()
    for content in (sound[:-30], sound[:1500] + b"\xff" * 50 + sound[1550:], b"PK"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a sound npz file"):
            read_table(path)


# --- Parquet ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def writer(columns):
        pq.write_table(pa.table(columns), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    return writer


def test_parquet(parquet):
    import pyarrow as pa

    table = read_table(
        parquet(
            {
                "i": pa.array([1, None, 3]),
                "f": pa.array([1.5, float("nan"), 2.0], pa.float32()),
                "b": [True, False, None],
                "s": ["x", None, "?"],
                "d": pa.array(["u", "v", "u"]).dictionary_encode(),
                "m": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("2.00")]),
                "n": pa.nulls(3),
            }
        )
    )
    same(table.column("i"), [1, math.nan, 3])
    same(table.column("f"), [1.5, math.nan, 2])
    same(table.column("b"), [1, 0, math.nan])
    same(table.column("s"), ["x", "", ""])
    same(table.column("d"), ["u", "v", "u"])
    same(table.column("m"), [1.25, math.nan, 2])
    assert np.isnan(table.column("n")).all()


def test_parquet_refusals(parquet, tmp_path):
    import pyarrow as pa

    when = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    with pytest.raises(InputError, match=r"t\.parquet, row 1, column 'w': values of type datetime64"):
        read_table(parquet({"w": pa.array([when.replace(tzinfo=None)])}))
    with pytest.raises(InputError, match=r"row 2, column 'l': a value of type list"):
        read_table(parquet({"l": pa.array([None, [1, 2]])}))
    with pytest.raises(InputError, match=r"row 1, column 'i': 9007199254740993 is too large"):
        read_table(parquet({"i": pa.array([2**53 + 1, None])}))
    with pytest.raises(InputError, match="no rows"):
        read_table(parquet({"i": pa.array([], pa.int64())}))
    with pytest.raises(InputError, match="unpacks to more than 1000 bytes"):
        read_table(parquet({"i": pa.array([7] * 1000)}), max_bytes=1000)
    (tmp_path / "t.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(InputError, match=r"t\.parquet is not a sound Parquet file"):
        read_table(tmp_path / "t.parquet")


def test_two_parquet_columns_of_one_name(parquet):
    import pyarrow as pa

    path = parquet(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]))
    with pytest.raises(InputError, match="two columns called 'a'"):
        read_table(path)


def test_parquet_without_pyarrow(parquet, monkeypatch):
    import sys

    from steelyard.errors import MissingExtraError

    path = parquet({"a": [1]})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoPyarrow(), *sys.meta_path])
    with pytest.raises(MissingExtraError, match=r"pip install 'steelyard\[tables\]'"):
        read_table(path)


class NoPyarrow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pyarrow":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


# --- frames and mappings ---------------------------------------------------------------------------------------------


def test_pandas():
    frame = pd.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [1.5, np.nan, 2.0],
            "n": pd.array([1, None, 3], dtype="Int64"),
            "b": pd.array([True, None, False], dtype="boolean"),
            "s": ["x", None, " ? "],
            "c": pd.Categorical(["u", None, "v"]),
            "t": pd.array(["7", pd.NA, "8"], dtype="string"),
            5: [True, False, True],
        },
        index=[10, 10, 10],
    )
    table = read_table(frame, "frame")
    same(table.column("i"), [1, 2, 3])
    same(table.column("f"), [1.5, math.nan, 2])
    same(table.column("n"), [1, math.nan, 3])
    same(table.column("b"), [1, math.nan, 0])
    same(table.column("s"), ["x", "", ""])
    same(table.column("c"), ["u", "", "v"])
    same(table.column("t"), ["7", "", "8"])
    same(table.column("5"), [1, 0, 1])
    assert table.source == "frame"


def test_polars():
    frame = pl.DataFrame(
        {
            "i": [1, None, 3],
            "f": [1.5, float("nan"), None],
            "b": [True, None, False],
            "s": ["x", None, "?"],
            "c": pl.Series(["u", None, "v"], dtype=pl.Categorical),
            "z": [None, None, None],
        }
    )
    table = read_table(frame)
    same(table.column("i"), [1, math.nan, 3])
    same(table.column("f"), [1.5, math.nan, math.nan])
    same(table.column("b"), [1, math.nan, 0])
    same(table.column("s"), ["x", "", ""])
    same(table.column("c"), ["u", "", "v"])
    assert np.isnan(table.column("z")).all()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (pd.DataFrame({"a": [1, "x"]}), "data, row 2, column 'a': text ('x') in a column that has numbers as well (1)"),
        (pd.DataFrame({"a": ["y" * 99, 1.5]}, dtype=object), "yyy...) in a column"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"])}), "column 'a': values of type datetime64"),
        (pd.DataFrame({"a": pd.to_datetime(["2020-01-01"], utc=True)}), "column 'a': a value of type Timestamp"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "data has two columns called 'a'"),
        (pd.DataFrame({"a": []}), "data has columns but no rows"),
        (pd.DataFrame(), "data has no columns"),
        (pd.DataFrame({"a": pd.array([2**60, None], dtype="Int64")}), "column 'a': 1152921504606846976 is too large"),
        (pl.DataFrame({"a": [datetime.date(2020, 1, 1)]}), "column 'a': values of type datetime64"),
        (pl.DataFrame({"a": [[1], [2, 3]]}), "column 'a': a value of type"),
        ({"a": [1, 2], "b": [1]}, "column 'b': it has 1 rows where column 'a' has 2"),
        ({"a": [1, "x"]}, "row 2, column 'a': text ('x')"),
        ({"a": [[1, 2], [3, 4]]}, "row 1, column 'a': a value of type list"),
        ({"a": np.zeros((2, 2))}, "column 'a': it has 2 dimensions"),
        ({"a": 3}, "column 'a': it has 0 dimensions"),
        ({"a": "text"}, "column 'a': it has 0 dimensions"),
        ({"a": [1.0, float("inf")]}, "row 2, column 'a': the number is infinite"),
        ({"a": [2**70]}, "row 1, column 'a': 1180591620717411303424 is too large"),
        ({}, "data has no columns"),
        ([1, 2], "data: a list is not a table"),
        (None, "data: a NoneType is not a table"),
    ],
)
def test_sources_in_memory_that_are_refused(source, says):
    with pytest.raises(InputError) as caught:
        read_table(source)
    assert says in str(caught.value)


def test_mappings_and_tables():
    table = read_table({"a": [1, None, True], "b": ("x", None, np.str_("y")), "c": np.arange(3)}, "mine")
    same(table.column("a"), [1, math.nan, 1])
    same(table.column("b"), ["x", "", "y"])
    same(table.column("c"), [0, 1, 2])
    assert read_table(table) is table
    assert table.where("a", 0) == "mine, row 1, column 'a'"


def test_inputs_are_not_shared():
    values = np.array([1.0, 2.0])
    table = read_table({"a": values})
    table.column("a")[0] = 9
    assert values[0] == 1


def test_an_unknown_column_is_corrected():
    table = Table({"income": np.zeros(1), **{f"c{i}": np.zeros(1) for i in range(20)}}, "mine.csv")
    with pytest.raises(
        InputError, match=r"mine\.csv has no column 'incme'; it has income, c0.*…\. Did you mean 'income'\?"
    ):
        table.column("incme")
    with pytest.raises(InputError, match="no column 'x'"):
        table.is_numeric("x")
