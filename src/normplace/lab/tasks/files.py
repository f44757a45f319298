"""Where data files are looked for, and how one is fetched.

A file is the one a trial names; else one in the folder ``NORMPLACE_DATA``; else one in the cache, ``NORMPLACE_CACHE``
or ``normplace`` in the user's cache folder. ``NORMPLACE_OFFLINE=1`` keeps anything from being downloaded.
"""

from __future__ import annotations

import io
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.tasks.reading import read_within_limit

DATA, CACHE, OFFLINE = "NORMPLACE_DATA", "NORMPLACE_CACHE", "NORMPLACE_OFFLINE"


def cache_folder() -> Path:
    """Where fetched files are kept."""
    if chosen := os.environ.get(CACHE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normplace"


def settings() -> tuple[str, ...]:
    """What decides which file is found, for callers that remember an answer."""
    return (*(os.environ.get(name, "") for name in (DATA, OFFLINE)), str(cache_folder()))


def find_file(given: str, topic: str, names: Iterable[str]) -> Path | None:
    """The first data file that is there.

    Args:
        given: The user's own path; when not empty nothing else is looked at.
        topic: The data set's subfolder.
        names: File names it may have.

    Raises:
        UsageError: If the user's own path, or the folder in ``NORMPLACE_DATA``, is not there.
    """
    if given:
        if not Path(given).is_file():
            raise UsageError(f"there is no file {given!r}: check the path.")
        return Path(given)
    folders = [cache_folder() / topic]
    if chosen := os.environ.get(DATA):
        if not Path(chosen).is_dir():
            raise UsageError(f"{DATA} names {chosen!r}, which is no folder: check it, or unset it.")
        folders = [Path(chosen) / topic, Path(chosen), *folders]
    candidates = (folder / name for folder in folders for name in names)
    return next((path for path in candidates if path.is_file()), None)


def download(url: str, remedy: str, seconds: float = 30.0) -> bytes:
    """What stands at ``url``.

    Args:
        url: Where.
        remedy: What the user can do without a network, as the end of a sentence.
        seconds: How long to wait for an answer.

    Raises:
        UsageError: If it cannot be had.
    """
    if os.environ.get(OFFLINE, "0") not in ("", "0"):
        raise UsageError(f"{url} is not downloaded, because {OFFLINE} is set: {remedy}.")
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return read_within_limit(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise UsageError(f"{url} cannot be downloaded ({error.code} {error.reason}): {remedy}.") from error
    except (OSError, ValueError) as error:  # no network, no such host, a broken transfer, a timeout
        reason = getattr(error, "reason", error)
        raise UsageError(f"{url} cannot be downloaded ({reason}): {remedy}.") from error


def store(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, so that a second process, or a next run, never reads half of it.

    Raises:
        UsageError: If it cannot be written.
    """
    write_atomic(path, content, f"set {CACHE} to another folder")


def store_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a compressed ``.npz`` file, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # pyright: ignore[reportArgumentType]
    store(path, packed.getvalue())
