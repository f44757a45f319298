"""Result files: one line per trial, appended by one process and read line by line.

Each line is one ``write`` followed by ``fsync``, so a process that is killed leaves at most one incomplete line, the
last. Opening the file for appending moves that line, and any line that was damaged later, to a separate file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from normplace._shared.append_lock import FLAGS, open_for_append
from normplace._shared.file_lock import RENAMES_OPEN_FILES, try_lock
from normplace._shared.output import cannot_write
from normplace.errors import UsageError, cause
from normplace.lab.trials.record import FORMAT, DamagedLine, TrialRecord, finite, parse_line, peek_hash

__all__ = [
    "FORMAT",
    "Damage",
    "LatestRecords",
    "ResultFile",
    "TrialRecord",
    "finite",
    "not_results",
    "read_records",
    "scan",
    "translate_study_errors",
]

LONGEST = 64 * 2**20
"""Maximum number of bytes of a line."""
UNPACKED = 8 * 2**30
"""Maximum number of bytes that a compressed file may expand to."""
CLOSED = -1
_REMEDY = "free space and run the same command to resume"


@dataclass(frozen=True)
class Damage:
    """A line of a result file that cannot be used.

    Args:
        path: The file.
        number: Line number, from 1.
        reason: What is wrong, as the end of a sentence.
        raw: Its bytes.
        incomplete: Whether it is the last line and has no newline, as a killed run leaves it.
    """

    path: Path
    number: int
    reason: str
    raw: bytes
    incomplete: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.number} {self.reason}"


def scan(path: Path, needed: Callable[[str], bool] = lambda key: True) -> Iterator[TrialRecord | Damage]:
    """Read a result file line by line; blank lines are skipped, and a name that ends in ``.gz`` means gzip.

    Args:
        path: The file.
        needed: From the hash of a trial to whether its line is needed; other lines are skipped without parsing if their
            checksum is right, which is faster for long files.

    Raises:
        UsageError: If the file cannot be read, or does not consist of lines.
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
                yield parse_line(text)
            except DamagedLine as error:
                yield Damage(path, number, str(error), raw, incomplete=not raw.endswith(b"\n"))


def read_records(path: Path) -> list[TrialRecord]:
    """Read every record of a result file; an incomplete last line is skipped.

    Raises:
        UsageError: If the file cannot be read, or a line is damaged.
    """
    records: list[TrialRecord] = []
    for entry in scan(path):
        if isinstance(entry, TrialRecord):
            records.append(entry)
        elif not entry.incomplete:
            raise not_results(entry)
    return records


def not_results(damage: Damage) -> UsageError:
    """The error for a file without a usable line."""
    return UsageError(f"{damage}: give a file that this version of normplace wrote, or repair that line.")


class LatestRecords(dict[str, TrialRecord]):
    """The wanted and valid record of each trial by its hash: a success if there is one, else the last failure."""

    def __init__(self, wanted: Callable[[TrialRecord], bool] | None = None) -> None:
        super().__init__()
        self.wanted = wanted
        self._unwanted: set[str] = set()

    def needs(self, key: str) -> bool:
        """Whether another record of this trial could replace the present one."""
        return key not in self._unwanted and (key not in self or self[key].status != "ok")

    def add(self, record: TrialRecord) -> None:
        """Keep the record if it is needed."""
        if not self.needs(record.hash):
            return
        if self.wanted is None or self.wanted(record):
            self[record.hash] = record
        else:
            self._unwanted.add(record.hash)


@contextlib.contextmanager
def translate_study_errors(path: str | Path) -> Iterator[None]:
    """Convert errors of a study's claims and figures into a UsageError: the study cannot read these records.

    A line without a checksum can lack a metric, or have a series of another length.
    """
    try:
        yield
    except UsageError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(
            f"the study cannot read its results in {path} ({cause(error)}): correct its claims and figures, or use the "
            "version that wrote them."
        ) from error


