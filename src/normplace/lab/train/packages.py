"""The text of the installed Python packages: sources, headers and documentation, which every machine has offline.

Files are read in the order of their paths; of several files with the same content, the first counts. A hash of the
content decides whether a file is held out, so the split does not depend on the machine or on other files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from normplace.errors import UsageError
from normplace.lab.train.token_cache import TextFile

PACKAGES = "packages"
SOURCES = (".py", ".pyi", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cxx", ".cu", ".f", ".f90")
HEADERS = (".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc", ".inl")
DOCUMENTATION = (".md", ".rst", ".txt")
SUFFIXES = SOURCES + HEADERS + DOCUMENTATION
LARGEST = 4 << 20
"""Larger files are left out: they are generated tables."""
EXCLUDED = {"__pycache__", "normplace"}
"""Names of folders that are left out. This package is one, so that the text does not change with it."""
METADATA = (".dist-info", ".egg-info")
HELD_OUT_SHARE = 50
"""One file in this many is held out, on average."""
THREADS = 32


@dataclass(frozen=True)
class Package:
    """The part of the text that comes from one top-level folder or module.

    Args:
        name: Name of the folder or module.
        distributions: Names and versions of the distributions that own it.
        files: Number of files.
        bytes: Number of bytes.
    """

    name: str
    distributions: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True)
class PackageText:
    """The text of the installed packages.

    Args:
        train: Training part.
        held_out: Held-out part.
        packages: Origin of the text.
    """

    train: bytes
    held_out: bytes
    packages: tuple[Package, ...]


def package_roots() -> list[Path]:
    """The folders that packages are installed in."""
    paths = sysconfig.get_paths()
    searched = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    roots = dict.fromkeys(Path(path).resolve() for path in (paths["purelib"], paths["platlib"], *searched))
    return [root for root in roots if root.is_dir()]


@dataclass(frozen=True)
class PackageFile:
    """A file of a package.

    Args:
        file: The file.
        package: The top-level folder or module that it belongs to.
    """

    file: TextFile
    package: str


def package_files(roots: Sequence[Path]) -> list[PackageFile]:
    """The files to read, sorted by path within each root.

    Args:
        roots: Folders that packages are installed in.

    Raises:
        UsageError: If there are none.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        by_root = [[file for files in pool.map(_package, os.scandir(root)) for file in files] for root in roots]
    if not any(by_root):
        raise UsageError("there are no installed packages with text: install some, or name files.")
    return [file for files in by_root for file in sorted(files, key=lambda one: one.file.path)]


def _package(top: os.DirEntry[str]) -> list[PackageFile]:
    if top.name.endswith(METADATA):
        return []
    name = top.name.partition(".")[0] if top.is_file() else top.name
    return [PackageFile(file, name) for file in _text_files(top)]


def _text_files(entry: os.DirEntry[str]) -> Iterator[TextFile]:
    """The text files at or below a folder entry."""
    if entry.name.startswith(".") or entry.name in EXCLUDED:
        return
    if entry.is_dir(follow_symlinks=False):
        for inner in os.scandir(entry):
            yield from _text_files(inner)
    elif entry.name.lower().endswith(SUFFIXES) and entry.is_file():
        file = TextFile.of(Path(entry.path), entry.stat())
        if 0 < file.size <= LARGEST:
            yield file


def read_packages(files: Sequence[PackageFile]) -> PackageText:
    """Read and split the text; files with zero bytes are not text and are left out.

    Args:
        files: From :func:`package_files`.

    Raises:
        UsageError: If a file cannot be read.
    """
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    sizes: dict[str, list[int]] = {}
    seen: set[bytes] = set()
    with ThreadPoolExecutor(THREADS) as pool:
        contents = pool.map(_read, (entry.file.path for entry in files))
        for one, (content, digest) in zip(files, contents, strict=True):
            if digest in seen or b"\0" in content:
                continue
            seen.add(digest)
            parts[is_held_out(digest)].append(content)
            sizes.setdefault(one.package, []).append(len(content))
    owners = _owners()
    packages = (Package(name, owners.get(name, ()), len(own), sum(own)) for name, own in sorted(sizes.items()))
    return PackageText(b"".join(parts[False]), b"".join(parts[True]), tuple(packages))


def is_held_out(digest: bytes) -> bool:
    """Whether a file is held out.

    Args:
        digest: SHA-256 of its content.
    """
    return int.from_bytes(digest[:4]) % HELD_OUT_SHARE == 0


def _read(path: Path) -> tuple[bytes, bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror or error}): check the file.") from error
    return content, hashlib.sha256(content).digest()


def _owners() -> dict[str, tuple[str, ...]]:
    """Names and versions of the distributions that own each top-level name."""
    return {
        name: tuple(f"{owner} {importlib.metadata.version(owner)}" for owner in sorted(set(owners)))
        for name, owners in importlib.metadata.packages_distributions().items()
    }
