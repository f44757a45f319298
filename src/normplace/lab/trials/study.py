"""A study: its claims, the trials that test them, and the figures that show them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from normplace._shared.references import importable_reference, load_module, load_reference
from normplace.errors import UsageError, expect_choice, unknown
from normplace.lab.trials.claims import Claim
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.source import ATTRIBUTE, StudySource, locate


@dataclass(frozen=True)
class Outcome:
    """The measurements of a trial.

    Args:
        metrics: Numbers by name, for claims.
        series: Lists of numbers by name, for figures.
    """

    metrics: Mapping[str, float]
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """A chart and the numbers behind it.

    Args:
        title: What it shows.
        caption: How it was made.
        rows: The numbers, one mapping per row, columns in the order of the first.
        spec: A Vega-Lite specification without data; the rows are its data.
        alt: Text alternative.
    """

    title: str
    caption: str
    rows: Sequence[Mapping[str, Any]]
    spec: Mapping[str, Any]
    alt: str


def _available(config: Any) -> None:
    """No reason: the trial needs no data or software beyond the package."""


def _not_in_demo(config: Any) -> bool:
    """The demo runs none of the trials."""
    return False


@dataclass(frozen=True)
class Part:
    """Trials of one kind.

    Args:
        name: Unique in its study.
        config: The frozen dataclass of one trial; it has a ``seed``.
        plan: From a scale to the configurations of its trials.
        run: From a configuration to its outcome; a pure function.
        label: From a configuration to a short name, for progress.
        unavailable_reason: From a configuration to the reason why its trial cannot run here, such as missing data;
            None if it can. Called in the main process, before any trial runs.
        in_demo: From a configuration of scale ``laptop`` to whether ``normplace demo`` runs its trial.
        most_seeds: Largest number of seeds, if each names one of a fixed number of splits; None without a limit.
        run_seeds: From configurations that differ in their seeds alone to their outcomes, computed at once; None if
            trials run one by one. An outcome must not depend on which other seeds are computed with it, up to rounding.
        seeds_at_once: Most configurations that ``run_seeds`` is called with.
        may_differ: Fields in which the configurations of one call of ``run_seeds`` may differ besides the seed.
        machine_metrics: Metrics that depend on the machine, such as times; a repetition need not give the same.

    Raises:
        UsageError: If ``config`` is not a dataclass with a seed.
    """

    name: str
    config: type
    plan: Callable[[str], Iterable[Any]]
    run: Callable[[Any], Outcome]
    label: Callable[[Any], str] = str
    unavailable_reason: Callable[[Any], str | None] = _available
    in_demo: Callable[[Any], bool] = _not_in_demo
    most_seeds: int | None = None
    run_seeds: Callable[[Sequence[Any]], Sequence[Outcome]] | None = None
    seeds_at_once: int = 10
    may_differ: tuple[str, ...] = ()
    machine_metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_dataclass(self.config) or "seed" not in {entry.name for entry in fields(self.config)}:
            raise UsageError(f"the config of part {self.name!r} is not a dataclass with a field 'seed': add the field.")


@dataclass(frozen=True)
class Headline:
    """The main result of a paper, and the same number measured here.

    Report cards, the paper pages of the documentation and the rows of the README show it.

    Args:
        figure: Title of the figure that leads the study, or several; the first of them that is drawn leads.
        sentence: What the paper shows, in one sentence.
        published: The published number with its unit and its table or figure, or a statement that it is unknown.
        measured: From the successful records of one run to the same number as text; None if records are missing.
        conditions: How the setting differs from the paper's, and where the result contradicts it.
    """

    figure: str | tuple[str, ...]
    sentence: str
    published: str
    measured: Callable[[Sequence[TrialRecord]], str | None]
    conditions: str

    def leading(self, titles: Collection[str]) -> str | None:
        """The title, among those of the drawn figures, of the one that leads the study."""
        choices = [self.figure] if isinstance(self.figure, str) else self.figure
        return next((title for title in choices if title in titles), None)


@dataclass(frozen=True)
class Study:
    """The claims of one paper, with the trials that test them.

    Args:
        name: Its name on the command line.
        title: One line.
        paper: Authors, title and identifier.
        summary: What is tested, and which choices are ours.
        reference: ``module:attribute`` of this object; set when the study is loaded, so that no study needs to pass it.
        parts: Its kinds of trial.
        claims: Declared before the runs.
        figures: From the successful records to figures.
        aliases: Former names, oldest first. The command line and result files may still use them. Trial hashes use the
            oldest name, so that a renamed study still recognizes its recorded trials.
        headline: The main result, if the study has one.
        demo: Which trials the demo runs, and what their numbers do not show.
        files: Files and folders that the trials read, relative to the folder of the study's module. They are sent to
            the workers of a cluster with the code, where ``Path(__file__).parent`` is their folder too. Modules that
            the study imports from its folder need not be listed.
    """

    name: str
    title: str
    paper: str
    summary: str
    reference: str = field(default="", kw_only=True)
    parts: tuple[Part, ...]
    claims: tuple[Claim, ...]
    figures: Callable[[Sequence[TrialRecord]], Sequence[Figure]]
    aliases: tuple[str, ...] = ()
    headline: Headline | None = None
    demo: str = ""
    files: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The current name, then the former ones."""
        return (self.name, *self.aliases)

    @property
    def hash_name(self) -> str:
        """The name that trial hashes contain."""
        return self.aliases[0] if self.aliases else self.name

    @property
    def source(self) -> StudySource | None:
        """Where its code is; None for the studies of normplace."""
        return locate(self.reference)

    @property
    def argument(self) -> str:
        """The argument of ``normplace study`` that names it."""
        source = self.source
        return self.name if source is None else source.argument

    def part(self, name: str) -> Part:
        """The part called ``name``.

        Raises:
            UsageError: If there is no such part.
        """
        by_name = {part.name: part for part in self.parts}
        expect_choice(f"part of study {self.name!r}:", name, by_name)
        return by_name[name]


