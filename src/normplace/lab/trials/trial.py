"""One trial: how it is sent to a worker, run there, and recorded."""

from __future__ import annotations

import datetime
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from normplace.errors import UsageError
from normplace.lab.trials.config import config_from_dict, config_hash
from normplace.lab.trials.engines import Engine, WorkerLost, WorkerUnusable
from normplace.lab.trials.environment import hardware, versions
from normplace.lab.trials.more_seeds import variant_hash
from normplace.lab.trials.results import TrialRecord, finite
from normplace.lab.trials.study import Outcome, Part, Study
from normplace.lab.trials.study_code import StudyCode

if TYPE_CHECKING:
    from normplace.lab.trials.progress import Progress

_ONE_TRIAL = threading.Lock()
"""Trials use the global generator of torch, so the threads of a Dask worker run them one after another."""


@dataclass(frozen=True)
class Trial:
    """One trial, as it is sent to a worker.

    Args:
        reference: ``module:attribute`` of the study.
        part: Name of its part.
        scale: The scale of the run.
        config: Fields of the configuration.
        overrides: Fields that the user set.
    """

    reference: str
    part: str
    scale: str
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]


def run_trials(
    study: Study,
    trials: Sequence[Trial],
    engine: Engine,
    progress: Progress,
    code: StudyCode,
    *,
    skipped: int = 0,
    worker: Callable[[Trial, StudyCode], Any] | None = None,
) -> Generator[TrialRecord]:
    """Run trials on an engine, and yield their records as they finish.

    Args:
        study: The study of the trials.
        trials: The trials.
        engine: Runs them.
        progress: Shows the progress; a trial is shown as finished when its record was consumed.
        code: The code of the study, which is sent to workers.
        skipped: Number of trials that were recorded earlier, for the progress.
        worker: Runs one trial; :func:`run_in_worker` by default.

    Raises:
        UsageError: If a worker cannot import the study.
    """
    labels = [trial_label(study, trial.part, trial.config) for trial in trials]
    groups = _groups(study, trials) if worker is None else [(index,) for index in range(len(trials))]
    items = [trials[group[0]] if len(group) == 1 else tuple(trials[index] for index in group) for group in groups]

    def started(number: int) -> None:
        for index in groups[number]:
            progress.started(index)

    run = partial(worker or run_in_worker, code=code)
    with progress.watch(study.name, labels, skipped=skipped):
        for number, result in engine.run(run, items, started):
            if isinstance(result, WorkerUnusable):
                raise _cannot_import(study, result)
            if isinstance(result, WorkerLost):
                lost = str(result)
                result = [_record(trials[index], study, code, "failed", 0.0, error=lost) for index in groups[number]]
            records = result if isinstance(result, list) else [result]
            for index, record in zip(groups[number], records, strict=True):
                yield record
                progress.finished(index, record.status == "ok")


def _groups(study: Study, trials: Sequence[Trial]) -> list[tuple[int, ...]]:
    """Indices of the trials that run together: the seeds of variants, in parts that compute several at once."""
    variants: dict[object, list[int]] = {}
    for index, trial in enumerate(trials):
        key = group_hash(study.part(trial.part), trial.config) or index
        variants.setdefault(key, []).append(index)
    groups = []
    for indices in variants.values():
        most = study.part(trials[indices[0]].part).seeds_at_once
        groups += [tuple(indices[start : start + most]) for start in range(0, len(indices), most)]
    return groups


def group_hash(part: Part, config: Mapping[str, Any]) -> str | None:
    """Hash that identifies the trials that may run together; None in parts that run trials one by one."""
    if part.run_seeds is None:
        return None
    return variant_hash(part.name, {**config, **dict.fromkeys(part.may_differ)})


def trial_label(study: Study, part: str, config: Mapping[str, Any]) -> str:
    """Short name of one trial."""
    trial_part = study.part(part)
    return trial_part.label(config_from_dict(trial_part.config, config))


def failure_reasons(study: Study, records: Iterable[TrialRecord]) -> dict[str, str]:
    """The last line of the error of each failed trial, by its short name."""
    return {
        trial_label(study, record.part, record.config): record.failure
        for record in records
        if record.status == "failed"
    }


def run_trial(trial: Trial, run: Callable[[Any], Outcome] | None = None, code: StudyCode | None = None) -> TrialRecord:
    """Run one trial; an exception becomes a failed record.

    Args:
        trial: The trial.
        run: Replaces the ``run`` of the trial's part, for instance by one that can pause; it returns the same outcome.
        code: The code of its study; by default what the trial's reference names.

    Raises:
        UsageError: If the study cannot be imported.
    """
    code = code or StudyCode(trial.reference, {})
    return _run([trial], code, lambda part, configs: [(run or part.run)(configs[0])])[0]


def run_together(trials: Sequence[Trial], code: StudyCode | None = None) -> list[TrialRecord]:
    """Run several trials at once; an exception becomes a failed record of each.

    The time of the computation is divided equally among the trials.

    Raises:
        UsageError: If the study cannot be imported.
    """

    def run(part: Part, configs: Sequence[Any]) -> Sequence[Outcome]:
        assert part.run_seeds is not None
        return part.run_seeds(configs)

    return _run(trials, code or StudyCode(trials[0].reference, {}), run)


def _run(
    trials: Sequence[Trial], code: StudyCode, run: Callable[[Part, Sequence[Any]], Sequence[Outcome]]
) -> list[TrialRecord]:
    """Run trials of one part and record them."""
    with _ONE_TRIAL:
        torch.set_num_threads(1)  # the same order of summation on every engine, and one core per trial
        start = time.perf_counter()
        study = code.load()
        part = study.part(trials[0].part)
        configs = [config_from_dict(part.config, trial.config) for trial in trials]
        try:
            with code.running():
                measured = [_numbers(outcome) for outcome in run(part, configs)]
        except Exception:
            error = traceback.format_exc(limit=-3)
            seconds = (time.perf_counter() - start) / len(trials)
            return [_record(trial, study, code, "failed", seconds, error=error) for trial in trials]
        seconds = (time.perf_counter() - start) / len(trials)
        return [
            _record(trial, study, code, "ok", seconds, **numbers)
            for trial, numbers in zip(trials, measured, strict=True)
        ]


def _numbers(outcome: Outcome) -> dict[str, Any]:
    return {
        "metrics": {name: finite(value) for name, value in outcome.metrics.items()},
        "series": {name: [finite(value) for value in values] for name, values in outcome.series.items()},
    }


def run_in_worker(work: Trial | tuple[Trial, ...], code: StudyCode) -> TrialRecord | list[TrialRecord] | WorkerUnusable:
    """Run a trial, or several at once, in a worker; return the records, or why the worker cannot import the study."""
    try:
        return run_trial(work, code=code) if isinstance(work, Trial) else run_together(work, code)
    except UsageError as error:
        return WorkerUnusable(socket.gethostname(), str(error))


def _cannot_import(study: Study, worker: WorkerUnusable) -> UsageError:
    reason = worker.reason.rstrip(".")
    return UsageError(
        f"a worker on {worker.host} cannot import {study.argument} ({reason}): "
        "install normplace and what the study imports on every worker."
    )


def _record(trial: Trial, study: Study, code: StudyCode, status: str, seconds: float, **measured: Any) -> TrialRecord:
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
        source=dict(code.source),
        **measured,
    )
