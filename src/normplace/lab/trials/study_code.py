"""Load the code of a study: in workers, and again from the result lines that name it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from normplace.errors import UsageError
from normplace.lab.trials.code_bundle import CodeBundle, find_files, pack
from normplace.lab.trials.known_sources import check_known
from normplace.lab.trials.record import TrialRecord
from normplace.lab.trials.source import StudySource, changed_files
from normplace.lab.trials.study import Study, as_study, resolve


@dataclass(frozen=True)
class StudyCode:
    """The code of a study, as it is sent to a worker.

    Args:
        reference: ``module:attribute`` of the study.
        source: Where its code is in the main process, for the records; empty for a study of normplace.
        bundle: Its files, for a worker on another machine; None if the worker imports it from the same place.
    """

    reference: str
    source: Mapping[str, Any]
    bundle: CodeBundle | None = None

    @classmethod
    def of(cls, study: Study) -> StudyCode:
        """Name the code of a study, for a process of this machine."""
        return cls(study.reference, {} if study.source is None else study.source.to_dict())

    @classmethod
    def for_workers(cls, study: Study, remote: bool) -> StudyCode:
        """Collect the code of a study and the files that it declares.

        Raises:
            UsageError: If workers cannot import the study, or a file that it declares is missing.
        """
        if not study.reference:
            raise UsageError(
                f"workers cannot import {study.name!r}, which was not loaded from a module: load it with "
                "normplace.lab.trials.study.load_study('FILE.py', {})."
            )
        code, source = cls.of(study), study.source
        if source is None:
            return code
        find_files(source, study.files)  # also checked for workers on this machine, before any trial runs
        return replace(code, bundle=pack(source, study.files)) if remote else code

    def load(self) -> Study:
        """Import the study.

        Raises:
            UsageError: If it cannot be imported here.
        """
        if self.bundle is not None:
            module = self.bundle.load()
            return as_study(getattr(module, self.reference.rpartition(":")[2]), self.reference)
        if self.source:
            return as_study(StudySource.from_dict(self.source).load(), self.reference)
        return resolve(self.reference)

    def running(self) -> AbstractContextManager[None]:
        """What surrounds a trial while it runs."""
        return nullcontext()

    def change_note(self, records: Iterable[TrialRecord]) -> str | None:
        """A sentence if records were made with other code than the present one; None if there are none."""
        changed = [names for record in records if (names := changed_files(record.source, self.source))]
        if not changed:
            return None
        files = ", ".join(sorted({name for names in changed for name in names}))
        trials = "1 recorded trial" if len(changed) == 1 else f"{len(changed)} recorded trials"
        return f"{files} changed after {trials} of this study ran"


def recorded_study(source: Mapping[str, Any]) -> Study:
    """Load the study that a result line names.

    Raises:
        UsageError: If the file moved, the user has not run it on this machine, or it is not a study any more.
    """
    place = StudySource.from_dict(source)
    if place.folder is not None and place.file is None:
        path = place.folder.joinpath(*place.module.split("."))
        raise UsageError(f"there is no {path}.py, which these results name: add --study with the file's new path.")
    check_known(place)
    study = as_study(place.load(), place.reference)
    place.check_imports()
    return study
