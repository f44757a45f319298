"""The record of one trial, and its line in a result file: one JSON object with a checksum.

A line ends with the CRC-32 of everything before it. Lines of older versions have no checksum; they are accepted if
every field has its type and the hash matches the study, part and configuration.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from normplace.errors import UsageError

FORMAT = 1
STATUSES = ("ok", "failed")
SCALES = ("smoke", "laptop", "full")
FUNCTIONAL_SCALE = "smoke"
"""The scale that has no verdicts, however many seeds it has."""
_CHECKSUM = ',"crc32":"'


class DamagedLine(UsageError):
    """A line that cannot be read as a record; the message completes the sentence "line 3 …"."""


@dataclass(frozen=True)
class TrialRecord:
    """The record of one trial.

    Args:
        study: Name of the study.
        part: Name of the study's part.
        scale: The scale of the run.
        hash: Identity of the trial: study, part and configuration.
        config: Every field of the configuration.
        seed: The seed, which is also in the configuration.
        status: ``ok`` or ``failed``.
        metrics: Numbers by name; None for a number that was not finite.
        series: Lists of numbers by name, for figures.
        error: Error message of a failed trial.
        overrides: Configuration fields that the user set.
        seconds: Wall time.
        finished: Time of completion, UTC.
        versions: Software versions.
        hardware: Hardware.
        source: Where the code of a user's study is, and the SHA-256 of its files; empty for the studies of normplace.
        format: Version of this format.
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
    source: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def failure(self) -> str:
        """The last line of the error of a failed trial."""
        return (self.error or "").strip().rpartition("\n")[2] or "no message"

    def to_json(self) -> str:
        """Format as a line of a result file, with its checksum, without the newline."""
        body = json.dumps(dataclasses.asdict(self), allow_nan=False, separators=(",", ":"))[:-1]
        return f'{body}{_CHECKSUM}{zlib.crc32(body.encode()):08x}"}}'


def finite(value: float) -> float | None:
    """Round a number to seven digits, the precision of float32; None if it is not finite."""
    value = float(value)
    return float(f"{value:.7g}") if math.isfinite(value) else None


def trial_hash(study: str, part: str, config: Mapping[str, Any]) -> str:
    """Hash that identifies a trial: its study, part and every field of its configuration, including the seed."""
    return hashlib.sha256(_SORTED.encode([study, part, config]).encode()).hexdigest()[:16]


def peek_hash(raw: bytes) -> str | None:
    """Read the hash of a line without parsing it; None if the checksum is missing or wrong."""
    body, mark, checksum = raw.rpartition(_CHECKSUM.encode())
    match = _HASH.search(body) if mark and checksum == b'%08x"}' % zlib.crc32(body) else None
    return match[1].decode() if match else None


def parse_line(raw: bytes) -> TrialRecord:
    """Parse a line of a result file.

    Raises:
        DamagedLine: If it is not a complete record of this format.
    """
    body, mark, checksum = raw.rpartition(_CHECKSUM.encode())
    if mark and checksum != b'%08x"}' % zlib.crc32(body):
        raise DamagedLine("does not match its checksum")
    try:
        text = raw.decode()
        data = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()  # fails if half of a surrogate pair is missing
    except RecursionError as error:
        raise DamagedLine("is not a result line: it is nested too deeply") from error
    except ValueError as error:
        raise DamagedLine("is not a result line") from error
    if not isinstance(data, dict) or "format" not in data:
        raise DamagedLine("is not a result line")
    if data["format"] != FORMAT or type(data["format"]) is not int:
        raise DamagedLine(f"has results of format {_short(data['format'])}, this version reads format {FORMAT}")
    if missing := _REQUIRED - data.keys():
        raise DamagedLine(f"lacks {min(missing)!r}")
    # The constructor of a frozen class, which sets the fields one by one, would double the time.
    record = object.__new__(TrialRecord)
    record.__dict__.update({name: data[name] if name in data else default() for name, default in _FIELDS.items()})
    _check_fields(record)
    if not mark:
        _check_content(record)
    return record


def _check_fields(record: TrialRecord) -> None:
    """Raise DamagedLine for a field of the wrong type."""
    fields = record.__dict__
    for name, kind in _TYPES.items():
        if not isinstance(fields[name], kind):
            raise DamagedLine(f"has a wrong {name!r}")
    if record.status not in STATUSES or isinstance(record.seed, bool) or not _is_number(record.seconds):
        raise DamagedLine("has a wrong 'status', 'seed' or 'seconds'")
    if record.scale not in SCALES:
        raise DamagedLine("has an unknown 'scale'")


def _check_content(record: TrialRecord) -> None:
    """Raise DamagedLine for contents that no version of the package writes."""
    if not _are_numbers(record.metrics.values()):
        raise DamagedLine("has a metric that is not a finite number")
    for values in record.series.values():
        if not isinstance(values, list) or not _are_numbers(values):
            raise DamagedLine("has a series that is not a list of finite numbers")
    if not all(isinstance(version, str) for version in record.versions.values()):
        raise DamagedLine("has a wrong 'versions'")
    if record.hash != trial_hash(record.study, record.part, record.config) or record.seed != record.config.get("seed"):
        raise DamagedLine("does not match its hash")
    if any(record.config.get(key, value) != value for key, value in record.overrides.items()):
        raise DamagedLine("has overrides that its configuration does not have")


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max


def _are_numbers(values: Collection[object]) -> bool:
    """Whether all values are finite numbers or None; with built-in loops, because series are long."""
    kinds = set(map(type, values))
    if not kinds <= {int, float, type(None)} or math.inf in values or -math.inf in values:
        return False
    return int not in kinds or all(value is None or _is_number(value) for value in values)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 20 else f"{text[:20]}…"


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_HASH = re.compile(rb'"hash":"([0-9a-z]+)"')
_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_FIELDS: dict[str, Callable[[], Any]] = {
    entry.name: dict if entry.default_factory is dict else lambda entry=entry: entry.default
    for entry in dataclasses.fields(TrialRecord)
}
_REQUIRED = {"study", "part", "scale", "hash", "config", "seed", "status"}
_TYPES: dict[str, Any] = {
    "study": str,
    "part": str,
    "scale": str,
    "hash": str,
    "config": dict,
    "seed": int,
    "metrics": dict,
    "series": dict,
    "error": (str, type(None)),
    "overrides": dict,
    "finished": str,
    "versions": dict,
    "hardware": dict,
    "source": dict,
}
