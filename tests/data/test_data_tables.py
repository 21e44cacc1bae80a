"""Tables from files and from memory: round trips, and every refusal with its file, row and column."""

from __future__ import annotations

import contextlib
import csv
import datetime
import decimal
import gzip
import io
import math
import os
import string
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.columns import MISSING
from steelyard.data.tables import Table, read_table
from steelyard.errors import InputError


def same(column, values):
    np.testing.assert_array_equal(column, np.array(values))


@pytest.fixture
def write(tmp_path):
    def writer(content, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return writer


# --- CSV: what is read -----------------------------------------------------------------------------------------------


def test_types_and_missing_markers(write):
    table = read_table(write("a,b,c\n1,x,?\n,?,NA\n-2.5e1,null,\n"))
    same(table.column("a"), [1.0, math.nan, -25.0])
    same(table.column("b"), ["x", "", ""])
    assert np.isnan(table.column("c")).all()
    assert table.is_numeric("c")
    assert table.n_rows == 3
    assert not table.is_numeric("b")
    assert table.column("b").dtype.kind == "U"


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_separators_line_ends_quotes_and_mark(write, mark, end):
    text = end.join([mark.join(["a", "b b"]), mark.join([" 1 ", f'"x{mark} ""y"""']), "", mark.join(["2", "z"]), ""])
    table = read_table(write(b"\xef\xbb\xbf" + text.encode()))
    assert list(table.columns) == ["a", "b b"]
    same(table.column("a"), [1, 2])
    same(table.column("b b"), [f'x{mark} "y"', "z"])
    assert table.row_numbers.tolist() == [2, 4]
    assert table.where("a", 1).endswith("t.csv, row 4, column 'a'")


def test_a_cell_may_span_lines(write):
    table = read_table(write('a,b\n"one\ntwo",1\nx,2\n'))
    same(table.column("a"), ["one\ntwo", "x"])
    assert table.row_numbers.tolist() == [2, 4]


def test_one_column_and_other_names(write):
    same(read_table(write("a\n1\n2", "T.CSV")).column("a"), [1, 2])
    same(read_table(str(write("a\tb\n1\t2", "t.tsv"))).column("b"), [2])
    same(read_table(write(gzip.compress(b"a,b\n1,2"), "t.csv.gz")).column("b"), [2])


def test_a_text_column_of_odd_numbers_stays_text(write):
    table = read_table(write("a,b,c,d\n1_0,0x10,inf,1.2.3\n2,3,x,4\n"))
    assert [table.is_numeric(name) for name in table.columns] == [False] * 4
    same(table.column("a"), ["1_0", "2"])


cells = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=("Cs",)), max_size=8)
    .map(str.strip)
    .filter(lambda cell: not cell.lower().strip("+-").startswith("inf")),
)
names = st.text(string.ascii_letters + " _-;.é", min_size=1, max_size=6).map(str.strip).filter(bool)


@st.composite
def grids(draw):
    header = draw(st.lists(names, min_size=2, max_size=4, unique=True))
    rows = draw(st.lists(st.lists(cells, min_size=len(header), max_size=len(header)), min_size=1, max_size=6))
    return header, rows


@settings(deadline=None)
@given(grids(), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_what_csv_writes_is_read_back(grid, packed, end):
    header, rows = grid
    out = io.StringIO()
    writer = csv.writer(out, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([header, *rows])
    data = out.getvalue().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("t.csv.gz" if packed else "t.csv")
        path.write_bytes(gzip.compress(data) if packed else data)
        table = read_table(path)
    assert list(table.columns) == header
    assert table.n_rows == len(rows)
    for j, name in enumerate(header):
        column = [row[j] for row in rows]
        if table.is_numeric(name):
            same(table.column(name), [math.nan if cell in MISSING else float(cell) for cell in column])
        else:
            same(table.column(name), ["" if cell in MISSING else cell for cell in column])


@settings(deadline=None)
@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20))
def test_numbers_survive_to_the_bit(values):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text("x\n" + "".join(f"{value!r}\n" for value in values))
        same(read_table(path).column("x"), values)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_table_or_an_input_error(data):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("t.csv", "t.csv.gz", "t.npz", "t.parquet"):
            path = Path(folder) / name
            path.write_bytes(data)
            with contextlib.suppress(InputError):
                table = read_table(path)
                assert len({len(column) for column in table.columns.values()}) == 1


