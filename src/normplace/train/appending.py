"""Files that are only ever appended to, by one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from normplace.errors import UsageError


def open_to_append(path: Path) -> int:
    """The descriptor of a file open for appending, locked against a second writer until it is closed.

    Args:
        path: The file; made with its folder when missing.

    Raises:
        UsageError: If it cannot be written or is in use.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another --out.") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise UsageError(f"another run is writing {path}: wait for it, or choose another --out.") from error
    return file
