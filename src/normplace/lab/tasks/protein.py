"""Protein tertiary structure: predict a residue's error from surface areas, on proteins larger than any seen.

The data are UCI's "Physicochemical Properties of Protein Tertiary Structure" (CASP 5-9, DOI 10.24432/C5QW3H, CC BY
4.0): RMSD, the target, and nine properties F1 to F9, of which F1 is the total surface area. The split is that of "Just
One Layer Norm Guarantees Stable Extrapolation" (arXiv 2505.14512), section 4.2: proteins under 20,000 square angstrom
are learned from, but for a tenth of them, and the larger ones are the test outside the data. Its text gives no scaling:
standardising inputs and target on the training rows is ours.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.files import cache_folder, download, find_file, settings, store
from normplace.lab.tasks.reading import read_file, unzip
from normplace.lab.tasks.regression import Regression, ShiftedRegression, hold_out

URL = "https://archive.ics.uci.edu/static/public/265/physicochemical+properties+of+protein+tertiary+structure.zip"
NAMES = ("CASP.csv", "CASP.csv.gz")
ROWS, COLUMNS = 45_730, 10
# Over the values, sorted by row, as little-endian float64: the same for every faithful copy, whatever its header, line
# ends, order or compression. It was computed from a copy, since the archive's own bytes were not at hand.
SHA256 = "c0a96092c8e86fef345b7a0db3ef4e030e638779c9068ab88ff5adf274cc1d97"
LARGEST = 20_000.0
"""Surface area, in square angstrom, up to which proteins are learned from."""


def load_protein(given: str = "") -> Tensor:
    """The table, target first, in float64, rows sorted so that a split does not depend on the file's order.

    Args:
        given: The user's own file; by default one is looked for, then downloaded.

    Raises:
        UsageError: If it cannot be had, or is not UCI's.
    """
    path = find_file(given, "protein", NAMES)
    if path is None:
        path = cache_folder() / "protein" / NAMES[0]
        content = _unzipped(download(URL, "download it elsewhere and put CASP.csv into the folder NORMPLACE_DATA"))
        _checked(_parse(content, URL), URL)
        store(path, content)
    return _load(path, path.stat().st_mtime_ns)


def obstacle(given: str = "") -> str | None:
    """Why :func:`load_protein` would fail, or None; remembered, so that a dead network is waited for once."""
    return _obstacle(given, settings())


@lru_cache
def _obstacle(given: str, _settings: tuple[str, ...]) -> str | None:
    try:
        load_protein(given)
    except UsageError as error:
        return str(error)
    return None


@lru_cache(maxsize=2)
def _load(path: Path, _stamp: int) -> Tensor:
    """The checked table of a file, read once per process and version of the file."""
    return torch.from_numpy(_checked(_parse(read_file(path), str(path)), str(path)))


def _unzipped(archive: bytes) -> bytes:
    try:
        return unzip(archive, NAMES[0])
    except ValueError as error:
        raise UsageError(f"{URL} did not give an archive with {NAMES[0]} in it: try again later.") from error


def _parse(content: bytes, source: str) -> np.ndarray:
    """The numbers of a CSV text with or without a header line."""
    try:
        lines = content.decode("ascii").splitlines()
        header = bool(lines) and not lines[0][:1].isdigit()
        table = (
            np.loadtxt(lines[header:], delimiter=",", comments=None, ndmin=2) if lines[header:] else np.empty((0, 0))
        )
    except ValueError as error:
        raise UsageError(f"{source} is no table of numbers ({error}): give UCI's CASP.csv.") from error
    return table


def canonical(table: np.ndarray) -> np.ndarray:
    """The rows in order of their first column, then the second, and so on."""
    return np.ascontiguousarray(table[np.lexsort(table.T[::-1])], dtype="<f8")


def digest(table: np.ndarray) -> str:
    """SHA-256 of the canonical values."""
    return hashlib.sha256(canonical(table).tobytes()).hexdigest()


def _checked(table: np.ndarray, source: str) -> np.ndarray:
    """The canonical table, if it is UCI's."""
    if table.shape != (ROWS, COLUMNS):
        raise UsageError(
            f"{source} has {table.shape[0]:,} rows of {table.shape[1]} columns where UCI's CASP.csv has {ROWS:,} of "
            f"{COLUMNS}: give that file, whole."
        )
    if digest(table) != SHA256:
        raise UsageError(f"{source} holds other values than UCI's CASP.csv (checksum differs): give an unchanged copy.")
    return canonical(table)


def split_by_area(table: Tensor, generator: torch.Generator, rows: int = 0) -> ShiftedRegression:
    """Nine tenths of the smaller proteins to learn from, the other tenth inside, the larger ones outside.

    Args:
        table: From :func:`load_protein`.
        generator: Source of the choice.
        rows: Learn from only this many rows; 0 means all.

    Raises:
        UsageError: If there are too few rows.
    """
    small = table[:, 1] < LARGEST
    below, above = table[small], table[~small]
    train, rest = hold_out(len(below), round(0.9 * len(below)), generator)
    parts = (below[train[:rows] if rows else train], below[rest], above)
    return ShiftedRegression(*(Regression(part[:, 1:], part[:, :1]) for part in parts))
