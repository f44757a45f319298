"""Run a study: plan its trials, skip those already recorded, record the rest as they finish."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import itertools
import json
import re
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch

from normplace.errors import UsageError, unknown
from normplace.lab.trials.config import config_dict, config_from_dict, config_hash
from normplace.lab.trials.engines import Engine, WorkerLost
from normplace.lab.trials.environment import hardware, versions
from normplace.lab.trials.lines import SCALES, trial_hash
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.results import Damage, Latest, ResultFile, TrialRecord, finite, fitting, not_results, scan
from normplace.lab.trials.study import Study, named_study, resolve


@dataclass(frozen=True)
class Trial:
    """One call of a study's function, as it travels to a worker.

    Args:
        reference: ``module:attribute`` of the study.
        part: Name of its part.
        scale: The scale it was planned at.
        config: The configuration's fields.
        overrides: Those the user set by hand.
    """

    reference: str
    part: str
    scale: str
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A study at one scale, with what the user changed.

    Args:
        study: What to run.
        scale: How large.
        overrides: Configuration fields that replace the plan's.

    Raises:
        UsageError: If the scale or a field is unknown.
    """

    study: Study
    scale: str
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
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
        """The command line that runs it."""
        words = ["normplace", "study", self.study.name, "--scale", self.scale]
        if self.overrides:
            words += ["--set", *(f"{key}={value}" for key, value in self.overrides.items())]
        return " ".join(words)

    def plan(self) -> dict[str, Trial]:
        """Every trial, by its hash.

        Raises:
            UsageError: If overrides make two trials the same.
        """
        planned: dict[str, Trial] = {}
        for part in self.study.parts:
            known = get_type_hints(part.config)
            own = {key: value for key, value in self.overrides.items() if key in known}
            for config in part.plan(self.scale):
                fields = config_dict(config)
                if own:
                    fields = config_dict(config_from_dict(part.config, {**fields, **own}))
                key = trial_hash(self.study.hash_name, part.name, fields)
                if key in planned:
                    raise UsageError(f"these overrides make trials of {self.study.name!r} alike: set other keys.")
                planned[key] = Trial(self.study.reference, part.name, self.scale, fields, dict(self.overrides))
        return planned

    def execute(self, out: Path, engine: Engine, progress: Progress, parts: Sequence[str] = ()) -> list[TrialRecord]:
        """Run what is not yet recorded and can run here; what cannot is left out with a note.

        Args:
            out: The folder of result files.
            engine: Where trials run.
            progress: What to tell the person watching.
            parts: Names of the parts to run; all when empty.

        Raises:
            UsageError: If a part is unknown, or the file cannot be written or holds another study's results.
        """
        wanted = {self.study.part(name).name for name in parts} or {part.name for part in self.study.parts}
        every = self.plan()
        planned = {key: trial for key, trial in every.items() if trial.part in wanted}
        with ResultFile(self.result_file(out), self.study.names, every) as results:
            if results.recovered:
                progress.note(_recovery(results.damaged, results.recovered))
            done = {key for key, line in results.latest.items() if line.status == "ok"}
            pending = [trial for key, trial in planned.items() if key not in done]
            trials = self._ready(pending, progress)
            labels = [trial_label(self.study, trial.part, trial.config) for trial in trials]
            with progress.watch(self.study.name, labels, skipped=len(planned) - len(pending)):
                for index, result in engine.run(run_trial, trials, progress.started):
                    line = _lost(trials[index], result) if isinstance(result, WorkerLost) else result
                    results.append(line)
                    progress.finished(index, line.status == "ok")
            return [results.latest[key] for key in every if key in results.latest]

    def _ready(self, trials: Sequence[Trial], progress: Progress) -> list[Trial]:
        """The trials that can run here; for the others, one note per reason."""
        kept: list[Trial] = []
        refused: dict[tuple[str, str], int] = {}
        for trial in trials:
            part = self.study.part(trial.part)
            reason = part.ready(config_from_dict(part.config, trial.config))
            if reason is None:
                kept.append(trial)
            else:
                refused[trial.part, reason] = refused.get((trial.part, reason), 0) + 1
        for (part_name, reason), n in refused.items():
            trials_left_out = "1 trial is" if n == 1 else f"{n} trials are"
            progress.note(f"{trials_left_out} left out of part {part_name!r}: {reason}")
        return kept


