"""Machine code of numba's loops, kept in the cache folder, because compiling takes seconds in every process.

Numba's own cache does not recognize a closure in another process. It also names files by a count, which two processes
that compile at once can give to different code. Here a file is named after what determines its content.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, NullCache
from numba.core.serialize import dumps
from numba.extending import is_jitted

from normplace._shared.cache import cache_folder
from normplace._shared.output import write_atomic
from normplace.errors import UsageError

VERSIONS = (numba.__version__, llvmlite.__version__, sys.version)
DIGEST_BYTES = 32


def keep_code(loops: Iterable[Any], sources: Path, *variant: object) -> None:
    """Load the machine code of compiled functions from the cache folder, and store what is compiled.

    Without a readable or writable file they are compiled as if there were no cache.

    Args:
        loops: Functions that numba compiles at their first call.
        sources: The folder of their source and of all that they call or read.
        *variant: For closures, the values that they depend on, with a ``repr`` that distinguishes them.
    """
    if (folder := _code_folder(sources)) is not None:
        compiled: list[Any] = [loop for loop in loops if is_jitted(loop)]  # none is under NUMBA_DISABLE_JIT
        for loop in compiled:
            loop._cache = CodeCache(folder, loop.py_func, variant)


@functools.cache
def _code_folder(sources: Path) -> Path | None:
    """The folder of the code compiled from these sources; None if they cannot be read."""
    digest = hashlib.sha256(repr(VERSIONS).encode())
    try:
        paths = sorted(sources.rglob("*.py"))
        for path in paths:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(sources)} {len(content)} ".encode() + content)
        return cache_folder() / "numba" / digest.hexdigest()[:16] if paths else None
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None


class _Form(CompileResultCacheImpl):
    """The picklable form of a compiled function."""

    def __init__(self) -> None:
        """The parent's looks for a folder to write to."""


class CodeCache(NullCache):
    """One file for each signature and processor of a function, in the form that a dispatcher of numba uses."""

    def __init__(self, folder: Path, function: Callable[..., Any], variant: tuple[object, ...]) -> None:
        self._folder, self._form = folder, _Form()
        self._name = (function.__module__, function.__qualname__, function.__code__.co_firstlineno, variant)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function for some argument types; None if no file has it."""
        target_context.refresh()
        try:
            content = self._path(sig, target_context.codegen()).read_bytes()
        except OSError:
            return None
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if digest != hashlib.sha256(code).digest():  # damaged
            return None
        return self._form.rebuild(target_context, pickle.loads(code))

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Store a compiled function, unless it contains addresses of this process."""
        if not cres.library.has_dynamic_globals:
            code = dumps(self._form.reduce(cres))
            with contextlib.suppress(UsageError):  # without a file the next process only takes longer
                write_atomic(self._path(sig, cres.codegen), hashlib.sha256(code).digest() + code)

    def _path(self, sig: Any, codegen: Any) -> Path:
        key = repr((self._name, sig, codegen.magic_tuple()))
        return self._folder / hashlib.sha256(key.encode()).hexdigest()[:32]
