"""Where the code of a user's study is: its module, and the modules of the same folder that it imports.

Every result line records it, so that the results can be read without naming the study again.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from normplace._shared.references import import_from, load_reference
from normplace.errors import UsageError
from normplace.lab.trials.local_imports import local_modules

ATTRIBUTE = "STUDY"
"""The name of a file's study, if the command does not name another."""


@dataclass(frozen=True)
class StudySource:
    """The place of a study's code.

    Args:
        module: Dotted name of the module that defines the study.
        attribute: Name of the study in the module.
        folder: The folder from which Python imports the module; None if it belongs to an installed package.
    """

    module: str
    attribute: str
    folder: Path | None

    @property
    def reference(self) -> str:
        """``module:attribute``, for processes in which the folder is importable."""
        return f"{self.module}:{self.attribute}"

    @cached_property
    def modules(self) -> dict[str, Path]:
        """Files of the module and of the modules that it imports from its folder, by dotted name."""
        return {} if self.folder is None else local_modules(self.folder, self.module)

    @property
    def file(self) -> Path | None:
        """The file of the module; None if it belongs to an installed package, or no longer exists."""
        return self.modules.get(self.module)

    @property
    def argument(self) -> str:
        """The argument of ``normplace study`` that names it: a file, relative if it is below the current folder."""
        if self.file is None or self.folder is None or not self._in_regular_packages():
            return self.reference
        here = Path(os.path.realpath(os.curdir))
        file = self.file.relative_to(here) if self.file.is_relative_to(here) else self.file
        return str(file) if self.attribute == ATTRIBUTE else f"{file}:{self.attribute}"

    def _in_regular_packages(self) -> bool:
        """Whether the module's dotted name follows from its file: every folder in between has an ``__init__.py``."""
        parents = self.module.split(".")[:-1]
        return all(".".join(parents[: i + 1]) in self.modules for i in range(len(parents)))

    def hashes(self) -> dict[str, str]:
        """SHA-256 of each file of the code, by its path in the folder."""
        return {
            file.relative_to(self.folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in self.modules.values()
            if self.folder is not None
        }

    def to_dict(self) -> dict[str, Any]:
        """The source as a result line records it."""
        place = {} if self.folder is None else {"folder": str(self.folder), "sha256": self.hashes()}
        return {"module": self.module, "attribute": self.attribute, **place}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StudySource:
        """The source that a result line records.

        Raises:
            UsageError: If the fields are not those of :meth:`to_dict`.
        """
        module, attribute, folder = data.get("module"), data.get("attribute"), data.get("folder")
        words = [*module.split("."), attribute] if isinstance(module, str) and isinstance(attribute, str) else [""]
        if not all(word.isidentifier() for word in words) or not isinstance(folder, str | None):
            raise UsageError("a result line has a wrong 'source': add --study with the file that defines the study.")
        assert isinstance(module, str) and isinstance(attribute, str)
        return cls(module, attribute, None if folder is None else Path(folder))

    def load(self) -> Any:
        """Import the module and return the study.

        Raises:
            UsageError: If the import fails, or it has no such attribute.
        """
        if self.folder is None:
            return load_reference(self.reference)
        module = import_from(self.folder, self.module)
        if not hasattr(module, self.attribute):
            raise UsageError(f"{self.file} has no {self.attribute!r}: name the study as FILE.py:NAME.")
        return getattr(module, self.attribute)

    def check_imports(self) -> None:
        """Check that the modules in memory are those of the folder.

        Raises:
            UsageError: If one was imported from elsewhere before, such as a module of the same name of another study.
        """
        for name, file in self.modules.items():
            imported = getattr(sys.modules.get(name), "__file__", None)
            if imported is not None and Path(imported).resolve() != file.resolve():
                raise UsageError(f"{self.file} imports {name!r}, but {imported} has the same name: rename one of them.")


def locate(reference: str) -> StudySource | None:
    """Return where an imported study is.

    Args:
        reference: ``module:attribute``, with the full name of an imported module.

    Returns:
        None if it belongs to normplace, or is not in a file.
    """
    name, _, attribute = reference.rpartition(":")
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None or name.partition(".")[0] == "normplace":
        return None
    path = Path(file).resolve()
    folder = path.parents[name.count(".") + (path.name == "__init__.py")]
    return StudySource(name, attribute, None if str(folder) in _installed() else folder)


def changed_files(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Files whose content differs between two sources, as :meth:`StudySource.to_dict` returns them."""
    before, now = recorded.get("sha256"), current.get("sha256")
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _installed() -> set[str]:
    """The folders of installed packages and of the standard library."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return {os.path.realpath(folder) for folder in [*folders, *site.getsitepackages(), site.getusersitepackages()]}
