"""Work shared among threads that live on.

A pool of threads made for each call, or many small tasks handed to one, would cost more than the aggregation of a small
graph. So there is one pool, a thread takes the next block as it finishes the last, and the caller works too.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def _helpers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "normplace")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of its parent's threads


def share(task: Callable[..., None], blocks: Iterable[tuple[int, ...]], threads: int) -> None:
    """Call a task with each block, in any order.

    Args:
        task: Must release the interpreter's lock for threads to help.
        blocks: Arguments of each call.
        threads: How many run at once, the caller's included.
    """
    left = deque(blocks)

    def work() -> None:
        while left:
            try:
                block = left.popleft()
            except IndexError:  # another thread took it
                return
            task(*block)

    helpers = min(threads, len(left)) - 1
    helping = [_helpers(threads - 1).submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        left.clear()
        for helper in helping:
            if not helper.cancel():
                helper.result()
