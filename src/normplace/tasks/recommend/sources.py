"""What the loaders of interactions share: reading, checking against a known content, remembering an obstacle."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np

from normplace.errors import UsageError


def read_bytes(path: Path) -> bytes:
    """What is in a file, decompressed where its name ends in ``.gz``.

    Raises:
        UsageError: If it cannot be read.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read {path}: {error}.") from error


def digest(*tables: np.ndarray) -> str:
    """SHA-256 over the rows of each table in ascending order, as little-endian int64.

    It is the same for every faithful copy, whatever its header, separator, order or compression.
    """
    found = hashlib.sha256()
    for table in tables:
        found.update(np.ascontiguousarray(table[np.lexsort(table.T[::-1])], dtype="<i8").tobytes())
    return found.hexdigest()
