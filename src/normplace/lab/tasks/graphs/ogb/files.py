"""OGB's files: compressed tables of numbers without a header, splits, and binary archives.

A table is parsed while it is decompressed and its number of rows is known in advance, so a damaged or foreign file
cannot fill the memory.
"""

from __future__ import annotations

import gzip
import itertools
import pickle
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError

SIDES = ("train", "valid", "test")
DAMAGE = (OSError, ValueError, EOFError, zlib.error, OverflowError)
MISSING = re.compile(r"(?<=,)(?=[,\r\n]|$)|^(?=,)")
"""Where a field of a line is empty."""


def read_table(path: Path, kind: Any, rows: int | None = None, *, gaps: bool = False) -> np.ndarray:
    """A table of numbers, rows × columns.

    Args:
        path: A ``.csv.gz`` file without a header.
        kind: The dtype of the numbers.
        rows: The number of rows that it must have; None for any.
        gaps: Whether fields may be empty, which is read as NaN.

    Raises:
        UsageError: If the file is missing or damaged, or has another number of rows.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}: download the data set again with ogb.")
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*input contained no data", category=UserWarning)
            table = np.loadtxt(
                _filled(lines) if gaps else lines,
                kind,
                delimiter=",",
                comments=None,
                ndmin=2,
                max_rows=None if rows is None else rows + 1,
            )
    except DAMAGE as error:
        reason = " ".join(str(error).split())[:160]
        raise UsageError(f"cannot read {path}: {reason or type(error).__name__}.") from error
    if rows is not None and len(table) != rows:
        count = f"{len(table)}" if len(table) < rows else f"more than {rows}"
        raise UsageError(f"{path} has {count} rows, but the other files need {rows}: download the data set again.")
    return table


def _filled(lines: Iterable[str]) -> Iterator[str]:
    return (MISSING.sub("nan", line) for line in lines)


def read_counts(path: Path) -> np.ndarray:
    """One number for each graph.

    Raises:
        UsageError: If the file cannot be read, is empty or has a negative number.
    """
    counts = read_table(path, np.int64)
    if counts.shape[1:] != (1,) or not len(counts) or counts.min() < 0:
        raise UsageError(f"{path} must have one number of at least 0 for each graph: download the data set again.")
    return counts[:, 0]


def read_header_counts(path: Path) -> dict[str, int]:
    """The numbers of a table with a header and one row, by their names.

    Raises:
        UsageError: If the file is missing or has another form.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}: download the data set again with ogb.")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            names, numbers = (line.strip().split(",") for line in itertools.islice(lines, 2))
        return {name: int(number) for name, number in zip(names, numbers, strict=True)}
    except DAMAGE as error:
        raise UsageError(f"cannot read {path}: it must have names and one row of whole numbers.") from error


def read_archive(path: Path, required: Iterable[str]) -> dict[str, np.ndarray]:
    """The arrays of a binary file; objects are not unpickled.

    Raises:
        UsageError: If the file is missing, damaged, or lacks an array.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}: download the data set again with ogb.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: np.asarray(arrays[name]) for name in arrays}
    except (*DAMAGE, zipfile.BadZipFile, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is not a readable .npz file: download the data set again.") from error
    for name in required:
        if name not in content:
            raise UsageError(f"{path} has no array {name!r}: download the data set again.")
    return content


def read_split(folder: Path, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The training, validation and test indices of a split.

    Args:
        folder: The folder of the split, with ``train.csv.gz`` and so on, or ``split_dict.pt``.
        count: Number of nodes or graphs.

    Raises:
        UsageError: If a file is missing or damaged, an index is out of range or repeated, or a side is empty.
    """
    saved = folder / "split_dict.pt"
    sides = _saved_split(saved) if saved.is_file() else [_side(folder / f"{side}.csv.gz") for side in SIDES]
    everything = np.concatenate(sides)
    if not all(len(side) for side in sides) or everything.min() < 0 or everything.max() >= count:
        raise UsageError(f"{folder} must split indices from 0 to {count - 1} into three parts: download it again.")
    if len(np.unique(everything)) != len(everything):
        raise UsageError(f"{folder} has an index in two parts, or twice in one: download it again.")
    train, valid, test = (torch.from_numpy(side) for side in sides)
    return train, valid, test


def _side(path: Path) -> np.ndarray:
    return read_table(path, np.int64)[:, 0].copy()


def _saved_split(path: Path) -> list[np.ndarray]:
    """The sides in a file of ``torch.save``; only tensors and arrays are unpickled."""
    array = np.zeros(1, np.int64)
    safe: list[Any] = [np.ndarray, np.dtype, type(array.dtype), array.__reduce__()[0]]
    try:
        with torch.serialization.safe_globals(safe):
            split = torch.load(path, map_location="cpu", weights_only=True)
        return [np.asarray(split[side]).astype(np.int64).reshape(-1) for side in SIDES]
    except (*DAMAGE, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise UsageError(f"{path} is not a split into {', '.join(SIDES)}: download the data set again.") from error
