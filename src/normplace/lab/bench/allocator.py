"""What glibc's allocator does with memory that is freed; other systems have no such choice."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

# Numbers of mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4

SETTINGS = (
    "malloc: memory is measured as glibc comes, with blocks of 128 KiB and more handed back (M_MMAP_THRESHOLD 2^17); "
    "times are taken, of every method, with freed blocks kept (M_MMAP_MAX 0, M_TRIM_THRESHOLD -1, M_TOP_PAD 2^30)"
)


@functools.cache
def _library() -> Any:
    """The C library, where it is glibc."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def return_freed() -> None:
    """Hand large blocks back to the system, so that what is resident is what is in use."""
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, 2**17)  # as it comes, but it no longer grows with what is freed
        library.malloc_trim(0)


def keep_freed() -> None:
    """Keep large blocks to give them out again, from now on.

    As it comes, the allocator hands them back to the system and asks for them anew, page by page: methods that allocate
    much would be several times slower than they need to be.
    """
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_TOP_PAD, 2**30)
