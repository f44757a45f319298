"""The folder in which a comparison was started, from which workers resolve its relative paths.

Result lines name files as the user wrote them, so that a comparison below one folder can be moved and published.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_folder = Path()


@contextmanager
def start_folder(folder: str | Path) -> Iterator[None]:
    """Resolve relative paths from a folder while the block runs; a worker passes the folder of the main process."""
    global _folder
    before, _folder = _folder, Path(folder)
    try:
        yield
    finally:
        _folder = before


def from_start_folder(path: str | Path) -> Path:
    """The path of a file that a task names; absolute paths are returned unchanged."""
    return _folder / path
