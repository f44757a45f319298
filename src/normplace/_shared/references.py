"""Objects named on the command line as ``package.module:attribute``."""

from __future__ import annotations

import importlib
from typing import Any

from normplace.errors import UsageError


def load_reference(reference: str) -> Any:
    """Import the module and return its attribute.

    Raises:
        UsageError: If the reference is not of that form, the import fails, or there is no such attribute.
    """
    name, _, attribute = reference.partition(":")
    if not attribute or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"cannot import {reference!r}: write package.module:name.")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"cannot import {name!r}: run from its folder, or set PYTHONPATH.") from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error
    if not hasattr(module, attribute):
        raise UsageError(f"module {name!r} has no {attribute!r}: check the name after the colon.")
    return getattr(module, attribute)


def _failed(name: str, error: BaseException) -> UsageError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UsageError(f"importing {name!r} failed ({reason[:200]}): import it in Python to see where.")
