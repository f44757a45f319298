"""Published tables of numbers, identified by a checksum of their values.

The checksum is over the sorted rows, so it accepts every faithful copy: any header, separator, order or compression.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from normplace.errors import UsageError


def sorted_rows(table: np.ndarray) -> np.ndarray:
    """The rows in ascending order of their first column, then the second, and so on."""
    return table[np.lexsort(table.T[::-1])]


def row_digest(*tables: np.ndarray, dtype: str) -> str:
    """SHA-256 of the sorted rows of each table, as numbers of ``dtype``."""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(np.ascontiguousarray(sorted_rows(table), dtype=dtype).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class KnownTable:
    """A published table.

    Args:
        name: Its name in errors.
        rows: Number of rows.
        columns: Number of columns.
        dtype: Of the values, little-endian.
        sha256: :func:`row_digest` of its values.
    """

    name: str
    rows: int
    columns: int
    dtype: str
    sha256: str

    def parse(self, content: bytes, source: str) -> np.ndarray:
        """The sorted rows of a text file with or without a header line; columns separated by tabs, bars or commas.

        Raises:
            UsageError: If it is not a copy of this table.
        """
        try:
            lines = re.sub(r"[|\t]", ",", content.decode("ascii")).splitlines()
            if lines and not lines[0][:1].isdigit():
                del lines[0]
            table = np.loadtxt(lines, self.dtype, delimiter=",", comments=None, ndmin=2) if lines else np.empty((0, 0))
        except ValueError as error:
            raise UsageError(f"{source} is not a table of numbers ({error}): use {self.name}.") from error
        if table.shape != (self.rows, self.columns):
            raise UsageError(
                f"{source} has {table.shape[0]:,} rows of {table.shape[1]} columns, but {self.name} has {self.rows:,} "
                f"of {self.columns}: use the complete file."
            )
        if row_digest(table, dtype=self.dtype) != self.sha256:
            raise UsageError(f"{source} has other values than {self.name} (checksum differs): use an unchanged copy.")
        return np.ascontiguousarray(sorted_rows(table), dtype=self.dtype)
