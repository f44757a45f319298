"""Scripts of the project, imported as modules."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


@contextmanager
def imported_script(name: str) -> Iterator[ModuleType]:
    """Import ``scripts/NAME.py`` with the folder on the path, as when it runs.

    Its module is removed at the end, so that a test never sees that of another.
    """
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPTS))
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(SCRIPTS))
        del sys.modules[name]
