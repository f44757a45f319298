"""Numeric tables from CSV files: a header, then one row of numbers per sample."""

from __future__ import annotations

import csv
import gzip
import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError, expect_choice, quoted

MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-"}
"""Cells, in lower case, that mean a missing value."""
DELIMITERS = ",;\t|"
FEWEST_ROWS = 10


@dataclass(frozen=True)
class Table:
    """Features and targets of a regression.

    Attributes:
        features: Names of the features.
        targets: Names of the targets.
        x: Features (rows, features).
        y: Targets (rows, targets).
        rows_left_out: Rows that were left out because a value is missing.
        has_names: Whether the names of the features are those of the data.
    """

    features: tuple[str, ...]
    targets: tuple[str, ...]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    rows_left_out: int = 0
    has_names: bool = True


def read_table(
    path: str | Path, targets: Sequence[str] = (), drop: Sequence[str] = (), drop_missing: bool = False
) -> Table:
    """Read a CSV file with a header; the delimiter is a comma, semicolon, tab or bar.

    Args:
        path: The file; one that ends in ``.gz`` is decompressed.
        targets: Columns to predict; none means the last one.
        drop: Columns to leave out.
        drop_missing: Whether to leave out rows with a missing value instead of refusing the file.

    Raises:
        UsageError: If the file is not such a table; the message names the first problem.
    """
    path = Path(path)
    names, rows = _split_cells(path, _read_text(path))
    for column in [*targets, *drop]:
        expect_choice(f"column of {path.name}:", column, names)
    chosen = tuple(dict.fromkeys(targets)) or tuple([name for name in names if name not in drop][-1:])
    if both := sorted(set(chosen) & set(drop)):
        raise UsageError(f"column {quoted(both[0])} is both a target and left out: remove it from one of the two.")
    features = tuple(name for name in names if name not in chosen and name not in drop)
    if not features:
        raise UsageError(
            f"{path.name} has no column besides {', '.join(map(quoted, chosen))}: add features, or separate columns by "
            "commas, semicolons, tabs or bars."
        )
    kept, left_out = _numbers(path, names, rows, [*features, *chosen], drop_missing)
    if len(kept) < FEWEST_ROWS:
        reason = "" if not left_out else f" after {left_out} with missing values were left out"
        count = "1 row" if len(kept) == 1 else f"{len(kept)} rows"
        raise UsageError(f"{path.name} has {count}{reason}: at least {FEWEST_ROWS} are needed.")
    values = np.array(kept, dtype=np.float64)
    return Table(features, chosen, values[:, : len(features)], values[:, len(features) :], left_out)


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: save it as CSV in UTF-8.") from error
    except (EOFError, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is not a gzip file, although its name ends in .gz: rename it.") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; check --data.") from error
    except ValueError as error:  # a null byte in the name
        raise UsageError(f"cannot read {quoted(str(path))}: this is not a possible file name.") from error


def _split_cells(path: Path, text: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Column names, and the cells of each row with its line number."""
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise UsageError(f"{path.name} is not valid CSV ({error} in line {reader.line_num}): check it.") from error
    if not lines:
        raise UsageError(f"{path.name} is empty: a header and rows of numbers are needed.")
    (_, names), *rows = lines
    if all(_number(name) is not None for name in names):
        raise UsageError(f"the first line of {path.name} has numbers only: add a header with the column names.")
    if "" in names:
        raise UsageError(f"column {names.index('') + 1} of {path.name} has no name: add it to the header.")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{path.name} has two columns called {quoted(repeated[0])}: rename one.")
    for line, cells in rows:
        if len(cells) != len(names):
            count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise UsageError(f"line {line} of {path.name} has {count}, but the header has {len(names)}.")
    return names, rows


def _numbers(
    path: Path, names: Sequence[str], rows: Sequence[tuple[int, list[str]]], columns: Sequence[str], drop_missing: bool
) -> tuple[list[list[float]], int]:
    """The numbers of the chosen columns, and how many rows were left out."""
    places = [names.index(column) for column in columns]
    kept, left_out = [], 0
    for line, cells in rows:
        values: list[float] = []
        for column, place in zip(columns, places, strict=True):
            cell = cells[place]
            if cell.lower() in MISSING:
                if drop_missing:
                    break
                empty = sum(row[place].lower() in MISSING for _, row in rows)
                values_missing = "1 missing value" if empty == 1 else f"{empty} missing values, the first"
                raise UsageError(
                    f"column {quoted(column)} of {path.name} has {values_missing} in line {line}: "
                    "fill them in, or leave out the rows with --drop-missing or the column with "
                    f"--drop {shlex.quote(column)}."
                )
            value = _number(cell)
            if value is None or not math.isfinite(value):
                raise UsageError(
                    f"column {quoted(column)} of {path.name} has {quoted(cell)} in line {line}, which is not a finite "
                    f"number: encode it as a number, or leave the column out with --drop {shlex.quote(column)}."
                )
            values.append(value)
        else:
            kept.append(values)
            continue
        left_out += 1
    return kept, left_out


def _number(cell: str) -> float | None:
    try:
        return float(cell) if "_" not in cell else None
    except ValueError:
        return None
