"""Reading CSV files: what is accepted, and one sentence for each mistake."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from normplace.errors import UsageError
from normplace.lab.extrapolate import read_table

ROWS = [(n, n * n / 7, -n) for n in range(12)]


def written(path, header="a,b,c", rows=ROWS, delimiter=","):
    lines = [header, *(delimiter.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_every_delimiter(tmp_path, delimiter):
    table = read_table(written(tmp_path / "t.csv", delimiter.join("abc"), delimiter=delimiter))
    assert (table.features, table.targets) == (("a", "b"), ("c",))
    np.testing.assert_array_equal(np.hstack([table.x, table.y]), np.array(ROWS, dtype=float))


def test_targets_and_columns_that_are_left_out(tmp_path):
    path = written(tmp_path / "t.csv", "a,b,c,note", [(*row, "text") for row in ROWS])
    table = read_table(path, targets=["c", "a"], drop=["note"])
    assert (table.features, table.targets) == (("b",), ("c", "a"))
    np.testing.assert_array_equal(table.y, np.array([(c, a) for a, _, c in ROWS], dtype=float))
    assert read_table(path, drop=["note"]).targets == ("c",)


def test_quotes_spaces_a_byte_order_mark_and_gzip(tmp_path):
    path = tmp_path / "t.csv.gz"
    lines = ['"first, column", b ', *(f'"{a}", {b}' for a, b, _ in ROWS), "", "  "]
    path.write_bytes(gzip.compress("\r\n".join(lines).encode("utf-8-sig")))
    table = read_table(path)
    assert table.features == ("first, column",) and table.targets == ("b",)
    assert len(table.x) == 12


def test_rows_with_missing_values_are_left_out_on_request(tmp_path):
    path = written(tmp_path / "t.csv", rows=[*ROWS, (1, "NA", 2), ("", 1, 2)])
    with pytest.raises(UsageError, match=r"'b' of t.csv has 1 missing value in line 14: .*--drop-missing"):
        read_table(path)
    table = read_table(path, drop_missing=True)
    assert (len(table.x), table.rows_left_out) == (12, 2)
    assert read_table(path, drop=["b"], drop_missing=True).rows_left_out == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.csv is empty"),
        ("1,2\n3,4\n", "the first line of t.csv has numbers only: add a header"),
        ("a,\n1,2\n", "column 2 of t.csv has no name"),
        ("a,a\n1,2\n", "t.csv has two columns called 'a'"),
        ("a,b\n1,2\n3\n", "line 3 of t.csv has 1 cell, but the header has 2."),
        ("a,b\n1,2\n1,2,3\n", "line 3 of t.csv has 3 cells, but the header has 2."),
        ("a,b c\n1,male\n", r"column 'b c' of t.csv has 'male' in line 2, .* --drop 'b c'\."),
        ("a,b\n1,male\n", r"column 'b' of t.csv has 'male' in line 2, .* --drop b\."),
        ("a,b\n1,inf\n", "'inf' in line 2, which is not a finite number"),
        ("a,b\n1,1_000\n", "'1_000' in line 2, which is not a finite number"),
        ("a\n1\n", "t.csv has no column besides 'a'"),
        ("a b\n1 2\n", "add features, or separate columns by commas, semicolons, tabs or bars."),
        ("a,b\n1,2\n", "t.csv has 1 row: at least 10 are needed."),
        ('a,b\n1,"2\n', "t.csv is not valid CSV"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, content, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_table(tmp_path / "t.csv")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_table(tmp_path / "missing.csv")
    (tmp_path / "t.gz").write_bytes(b"a,b")
    with pytest.raises(UsageError, match="is not a gzip file"):
        read_table(tmp_path / "t.gz")
    (tmp_path / "t.csv").write_bytes(b"a,b\n\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_table(tmp_path / "t.csv")


def test_wrong_column_names(tmp_path):
    path = written(tmp_path / "t.csv", "alpha,beta,gamma")
    with pytest.raises(UsageError, match=r"unknown column of t\.csv: 'gama': did you mean 'gamma'\?"):
        read_table(path, targets=["gama"])
    with pytest.raises(UsageError, match="'beta' is both a target and left out"):
        read_table(path, targets=["beta"], drop=["beta"])
