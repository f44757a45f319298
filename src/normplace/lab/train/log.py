"""The record of a run: a JSON object a line, always; TensorBoard and Weights & Biases beside it, by name.

The file is only ever appended to. A run that goes on from a checkpoint says so in a line ``resume`` and writes the
steps after it again; the last line of a step is the one that counts.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from normplace._shared.append_lock import open_for_append
from normplace.errors import UsageError, unknown

FILE = "log.jsonl"


class Sink(Protocol):
    """Where numbers go beside the file."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def close(self) -> None:
        """Nothing more comes."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of the run.

    Args:
        out: Folder of the run.
        config: What was asked for.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(out / "tensorboard"))
        self.writer.add_text("config", json.dumps(config, indent=1))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Nothing more comes."""
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, as its own environment variables say.

    Args:
        out: Folder of the run.
        config: What was asked for.
    """

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self.run = wandb.init(project="normplace", dir=str(out), config=dict(config))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        """Nothing more comes."""
        self.run.finish()


SINKS: dict[str, Callable[[Path, Mapping[str, Any]], Sink]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def check_sinks(names: Sequence[str]) -> None:
    """Refuse names of logs that are unknown or not installed.

    Raises:
        UsageError: If there is one.
    """
    for name in names:
        if name not in SINKS:
            raise unknown("log", name, SINKS)
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"the log {name!r} needs the package of that name: pip install {name}.")


class Log:
    """The record of a run, open for appending and locked against a second writer.

    Args:
        out: Folder of the run; made when missing.
        also: Names of further logs.
        config: What was asked for, for those.

    Raises:
        UsageError: If it cannot be written or is in use, or a further log is not to be had.
    """

    def __init__(self, out: Path, also: Sequence[str] = (), config: Mapping[str, Any] | None = None) -> None:
        check_sinks(also)
        self.path = out / FILE
        self._file = open_for_append(self.path)
        self._mend()
        self._sinks = [SINKS[name](out, config or {}) for name in also]

    def _mend(self) -> None:
        """Cut a last line that was not finished."""
        whole = self.path.read_bytes().rpartition(b"\n")
        os.ftruncate(self._file, len(whole[0]) + len(whole[1]))

    def write(self, event: str, step: int, **values: Any) -> None:
        """Add a line, and the numbers in it to the further logs.

        Args:
            event: What it is about.
            step: How many steps were taken.
            **values: What is said; a number that is none is written as text, since JSON has no word for it.
        """
        line = {"event": event, "step": step, **{key: _said(value) for key, value in values.items()}}
        data = (json.dumps(line, separators=(",", ":")) + "\n").encode()
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._refused(error) from error
        numbers = {key: value for key, value in values.items() if isinstance(value, float) and math.isfinite(value)}
        for sink in self._sinks:
            sink.write(step, numbers)

    def sync(self) -> None:
        """Return when all lines are on disk."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> UsageError:
        reason = error.strerror or error
        return UsageError(f"cannot write {self.path} ({reason}): free space and run the same command again.")

    def close(self) -> None:
        """Release the file and the further logs."""
        for sink in self._sinks:
            sink.close()
        os.close(self._file)


def _said(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_log(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, as they stand in the file.

    Args:
        path: The file, or the folder of the run.

    Raises:
        UsageError: If the file cannot be read, or a line is not a JSON object.
    """
    path = path / FILE if path.is_dir() else path
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # not finished
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"line {number} of {path} is damaged: remove it.") from error
        if not isinstance(entry, dict):
            raise UsageError(f"line {number} of {path} is not a JSON object: remove it.")
        entries.append(entry)
    return entries
