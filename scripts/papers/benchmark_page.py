"""The results page: the committed records, and what is not measured."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from normplace._shared.text_table import markdown_table
from normplace.lab.bench import OPS, load_ops
from normplace.lab.bench.case import FORWARD, TRAINING
from normplace.lab.bench.ceilings import UNITS
from normplace.lab.bench.record import Record
from normplace.lab.bench.run import plan
from normplace.lab.bench.table import TEXT_COLUMNS, table
from normplace.lab.report.text import count
from normplace.lab.trials.environment import describe

TITLE = """\
# Benchmarks

How fast are the ops of normplace compared with named peers on the same machine? `normplace bench` measures it, and
`scripts/write_benchmarks.py` writes this page from the committed records.
"""
HOW = """\
## How it is measured

**Correctness first.** Results and gradients of every method are compared with a plain implementation in float64 on the
same inputs. If normplace's error exceeds what rounding explains, the case is not measured and the exit code is 1. The
table lists the errors of peers. Errors are relative to the largest entry.

**Times** are medians with quartiles, of a forward pass without gradients, and of forward and backward as in training.
Methods are interleaved, with one call of each in every round, and a ratio is the median over rounds.

**On a GPU** a time is measured between two events around one call whose inputs are not in the cache. The launches are
queued while the cache is flushed (about four milliseconds), as in a training step; only longer launch overhead shows.
Calls timed *back to back* include launch overhead. That is CPU time, which differed by up to a factor of two between
machines with the same GPU, so `--against` compares ratios there; small tangent kernels also vary.

**Rates.** *Rate* is the minimal work of a pass divided by its time, and *of ceiling* its fraction of what the same GPU
reached in the same run: bytes of a device copy, operations of a float32 matrix product, or exponentials of a kernel
that computes nothing else. Memory is the peak above the inputs, including results.

**On a CPU** only ratios are reported. Times are measured while the C library's allocator keeps large freed blocks: by
default it returns them to the system, which makes peers that allocate much several times slower. Memory is the
high-water mark of the resident set above its value before the call.

Measure your machine with `normplace bench --quick`, which runs a few small cases in under two minutes on two cores.
`--out` writes the record, `--show` prints one, `--against` compares a run with one, `--html` draws it, and `--tune`
times layouts of the GPU kernels.
"""
SUMMARY = """\
## Summary

The time of a peer divided by that of normplace: the median over the cases, and the range. Above 1, normplace is faster.
Methods that compute something else are in the tables below only.
"""

STEPS = (FORWARD, TRAINING)
NOT_MEASURED = (
    "other machines than those above, and several GPUs at once",
    "whole training runs: the other work of a step is not included",
    "energy, and the time to compile kernels at first use",
    "other precisions than those named in a case; a case without one is float32",
)


def page(records: Sequence[Record]) -> str:
    """The page as text."""
    measured = dict.fromkeys(row.op for record in records for row in record.rows)
    ops = "\n".join(f"- `{op.name}`: {op.summary}" for op in load_ops(measured))
    what = f"## What is measured\n\n{ops}\n"
    return "\n".join([TITLE, _summary(records), HOW, what, *map(_run, records), _not_measured(records)])


def _summary(records: Sequence[Record]) -> str:
    """Ratios of every peer, by op and machine."""
    ratios: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for record in records:
        for row in record.rows:
            if row.slower is not None and not row.instead:
                peer = ratios.setdefault((row.op, _machine(record), row.method), {})
                peer.setdefault(row.step, []).append(row.slower.median)
    rows = [
        [f"`{op}`", machine, method, str(max(map(len, steps.values()))), *(_range(steps.get(step)) for step in STEPS)]
        for (op, machine, method), steps in sorted(ratios.items(), key=lambda item: item[0][0])
    ]
    return f"{SUMMARY}\n{markdown_table(['op', 'machine', 'peer', 'cases', *STEPS], rows, right_from=3)}\n"


def _range(ratios: Sequence[float] | None) -> str:
    if not ratios:
        return ""
    numbers = (statistics.median(ratios), min(ratios), max(ratios))
    median, least, most = (f"{number:.2g}" if number < 10 else f"{number:.0f}" for number in numbers)
    return f"{median} ({least} to {most})"


def _run(record: Record) -> str:
    date = datetime.fromisoformat(record.date)
    facts = [
        f"- Hardware: {describe(dict(record.hardware))}; {count(record.hardware['threads'], 'thread')}",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in record.versions.items())}",
        f"- Date: {date:%-d %B %Y, %H:%M} UTC, at a load average of {record.load:.1f}",
        f"- Command: `{record.command}`",
    ]
    if record.ceilings:
        limits = (f"{name} {rate / UNITS[name][1]:.3g} {UNITS[name][0]}" for name, rate in record.ceilings.items())
        facts.append(f"- Hardware limits: {', '.join(limits)}")
    ops = dict.fromkeys(row.op for row in record.rows)
    parts = [f"## {_machine(record)}: {', '.join(f'`{op}`' for op in ops)}\n", "\n".join(facts), ""]
    for op in ops:
        parts += [f"### `{op}`\n", markdown_table(*table(record, op), right_from=TEXT_COLUMNS), ""]
    return "\n".join(parts)


def _not_measured(records: Sequence[Record]) -> str:
    left_out = dict.fromkeys(sentence for record in records for sentence in (*record.refused, *record.notes))
    unreached = [f"{_machine(record)}: {', '.join(ops)}" for record in records if (ops := _unreached(record))]
    items = "\n".join(f"- {text}" for text in (*unreached, *left_out, *NOT_MEASURED))
    return f"## What is not measured\n\n{items}\n"


def _unreached(record: Record) -> list[str]:
    """The requested ops without a result, and the number of missing cases of the others."""
    measured = {(row.op, row.case) for row in record.rows}
    requested = [word for word in record.command.split() if word in OPS]
    missing: Counter[str] = Counter()
    planned: Counter[str] = Counter()
    for case in plan(load_ops(requested), record.device, "--quick" in record.command):
        planned[case.op] += 1
        # A published graph may have replaced a random one.
        labels = {(case.op, case.label), (case.op, case.label.removesuffix(", drawn"))}
        was_wrong = any(text.startswith(f"{case}:") for text in record.refused)
        missing[case.op] += measured.isdisjoint(labels) and not was_wrong
    counts = {op: "" if n == planned[op] else f" ({n} of {planned[op]} cases)" for op, n in missing.items() if n}
    return [f"`{op}`{suffix}" for op, suffix in counts.items()]


def _machine(record: Record) -> str:
    return str(record.hardware.get("gpu") if record.device == "cuda" else record.hardware["cpu"])
