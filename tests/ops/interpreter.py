"""Set up Triton's interpreter; imported by the modules that run with TRITON_INTERPRET=1."""

from __future__ import annotations

import functools
import inspect
import warnings

from triton.language.core import is_builtin
from triton.runtime import interpreter

# The interpreter computes in NumPy, which warns about masked lanes where a GPU does not.
warnings.filterwarnings("ignore", category=RuntimeWarning)


@functools.cache
def _builtin_names(package: object) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def _patch_builtin(package: object, *args: object) -> None:
    """Do what the interpreter's function does in every call of every function, but list the members once."""
    for name in _builtin_names(package):
        member = getattr(package, name)
        if is_builtin(member):
            interpreter._patch_attr(package, name, member, *args)


interpreter._patch_builtin = _patch_builtin
