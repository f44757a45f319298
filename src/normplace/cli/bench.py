"""``normplace bench``."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from normplace.cli.options import File
from normplace.errors import UsageError, expect_installed

if TYPE_CHECKING:
    from normplace.lab.bench.case import Op
    from normplace.lab.bench.record import Record

DEVICES = ("auto", "cpu", "cuda")
TOLERANCE = 0.1
"""Largest relative change from a record of the same machine."""


def bench(
    *op: str,
    quick: bool = False,
    device: Annotated[str, Parameter(choices=DEVICES)] = "auto",
    out: File | None = None,
    html: File | None = None,
    show: File | None = None,
    against: File | None = None,
    tune: bool = False,
    json: bool = False,
) -> int:
    """Measure speed and memory of the ops against named peers, after checking their results.

    Prints times and fractions of the measured hardware limits on a GPU, and only ratios on a CPU. Figures of a kernel
    with wrong results are left out. The exit code is 1 if there is one, or if a figure differs from the baseline by
    more than 10%.

    Args:
        op: Ops to measure, such as aggregate; all by default.
        quick: Measure a few small cases: under two minutes on two cores.
        device: Where to measure; auto is a GPU if there is one.
        out: Write the record as JSON.
        html: Write a page with charts.
        show: Show this record instead of measuring.
        against: Baseline record to compare with.
        tune: Try layouts of the GPU kernels instead.
        json: Print the record as JSON.
    """
    if html is not None:
        expect_installed("this command", "vl_convert", "charts")
    from normplace._shared.device import pick_device
    from normplace._shared.output import check_writable, write_atomic
    from normplace._shared.terminal import table_width
    from normplace.lab.bench import load_ops
    from normplace.lab.bench.record import Record
    from normplace.lab.bench.table import report

    ops = load_ops(op)
    device = pick_device(device).type
    if tune:
        return _tune(ops, device)
    for path in (out, html):
        if path is not None:
            check_writable(path)  # before minutes of measuring
    baseline = None if against is None else Record.read(against)
    try:
        record = Record.read(show) if show else _measure(ops, device, quick, out, op)
    except KeyboardInterrupt:
        saved = f"Finished cases are in {out}" if out else "Nothing is saved without --out"
        print(f"normplace: Interrupted. {saved}.", file=sys.stderr)
        return 130
    print(dumps(dataclasses.asdict(record), indent=1) if json else report(record, table_width(sys.stdout)))
    if html is not None:
        from normplace.lab.bench.chart import render

        write_atomic(html, render(record))
        if not json:
            print(f"The page is at {html.resolve()}")
    matches = baseline is None or _compare(record, baseline, str(against), quiet=json)
    for sentence in record.refused:
        print(f"normplace: wrong result: {sentence}", file=sys.stderr)
    return 1 if record.refused or not matches else 0


def _tune(ops: Sequence[Op], device: str) -> int:
    if device != "cuda":
        raise UsageError("--tune needs a CUDA GPU: none is available, or --device is cpu.")
    for op in ops:
        for line in op.tune() if op.tune else [f"{op.name} has no layouts to tune"]:
            print(line, flush=True)
    return 0


def _measure(ops: Sequence[Op], device: str, quick: bool, out: File | None, names: Sequence[str]) -> Record:
    from normplace.lab.bench.progress import watch
    from normplace.lab.bench.run import plan, run

    cases = plan(ops, device, quick)
    words = ["normplace", "bench", *names, *(["--quick"] if quick else []), "--device", device]
    record = None
    with watch(f"bench on {device}", [str(case) for case in cases]) as progress:
        for record in run(cases, device, quick, progress, shlex.join(words)):
            if out is not None:
                record.write(out)
    assert record is not None  # every op has cases
    return record


def _compare(record: Record, baseline: Record, name: str, quiet: bool) -> bool:
    """Return whether all measurements match the baseline; print the differences unless ``quiet``."""
    from normplace.lab.bench.record import changes

    differences = changes(record, baseline)
    far = [difference for difference in differences if difference.size > TOLERANCE]
    if not quiet:
        near = len(differences) - len(far)
        print(f"\n{near} of {len(differences)} measurements are within {TOLERANCE:.0%} of those in {name}")
        for difference in far:
            print(f"  {difference}")
    return not far
