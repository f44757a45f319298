"""Result files: one JSON object a line, appended whole or not at all.

One process writes a file at a time and each line is one ``write`` followed by ``fsync``, so a process killed at any
moment leaves at most one torn line, the last. Opening the file again sets that fragment aside.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from normplace.errors import UsageError
from normplace.train.appending import open_to_append

FORMAT = 1


@dataclass(frozen=True)
class Line:
    """The record of one trial.

    Args:
        study: Name of the study.
        part: Name of the study's part.
        scale: The scale it was planned at.
        hash: Identity of the trial: study, part and configuration.
        config: Every field of the configuration.
        seed: The seed, which is in the configuration too.
        status: ``ok`` or ``failed``.
        metrics: Numbers by name; None where a number was not finite.
        series: Lists of numbers by name, for figures.
        error: What went wrong, when it failed.
        overrides: Configuration fields the user set by hand.
        seconds: Wall time.
        finished: When, UTC.
        versions: Of what the numbers depend on.
        hardware: What they were computed on.
        format: Version of this layout.
    """

    study: str
    part: str
    scale: str
    hash: str
    config: dict[str, Any]
    seed: int
    status: str
    metrics: dict[str, float | None] = field(default_factory=dict)
    series: dict[str, list[float | None]] = field(default_factory=dict)
    error: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    finished: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def to_json(self) -> str:
        """The line as it stands in the file, without its line end."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False, separators=(",", ":"))


def finite(value: float) -> float | None:
    """The number rounded to seven digits, float32's own; or None, since JSON knows no infinity."""
    value = float(value)
    return float(f"{value:.7g}") if math.isfinite(value) else None


def parse_line(text: str, where: str) -> Line:
    """A line read back.

    Args:
        text: What stands in the file.
        where: The file and line number, for the message.

    Raises:
        UsageError: If it is no result of this format.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where} is not a result line: move the file away or repair that line.") from error
    if not isinstance(data, dict) or "format" not in data:
        raise UsageError(f"{where} is not a result line: give a file that a normplace study wrote.")
    if data["format"] != FORMAT:
        raise UsageError(
            f"{where} has results of format {data['format']}, this version reads format {FORMAT}: "
            "use the version that wrote it, or another output folder."
        )
    known = {entry.name for entry in dataclasses.fields(Line)}
    if missing := {"study", "part", "scale", "hash", "config", "seed", "status"} - data.keys():
        raise UsageError(f"{where} lacks {sorted(missing)[0]!r}: move the file away or repair that line.")
    return Line(**{key: value for key, value in data.items() if key in known})


def read_lines(path: Path) -> list[Line]:
    """Every whole line of a result file, compressed where its name ends in ``.gz``; a torn last line is left out.

    Raises:
        UsageError: If the file cannot be read, or holds something else.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a whole gzip file: fetch or compress it again.") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
    whole, _ = _split_torn(content)
    return [parse_line(text, f"{path}:{n}") for n, text in enumerate(whole.decode().splitlines(), start=1)]


def latest(lines: Iterable[Line]) -> dict[str, Line]:
    """The line that counts for each trial: a success if there is one, else the last failure."""
    chosen: dict[str, Line] = {}
    for line in lines:
        if line.hash not in chosen or chosen[line.hash].status != "ok":
            chosen[line.hash] = line
    return chosen


class ResultFile:
    """A result file open for appending, locked against a second writer.

    Args:
        path: The file; made with its folder when missing.

    Raises:
        UsageError: If it cannot be written, is in use, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recovered: Path | None = None
        self._file = open_to_append(path)
        try:
            self.lines = read_lines(path)
            self._mend()
        except BaseException:
            self.close()
            raise

    def _mend(self) -> None:
        """Set a torn last line aside, so that every line of the file can be read."""
        content = self.path.read_bytes()
        whole, torn = _split_torn(content)
        if torn:
            self.recovered = self.path.with_suffix(".torn")
            with self.recovered.open("ab") as aside:
                aside.write(torn + b"\n")
            os.ftruncate(self._file, len(content) - len(torn))
        if whole and not whole.endswith(b"\n"):
            os.write(self._file, b"\n")
        os.fsync(self._file)

    def append(self, line: Line) -> None:
        """Add a line; when this returns it is on disk."""
        data = (line.to_json() + "\n").encode()
        written = os.write(self._file, data)
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes could be written to {self.path}: the disk may be full")
        os.fsync(self._file)
        self.lines.append(line)

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)


def _split_torn(content: bytes) -> tuple[bytes, bytes]:
    """The whole lines and the torn fragment after them; a complete line that only lacks its end is whole."""
    head, newline, tail = content.rpartition(b"\n")
    if not tail:
        return content, b""
    try:
        json.loads(tail)
    except ValueError:
        return head + newline, tail
    return content, b""
