"""Modules that tests write to files and import."""

from __future__ import annotations

import sys
from pathlib import Path


def forget_modules_in(folder: Path) -> None:
    """Remove the modules that were imported from a folder, and nothing that they imported from elsewhere."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(folder):
            del sys.modules[name]
