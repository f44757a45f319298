"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from normplace.errors import UsageError


def write_whole(path: Path, text: str) -> None:
    """Write a file; a reader of ``path`` sees the old one or the new one, never a part.

    Args:
        path: The file; its folder is made when missing.
        text: What it will hold.

    Raises:
        UsageError: If it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another file.") from error


def expect_writable(path: Path) -> None:
    """Make the folder of a file that is to be written later.

    Raises:
        UsageError: If it cannot be written there.
    """
    folder = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; choose another file.") from error
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: choose a file in a folder of yours.")
