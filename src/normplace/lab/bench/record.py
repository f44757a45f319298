"""What a run measured, with everything needed to read it years later, as JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.bench.timing import Spread
from normplace.lab.tasks.data_files import read_file
from normplace.lab.trials import environment

FORMAT = 1
PEERS = {
    "torch-geometric": "torch_geometric",
    "numba": "numba",
    "triton": "triton",
    "liger-kernel": "liger_kernel",
    "flash-linear-attention": "fla",
    "nngeometry": "nngeometry",
}
"""Distributions of peers, and what each is imported as."""
OWN = ("normplace", "python", "torch", "numpy")
"""What all figures depend on."""


@dataclass(frozen=True)
class Row:
    """One pass of one case by one method.

    Args:
        op: The op.
        case: The label of the case.
        step: The pass.
        method: Whose it is.
        seconds: Its time.
        slower: Its time over ours, taken round by round; None for ours.
        peak_bytes: The most memory it took over its inputs; None where that cannot be known.
        error: Its largest error relative to the largest entry; None where it computes something else.
        ceiling: What limits the pass.
        amount: What the pass must do at the least, in bytes, operations or exponentials.
        instead: What it computes, where that is not what the case asks for.
        burst: Calls on end that were timed as one.
    """

    op: str
    case: str
    step: str
    method: str
    seconds: Spread
    slower: Spread | None
    peak_bytes: int | None
    error: float | None
    ceiling: str | None
    amount: float | None
    instead: str
    burst: int = 1

    @property
    def rate(self) -> float | None:
        """What it does of that in a second."""
        return None if self.amount is None or self.instead else self.amount / self.seconds.median


@dataclass(frozen=True)
class Record:
    """A run.

    Args:
        device: ``cpu`` or ``cuda``.
        command: What was typed.
        date: When it began.
        versions: Of everything the figures depend on.
        hardware: The machine.
        load: Its load average before the run, since other work on it spoils a CPU's figures.
        ceilings: What it can do, by name.
        rows: What was measured.
        notes: What was left out, and why.
        refused: A sentence for each case whose kernel was wrong.
    """

    device: str
    command: str
    date: str
    versions: Mapping[str, str]
    hardware: Mapping[str, Any]
    load: float
    ceilings: Mapping[str, float]
    rows: Sequence[Row]
    notes: Sequence[str]
    refused: Sequence[str] = ()

    def write(self, path: Path) -> None:
        """Write it as JSON.

        Raises:
            UsageError: If it cannot be written.
        """
        write_atomic(path, json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        """A record that was written.

        Raises:
            UsageError: If there is none, or it is not one of this version.
        """
        try:
            held = json.loads(read_file(path))
        except UsageError:
            raise
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not JSON: give a file that 'normplace bench --out' wrote.") from error
        if not isinstance(held, dict) or held.pop("format", None) != FORMAT:
            raise UsageError(f"{path} is no record of format {FORMAT}: write it again with 'normplace bench --out'.")
        try:
            return cls(rows=[_row(row) for row in held.pop("rows")], **held)
        except (LookupError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} is not a whole record: write it again with 'normplace bench --out'.") from error


def _row(held: dict[str, Any]) -> Row:
    slower = held.pop("slower")
    return Row(seconds=Spread(**held.pop("seconds")), slower=None if slower is None else Spread(**slower), **held)


def surroundings(packages: Mapping[str, str] = PEERS) -> dict[str, Any]:
    """When, with what and on what: the date, the versions, the machine and how busy it is.

    Args:
        packages: Distributions the figures depend on, where they are installed, and what each is imported as.
    """
    found = {name: version for name, version in environment.versions().items() if name in OWN}
    for package, module in packages.items():
        if importlib.util.find_spec(module) is not None:
            distributions = importlib.metadata.distributions(name=package)
            found[package] = next((one.version for one in distributions), "of unknown version")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": found,
        "hardware": environment.hardware() | {"threads": torch.get_num_threads()},
        "load": os.getloadavg()[0],
    }


@dataclass(frozen=True)
class Change:
    """How a figure differs from a recorded one."""

    row: Row
    factor: float

    @property
    def size(self) -> float:
        """How much of the larger of the two, in either direction."""
        return max(self.factor, 1 / self.factor) - 1

    def __str__(self) -> str:
        row = self.row
        return f"{row.op}, {row.case}, {row.step}, {row.method}: {self.factor:.2f} of the recorded figure"


def changes(new: Record, old: Record) -> list[Change]:
    """How the figures of a run differ from recorded ones, largest change first.

    On a GPU the figures are times. On a CPU, whose times say little elsewhere, and of calls on end, whose time is that
    of the CPU which launches them, they are how much slower each peer is.

    Raises:
        UsageError: If the two have no figure in common.
    """
    if new.device != old.device:
        raise UsageError(f"a run on {new.device} cannot be compared with one on {old.device}: choose another record.")
    before = {_key(row): row for row in old.rows}
    found = []
    for row in new.rows:
        recorded = before.get(_key(row))
        by_time = new.device == "cuda" and row.burst == 1
        now, then = (None if one is None else one.seconds if by_time else one.slower for one in (row, recorded))
        if now is not None and then is not None:
            found.append(Change(row, now.median / then.median))
    if not found:
        raise UsageError("the two runs have no figure in common: measure the same ops, in full or both --quick.")
    return sorted(found, key=lambda change: -change.size)


def _key(row: Row) -> tuple[str, ...]:
    return row.op, row.case, row.step, row.method
