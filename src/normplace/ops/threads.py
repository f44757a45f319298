"""Run blocks of work on a persistent pool of threads.

Creating a pool for each call, or submitting many small tasks to one, would cost more than the aggregation of a small
graph. There is one pool; each thread takes the next block when it finishes its last, and the caller works too.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "normplace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process does not inherit threads


def run_blocks(task: Callable[..., None], blocks: Iterable[tuple[int, ...]], threads: int) -> None:
    """Call a task with each block, in any order.

    Args:
        task: A function that releases the GIL, so that threads run in parallel.
        blocks: Arguments of each call.
        threads: Number of threads, including the caller's.
    """
    if threads == 1:
        for block in blocks:
            task(*block)
        return
    remaining = deque(blocks)

    def work() -> None:
        while remaining:
            try:
                block = remaining.popleft()
            except IndexError:  # another thread took the last block
                return
            task(*block)

    helpers = min(threads, len(remaining)) - 1
    futures = [_pool(threads - 1).submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        remaining.clear()
        for future in futures:
            if not future.cancel():
                future.result()
