"""Gradients of an MLP's last matrix, compared with the bound of Proposition 3.1."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.periln.bound import NORMS, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

SERIES = {"pre": "Pre-LN", "peri": "Peri-LN", "bound": "bound of Peri-LN"}
LOG = {"type": "log"}


def figures(records: Records) -> list[Figure]:
    """Draw the gradients against the scale of the hidden features."""
    rows = []
    for norm in NORMS:
        groups: list[Group] = [({"norm": norm}, pick(records, PART.name, norm=norm))]
        for series, title in SERIES.items():
            means = mean_rows(groups, "scale", series, band=False)
            rows += [{"norm": norm, "network": title, "scale": row["scale"], "gradient": row[series]} for row in means]
    return [
        Figure(
            title="Gradient of an MLP's last matrix against the scale of its hidden features",
            caption="The largest element of each token's gradient, mean over tokens and seeds, and the bound of "
            "Proposition 3.1; both axes logarithmic.",
            rows=rows,
            spec=curves(
                x={"field": "scale", "title": "scale of the hidden features", "scale": {"type": "log", "base": 2}},
                y={"field": "gradient", "title": "gradient", "scale": LOG},
                series="network",
                order=list(SERIES.values()),
                facet="norm",
                panels=list(NORMS),
            ),
            alt="Two panels, RMSNorm and LayerNorm, each with lines for Pre-LN, Peri-LN and the bound.",
        )
    ]
