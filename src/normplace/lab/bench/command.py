"""``normplace bench``: measure or read a record, then print, draw or compare it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from normplace._shared.device import pick_device
from normplace._shared.output import check_writable, write_atomic
from normplace.errors import UsageError, unknown
from normplace.lab.bench import load_ops
from normplace.lab.bench.case import Op
from normplace.lab.bench.progress import watch
from normplace.lab.bench.record import Record, changes
from normplace.lab.bench.run import plan, run
from normplace.lab.bench.table import report

DEVICES = ("auto", "cpu", "cuda")
NEAR = 0.1
"""Largest relative change from a record of the same machine."""


@dataclass(frozen=True)
class Request:
    """Arguments of the command.

    Args:
        op: Names of ops; all if empty.
        quick: Measure only a few small cases.
        device: ``auto``, ``cpu`` or ``cuda``.
        out: Where to write the record.
        html: Where to write a page with charts.
        show: A record to show instead of measuring.
        against: A record to compare with.
        tune: Time layouts of the GPU kernels instead.
    """

    op: Sequence[str] = ()
    quick: bool = False
    device: str = "auto"
    out: Path | None = None
    html: Path | None = None
    show: Path | None = None
    against: Path | None = None
    tune: bool = False


def execute(request: Request) -> int:
    """Run the command and return the exit code.

    Raises:
        UsageError: If an argument is invalid.
    """
    ops, device = load_ops(request.op), _device(request.device)
    if request.tune:
        return _tune(ops, device)
    for path in (request.out, request.html):
        if path is not None:
            check_writable(path)  # before minutes of measurement
    expected = None if request.against is None else Record.read(request.against)
    try:
        record = Record.read(request.show) if request.show else _measure(ops, device, request)
    except KeyboardInterrupt:
        saved = f"Finished cases are in {request.out}" if request.out else "Nothing is saved without --out"
        print(f"normplace: interrupted. {saved}.", file=sys.stderr)
        return 130
    print(report(record))
    if request.html is not None:
        from normplace.lab.bench.chart import render

        write_atomic(request.html, render(record))
        print(f"The page is at {request.html.resolve()}")
    matches = expected is None or _compare(record, expected, str(request.against))
    for sentence in record.refused:
        print(f"normplace: wrong result: {sentence}", file=sys.stderr)
    return 1 if record.refused or not matches else 0


def _device(name: str) -> str:
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return pick_device(name).type


def _tune(ops: Sequence[Op], device: str) -> int:
    if device != "cuda":
        raise UsageError("--tune needs a CUDA GPU: none is available, or --device is cpu.")
    for op in ops:
        for line in op.tune() if op.tune else [f"{op.name} has no layouts to tune"]:
            print(line, flush=True)
    return 0


def _measure(ops: Sequence[Op], device: str, request: Request) -> Record:
    cases = plan(ops, device, request.quick)
    words = ["normplace", "bench", *request.op, *(["--quick"] if request.quick else []), "--device", device]
    record = None
    with watch(f"bench on {device}", [str(case) for case in cases]) as progress:
        for record in run(cases, device, request.quick, progress, shlex.join(words)):
            if request.out is not None:
                record.write(request.out)
    assert record is not None  # every op has cases
    return record


def _compare(record: Record, expected: Record, name: str) -> bool:
    """Whether a run's measurements match a record; prints the differences."""
    compared = changes(record, expected)
    far = [change for change in compared if change.size > NEAR]
    print(f"\n{len(compared) - len(far)} of {len(compared)} measurements are within {NEAR:.0%} of those in {name}")
    for change in far:
        print(f"  {change}")
    return not far