def load_study(name: str, registry: Mapping[str, str]) -> Study:
    """Load a study by its name, or a user's own from a file or module.

    Args:
        name: A key of ``registry``, a file such as ``my_study.py``, whose study is called ``STUDY``, or a reference
            such as ``my_study.py:OTHER`` or ``package.module:STUDY``.
        registry: References by name.

    Raises:
        UsageError: If there is no such study, or it has the name of another one in ``registry``.
    """
    is_file = name.endswith(".py")
    if not is_file and ":" not in name:
        if name not in registry and Path(f"{name}.py").is_file():
            raise UsageError(f"unknown study {name!r}: write {name}.py to run the study in this file.")
        return named_study(name, registry)
    study = _only_study(name) if is_file else resolve(name)
    if registry.get(study.name, study.reference) != study.reference:
        raise UsageError(f"{name} has the name of another study, {study.name!r}: choose another name for it.")
    if study.source is not None:
        study.source.check_imports()
    return study


def named_study(name: str, registry: Mapping[str, str]) -> Study:
    """The registered study of that name or former name.

    Raises:
        UsageError: If no registered study has this name.
    """
    if name in registry:
        return resolve(registry[name])
    for reference in registry.values():
        study = resolve(reference)
        if name in study.aliases:
            return study
    raise unknown("study", name, registry)


def resolve(reference: str) -> Study:
    """Load the study at ``module:attribute`` or ``file.py:attribute``.

    Raises:
        UsageError: If there is no such module or attribute, or it is not a study.
    """
    return as_study(load_reference(reference), importable_reference(reference))


def as_study(value: object, reference: str) -> Study:
    """Return an object that was loaded as a study, with its reference.

    Args:
        value: The object.
        reference: ``module:attribute`` of the object, with the full name of its module.

    Raises:
        UsageError: If it is not a study.
    """
    if not isinstance(value, Study):
        raise UsageError(f"{reference!r} is not a study: name a normplace.lab.trials.study.Study object.")
    return value if value.reference == reference else replace(value, reference=reference)


def _only_study(file: str) -> Study:
    """The study of a file whose name is not stated."""
    module, _ = load_module(f"{file}:{ATTRIBUTE}")
    names = [name for name, value in vars(module).items() if isinstance(value, Study)]
    if ATTRIBUTE in names:
        return resolve(f"{file}:{ATTRIBUTE}")
    hint = f"write {file}:{names[0]}" if names else f"define one as {ATTRIBUTE} = Study(...)"
    raise UsageError(f"{file} has no study called {ATTRIBUTE}: {hint}.")
