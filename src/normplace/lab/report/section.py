"""The results of one file: its records, how they were made, and which trials failed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normplace.lab.report.text import duration
from normplace.lab.trials.environment import describe
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Study


@dataclass(frozen=True)
class Failure:
    """A failed trial.

    Args:
        name: The fields of its configuration that differ between trials.
        reason: Last line of the error.
        traceback: The whole error; empty if it has one line.
    """

    name: str
    reason: str
    traceback: str


@dataclass(frozen=True)
class Section:
    """The results of one study in one file; the report merges the files of a study.

    Args:
        study: The study.
        records: One record per trial.
        source: The result file.
        damaged: Number of lines of the file that cannot be read and are left out.
        committed: Whether the file comes with the package.
    """

    study: Study
    records: Sequence[TrialRecord]
    source: str
    damaged: int = 0
    committed: bool = False

    @cached_property
    def successful(self) -> SuccessfulRecords:
        """Records of the trials that succeeded."""
        return SuccessfulRecords(self.records)

    @property
    def scale(self) -> str:
        """The scale of the run; empty without records."""
        return self.records[0].scale if self.records else ""

    @property
    def failed(self) -> list[TrialRecord]:
        """Records of the trials that failed."""
        return [record for record in self.records if record.status != "ok"]

    @property
    def failures(self) -> list[Failure]:
        """The failed trials with their errors."""
        fields = list(self.failed[0].config) if self.failed else []
        varied = [key for key in fields if len({_text(record.config.get(key)) for record in self.records}) > 1]
        return [_failure(record, varied) for record in self.failed]

    @property
    def commands(self) -> list[str]:
        """The commands that make these records; several if they differ in scale or overrides."""
        command = ["normplace", "study", self.study.argument]
        if not self.records:
            return [shlex.join(command)]
        return _distinct(
            shlex.join([*command, "--scale", record.scale, *_settings(record.overrides)]) for record in self.records
        )

    @property
    def machines(self) -> list[str]:
        """The hardware that the trials ran on."""
        return machines(self.records)

    @property
    def versions(self) -> list[str]:
        """The software versions that the trials ran with."""
        return versions(self.records)

    @property
    def time(self) -> str:
        """Sum of the wall times of all trials."""
        return duration(sum(record.seconds for record in self.records))

    @property
    def newest(self) -> str:
        """When the newest trial finished; empty without records."""
        return max((record.finished for record in self.records), default="")


def machines(records: Iterable[TrialRecord]) -> list[str]:
    """The hardware that trials ran on."""
    return _distinct(describe(record.hardware) for record in records if record.hardware)


def versions(records: Iterable[TrialRecord]) -> list[str]:
    """The software versions that trials ran with."""
    return _distinct(", ".join(f"{name} {version}" for name, version in record.versions.items()) for record in records)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _failure(record: TrialRecord, varied: Sequence[str]) -> Failure:
    name = ", ".join(f"{key}={_text(record.config.get(key))}" for key in varied or record.config)
    error = (record.error or "").strip()
    return Failure(name, record.failure, error if "\n" in error else "")


def _settings(overrides: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in overrides.items():
        words += ["--set", f"{key}={tuple(value) if isinstance(value, list) else value}"]
    return words


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
