"""CSV files: round trips, and every refusal with its file, row and column."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import string
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.columns import MISSING
from steelyard.data.tables import read_table
from steelyard.errors import InputError


def same(column, values):
    np.testing.assert_array_equal(column, np.array(values))


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
