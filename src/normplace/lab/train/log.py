"""The log of a run: JSON lines, and optionally TensorBoard, Weights & Biases and MLflow.

The file is append-only. A resumed run writes a line ``resume`` and logs the steps after its checkpoint again; the last
line of a step counts.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from normplace._shared.append_lock import open_for_append
from normplace.errors import UsageError, expect_choice

FILE = "log.jsonl"


class Tracker(Protocol):
    """A further destination of the numbers."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""

    def close(self) -> None:
        """Flush and close."""


class TensorBoard:
    """Event files in the run's folder ``tensorboard``.

    Args:
        out: Folder of the run.
        config: Settings of the run.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(out / "tensorboard"))
        self.writer.add_text("config", json.dumps(config, indent=1))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()


class WeightsAndBiases:
    """A Weights & Biases run, configured by its environment variables.

    Args:
        out: Folder of the run.
        config: Settings of the run.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run = wandb.init(project="normplace", dir=str(out), config=dict(config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        """Flush and close."""
        self.run.finish()


class MLflow:
    """An MLflow run, configured by its environment variables.

    Args:
        out: Folder of the run.
        config: Settings of the run.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        import mlflow  # pyright: ignore[reportMissingImports]

        self.client = mlflow
        mlflow.start_run(run_name=out.name)
        mlflow.log_params({name: str(value)[:500] for name, value in config.items()})

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of a step."""
        self.client.log_metrics({_mlflow_name(name): value for name, value in values.items()}, step=step)

    def close(self) -> None:
        """Flush and close."""
        self.client.end_run()


def _mlflow_name(name: str) -> str:
    """A name with the characters that MLflow accepts; edits have others, such as ``degree^-1``."""
    return re.sub(r"[^\w\-. /]", "_", name)


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def check_trackers(names: str | Sequence[str]) -> list[str]:
    """Return the trackers as a list, after checking that each is known and installed.

    Args:
        names: One name or several.

    Raises:
        UsageError: If one is not.
    """
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        expect_choice("log", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the log {name!r} needs the package {name!r}: pip install {name}.")
    return names


class Log:
    """The log file of a run, locked against a second writer, and its trackers.

    Args:
        out: Folder of the run; created if missing.
        trackers: Names of trackers.
        config: Settings of the run, for the trackers.

    Raises:
        UsageError: If the file cannot be written or is in use, or a tracker is not installed.
    """

    def __init__(self, out: Path, trackers: str | Sequence[str] = (), config: Mapping[str, Any] | None = None) -> None:
        names = check_trackers(trackers)
        self.path = out / FILE
        self._file = open_for_append(self.path)
        self._truncate_partial_line()
        self._trackers = [TRACKERS[name](out, config or {}) for name in names]

    def _truncate_partial_line(self) -> None:
        complete = self.path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._file, len(complete[0]) + len(complete[1]))

    def write(self, event: str, step: int, *, scalars: Mapping[str, float] | None = None, **values: Any) -> None:
        """Append a line, and pass its numbers to the trackers.

        Args:
            event: Kind of the line.
            step: Number of steps taken.
            scalars: Numbers for the trackers; by default those among ``values``.
            **values: Other fields; NaN and infinity are written as text, since JSON has no such numbers.
        """
        line = {"event": event, "step": step, **{key: _to_json(value) for key, value in values.items()}}
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._write_error(error) from error
        named = values if scalars is None else scalars
        numbers = {key: value for key, value in named.items() if isinstance(value, float) and math.isfinite(value)}
        for tracker in self._trackers:
            tracker.write(step, numbers)

    def sync(self) -> None:
        """Wait until all lines are on disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._write_error(error) from error

    def _write_error(self, error: OSError) -> UsageError:
        reason = error.strerror or error
        return UsageError(f"cannot write {self.path} ({reason}): free space and run the same command again.")

    def close(self) -> None:
        """Close the file and the trackers."""
        for tracker in self._trackers:
            tracker.close()
        os.close(self._file)


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log, in the order of the file.

    Args:
        path: The file, or the folder of the run.

    Raises:
        UsageError: If the file cannot be read, or a line is not a JSON object.
    """
    path = Path(path) / FILE if Path(path).is_dir() else Path(path)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # a partial last line
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} of {path} is damaged: remove it.") from error
        if not isinstance(entry, dict):
            raise UsageError(f"line {number} of {path} is not a JSON object: remove it.")
        entries.append(entry)
    return entries
