"""Log the trials of a comparison to TensorBoard, Weights & Biases or MLflow while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from normplace.lab.train.log import TRACKERS, check_trackers
from normplace.lab.trials.record import TrialRecord

LOGGED = ("choose", "report", "diverged", "train_loss", "spikes_per_1000", "stream_growth", "step_ms", "memory_mb")
"""Metrics of a trial that are logged if it has them."""


class TrialLog:
    """A callback for :func:`normplace.compare` that logs each finished trial; also a context manager.

    The step of a number is the number of trials finished so far. Names are ``part/edit/metric``, such as
    ``final/peri/report``.

    Args:
        trackers: One name or several: ``tensorboard``, ``wandb``, ``mlflow``.
        out: Folder of the logs.
        config: Settings that are logged at the start.

    Raises:
        UsageError: If a tracker is unknown or not installed.

    Examples:
        >>> with TrialLog((), "runs") as log:  # npl.compare(task, on_trial=log)
        ...     log.trials
        0
    """

    def __init__(self, trackers: str | Sequence[str], out: str | Path, config: Mapping[str, Any] | None = None) -> None:
        self._trackers = [TRACKERS[name](Path(out), config or {}) for name in check_trackers(trackers)]
        self.trials = 0

    def __call__(self, record: TrialRecord) -> None:
        """Log a finished trial; a number that is not finite is left out."""
        self.trials += 1
        name = f"{record.part}/{record.config['edit']}"
        metrics = {key: value for key in LOGGED if (value := record.metrics.get(key)) is not None}
        values = {"learning_rate": float(record.config["learning_rate"]), **metrics}
        for tracker in self._trackers:
            tracker.write(self.trials, {f"{name}/{key}": value for key, value in values.items()})

    def close(self) -> None:
        """Flush and close the logs."""
        for tracker in self._trackers:
            tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