def trial_label(study: Study, part: str, config: Mapping[str, Any]) -> str:
    """A few words for one trial."""
    kind = study.part(part)
    return kind.label(config_from_dict(kind.config, config))


def run_trial(trial: Trial) -> TrialRecord:
    """Run one trial and describe it; an exception becomes a failed line, never a lost one."""
    torch.set_num_threads(1)  # the same sums in the same order on every engine, and no two trials fight for a core
    start = time.perf_counter()
    study = resolve(trial.reference)
    part = study.part(trial.part)
    config = config_from_dict(part.config, trial.config)
    try:
        outcome = part.run(config)
    except Exception:
        return _line(trial, study, "failed", time.perf_counter() - start, error=traceback.format_exc(limit=-3))
    return _line(
        trial,
        study,
        "ok",
        time.perf_counter() - start,
        metrics={name: finite(value) for name, value in outcome.metrics.items()},
        series={name: [finite(value) for value in values] for name, values in outcome.series.items()},
    )


def _lost(trial: Trial, reason: WorkerLost) -> TrialRecord:
    return _line(trial, resolve(trial.reference), "failed", 0.0, error=str(reason))


def _line(trial: Trial, study: Study, status: str, seconds: float, **measured: Any) -> TrialRecord:
    config = config_from_dict(study.part(trial.part).config, trial.config)
    return TrialRecord(
        study=study.name,
        part=trial.part,
        scale=trial.scale,
        hash=config_hash(study.hash_name, trial.part, config),
        config=dict(trial.config),
        seed=trial.config["seed"],
        status=status,
        overrides=dict(trial.overrides),
        seconds=round(seconds, 3),
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions(),
        hardware=hardware(),
        **measured,
    )


@dataclass(frozen=True)
class Recorded:
    """What a result file records.

    Args:
        path: The file.
        run: The run it records.
        lines: The lines that count: the planned trials', each once, in the order of the plan.
        damaged: A sentence for each line that cannot be used, without the torn last line of a killed run.
    """

    path: Path
    run: Run
    lines: list[TrialRecord]
    damaged: list[str]


def recorded_run(path: Path, registry: Mapping[str, str]) -> Recorded:
    """Read a result file line by line, and hold only the lines that count.

    Args:
        path: The file.
        registry: References of studies by name.

    Raises:
        UsageError: If the file is empty, unreadable, or of an unknown study.
    """
    chosen = Latest()
    entries = scan(path, chosen.needs)
    damaged: list[Damage] = []
    first = next(_usable(entries, damaged), None)
    if first is None:
        whole = [damage for damage in damaged if not damage.torn]
        raise not_results(whole[0]) if whole else UsageError(f"{path} has no results yet: run the study first.")
    run = Run(named_study(first.study, registry), first.scale, first.overrides)
    with fitting(path):
        planned = run.plan()
    chosen.wanted = planned
    for line in itertools.chain([first], _usable(entries, damaged)):
        chosen.add(line)
    lines = [chosen[key] for key in planned if key in chosen]
    return Recorded(path, run, lines, [f"{damage} and is left out" for damage in damaged if not damage.torn])


def _usable(entries: Iterable[TrialRecord | Damage], damaged: list[Damage]) -> Iterator[TrialRecord]:
    """The lines that can be used; the others are added to ``damaged``, without their bytes."""
    for entry in entries:
        if isinstance(entry, TrialRecord):
            yield entry
        else:
            damaged.append(dataclasses.replace(entry, raw=b""))


def _recovery(damaged: Sequence[Damage], aside: Path) -> str:
    if all(damage.torn for damage in damaged):
        return f"a torn last line was set aside in {aside}; its trial runs again"
    numbers = ", ".join(str(damage.number) for damage in damaged[:8]) + (", …" if len(damaged) > 8 else "")
    return f"damaged lines ({numbers}) were set aside in {aside}; their trials run again"
