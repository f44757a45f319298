"""Result files: lines appended whole or not at all, and read one at a time.

One process writes a file at a time and each line is one ``write`` followed by ``fsync``, so a process killed at any
moment leaves at most one torn line, the last. Opening the file again sets that fragment, and any line that was damaged
later, aside in a file of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from normplace._shared.append_lock import open_for_append
from normplace._shared.output import cannot_write
from normplace.errors import UsageError
from normplace.lab.trials.lines import FORMAT, DamagedLine, TrialRecord, finite, parse_line, peek_hash

__all__ = ["FORMAT", "Damage", "ResultFile", "TrialRecord", "finite", "fitting", "latest", "read_lines", "scan"]

LONGEST = 64 * 2**20
"""Bytes of the longest line that is read."""
UNPACKED = 8 * 2**30
"""Bytes that a compressed file may expand to."""
_REMEDY = "free space and run the same command to resume"


@dataclass(frozen=True)
class Damage:
    """A line of a result file that cannot be used.

    Args:
        path: The file.
        number: Which line, from 1.
        reason: What is wrong, as the end of a sentence.
        raw: Its bytes.
        torn: Whether it is the unfinished last line of a run that was killed.
    """

    path: Path
    number: int
    reason: str
    raw: bytes
    torn: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.number} {self.reason}"


def scan(path: Path, needed: Callable[[str], bool] = lambda key: True) -> Iterator[TrialRecord | Damage]:
    """Every line of a result file in order, compressed where its name ends in ``.gz``; blank lines are skipped.

    Args:
        path: The file.
        needed: Whether the line of a trial, given by its hash, is of use; others with a right checksum are left out
            unparsed, which makes long files fast to read.

    Raises:
        UsageError: If the file cannot be read, or is not a text of lines.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:  # a null byte, or text that the file system cannot encode
        raise UsageError(f"cannot read {str(path)!r}: this is not a possible file name.") from error
    if not stat.S_ISREG(mode):
        raise UsageError(f"cannot read {path}: it is not a regular file.")
    try:
        with path.open("rb") as file:
            source = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            yield from _scan(path, source, needed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a whole gzip file: fetch or compress it again.") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error


def _scan(path: Path, source: io.BufferedIOBase, needed: Callable[[str], bool]) -> Iterator[TrialRecord | Damage]:
    size = 0
    for number, raw in enumerate(iter(lambda: source.readline(LONGEST), b""), start=1):
        size += len(raw)
        if len(raw) == LONGEST:
            raise UsageError(f"{path}:{number} is longer than {LONGEST >> 20} MB: give a file that a study wrote.")
        if isinstance(source, gzip.GzipFile) and size > UNPACKED:
            raise UsageError(f"{path} expands to more than {UNPACKED >> 30} GB: unpack it if that is right.")
        text = raw.strip()
        key = peek_hash(text)
        if text and (key is None or needed(key)):
            try:
                line = parse_line(text)
            except DamagedLine as error:
                line = Damage(path, number, str(error), raw, torn=not raw.endswith(b"\n"))
            yield line


def read_lines(path: Path) -> list[TrialRecord]:
    """Every line of a result file; a torn last line is left out.

    Raises:
        UsageError: If the file cannot be read, or a line is damaged.
    """
    lines: list[TrialRecord] = []
    for entry in scan(path):
        if isinstance(entry, TrialRecord):
            lines.append(entry)
        elif not entry.torn:
            raise not_results(entry)
    return lines


def not_results(damage: Damage) -> UsageError:
    """The error for a file without a usable line."""
    return UsageError(f"{damage}: give a file that this version of normplace wrote, or repair that line.")


def latest(lines: Iterable[TrialRecord]) -> dict[str, TrialRecord]:
    """The line that counts for each trial: a success if there is one, else the last failure."""
    chosen = Latest()
    for line in lines:
        chosen.add(line)
    return chosen


class Latest(dict[str, TrialRecord]):
    """The line that counts for each trial by its hash: a success if there is one, else the last failure.

    Args:
        wanted: Hashes of the trials to hold lines of; all if None.
    """

    def __init__(self, wanted: Container[str] | None = None) -> None:
        super().__init__()
        self.wanted = wanted

    def needs(self, key: str) -> bool:
        """Whether another line of this trial could count."""
        return (self.wanted is None or key in self.wanted) and (key not in self or self[key].status != "ok")

    def add(self, line: TrialRecord) -> None:
        """Take a line if it counts."""
        if self.needs(line.hash):
            self[line.hash] = line


@contextlib.contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """Report an error of the study's code on recorded lines as what it is: lines that the study cannot read.

    A line written before there were checksums can lack a metric, or have a series of another length.
    """
    try:
        yield
    except UsageError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"the study cannot read its results in {path} ({reason[:200]}): use the version that wrote them."
        ) from error


