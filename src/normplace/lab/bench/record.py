"""The results of a run with everything needed to interpret them later, as JSON."""

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
"""Distributions of peers, and their modules."""
OWN = ("normplace", "python", "torch", "numpy")
"""Versions that every record contains."""


@dataclass(frozen=True)
class Row:
    """One pass of one case by one method.

    Args:
        op: The op.
        case: The label of the case.
        step: The pass.
        method: Name of the method.
        seconds: Duration.
        slower: Duration divided by normplace's, per round; None for normplace.
        peak_bytes: Peak memory above the inputs; None if unknown.
        error: Largest error relative to the largest entry; None if the method computes something else.
        ceiling: The hardware limit of the pass.
        amount: Minimal work of the pass in bytes, operations or exponentials.
        instead: What the method computes if that is not the op.
        burst: Calls timed back to back.
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
        """Minimal work per second."""
        return None if self.amount is None or self.instead else self.amount / self.seconds.median


@dataclass(frozen=True)
class Record:
    """The results of a run.

    Args:
        device: ``cpu`` or ``cuda``.
        command: The command line.
        date: Start of the run.
        versions: Versions of normplace, its dependencies and the peers.
        hardware: The machine.
        load: Load average before the run, because other work distorts CPU times.
        ceilings: Hardware limits by name.
        rows: The measurements.
        notes: What is left out, and why.
        refused: A sentence for each case whose result was wrong.
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
        """Write the record as JSON.

        Raises:
            UsageError: If it cannot be written.
        """
        write_atomic(path, json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record.

        Raises:
            UsageError: If the file does not exist, or is not a record of this format.
        """
        try:
            fields = json.loads(read_file(path))
        except UsageError:
            raise
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not JSON: pass a file that 'normplace bench --out' wrote.") from error
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise UsageError(f"{path} is not a record of format {FORMAT}: write it again with 'normplace bench --out'.")
        try:
            return cls(rows=[_row(row) for row in fields.pop("rows")], **fields)
        except (LookupError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} is not a complete record: write it again with 'normplace bench --out'."
            ) from error


def _row(fields: dict[str, Any]) -> Row:
    slower = fields.pop("slower")
    fields["case"] = fields["case"].replace(" on end", " back to back")  # the label in records of version 0.1.0
    return Row(seconds=Spread(**fields.pop("seconds")), slower=None if slower is None else Spread(**slower), **fields)


def run_environment(packages: Mapping[str, str] = PEERS) -> dict[str, Any]:
    """Date, versions, machine and load.

    Args:
        packages: Distributions whose versions are recorded if they are installed, and their modules.
    """
    versions = {name: version for name, version in environment.versions().items() if name in OWN}
    for package, module in packages.items():
        if importlib.util.find_spec(module) is not None:
            distributions = importlib.metadata.distributions(name=package)
            versions[package] = next((distribution.version for distribution in distributions), "of unknown version")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
        "hardware": environment.hardware() | {"threads": torch.get_num_threads()},
        "load": os.getloadavg()[0],
    }


@dataclass(frozen=True)
class Change:
    """Ratio of a measurement to the recorded one."""

    row: Row
    factor: float

    @property
    def size(self) -> float:
        """Relative change in either direction."""
        return max(self.factor, 1 / self.factor) - 1

    def __str__(self) -> str:
        row = self.row
        return f"{row.op}, {row.case}, {row.step}, {row.method}: {self.factor:.2f} of the recorded value"


def changes(new: Record, old: Record) -> list[Change]:
    """Changes of a run relative to a recorded one, largest first.

    On a GPU, times are compared. On a CPU, and for calls timed back to back, whose time depends on the CPU, the peers'
    times relative to normplace are compared.

    Raises:
        UsageError: If the two records have no measurement in common.
    """
    if new.device != old.device:
        raise UsageError(f"a run on {new.device} cannot be compared with one on {old.device}: choose another record.")
    before = {_key(row): row for row in old.rows}
    differences = []
    for row in new.rows:
        recorded = before.get(_key(row))
        by_time = new.device == "cuda" and row.burst == 1
        now, then = (None if one is None else one.seconds if by_time else one.slower for one in (row, recorded))
        if now is not None and then is not None:
            differences.append(Change(row, now.median / then.median))
    if not differences:
        raise UsageError("the two runs have no measurement in common: measure the same ops, in full or both --quick.")
    return sorted(differences, key=lambda change: -change.size)


def _key(row: Row) -> tuple[str, ...]:
    return row.op, row.case, row.step, row.method
