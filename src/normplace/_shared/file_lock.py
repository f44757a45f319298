"""An exclusive lock on an open file, by ``fcntl`` or, on Windows, ``msvcrt``."""

from __future__ import annotations

import os
import sys

FIRST_BYTE = 2**40
"""Position of the byte that Windows locks. It is after the end of every file, so that the content stays readable."""

if sys.platform == "win32":
    import msvcrt

    RENAMES_OPEN_FILES = False

    def try_lock(file: int) -> bool:
        """Lock a descriptor until it is closed; return False if another one holds the lock."""
        os.lseek(file, FIRST_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    RENAMES_OPEN_FILES = True

    def try_lock(file: int) -> bool:
        """Lock a descriptor until it is closed; return False if another one holds the lock."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
