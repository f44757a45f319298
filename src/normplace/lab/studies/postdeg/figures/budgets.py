"""Spread of influence policies with matched and other budgets, relative to RIS greedy."""

from __future__ import annotations

from typing import Any

from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import dots
from normplace.lab.studies.postdeg.budgets import REFERENCES, SHARES, USUAL
from normplace.lab.studies.postdeg.claims.budgets import spread
from normplace.lab.studies.postdeg.topologies import LEARNED
from normplace.lab.tasks.selection_names import METHODS
from normplace.lab.trials.per_seed import PerSeed, Records
from normplace.lab.trials.study import Figure

MATCHED, OTHER, CLASSICAL = "trained with the same share", f"trained with {USUAL:g}", "classical methods"


def figures(records: Records) -> list[Figure]:
    """Draw one panel per share of seeds."""
    rows: list[dict[str, Any]] = []
    for share in SHARES:
        panel = f"{share:.1%} of the nodes are seeds"
        for method, title in LEARNED.items():
            ris = spread(method, share, name="ris")
            rows += _row(panel, title, MATCHED, (spread(method, share) / ris)(records))
            if share != USUAL:
                other = spread(method, share, USUAL) / spread(method, share, USUAL, "ris")
                rows += _row(panel, title, OTHER, other(records))
        for name in REFERENCES[1:]:
            reference = spread("degree-input", share, name=name) / spread("degree-input", share, name="ris")
            rows += _row(panel, METHODS[name].title, CLASSICAL, reference(records))
    return [
        Figure(
            title="Influence with matched budgets: spread relative to RIS greedy",
            caption="Unseen configuration models with power laws of degrees, weighted cascade; mean over seeds with "
            "its 95% interval. RIS greedy is 1.",
            rows=rows,
            spec=dots(
                x={"field": "ratio", "title": "spread over RIS greedy"},
                rows="method",
                order=[*LEARNED.values(), *(METHODS[name].title for name in REFERENCES[1:])],
                series="source",
                sources=(MATCHED, OTHER, CLASSICAL),
                facet="panel",
                panels=list(dict.fromkeys(row["panel"] for row in rows)),
            ),
            alt="Three panels, one per share of seeds, with a point and interval for every policy and method.",
        )
    ]


def _row(panel: str, method: str, source: str, ratio: PerSeed) -> list[dict[str, Any]]:
    """Mean ratio with its interval; empty without records."""
    numbers = mean_columns(ratio.values(), "ratio")
    return [{"panel": panel, "method": method, "source": source, **numbers}] if numbers else []
