"""Open a file for appending under an exclusive lock."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from normplace._shared.file_lock import try_lock
from normplace._shared.output import cannot_write
from normplace.errors import UsageError

# Without O_NONBLOCK, opening a named pipe blocks until its other end is opened; without O_BINARY, Windows writes \r\n.
FLAGS = os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def open_for_append(path: Path) -> int:
    """Return the descriptor of a file that no other process can open for appending until it is closed.

    Args:
        path: The file; it and its folder are created if missing.

    Raises:
        UsageError: If the file cannot be written or another process holds the lock.
    """
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | FLAGS, 0o644)
        except OSError as error:
            raise cannot_write(path, error, "choose another --out") from error
        except ValueError as error:  # a null byte, or text that the file system cannot encode
            raise UsageError(f"cannot write {str(path)!r}: this is not a possible file name.") from error
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UsageError(f"cannot write {path}: it is not a regular file; choose another --out.")
            if not try_lock(file):
                raise UsageError(f"another run is writing {path}: wait for it, or choose another --out.")
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                return file
            os.close(file)  # the previous writer replaced the file after it was opened here; open the new one
        except UsageError:
            os.close(file)
            raise
