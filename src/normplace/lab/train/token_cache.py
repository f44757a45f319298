"""A cache of tokenized text: NumPy files that are memory-mapped, so that a second run starts at once.

A cached text belongs to the paths, sizes and modification times of its files and to the tokenizer; a change of any of
them makes a new entry. Entries are in the folder ``tokens`` of the cache (``NORMPLACE_CACHE``) and may be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normplace._shared.file_lock import try_lock
from normplace._shared.output import cannot_write
from normplace.lab.tasks.data_files import cache_folder

FORMAT = 3
MANIFEST = "manifest.json"
POLL_INTERVAL = 0.1
CACHE_REMEDY = "free space, or set NORMPLACE_CACHE to another folder"


class TextFile(NamedTuple):
    """A file, and what identifies its content: looking it up again is slow for tens of thousands of files.

    Args:
        path: The file.
        size: Number of bytes.
        modified: Time of the last change, in nanoseconds.
    """

    path: Path
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path, status: os.stat_result | None = None) -> TextFile:
        """The file at a path; ``status`` saves a look-up."""
        status = path.stat() if status is None else status
        return cls(path, status.st_size, status.st_mtime_ns)


def cache_entry(files: Iterable[TextFile], tokenizer: str) -> Path:
    """The folder of a tokenized text, which may not exist yet.

    Args:
        files: The files of the text, in order.
        tokenizer: Identity of the tokenizer.
    """
    digest = hashlib.sha256(f"{FORMAT}\n{tokenizer}\n".encode())
    for path, size, modified in files:
        digest.update(f"{os.path.abspath(path)}\n{size}\n{modified}\n".encode("utf-8", "surrogateescape"))  # noqa: PTH100
    return cache_folder() / "tokens" / digest.hexdigest()[:24]


def read_entry(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """The memory-mapped arrays of an entry and its manifest; None if there is no entry."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = json.loads((folder / MANIFEST).read_text())
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in manifest["arrays"]}, manifest


@contextlib.contextmanager
def writing_lock(folder: Path) -> Iterator[None]:
    """Wait until no other process writes an entry, and let no other one do so while the block runs.

    Raises:
        UsageError: If the cache cannot be written.
    """
    path = cache_folder() / "locks" / folder.name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(path, error, CACHE_REMEDY) from error
    try:
        while not try_lock(file):
            time.sleep(POLL_INTERVAL)
        yield
    finally:
        os.close(file)


def write_entry(folder: Path, arrays: dict[str, np.ndarray], manifest: dict[str, Any]) -> None:
    """Write an entry; a reader sees all of it or nothing.

    Args:
        folder: From :func:`cache_entry`.
        arrays: Arrays by name.
        manifest: JSON-ready values to keep with them.

    Raises:
        UsageError: If the entry cannot be written.
    """
    draft = folder.with_name(f".{folder.name}-{os.getpid()}.tmp")
    try:
        draft.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(draft / f"{name}.npy", array)
        (draft / MANIFEST).write_text(json.dumps({**manifest, "arrays": list(arrays)}))
        with contextlib.suppress(FileExistsError):  # another process wrote the same entry first
            _rename(draft, folder)
    except OSError as error:
        raise cannot_write(folder, error, CACHE_REMEDY) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _rename(draft: Path, folder: Path) -> None:
    if folder.is_dir():
        raise FileExistsError(folder)
    draft.rename(folder)
