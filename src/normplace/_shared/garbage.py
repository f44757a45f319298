"""Postpone full garbage collections while many objects are created that stay in use.

A full collection visits every object of the process, also those of the imported libraries. Python starts one whenever
the number of objects has grown by a quarter, which an analysis of a deep model causes several times. Each takes longer
than the audit of a small model and frees nothing. Collections of new objects are not affected, so the reference cycles
of a forward pass are still freed.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

POSTPONED = 2**31 - 1
"""The threshold that full collections never reach."""


class _OpenContexts:
    """The open contexts of all threads, and the threshold before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.threshold = 0


_OPEN = _OpenContexts()


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Postpone full collections until the last such context of the process is closed."""
    with _OPEN.lock:
        if _OPEN.count == 0:
            young, middle, _OPEN.threshold = gc.get_threshold()
            gc.set_threshold(young, middle, POSTPONED)
        _OPEN.count += 1
    try:
        yield
    finally:
        with _OPEN.lock:
            _OPEN.count -= 1
            young, middle, full = gc.get_threshold()
            if _OPEN.count == 0 and full == POSTPONED:  # otherwise someone else set it meanwhile
                gc.set_threshold(young, middle, _OPEN.threshold)
