"""How the user started normplace, so that printed commands work when they are copied."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def program() -> str:
    """The words that start normplace as it was started now, such as ``.venv/bin/normplace``."""
    started = Path(sys.argv[0])
    if started.parts[-2:] == ("normplace", "__main__.py"):
        return f"{shlex.quote(_from_here(Path(sys.executable)))} -m normplace"
    on_path = shutil.which("normplace")
    if started.stem != "normplace" or (on_path is not None and Path(on_path).resolve() == started.resolve()):
        return "normplace"
    return shlex.quote(_from_here(started))


def _from_here(path: Path) -> str:
    """The path relative to the current folder if it is inside it."""
    path = Path.cwd() / path
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
