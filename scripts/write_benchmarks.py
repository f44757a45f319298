"""Write docs/reference/benchmarks.md from the committed records of `normplace bench`."""

from __future__ import annotations

from pathlib import Path

from normplace.lab.bench.page import page
from normplace.lab.bench.record import Record

ROOT = Path(__file__).parents[1]


def committed() -> list[Record]:
    """The records, those of a GPU first, the newest of each device first."""
    records = [Record.read(path) for path in (ROOT / "benchmarks" / "results").glob("bench-*.json")]
    return sorted(records, key=lambda record: (record.device, record.date), reverse=True)


if __name__ == "__main__":
    (ROOT / "docs" / "reference" / "benchmarks.md").write_text(page(committed()))
