"""Reading data files: regular files only, and archives up to a size, so that a small file cannot fill the memory."""

from __future__ import annotations

import gzip
import io
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from normplace.errors import UsageError

LIMIT = 4 * 2**30
"""Bytes that a file may have, and that an archive may expand to."""
BROKEN = (OSError, ValueError, EOFError, LookupError, AttributeError, TypeError, ArithmeticError, MemoryError,
          RuntimeError, zipfile.BadZipFile, zlib.error)  # fmt: skip
"""What NumPy and the standard library raise on a damaged archive."""


def read_file(path: Path) -> bytes:
    """The bytes of a file, decompressed where its name ends in ``.gz``.

    Raises:
        UsageError: If it is not a regular file, cannot be read, is damaged, or is larger than :data:`LIMIT`.
    """
    try:
        _check_regular(path)
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as packed:
            return read_within_limit(packed)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {error}.") from error


def unzip(archive: bytes, name: str) -> bytes:
    """One file of a ZIP archive.

    Raises:
        ValueError: If the archive is damaged, has no such file, or expands to more than :data:`LIMIT`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened, opened.open(name) as packed:
            return read_within_limit(packed)
    except BROKEN as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def open_arrays(source: Path | bytes) -> Any:
    """The arrays of an ``.npz`` file by name, as :func:`numpy.load` gives them; objects are not unpickled.

    Raises:
        ValueError: If it is not a regular file, or expands to more than :data:`LIMIT`.
    """
    if isinstance(source, Path):
        _check_regular(source)
    with zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source)) as archive:
        if sum(member.file_size for member in archive.infolist()) > LIMIT:
            raise ValueError(f"it expands to more than {LIMIT >> 30} GB")
    return np.load(source if isinstance(source, Path) else io.BytesIO(source), allow_pickle=False)


def _check_regular(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > LIMIT:
        raise ValueError(f"it is larger than {LIMIT >> 30} GB")


def read_within_limit(stream: Any) -> bytes:
    """All bytes of a stream, read in pieces.

    Raises:
        ValueError: If there are more than :data:`LIMIT`.
    """
    content = bytearray()
    while piece := stream.read(2**20):
        content += piece
        if len(content) > LIMIT:
            raise ValueError(f"it expands to more than {LIMIT >> 30} GB")
    return bytes(content)
