"""How much memory is left on this machine, so that what cannot fit is refused and not killed."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that can still be used: of the machine, or of the container where that has less; None where unknown."""
    limits = [_machine(), _container()]
    return min((limit for limit in limits if limit is not None), default=None)


def _machine() -> int | None:
    for line in _read(MEMINFO).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return None


def _container() -> int | None:
    limit, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    # Pages of files that can be dropped count as used.
    for line in _read(CGROUP / "memory.stat").splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file" and amount.isdigit():
            used = str(int(used) - int(amount))
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # other systems have no such file
        return ""


def in_words(size: float) -> str:
    """A number of bytes for people.

    Example:
        >>> in_words(1234567890)
        '1.2 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