class ResultFile:
    """A result file open for appending, locked against a second writer.

    Args:
        path: The file; created with its folder if missing.
        studies: Names of the study that every record must belong to; empty accepts any.
        wanted: Whether a record is kept in memory; None keeps all.

    Raises:
        UsageError: If it cannot be written, is in use, or does not contain results of the study.
    """

    def __init__(
        self, path: Path, studies: Sequence[str] = (), wanted: Callable[[TrialRecord], bool] | None = None
    ) -> None:
        self.path = path
        self.recovered: Path | None = None
        self.latest = LatestRecords(wanted)
        self._file = open_for_append(path)
        try:
            self.damaged = self._read(studies)
            if self.damaged:
                self._move_damaged(self.damaged)
            self._end_line()
        except OSError as error:
            self.close()
            raise cannot_write(path, error, _REMEDY) from error
        except BaseException:
            self.close()
            raise

    @property
    def records(self) -> list[TrialRecord]:
        """The valid records, one per trial."""
        return list(self.latest.values())

    def _read(self, studies: Sequence[str]) -> list[Damage]:
        """Read the valid records, and return the damaged lines."""
        damaged: list[Damage] = []
        usable = False
        for entry in scan(self.path, self.latest.needs):
            if isinstance(entry, Damage):
                damaged.append(entry)
                continue
            if studies and entry.study not in studies:
                raise UsageError(f"{self.path} contains results of {entry.study!r}: choose another --out.")
            usable = True
            self.latest.add(entry)
        if not usable and any(not damage.incomplete for damage in damaged):
            raise not_results(damaged[0])  # probably not a result file
        return damaged

    def _move_damaged(self, damaged: list[Damage]) -> None:
        """Move damaged lines to a separate file, so that every line of this file can be read."""
        self.recovered = self.path.with_suffix(".damaged")
        file = os.open(self.recovered, os.O_WRONLY | os.O_CREAT | FLAGS, 0o644)
        try:
            for damage in damaged:
                _write(file, damage.raw.rstrip(b"\n") + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        if all(damage.incomplete for damage in damaged):
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(damaged[-1].raw))
        else:
            self._rewrite_without({damage.number for damage in damaged})

    def _rewrite_without(self, numbers: set[int]) -> None:
        """Replace the file by one without these lines; the new file is locked before it is renamed."""
        target = Path(os.path.realpath(self.path))
        draft = target.with_name(f".{os.getpid()}.tmp")
        replacement = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o644)
        try:
            try_lock(replacement)
            draft.chmod(stat.S_IMODE(os.fstat(self._file).st_mode))
            with target.open("rb") as old:
                for number, raw in enumerate(old, start=1):
                    if number not in numbers:
                        _write(replacement, raw)
            os.fsync(replacement)
            if RENAMES_OPEN_FILES:
                draft.replace(target)
        except BaseException:
            os.close(replacement)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        self.close()
        self._file = replacement
        if not RENAMES_OPEN_FILES:
            self.close()
            draft.replace(target)
            self._file = open_for_append(target)

    def _end_line(self) -> None:
        """Add the newline that the last line lacks."""
        if os.fstat(self._file).st_size:
            os.lseek(self._file, -1, os.SEEK_END)
            if os.read(self._file, 1) != b"\n":
                _write(self._file, b"\n")
        os.fsync(self._file)

    def append(self, record: TrialRecord) -> None:
        """Append a record and sync it to disk.

        Raises:
            UsageError: If it cannot be written; the file is then unchanged.
        """
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, (record.to_json() + "\n").encode())
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next run moves an incomplete line
                os.ftruncate(self._file, size)
            raise cannot_write(self.path, error, _REMEDY) from error
        self.latest.add(record)

    def close(self) -> None:
        """Release the file."""
        if self._file != CLOSED:
            os.close(self._file)
        self._file = CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write(file: int, data: bytes) -> None:
    """Write all of ``data``; on a full disk the second ``write`` raises."""
    while data:
        data = data[os.write(file, data) :]
