"""The study of comparisons: its parts, and the code that workers import.

Which trials run depends on the results of earlier ones, so the parts plan none; :mod:`normplace.lab.compare.run` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from normplace.errors import UsageError
from normplace.lab.compare.config import FINAL, SEARCH, SPEED, STUDY_NAME, CompareTrial
from normplace.lab.compare.start_folder import start_folder
from normplace.lab.compare.trial import run_final, run_search
from normplace.lab.trials.code_bundle import CodeBundle, pack
from normplace.lab.trials.source import StudySource, locate
from normplace.lab.trials.study import Part, Study
from normplace.lab.trials.study_code import StudyCode


def _label(trial: CompareTrial) -> str:
    return f"{trial.edit}, learning rate {trial.learning_rate:g}, {trial.steps} steps, seed {trial.seed}"


STUDY = Study(
    name=STUDY_NAME,
    title="Edits of a user's model, compared on the user's data",
    paper="none",
    summary="Learning rates are searched within each edit; reported trainings are paired by seed.",
    reference="normplace.lab.compare.study:STUDY",
    parts=(
        Part(SPEED, CompareTrial, lambda scale: (), run_search, _label),
        Part(SEARCH, CompareTrial, lambda scale: (), run_search, _label),
        Part(FINAL, CompareTrial, lambda scale: (), run_final, _label),
    ),
    claims=(),
    figures=lambda records: (),
)


@dataclass(frozen=True)
class ComparisonCode(StudyCode):
    """The study of comparisons, and the user's modules that its configurations name.

    Args:
        modules: Where those modules are, for workers on this machine.
        folder: The folder in which the comparison was started; empty for the current one.
    """

    modules: tuple[Mapping[str, Any], ...] = ()
    folder: str = ""

    @classmethod
    def collect(
        cls, references: Iterable[str], remote: bool, files: tuple[str, ...] = (), folder: str = ""
    ) -> ComparisonCode:
        """Collect the code of tasks and edits.

        Args:
            references: ``module:name`` of the user's imported functions, the task's first.
            remote: Whether workers may be on other machines.
            files: Files that the task reads, relative to the folder of its module.
            folder: The folder in which the comparison was started, if trials run in other processes.

        Raises:
            UsageError: If two modules of different folders have the same name, or a file is missing.
        """
        sources = [source for reference in references if (source := locate(reference)) is not None]
        recorded = sources[0].to_dict() if sources else {}
        modules = tuple(source.to_dict() for source in sources)
        return cls(STUDY.reference, recorded, _packed(sources, files) if remote else None, modules, folder)

    def load(self) -> Study:
        """Make the user's modules importable, and return the study."""
        if self.bundle is not None:
            self.bundle.load()
        else:
            for source in self.modules:
                StudySource.from_dict(source).load()
        return STUDY

    def running(self) -> AbstractContextManager[None]:
        """Resolve the paths of a task from the folder in which the comparison was started."""
        return start_folder(self.folder)


def _packed(sources: list[StudySource], files: tuple[str, ...]) -> CodeBundle | None:
    """One bundle with the files of several modules."""
    contents: dict[str, bytes] = {}
    for index, source in enumerate(sources):
        bundle = pack(source, files if index == 0 else ())
        for name, content in ({} if bundle is None else bundle.files).items():
            if contents.setdefault(name, content) != content:
                raise UsageError(
                    f"two different files are called {name!r}: rename one, so that workers can import both."
                )
    return CodeBundle(sources[0].module, contents) if contents else None
