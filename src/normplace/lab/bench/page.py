"""The results page: what the committed records say, and what nothing was measured of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from normplace._shared.text_table import markdown_table
from normplace.lab.bench import OPS, load_ops
from normplace.lab.bench.ceilings import UNITS
from normplace.lab.bench.record import Record
from normplace.lab.bench.run import plan
from normplace.lab.bench.table import TEXT_COLUMNS, table
from normplace.lab.report.text import count
from normplace.lab.trials.environment import describe

HOW = """\
# Benchmarks

Every op of the project beside named peers, measured in one run by `normplace bench`; this page is written from the
committed records by `scripts/write_benchmarks.py`.

**Correctness first.** Results and gradients of every method are compared with a plain form in double precision,
from the same inputs. Where the project's kernel is further from it than rounding explains, the case is
refused: nothing is reported of it, and the exit code is 1. A peer's error is a column of the table. Errors are
relative to the largest entry.

**Times** are medians with quartiles, of a forward pass without gradients, and of forward and backward as in training.
Methods take turns, one call of each in every round, and a ratio is the median over rounds. On a GPU a time is what
passes between two events around one call whose inputs are not in the cache, and whose launches are queued while the
cache is flushed, as those of a training step are; where launching takes longer than that, about four milliseconds, the
time shows it. Calls *on end*, timed together and divided, show what launching takes. That is the CPU's time, which on
machines with the same GPU has differed by up to twice: `--against` compares ratios there, and small tangent kernels
differ, too. *Rate* is what the pass must at least do, divided by the time, and *of ceiling* its fraction of what the
same GPU did in the same run: bytes of a device copy, operations of a float32 product, or exponentials of a kernel that
does nothing else. Memory is the most that was taken at a time over the inputs, results included.

**On a CPU** there are ratios only. Times are taken while the C library's allocator keeps large blocks that are freed:
as it comes, it gives them back to the system, and peers that allocate much are several times slower. Memory is the
high-water mark of the resident set over what it was.

```console
$ normplace bench --help
```

`normplace bench --quick` takes a few small cases, in under two minutes on two cores; `--out` writes the record,
`--show` prints one, `--against` compares a run with one, `--html` draws it, and `--tune` tries layouts of the GPU
kernels.
"""

NOT_MEASURED = (
    "other machines than those above, and several GPUs at once",
    "whole training runs: a step's other work is not in these figures",
    "energy, and the time to compile kernels when they are first used",
    "other precisions than those named in a case; a case without a name of one is float32",
)


def page(records: Sequence[Record]) -> str:
    """The page as text.

    Args:
        records: The committed runs.
    """
    measured = dict.fromkeys(row.op for record in records for row in record.rows)
    ops = "\n".join(f"- `{op.name}`: {op.summary}" for op in load_ops(measured))
    parts = [HOW, f"## What is measured\n\n{ops}\n", *(_run(record) for record in records), _not_measured(records)]
    return "\n".join(parts)


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
        facts.append(f"- Ceilings: {', '.join(limits)}")
    ops = dict.fromkeys(row.op for row in record.rows)
    parts = [f"## {_machine(record)}: {', '.join(f'`{op}`' for op in ops)}\n", "\n".join(facts), ""]
    for op in ops:
        parts += [f"### `{op}`\n", markdown_table(*table(record, op), right_from=TEXT_COLUMNS), ""]
    return "\n".join(parts)


def _not_measured(records: Sequence[Record]) -> str:
    left = dict.fromkeys(sentence for record in records for sentence in (*record.refused, *record.notes))
    unreached = [f"{_machine(record)}: {', '.join(ops)}" for record in records if (ops := _unreached(record))]
    items = "\n".join(f"- {text}" for text in (*unreached, *left, *NOT_MEASURED))
    return f"## What is not measured\n\n{items}\n"


def _unreached(record: Record) -> list[str]:
    """The ops that the command asked for and the record has nothing of, and how many cases it lacks of the others."""
    known = {(row.op, row.case) for row in record.rows}
    asked = [word for word in record.command.split() if word in OPS]
    left: Counter[str] = Counter()
    planned: Counter[str] = Counter()
    for case in plan(load_ops(asked), record.device, "--quick" in record.command):
        planned[case.op] += 1
        # A published graph may have taken the place of a drawn one.
        told = not known.isdisjoint({(case.op, case.label), (case.op, case.label.removesuffix(", drawn"))}) or any(
            text.startswith(f"{case}:") for text in record.refused
        )
        left[case.op] += not told
    return [f"`{op}`" + ("" if n == planned[op] else f" ({n} of {planned[op]} cases)") for op, n in left.items() if n]


def _machine(record: Record) -> str:
    return str(record.hardware.get("gpu") if record.device == "cuda" else record.hardware["cpu"])
