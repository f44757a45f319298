"""Run a study: plan its trials, skip those that are recorded, and record the others as they finish."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from normplace.errors import UsageError, cause, expect_choice, expect_whole
from normplace.lab.trials.config import config_dict, config_from_dict
from normplace.lab.trials.engines import Engine
from normplace.lab.trials.known_sources import remember
from normplace.lab.trials.more_seeds import Variants, in_order
from normplace.lab.trials.record import SCALES, trial_hash
from normplace.lab.trials.results import (
    Damage,
    LatestRecords,
    ResultFile,
    TrialRecord,
    not_results,
    scan,
    translate_study_errors,
)
from normplace.lab.trials.study import Part, Study, named_study
from normplace.lab.trials.study_code import StudyCode, recorded_study
from normplace.lab.trials.trial import Trial, run_trials

if TYPE_CHECKING:
    from normplace.lab.trials.progress import Progress


@dataclass(frozen=True)
class Run:
    """A study at one scale, with the user's settings.

    Args:
        study: The study.
        scale: The scale.
        overrides: Configuration fields that replace those of the plan.
        seeds: Number of seeds of every variant that the study plans with fewer; None for the planned seeds.

    Raises:
        UsageError: If the scale or a field is unknown, or the number of seeds is not positive.
    """

    study: Study
    scale: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seeds: int | None = None

    def __post_init__(self) -> None:
        if self.seeds is not None:
            expect_whole(1, **{"--seeds": self.seeds})
        expect_choice("scale", self.scale, SCALES)
        if "seed" in self.overrides:
            raise UsageError("the seed is part of the plan and cannot be overridden: claims are judged over all seeds.")

    def result_file(self, out: Path) -> Path:
        """The path of the result file; runs with different overrides have different files.

        A file that was written under a former name of the study is used if there is no newer one.
        """
        parts = [self.scale]
        if self.overrides:
            text = json.dumps(self.overrides, sort_keys=True)
            parts.append(hashlib.sha256(text.encode()).hexdigest()[:8])
        suffix = "-".join(parts) + ".jsonl"
        stems = [re.sub(r"[^\w.-]+", "_", name) for name in self.study.names]
        paths = [out / f"{stem}-{suffix}" for stem in stems]
        return next((path for path in paths if path.exists()), paths[0])

    @property
    def command(self) -> str:
        """The command that runs it."""
        words = ["normplace", "study", self.study.argument, "--scale", self.scale]
        if self.overrides:
            words += ["--set", *(f"{key}={value}" for key, value in self.overrides.items())]
        if self.seeds is not None:
            words += ["--seeds", str(self.seeds)]
        return shlex.join(words)

    def plan(self) -> dict[str, Trial]:
        """All trials by their hash: those of the study, then those with added seeds.

        Raises:
            UsageError: If overrides make two trials equal, or the number of seeds adds no trial.
        """
        planned = dict(self._planned)
        if self.seeds is not None:
            most = {part.name: part.most_seeds for part in self.study.parts if part.most_seeds is not None}
            for part, config in self.variants().add(self.seeds, most):
                key = trial_hash(self.study.hash_name, part, config)
                planned[key] = Trial(self.study.reference, part, self.scale, config, dict(self.overrides))
        return planned

    def variants(self) -> Variants:
        """The variants that the study plans, whose records belong to this run with any seed."""
        plan = {key: (trial.part, trial.config) for key, trial in self._planned.items()}
        return Variants(self.study.hash_name, plan)

    @functools.cached_property
    def _planned(self) -> dict[str, Trial]:
        """The trials of the study by their hash."""
        planned: dict[str, Trial] = {}
        for part in self.study.parts:
            known = get_type_hints(part.config)
            overrides = {key: value for key, value in self.overrides.items() if key in known}
            for config in _configs(part, self.scale):
                fields = config_dict(config)
                if overrides:
                    fields = config_dict(config_from_dict(part.config, {**fields, **overrides}))
                key = trial_hash(self.study.hash_name, part.name, fields)
                if key in planned:
                    raise UsageError(f"these overrides make two trials of {self.study.name!r} equal: set other keys.")
                planned[key] = Trial(self.study.reference, part.name, self.scale, fields, dict(self.overrides))
        return planned

    def execute(
        self, out: Path, engine: Engine, progress: Progress, parts: Sequence[str] = (), demo: bool = False
    ) -> list[TrialRecord]:
        """Run the trials that are not recorded and can run here; the others are skipped with a note.

        Args:
            out: Folder of result files.
            engine: Runs the trials.
            progress: Shows the progress.
            parts: Names of the parts to run; empty runs all.
            demo: Run only the trials that belong to the demo.

        Returns:
            The records of the run, in the order of the plan, then those of added seeds.

        Raises:
            UsageError: If a part is unknown, the file cannot be written or contains results of another study, or a
                worker cannot import the study.
        """
        code = StudyCode.for_workers(self.study, engine.remote)
        if self.study.source is not None and (problem := remember(self.study.source)):
            progress.note(problem)
        wanted = {self.study.part(name).name for name in parts} or {part.name for part in self.study.parts}
        plan = self.plan()
        planned = {key: trial for key, trial in plan.items() if trial.part in wanted}
        if demo:
            planned = {key: trial for key, trial in planned.items() if self._in_demo(trial)}
        with ResultFile(self.result_file(out), self.study.names, self.variants().include) as results:
            if results.recovered:
                progress.note(_recovery_note(results.damaged, results.recovered))
            if change := code.change_note(results.records):
                progress.note(f"{change}; their results are kept, choose another --out to run them again.")
            successful = {key for key, record in results.latest.items() if record.status == "ok"}
            pending = [trial for key, trial in planned.items() if key not in successful]
            trials = self._available(pending, progress)
            for record in run_trials(self.study, trials, engine, progress, code, skipped=len(planned) - len(pending)):
                results.append(record)
            return in_order(results.latest, self._planned)

    def _in_demo(self, trial: Trial) -> bool:
        part = self.study.part(trial.part)
        return part.in_demo(config_from_dict(part.config, trial.config))

    def _available(self, trials: Sequence[Trial], progress: Progress) -> list[Trial]:
        """The trials that can run here; one note per reason for the others."""
        available: list[Trial] = []
        skipped: dict[tuple[str, str], int] = {}
        for trial in trials:
            part = self.study.part(trial.part)
            reason = part.unavailable_reason(config_from_dict(part.config, trial.config))
            if reason is None:
                available.append(trial)
            else:
                skipped[trial.part, reason] = skipped.get((trial.part, reason), 0) + 1
        for (part_name, reason), n in skipped.items():
            progress.note(f"skipped {n} trial{'' if n == 1 else 's'} of part {part_name!r}: {reason}")
        return available


def _configs(part: Part, scale: str) -> list[Any]:
    """The configurations of a part.

    Raises:
        UsageError: If the study's plan fails.
    """
    try:
        return list(part.plan(scale))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"the plan of part {part.name!r} failed ({cause(error)}): correct it.") from error


@dataclass(frozen=True)
class RecordedRun:
    """The contents of a result file.

    Args:
        path: The file.
        run: The run.
        records: One record per planned trial that has one, in the order of the plan.
        damaged: A sentence for each damaged line; the incomplete last line of a killed run is not one of them.
        note: A sentence if the code of the study changed after trials ran.
    """

    path: Path
    run: Run
    records: list[TrialRecord]
    damaged: list[str]
    note: str | None = None


def read_run(path: Path, registry: Mapping[str, str]) -> RecordedRun:
    """Read a result file; only one record per planned trial is kept in memory.

    Args:
        path: The file.
        registry: References of studies by name. The study of another name is the one that the file names, if the user
            has run it on this machine.

    Raises:
        UsageError: If the file is empty, unreadable, or of an unknown study.
    """
    latest = LatestRecords()
    entries = scan(path, latest.needs)
    damaged: list[Damage] = []
    first = next(_usable(entries, damaged), None)
    if first is None:
        complete = [damage for damage in damaged if not damage.incomplete]
        raise not_results(complete[0]) if complete else UsageError(f"{path} has no results yet: run the study first.")
    named = first.source and first.study not in registry
    study = recorded_study(first.source) if named else named_study(first.study, registry)
    run = Run(study, first.scale, first.overrides)
    with translate_study_errors(path):
        planned, variants = run.plan(), run.variants()
    latest.wanted = variants.include
    for record in itertools.chain([first], _usable(entries, damaged)):
        latest.add(record)
    records = in_order(latest, planned)
    run = dataclasses.replace(run, seeds=variants.seed_count(records))
    sentences = [f"{damage} and is left out" for damage in damaged if not damage.incomplete]
    return RecordedRun(path, run, records, sentences, StudyCode.of(study).change_note(records))


def _usable(entries: Iterable[TrialRecord | Damage], damaged: list[Damage]) -> Iterator[TrialRecord]:
    """Yield the records; damaged lines are added to ``damaged``, without their bytes."""
    for entry in entries:
        if isinstance(entry, TrialRecord):
            yield entry
        else:
            damaged.append(dataclasses.replace(entry, raw=b""))


def _recovery_note(damaged: Sequence[Damage], path: Path) -> str:
    if all(damage.incomplete for damage in damaged):
        return f"an incomplete last line was moved to {path}; its trial runs again"
    numbers = ", ".join(str(damage.number) for damage in damaged[:8]) + (", …" if len(damaged) > 8 else "")
    return f"damaged lines ({numbers}) were moved to {path}; their trials run again"
