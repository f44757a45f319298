"""R² inside and outside the training distribution, compared with the paper's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normplace.lab.report.rows import score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.extrapolation.published import Table
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure

PANELS = {"ood_r2": "outside the data (OOD)", "id_r2": "inside the data (ID)"}
HERE, PUBLISHED = "measured here", "published"


def score_figure(
    title: str, caption: str, models: Mapping[str, str], records: Mapping[str, Records], table: Table
) -> Figure:
    """Draw mean R² of each model with its 95% interval, and the paper's numbers with separate marks."""
    rows: list[dict[str, Any]] = []
    for metric, panel in PANELS.items():
        for key, name in models.items():
            columns = {"model": name, "rows": panel, "source": HERE}
            rows += score_rows([(columns, records.get(key, ()))], metric)
            mean, half = table[metric][key]
            rows.append({**columns, "source": PUBLISHED, "value": mean, "low": mean - half, "high": mean + half})
    return Figure(
        title=title,
        caption=f"{caption} R², mean over seeds with its 95% interval; published numbers are those of the paper.",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "R²"},
            rows="model",
            order=list(models.values()),
            series="source",
            sources=(HERE, PUBLISHED),
            facet="rows",
            panels=list(PANELS.values()),
        ),
        alt="Two panels, R² outside and inside the data, with a point and interval for each model measured here and "
        "one for the published number.",
    )
