"""Option types and checks that several verbs share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from normplace.errors import UsageError

Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
"""An option that takes one or more words, as in ``--set KEY=VALUE KEY=VALUE``."""
Assignments = Annotated[tuple[str, ...], Parameter(name="--set", consume_multiple=True, metavar="KEY=VALUE...")]
Studies = Annotated[tuple[str, ...], Parameter(name="--study", consume_multiple=True, metavar="MODULE:NAME...")]
File = Annotated[Path, Parameter(metavar="FILE")]
Folder = Annotated[Path, Parameter(metavar="FOLDER")]


def require(extra: str, *modules: str) -> None:
    """Check that the modules of an optional dependency are installed.

    Raises:
        UsageError: If one is not; the message has the command that installs it.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"this command needs {module!r}: pip install 'normplace[{extra}]'.")


def require_one_source(factory: str | None, hf: Path | None) -> None:
    """Check that a model is named either by a factory or by a Hugging Face configuration.

    Raises:
        UsageError: If both or neither are set.
    """
    if (factory is None) == (hf is None):
        raise UsageError("give either package.module:factory or --hf with a folder or configuration.")
