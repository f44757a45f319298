"""Find, download, read and write data files.

A loader uses the file that the user names; else one in the folder ``NORMPLACE_DATA``; else one in the cache,
``NORMPLACE_CACHE`` or ``normplace`` in the user's cache folder. ``NORMPLACE_OFFLINE=1`` forbids downloads. Only regular
files are read, and archives only up to :data:`LIMIT`, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import functools
import gzip
import io
import os
import stat
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from normplace._shared.cache import CACHE, OFFLINE, cache_folder, offline_setting
from normplace._shared.output import write_atomic
from normplace.errors import UsageError

DATA = "NORMPLACE_DATA"
LIMIT = 4 * 2**30
"""Largest size in bytes of a file, before and after decompression."""
DAMAGE_ERRORS = (OSError, ValueError, EOFError, LookupError, AttributeError, TypeError, ArithmeticError, MemoryError,
                 RuntimeError, zipfile.BadZipFile, zlib.error)  # fmt: skip
"""What NumPy and the standard library raise on a damaged archive."""

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


def search_settings() -> tuple[str, ...]:
    """The environment settings that decide which file :func:`find_file` returns, as a cache key."""
    return (*(os.environ.get(name, "") for name in (DATA, OFFLINE)), str(cache_folder()))


def find_file(path: str, topic: str, names: Iterable[str]) -> Path | None:
    """The first data file that exists.

    Args:
        path: The user's file; when not empty, no other place is searched.
        topic: The data set's subfolder.
        names: Accepted file names.

    Raises:
        UsageError: If ``path``, or the folder in ``NORMPLACE_DATA``, does not exist.
    """
    if path:
        if not Path(path).is_file():
            raise UsageError(f"there is no file {path!r}: check the path.")
        return Path(path)
    folders = [cache_folder() / topic]
    if data := os.environ.get(DATA):
        if not Path(data).is_dir():
            raise UsageError(f"{DATA} is {data!r}, which is not a folder: correct or unset it.")
        folders = [Path(data) / topic, Path(data), *folders]
    candidates = (folder / name for folder in folders for name in names)
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def unavailable_reason(load: Callable[[*Arguments], object], *arguments: *Arguments) -> str | None:
    """Why ``load(*arguments)`` raises a UsageError, or None if it succeeds.

    The answer is cached, so that a missing network is tried once.
    """
    return _unavailable_reason(load, arguments, search_settings())


@functools.lru_cache
def _unavailable_reason(load: Callable[..., object], arguments: tuple, _settings: tuple[str, ...]) -> str | None:
    try:
        load(*arguments)
    except UsageError as error:
        return str(error)
    return None


def cached_by_file(size: int) -> Callable[[Callable[[*Arguments], Result]], Callable[[*Arguments], Result]]:
    """Cache the last ``size`` results of a function of files; a result is dropped when one of its files changes."""

    def decorate(read: Callable[[*Arguments], Result]) -> Callable[[*Arguments], Result]:
        @functools.lru_cache(size)
        def cached(_modified: tuple[int, ...], *arguments: *Arguments) -> Result:
            return read(*arguments)

        @functools.wraps(read)
        def reader(*arguments: *Arguments) -> Result:
            paths = (argument for argument in arguments if isinstance(argument, Path))
            return cached(tuple(path.stat().st_mtime_ns for path in paths), *arguments)

        return reader

    return decorate


def download(url: str, remedy: str, seconds: float = 30.0) -> bytes:
    """The content at ``url``.

    Raises:
        UsageError: If the download fails or is forbidden.
    """
    if offline_setting() is not None:
        raise UsageError(f"{url} is not downloaded, because {OFFLINE} is set: {remedy}.")
    try:
        with urllib.request.urlopen(url, timeout=seconds) as response:
            return _read_within_limit(response)
    except urllib.error.HTTPError as error:
        error.close()
        raise UsageError(f"{url} cannot be downloaded ({error.code} {error.reason}): {remedy}.") from error
    except (OSError, ValueError) as error:  # no network, no such host, a broken transfer, a timeout
        reason = getattr(error, "reason", error)
        raise UsageError(f"{url} cannot be downloaded ({reason}): {remedy}.") from error


def read_file(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in ``.gz``.

    Raises:
        UsageError: If it is not a regular file, cannot be read, is damaged, or is larger than :data:`LIMIT`.
    """
    try:
        _check_regular(path)
        if path.suffix != ".gz":
            return path.read_bytes()
        with gzip.open(path) as stream:
            return _read_within_limit(stream)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path}: {error}.") from error


def unzip(archive: bytes, name: str, url: str) -> bytes:
    """One file of a downloaded ZIP archive.

    Raises:
        UsageError: If the archive is damaged, does not contain the file, or expands to more than :data:`LIMIT`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members, members.open(name) as stream:
            return _read_within_limit(stream)
    except DAMAGE_ERRORS as error:
        raise UsageError(f"{url} did not return an archive with {name} ({error}): try again later.") from error


def read_arrays(source: Path | bytes, fields: Sequence[str], label: str) -> dict[str, np.ndarray]:
    """The named arrays of an ``.npz`` file; objects are not unpickled.

    Raises:
        UsageError: If the file cannot be read, is damaged, lacks a field, or expands to more than :data:`LIMIT`.
    """
    needed = ", ".join(fields)
    try:
        if isinstance(source, Path):
            _check_regular(source)
        with zipfile.ZipFile(_opened(source)) as archive:
            if sum(member.file_size for member in archive.infolist()) > LIMIT:
                raise ValueError(f"it expands to more than {LIMIT >> 30} GB")
        with np.load(_opened(source), allow_pickle=False) as arrays:
            missing = [field for field in fields if field not in arrays]
            if not missing:
                return {field: np.asarray(arrays[field]) for field in fields}
    except OSError as error:
        raise UsageError(f"cannot read {label}: {error.strerror or error}.") from error
    except DAMAGE_ERRORS as error:
        raise UsageError(f"{label} is not an .npz file with the fields {needed} ({error}).") from error
    raise UsageError(f"{label} has no field {missing[0]!r}: it needs {needed}.")


def _opened(source: Path | bytes) -> Path | io.BytesIO:
    return source if isinstance(source, Path) else io.BytesIO(source)


def store(path: Path, content: bytes) -> None:
    """Write a file atomically, so that no process reads half of it.

    Raises:
        UsageError: If it cannot be written.
    """
    write_atomic(path, content, f"set {CACHE} to another folder")


def store_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a compressed ``.npz`` file atomically.

    Raises:
        UsageError: If it cannot be written.
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    store(path, buffer.getvalue())


def _check_regular(path: Path) -> None:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > LIMIT:
        raise ValueError(f"it is larger than {LIMIT >> 30} GB")


def _read_within_limit(stream: Any) -> bytes:
    """The content of a stream, read in chunks, up to :data:`LIMIT`."""
    content = bytearray()
    while chunk := stream.read(2**20):
        content += chunk
        if len(content) > LIMIT:
            raise ValueError(f"it expands to more than {LIMIT >> 30} GB")
    return bytes(content)
