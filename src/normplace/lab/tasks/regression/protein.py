"""Protein tertiary structure: predict a residue's error from surface areas, for proteins larger than the training data.

The data are UCI's "Physicochemical Properties of Protein Tertiary Structure" (CASP 5-9, DOI 10.24432/C5QW3H, CC BY
4.0): RMSD, the target, and nine properties F1 to F9, of which F1 is the total surface area. The split follows "Just One
Layer Norm Guarantees Stable Extrapolation" (arXiv 2505.14512), section 4.2: 90% of the proteins under 20,000 square
angstrom are for training, the other 10% are the test inside the data, and the larger ones the test outside. The paper
does not describe scaling; we standardize inputs and target on the training rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from normplace.lab.tasks.data_files import cache_folder, cached_by_file, download, find_file, read_file, store, unzip
from normplace.lab.tasks.known_table import KnownTable
from normplace.lab.tasks.regression.shifted import Regression, ShiftedRegression, hold_out

URL = "https://archive.ics.uci.edu/static/public/265/physicochemical+properties+of+protein+tertiary+structure.zip"
NAMES = ("CASP.csv", "CASP.csv.gz")
# The checksum comes from a copy, because UCI's archive was not available.
TABLE = KnownTable(
    name="UCI's CASP.csv",
    rows=45_730,
    columns=10,
    dtype="<f8",
    sha256="c0a96092c8e86fef345b7a0db3ef4e030e638779c9068ab88ff5adf274cc1d97",
)
LARGEST = 20_000.0
"""Largest surface area of the training proteins, in square angstrom."""


def load_protein(path: str = "") -> Tensor:
    """The table in float64, target first, rows sorted so that a split does not depend on the file's order.

    Args:
        path: The user's file; by default the file is searched for, then downloaded.

    Raises:
        UsageError: If the file is not available, or is not UCI's.
    """
    file = find_file(path, "protein", NAMES)
    if file is None:
        file = cache_folder() / "protein" / NAMES[0]
        archive = download(URL, "download it elsewhere and put CASP.csv into the folder NORMPLACE_DATA")
        content = unzip(archive, NAMES[0], URL)
        TABLE.parse(content, URL)
        store(file, content)
    return _load(file)


@cached_by_file(2)
def _load(path: Path) -> Tensor:
    return torch.from_numpy(TABLE.parse(read_file(path), str(path)))


def split_by_area(table: Tensor, generator: torch.Generator, rows: int = 0) -> ShiftedRegression:
    """Train on 90% of the smaller proteins; the other 10% are inside, the larger ones outside.

    Args:
        table: From :func:`load_protein`.
        generator: Draws the 90%.
        rows: Number of training rows; 0 means all.

    Raises:
        UsageError: If there are too few rows.
    """
    small = table[:, 1] < LARGEST
    below, above = table[small], table[~small]
    train, rest = hold_out(len(below), round(0.9 * len(below)), generator)
    parts = (below[train[:rows] if rows else train], below[rest], above)
    return ShiftedRegression(*(Regression(part[:, 1:], part[:, :1]) for part in parts))
