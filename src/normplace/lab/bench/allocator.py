"""Settings of glibc's allocator for freed memory; other systems have no such settings."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

# Numbers of mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -2, -3, -4

SETTINGS = (
    "malloc: memory is measured with glibc's default: freed blocks of 128 KiB and more are returned (M_MMAP_THRESHOLD "
    "2^17); "
    "all methods are timed with freed blocks kept (M_MMAP_MAX 0, M_TRIM_THRESHOLD -1, M_TOP_PAD 2^30)"
)


@functools.cache
def _library() -> Any:
    """The C library if it is glibc, else None."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def return_freed() -> None:
    """Return large freed blocks to the system, so that resident memory is memory in use."""
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_THRESHOLD, 2**17)  # the default, without its growth when blocks are freed
        library.malloc_trim(0)


def keep_freed() -> None:
    """Keep large freed blocks for reuse.

    By default the allocator returns them to the system and requests them again page by page, which makes methods that
    allocate much several times slower.
    """
    library = _library()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, -1)
        library.mallopt(_TOP_PAD, 2**30)
