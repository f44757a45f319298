"""The folder of downloaded and computed files, and whether downloads are allowed."""

from __future__ import annotations

import os
from pathlib import Path

CACHE, OFFLINE = "NORMPLACE_CACHE", "NORMPLACE_OFFLINE"


def cache_folder() -> Path:
    """The folder of files that can be made again: ``NORMPLACE_CACHE``, or ``normplace`` in the user's cache folder."""
    if folder := os.environ.get(CACHE):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normplace"


def offline_setting(*names: str) -> str | None:
    """The environment variable that forbids downloads; None if they are allowed.

    Args:
        *names: Variables that forbid downloads besides ``NORMPLACE_OFFLINE``.
    """
    return next((name for name in (OFFLINE, *names) if os.environ.get(name, "0") not in ("", "0")), None)
