"""Available memory and cores; a request that cannot fit is then an error instead of an out-of-memory kill."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    # macOS and Windows cannot restrict a process to some cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int | None:
    """Return the available bytes of the machine or of its container, whichever has less; None if unknown."""
    limits = [_machine_available(), _container_available()]
    return min((limit for limit in limits if limit is not None), default=None)


def _machine_available() -> int | None:
    for line in _read(MEMINFO).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


def _container_available() -> int | None:
    limit, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    # memory.current includes file pages that can be dropped.
    for line in _read(CGROUP / "memory.stat").splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file" and amount.isdigit():
            used = str(int(used) - int(amount))
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # only Linux has this file
        return ""


def in_words(size: float) -> str:
    """Return a number of bytes in readable units.

    Examples:
        >>> in_words(1234567890)
        '1.2 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
