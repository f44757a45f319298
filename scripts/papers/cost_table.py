"""Time and hardware of the committed runs, from their records."""

from __future__ import annotations

from normplace._shared.text_table import markdown_table
from normplace.lab.trials.environment import describe
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Study
from papers import committed

HEADINGS = ("part", "scale", "trials", "sum of their times", "slowest trial", "machine")


def cost_table(study: Study) -> str:
    """The commands, and a table with a row for each part, scale and machine, and one for each whole scale."""
    rows: list[list[str]] = []
    for one, scale, records in committed.runs():
        if one.name != study.name:
            continue
        groups: dict[tuple[str, str], list[TrialRecord]] = {}
        for part in study.parts:
            for record in records:
                if record.part == part.name:
                    groups.setdefault((part.name, _machine(record)), []).append(record)
        rows += [[part, scale, *_numbers(selected), machine] for (part, machine), selected in groups.items()]
        rows.append([f"**{part}**" for part in ("all", scale, *_numbers(records))] + [""])
    introduction = (
        f"`normplace study {study.name}` runs the laptop scale, and `--scale full` the full one. Times are sums over "
        "trials as if they ran one after another; trials on one machine partly shared it."
    )
    table = markdown_table(HEADINGS, rows, right_from=2).replace("---: |\n", "--- |\n", 1)  # machines are text
    return f"{introduction}\n\n{table}"


def _machine(record: TrialRecord) -> str:
    return describe(record.hardware).replace("(R)", "")


def _numbers(records: list[TrialRecord]) -> list[str]:
    seconds = [record.seconds for record in records]
    return [f"{len(records):,}", duration(sum(seconds)), duration(max(seconds))]


def duration(seconds: float) -> str:
    """A duration in the unit that suits it.

    >>> duration(0.04), duration(12.3), duration(600), duration(9000)
    ('0.04 s', '12 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