class ResultFile:
    """A result file open for appending, locked against a second writer.

    Args:
        path: The file; made with its folder when missing.
        studies: Names of the study that every line must be of; any if empty.
        wanted: Hashes of the trials whose lines are kept in memory; all if None.

    Raises:
        UsageError: If it cannot be written, is in use, or holds something else.
    """

    def __init__(self, path: Path, studies: Sequence[str] = (), wanted: Container[str] | None = None) -> None:
        self.path = path
        self.recovered: Path | None = None
        self.latest = Latest()
        self._file = open_for_append(path)
        try:
            self.damaged = self._read(studies, wanted)
            if self.damaged:
                self._set_aside(self.damaged)
            self._end_line()
        except OSError as error:
            self.close()
            raise cannot_write(path, error, _REMEDY) from error
        except BaseException:
            self.close()
            raise

    @property
    def lines(self) -> list[TrialRecord]:
        """The lines that count, one per trial."""
        return list(self.latest.values())

    def _read(self, studies: Sequence[str], wanted: Container[str] | None) -> list[Damage]:
        """Choose the lines that count, and return the damaged ones."""
        damaged: list[Damage] = []
        usable = False
        for entry in scan(self.path, self.latest.needs):
            if isinstance(entry, Damage):
                damaged.append(entry)
                continue
            if studies and entry.study not in studies:
                raise UsageError(f"{self.path} holds results of {entry.study!r}: choose another --out.")
            usable, self.latest.wanted = True, wanted  # from the second line on, so that the first is always parsed
            self.latest.add(entry)
        self.latest.wanted = wanted
        if not usable and any(not damage.torn for damage in damaged):
            raise not_results(damaged[0])  # probably not a result file at all: leave it alone
        return damaged

    def _set_aside(self, damaged: list[Damage]) -> None:
        """Move damaged lines to a file of their own, so that every line of this one can be read."""
        self.recovered = self.path.with_suffix(".damaged")
        aside = os.open(self.recovered, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
        try:
            for damage in damaged:
                _write(aside, damage.raw.rstrip(b"\n") + b"\n")
            os.fsync(aside)
        finally:
            os.close(aside)
        if all(damage.torn for damage in damaged):
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(damaged[-1].raw))
        else:
            self._rewrite_without({damage.number for damage in damaged})

    def _rewrite_without(self, numbers: set[int]) -> None:
        """Replace the file by one without these lines; the new file is locked before it takes the old one's name."""
        target = Path(os.path.realpath(self.path))
        draft = target.with_name(f".{os.getpid()}.tmp")
        replacement = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            fcntl.flock(replacement, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(replacement, stat.S_IMODE(os.fstat(self._file).st_mode))
            with target.open("rb") as old:
                for number, raw in enumerate(old, start=1):
                    if number not in numbers:
                        _write(replacement, raw)
            os.fsync(replacement)
            draft.replace(target)
        except BaseException:
            os.close(replacement)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = replacement

    def _end_line(self) -> None:
        """Complete a last line that only lacks its line end."""
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            _write(self._file, b"\n")
        os.fsync(self._file)

    def append(self, line: TrialRecord) -> None:
        """Add a line; when this returns it is on disk.

        Raises:
            UsageError: If it cannot be written; then no part of it is left.
        """
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, (line.to_json() + "\n").encode())
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next run sets a torn line aside
                os.ftruncate(self._file, size)
            raise cannot_write(self.path, error, _REMEDY) from error
        self.latest.add(line)

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(file: int, data: bytes) -> None:
    """Write all of ``data``; what a full disk did not take raises on the next attempt."""
    while data:
        data = data[os.write(file, data) :]
