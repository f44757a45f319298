"""What the compiled loops share: numba itself, random streams, a tournament tree, and threads.

Loops release the interpreter's lock and run on ordinary threads rather than numba's own parallel loops: they compile in
a fraction of the time, survive a fork, and leave the number of threads to the caller.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import numpy as np

from normplace.errors import UsageError

try:
    import numba
except ImportError as error:
    raise UsageError(
        "node selection is compiled with numba, which is not installed: pip install 'normplace[graphs]'."
    ) from error

F = TypeVar("F", bound=Callable)
T = TypeVar("T")

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ULP = 2.0**-53


def compiled(function: F) -> F:
    """``function``, compiled when first called; a division by zero follows IEEE, not Python."""
    return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


@compiled
def mix(z):
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64 bits that looks random."""
    z = (z ^ (z >> np.uint64(30))) * FIRST
    z = (z ^ (z >> np.uint64(27))) * SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def stream(seed, index):
    """Where stream ``index`` of ``seed`` starts; step it by :data:`GOLDEN`."""
    return mix(seed + mix((np.uint64(index) + np.uint64(1)) * GOLDEN))


@compiled
def uniform(state):
    """A number in (0, 1] from a stream's state; never 0, so that its logarithm is finite."""
    return (np.float64(mix(state) >> np.uint64(11)) + 1.0) * ULP


@compiled
def tournament(key):
    """A tree of the positions of ``key`` whose root, entry 1, is the largest key's; the lowest position wins ties."""
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
    """The position with the larger key; an absent one is -1."""
    if right < 0 or (left >= 0 and key[left] >= key[right]):
        return left
    return right


@compiled
def replay(tree, key, position):
    """Update the tree after ``key[position]`` changed."""
    i = (position + len(tree) // 2) // 2
    while i > 0:
        tree[i] = winner(key, tree[2 * i], tree[2 * i + 1])
        i //= 2


def seed_of(seed: int) -> np.uint64:
    """A user's seed as 64 bits.

    Raises:
        UsageError: If it is no integer from 0 to 2⁶⁴ - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**64:
        raise UsageError(f"a seed is an integer from 0 to 2**64 - 1, not {seed!r}.")
    return np.uint64(int(seed))


def in_chunks(task: Callable[[int, int], T], total: int, chunks: int, threads: int | None) -> list[T]:
    """What ``task(first, last)`` returns over consecutive parts of ``range(total)``, in their order.

    Args:
        task: Called once per part; it must release the interpreter's lock for threads to help.
        total: The length of the range.
        chunks: How many parts at most.
        threads: How many run at once; None is one per core this process may use.

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
    """The number of threads a caller asked for.

    Raises:
        UsageError: If it is not a positive integer or None.
    """
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return positive(threads, "threads")


def positive(value: int, name: str) -> int:
    """A user's count.

    Raises:
        UsageError: If it is not a positive integer.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} is a positive integer, not {value!r}.")
    return int(value)
