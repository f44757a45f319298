"""The results of a run as a table: times and fractions of the hardware limits on a GPU, ratios on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from normplace._shared.text_table import text_table
from normplace.lab.bench.ceilings import UNITS
from normplace.lab.bench.record import Record, Row

Table = tuple[Sequence[str], list[list[str]]]

BUSY = 0.5
"""Load per core above which CPU times are unreliable."""
TEXT_COLUMNS = 3
"""Leading columns of text; the others are numbers."""


def table(record: Record, op: str) -> Table:
    """Headings and cells of one op's results."""
    rows = [row for row in record.rows if row.op == op]
    own = {(row.case, row.step): row for row in rows if row.slower is None}
    if record.device == "cpu":
        headings = [
            "case",
            "pass",
            "peer",
            "times faster",
            "quartiles",
            "times less memory",
            "normplace error",
            "peer error",
        ]
        body = [_ratios(row, own[row.case, row.step]) for row in rows if row.slower is not None]
    else:
        headings = [
            "case", "pass", "method", "ms", "quartiles", "rate", "of ceiling", "peak MiB", "error", "times normplace"
        ]  # fmt: skip
        body = [_times(row, record.ceilings) for row in rows]
    return headings, _without_repeats(body)


def _ratios(row: Row, own: Row) -> list[str]:
    assert row.slower is not None
    memory = row.peak_bytes / own.peak_bytes if row.peak_bytes is not None and own.peak_bytes else None
    return [
        row.case,
        row.step,
        _named(row),
        _three_digits(row.slower.median),
        f"{_three_digits(row.slower.low)} to {_three_digits(row.slower.high)}",
        _three_digits(memory),
        _small(own.error),
        _small(row.error),
    ]


def _times(row: Row, ceilings: Mapping[str, float]) -> list[str]:
    time, rate = row.seconds, row.rate
    limit = None if row.ceiling is None else ceilings.get(row.ceiling)
    unit, size = UNITS[row.ceiling] if row.ceiling else ("", 1.0)
    return [
        row.case,
        row.step,
        _named(row),
        f"{time.median * 1e3:.3f}",
        f"{time.low * 1e3:.3f} to {time.high * 1e3:.3f}",
        "" if rate is None else f"{_three_digits(rate / size)} {unit}",
        "" if rate is None or limit is None else f"{rate / limit:.0%}",
        "" if row.peak_bytes is None else _three_digits(row.peak_bytes / 2**20),
        _small(row.error),
        "" if row.slower is None else _three_digits(row.slower.median),
    ]


def _named(row: Row) -> str:
    return f"{row.method} ({row.instead})" if row.instead else row.method


def _three_digits(value: float | None) -> str:
    """Three significant digits, without an exponent.

    >>> [_three_digits(value) for value in (0.01234, 3.14159, 31.4159, 31415.9, None)]
    ['0.0123', '3.14', '31.4', '31416', '']
    """
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def _small(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"


def _without_repeats(body: Iterable[list[str]]) -> list[list[str]]:
    """The cells, with the case and the pass only where they change."""
    shown, before = [], ["", ""]
    for cells in body:
        same = cells[0] == before[0], cells[:2] == before
        shown.append(["" if hidden else cell for hidden, cell in zip(same, cells[:2], strict=True)] + cells[2:])
        before = cells[:2]
    return shown


def report(record: Record, width: int | None = None) -> str:
    """The results of a run for a terminal."""
    parts = [
        f"{name}: {_three_digits(rate / UNITS[name][1])} {UNITS[name][0]}" for name, rate in record.ceilings.items()
    ]
    blocks = ["hardware limits measured in this run: " + ", ".join(parts)] if parts else []
    blocks += [
        f"{op}\n{text_table(*table(record, op), right_from=TEXT_COLUMNS, width=width)}"
        for op in dict.fromkeys(row.op for row in record.rows)
    ]
    if record.device == "cpu" and record.load > BUSY * record.hardware["cores"]:
        blocks.append(
            f"the machine was busy (load {record.load:.1f} on {record.hardware['cores']} cores): "
            "measure again when it is idle."
        )
    if record.notes:
        blocks.append("left out:\n" + "\n".join(f"  {note}" for note in record.notes))
    return "\n\n".join(blocks)
