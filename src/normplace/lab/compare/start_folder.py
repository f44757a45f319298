"""The folder in which a comparison was started, from which workers resolve its relative paths.

Result lines name files as the user wrote them, so that a comparison below one folder can be moved and published.
"""

from __future__ import annotations

from pathlib import Path

_folder = Path()


def set_start_folder(folder: str | Path) -> None:
    """Resolve relative paths from a folder; a worker calls this with the folder of the main process."""
    global _folder
    _folder = Path(folder)


def from_start_folder(path: str | Path) -> Path:
    """The path of a file that a task names; absolute paths are returned unchanged."""
    return _folder / path
