"""The code and data of a user's study, as they are sent to workers on other machines."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from normplace._shared.references import import_from
from normplace._shared.resources import in_words
from normplace.errors import UsageError
from normplace.lab.trials.source import StudySource

LARGEST = 512 * 2**20
"""Maximum number of bytes of a bundle."""


@dataclass(frozen=True)
class CodeBundle:
    """Files of a study.

    Args:
        module: Dotted name of the module that defines the study.
        files: Contents by path, relative to the folder from which the module is imported.
    """

    module: str
    files: Mapping[str, bytes]

    @cached_property
    def digest(self) -> str:
        """Hash of all files."""
        digest = hashlib.sha256(self.module.encode())
        for name, content in sorted(self.files.items()):
            digest.update(f"\n{name}\n{len(content)}\n".encode() + content)
        return digest.hexdigest()

    def load(self) -> ModuleType:
        """Import the module from a private copy of the files; an earlier bundle of this process is unloaded.

        Raises:
            UsageError: If the import fails.
        """
        if self.digest not in _UNPACKED:
            for digest in list(_UNPACKED):
                _unload(_UNPACKED.pop(digest))
            folder = tempfile.TemporaryDirectory(prefix="normplace-", ignore_cleanup_errors=True)
            for name, content in self.files.items():
                path = Path(folder.name, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            _UNPACKED[self.digest] = folder
        return import_from(Path(_UNPACKED[self.digest].name).resolve(), self.module)


_UNPACKED: dict[str, tempfile.TemporaryDirectory[str]] = {}
"""The bundle that is unpacked in this process, by its digest; its folder is removed when the process exits."""


def _unload(folder: tempfile.TemporaryDirectory[str]) -> None:
    """Forget the modules that were imported from a folder, and remove it."""
    root = Path(folder.name).resolve()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(root):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != str(root)]
    folder.cleanup()


def find_files(source: StudySource, patterns: Sequence[str]) -> list[Path]:
    """Return the files that a study declares, absolute.

    Raises:
        UsageError: If one does not exist, or is outside the folder from which the module is imported.
    """
    if source.file is None or source.folder is None:
        return []
    files: list[Path] = []
    for pattern in patterns:
        path = (source.file.parent / pattern).resolve()
        if not path.is_relative_to(source.folder):
            raise UsageError(
                f"the study's file {pattern!r} is outside {source.folder}: copy it there, or read it by an absolute "
                "path that every worker can reach."
            )
        if not path.exists():
            raise UsageError(f"the study's file {pattern!r} does not exist: there is no {path}.")
        files += _files_below(path) if path.is_dir() else [path]
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def pack(source: StudySource, patterns: Sequence[str]) -> CodeBundle | None:
    """Collect the code of a study and the files that it declares.

    Returns:
        None if the study belongs to an installed package, which the workers must have installed too.

    Raises:
        UsageError: If a file is missing, or they are too large together.
    """
    if source.folder is None:
        return None
    contents: dict[str, bytes] = {}
    size = 0
    for path in dict.fromkeys([*source.modules.values(), *find_files(source, patterns)]):
        size += path.stat().st_size
        if size > LARGEST:
            raise UsageError(
                f"the study's files are larger than {in_words(LARGEST)}: put the data where every worker can reach it, "
                "and read it by its absolute path."
            )
        contents[path.relative_to(source.folder).as_posix()] = path.read_bytes()
    return CodeBundle(source.module, contents)
