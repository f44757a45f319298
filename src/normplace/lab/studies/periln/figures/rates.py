"""Tables of bits per byte by variant and learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.report.specs import cells


def rate_cells(rows: Sequence[Mapping[str, Any]], variant: str, **options: Any) -> dict[str, Any]:
    """Colored cells; the median is colorless, and the best cell has the full color."""
    values = sorted(row["bits"] for row in rows)
    middle = values[len(values) // 2]
    return cells(
        x="rate",
        columns=[f"{rate:g}" for rate in sorted({float(row["rate"]) for row in rows})],
        y=variant,
        rows=list(dict.fromkeys(row[variant] for row in rows)),
        value="bits",
        text="shown",
        title="bits per byte",
        middle=middle,
        reach=max(middle - values[0], 0.05),
        good="low",
        x_title="learning rate",
        **options,
    )