# --- CSV: what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "t.csv is empty"),
        ("\n \n", "t.csv is empty"),
        (b"\xef\xbb\xbf", "t.csv is empty"),
        ("a,b\n", "t.csv has a header row but no rows"),
        ("a,b\n1,2\n3\n", "t.csv, row 3: it has 1 cells where the header has 2; there is none for column 'b'"),
        ("a,b\n\n1,2,3\n", "t.csv, row 3: it has 3 cells where the header has 2"),
        ("a,b,a\n1,2,3\n", "t.csv, row 1: columns 1 and 3 are both called 'a'"),
        (",b\n1,2\n", "t.csv, row 1: column 1 has no name"),
        ("\na,\n1,2\n", "t.csv, row 2: column 2 has no name"),
        (b"a,b\n1,caf\xe9\n", "t.csv, row 2, column 'b': byte 0xe9 is not UTF-8"),
        (b"a,b\n1,2\n\xff,2\n", "t.csv, row 3, column 'a': byte 0xff is not UTF-8"),
        (b"a,b\n1,2,\xe9\n", "t.csv, row 2, column 3: byte 0xe9"),
        (b"a,\xe9\n1,2\n", "t.csv, row 1, column 2: byte 0xe9"),
        (b"\xe9", "t.csv, row 1, column 1: byte 0xe9"),
        (b"\xff\xfea\0,\0", "t.csv is UTF-16"),
        ("a,b\n1,\0\n", "t.csv, row 2: it holds a zero byte"),
        ('a,b\n1,"x\n2,y\n', "t.csv, row 2: the row cannot be read"),
        ('a,b\n1,"x"y\n', "t.csv, row 2: the row cannot be read"),
        ("a,b\n1," + "x" * 200_000, "t.csv, row 2: the row cannot be read"),
        ("a,b\n1,2\n3,-inf\n", "t.csv, row 3, column 'b': '-inf' is not a finite number"),
        ("a,b\n1,2\n3,1e999\n", "t.csv, row 3, column 'b': the number is infinite"),
        ('a,b\n1,2\n3,"4,5"\n', "t.csv, row 3, column 'b': '4,5' is a number with a comma"),
        ("a;b\n1;1,5\n", "t.csv, row 2, column 'b': '1,5' is a number with a comma"),
    ],
)
def test_a_csv_is_refused(write, content, says):
    with pytest.raises(InputError) as caught:
        read_table(write(content))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_quoted_badly(write):
    with pytest.raises(InputError, match="row 1: the row cannot be read"):
        read_table(write('"a,b\n1,2\n'))
    huge = "x" * 200_000
    with pytest.raises(InputError, match="row 1: the row cannot be read"):
        read_table(write(f"{huge}\n1\n"))


def test_cells_too_long_for_an_array(write):
    rows = "x\n" * 30 + "y" * 50 + "\n"
    with pytest.raises(InputError, match="row 32, column 'a': a cell of 50 characters"):
        read_table(write("a\n" + rows), max_bytes=2000)


def test_files_too_large(write):
    with pytest.raises(InputError, match="larger than 100 bytes"):
        read_table(write("a\n" + "1\n" * 100), max_bytes=100)
    bomb = gzip.compress(b"a\n" + b"1\n" * 5_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(InputError, match="unpacks to more than 1000000 bytes"):
        read_table(write(bomb, "t.csv.gz"), max_bytes=1_000_000)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda packed: packed[:-9], "is cut off"),
        (lambda packed: packed + b"junk", "is not a sound gzip file"),
        (lambda packed: packed[:-5] + b"12345", "is not a sound gzip file"),
        (lambda packed: b"", "is empty"),
        (lambda packed: b"a,b\n1,2\n", "is not a sound gzip file"),
    ],
)
def test_damaged_gzip(write, damage, says):
    with pytest.raises(InputError, match=says):
        read_table(write(damage(gzip.compress(b"a,b\n1,2\n")), "t.csv.gz"))


def test_gzip_of_several_members(write):
    path = write(gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n"), "t.csv.gz")
    same(read_table(path).column("b"), [2, 4])


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
