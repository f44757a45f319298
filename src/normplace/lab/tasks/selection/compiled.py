"""Shared parts of the compiled loops: the numba decorator, random streams, a tournament tree, and threads.

Loops release the GIL and run on Python threads instead of numba's parallel loops: they compile faster, survive a fork,
and let the caller choose the number of threads. Their machine code is kept in the cache folder, because compiling takes
longer than most selections.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from normplace._shared.cache import cache_folder
from normplace._shared.resources import usable_cores
from normplace.errors import UsageError, expect_whole

try:
    import numba
    from numba.core import config as numba_config
    from numba.core.caching import FunctionCache
except ImportError as error:
    raise UsageError("node selection needs numba: pip install 'normplace[graphs]'.") from error

F = TypeVar("F", bound=Callable)
T = TypeVar("T")

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST, MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ULP = 2.0**-53


def compiled(function: F) -> F:
    """Compile ``function`` at its first call; a division by zero follows IEEE instead of raising an error."""
    loop: Any = numba.njit(nogil=True, error_model="numpy")(function)
    settings: Any = numba_config
    if (folder := code_folder(Path(__file__).parent)) is not None:
        user_folder, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)  # read when the cache is made
        try:
            loop._cache = _CodeCache(function)
        finally:
            settings.CACHE_DIR = user_folder
    return cast(F, loop)


class _CodeCache(FunctionCache):
    """Numba's cache of machine code on disk; without a readable or writable file, a loop is compiled again."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):  # it reads the index first
            super().save_overload(sig, data)


@functools.cache
def code_folder(sources: Path) -> Path | None:
    """The folder of the machine code of all loops, or None if it cannot be written.

    A loop contains the loops that it calls, and numba compares the file of the outer one only. The folder is therefore
    named after the source of all of them.

    Args:
        sources: The folder of their source.
    """
    digest = hashlib.sha256()
    for path in sorted(sources.glob("*.py")):
        digest.update(path.read_bytes())
    try:
        folder = cache_folder() / "numba" / digest.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@compiled
def mix(z):
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a pseudo-random bijection of 64 bits."""
    z = (z ^ (z >> np.uint64(30))) * MIX_FIRST
    z = (z ^ (z >> np.uint64(27))) * MIX_SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def stream(seed, index):
    """Initial state of stream ``index`` of ``seed``; advance it by adding :data:`GOLDEN`."""
    return mix(seed + mix((np.uint64(index) + np.uint64(1)) * GOLDEN))


@compiled
def uniform(state):
    """A number in (0, 1] from a stream's state; never 0, so that its logarithm is finite."""
    return (np.float64(mix(state) >> np.uint64(11)) + 1.0) * ULP


@compiled
def tournament(key):
    """A tree over the indices of ``key``; its root, entry 1, is the (lowest) index of the largest key."""
    size = 1
    while size < len(key):
        size *= 2
    tree = np.full(2 * size, -1, np.int32)
    for i in range(len(key)):
        tree[size + i] = i
    for i in range(size - 1, 0, -1):
        tree[i] = winner(key, tree[2 * i], tree[2 * i + 1])
    return tree


@compiled
def winner(key, left, right):
    """The index with the larger key; -1 is an empty place."""
    if right < 0 or (left >= 0 and key[left] >= key[right]):
        return left
    return right


@compiled
def update_tournament(tree, key, index):
    """Update the tree after ``key[index]`` changed."""
    i = (index + len(tree) // 2) // 2
    while i > 0:
        tree[i] = winner(key, tree[2 * i], tree[2 * i + 1])
        i //= 2


def map_chunks(task: Callable[[int, int], T], total: int, chunks: int, threads: int | None) -> list[T]:
    """Results of ``task(first, last)`` over consecutive chunks of ``range(total)``, in order.

    Args:
        task: Called once per chunk; it must release the GIL to run in parallel.
        total: Length of the range.
        chunks: Largest number of chunks.
        threads: Number of threads; None means one per available core.

    Raises:
        UsageError: If ``threads`` is not positive.
    """
    threads = thread_count(threads)
    chunks = max(1, min(chunks, total))
    bounds = [total * i // chunks for i in range(chunks + 1)]
    if threads == 1 or chunks == 1:
        return [task(first, last) for first, last in itertools.pairwise(bounds)]
    with ThreadPoolExecutor(min(threads, chunks)) as pool:
        return list(pool.map(task, bounds[:-1], bounds[1:]))


def thread_count(threads: int | None) -> int:
    """The number of threads; None means one per available core.

    Raises:
        UsageError: If it is not a positive integer or None.
    """
    if threads is None:
        return usable_cores()
    expect_whole(1, threads=threads)
    return int(threads)
