"""The largest prediction that was found, over each bound."""

from __future__ import annotations

import math
from typing import Any

from normplace.lab.report.rows import mean_columns
from normplace.lab.report.specs import dots
from normplace.lab.studies.extrapolation.bounds import PART
from normplace.lab.studies.extrapolation.claims.bounds import DIMENSIONS
from normplace.lab.studies.extrapolation.networks import NAMES, NORMED
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

BOUNDS = {
    "over_norm_bound": "√(C yᵀΘ⁻¹y), proven",
    "over_eigenvalue_bound": "√(C n/λ_min) max|y|, proven",
    "over_crude_bound": "C n max|y|/λ_min, proven",
    "over_summarised_bound": "C max|y|/(λ_min n), as summarised",
}


def figures(records: Records) -> list[Figure]:
    """Draw the ratios on a logarithmic axis; a bound holds left of zero."""
    rows: list[dict[str, Any]] = []
    for features, panel in DIMENSIONS.items():
        for name, bound in BOUNDS.items():
            for norm_at in NORMED:
                selected = pick(records, PART.name, features=features, norm_at=norm_at)
                ratios = (record.metrics[name] for record in selected)
                columns = mean_columns(math.log10(ratio) for ratio in ratios if ratio)
                if columns:
                    rows.append({"data": panel, "bound": bound, "network": NAMES[norm_at], **columns})
    return [
        Figure(
            title="Largest prediction found, over each bound",
            caption="Decimal logarithm of the largest prediction that the search found over the bound, mean over seeds "
            "with its 95% interval: a bound holds where the point is left of 0.",
            rows=rows,
            spec=dots(
                x={"field": "value", "title": "log10 of the largest prediction over the bound"},
                rows="bound",
                order=list(BOUNDS.values()),
                series="network",
                sources=[NAMES[norm_at] for norm_at in NORMED],
                facet="data",
                panels=list(DIMENSIONS.values()),
            ),
            alt="Two panels, one per data set, with the ratio of the largest prediction to each of four bounds.",
        )
    ]
