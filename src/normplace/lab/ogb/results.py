"""Results of seeds: one JSON line each, and their mean compared with the published score."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from normplace._shared.append_lock import open_for_append
from normplace.errors import UsageError
from normplace.lab.ogb.checkpoint import Epoch
from normplace.lab.ogb.recipe import PUBLISHED
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask


@dataclass(frozen=True)
class SeedResult:
    """The result of one seed.

    Args:
        seed: The seed.
        status: ``ok``, or ``diverged`` if the loss or an output was not finite.
        test: Test score at the epoch with the best validation score; None without an evaluation.
        valid: That validation score.
        train: Training score of that epoch, of tasks on nodes.
        best_epoch: That epoch.
        epochs: Number of epochs.
        seconds_per_epoch: Mean training time of an epoch.
        seconds_per_evaluation: Mean time of an evaluation.
        peak_memory: Largest allocated GPU memory in bytes; None on the CPU.
    """

    seed: int
    status: str
    test: float | None
    valid: float | None
    train: float | None
    best_epoch: int | None
    epochs: int
    seconds_per_epoch: float
    seconds_per_evaluation: float
    peak_memory: int | None


def summarize(seed: int, history: Sequence[Epoch], peak: int | None) -> SeedResult:
    """The result of a seed; its scores are those of the epoch with the best validation score.

    Args:
        seed: The seed.
        history: Its epochs.
        peak: Largest allocated GPU memory in bytes, if known.
    """
    evaluated = [epoch for epoch in history if epoch.scores]
    best = max(evaluated, key=lambda epoch: epoch.scores["valid"], default=None)
    scores = {} if best is None else best.scores
    return SeedResult(
        seed,
        "ok" if math.isfinite(history[-1].loss) else "diverged",
        scores.get("test"),
        scores.get("valid"),
        scores.get("train"),
        None if best is None else best.epoch,
        len(history),
        statistics.fmean(epoch.seconds for epoch in history),
        statistics.fmean(epoch.evaluation_seconds for epoch in evaluated) if evaluated else 0.0,
        peak,
    )


class ResultLines:
    """The results of finished seeds in a file, which no other run can write meanwhile.

    Args:
        path: The file.
        descriptor: The locked file, open for appending.

    Raises:
        UsageError: If a line is not a result.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._file = path, descriptor
        names = [field.name for field in fields(SeedResult)]
        self.finished: dict[int, SeedResult] = {}
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            try:
                line = json.loads(text)
                result = SeedResult(**{name: line[name] for name in names})
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{path}:{number} is not a result: remove this line, and its seed runs again."
                ) from error
            self.finished[result.seed] = result

    def append(self, result: SeedResult, about: dict[str, Any]) -> None:
        """Write a result, with what it depends on, and sync it to disk."""
        os.write(self._file, (json.dumps({**asdict(result), **about}) + "\n").encode())
        os.fsync(self._file)
        self.finished[result.seed] = result


@contextmanager
def open_results(path: Path) -> Iterator[ResultLines]:
    """Open a result file; it is created with its folder if missing.

    Raises:
        UsageError: If it cannot be written, another run writes it, or a line is not a result.
    """
    descriptor = open_for_append(path)
    try:
        yield ResultLines(path, descriptor)
    finally:
        os.close(descriptor)


def summary(task: OgbTask, results: Sequence[SeedResult]) -> dict[str, Any]:
    """Mean and standard deviation of the scores over seeds, and the published ones."""
    tests, valids = (
        [score for result in results if (score := getattr(result, side)) is not None] for side in ("test", "valid")
    )
    return {"test": _spread(tests), "valid": _spread(valids), "published": asdict(PUBLISHED[task.name])}


def _spread(scores: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation; None without scores."""
    if not scores:
        return None
    return statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else None
