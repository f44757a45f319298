"""The kernel over pairs of inputs, of networks and of their limit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from normplace.lab.studies.extrapolation.kernels import PART, POINTS, grid
from normplace.lab.studies.extrapolation.network import NAMES, VARIANTS
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

SHOWN = frozenset(round(step * (POINTS - 1) / 7) for step in range(8))
"""The points that are drawn, both edges among them: a quarter of the cells shows the same shape."""


def _mean_kernel(lines: Sequence[TrialRecord], series: str) -> list[float]:
    columns = zip(*(line.series[series] for line in lines), strict=True)
    return [sum(value for value in column if value is not None) / len(column) for column in columns]


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """The mean kernel of each variant beside its limit, each on its own scale of colours."""
    x = grid()[:, 0].tolist()
    first, second = torch.triu_indices(POINTS, POINTS).tolist()
    drawn = []
    for norm_at in VARIANTS:
        chosen = pick(lines, PART.name, norm_at=norm_at)
        if not chosen:
            continue
        rows = []
        for kind, series in (("networks", "kernel"), ("infinite width", "infinite")):
            for i, j, value in zip(first, second, _mean_kernel(chosen, series), strict=True):
                if not {i, j} <= SHOWN:
                    continue
                rows += [{"network": kind, "x": x[a], "other": x[b], "kernel": value} for a, b in {(i, j), (j, i)}]
        drawn.append(
            Figure(
                title=f"Tangent kernel on [-25, 25]², {NAMES[norm_at]}",
                caption=(
                    f"Mean over {len(chosen)} networks of width {chosen[0].config['width']} at initialisation, and the "
                    "infinitely wide limit, in NTK parametrization."
                ),
                rows=rows,
                spec=HEATMAP,
                alt=f"Two heatmaps of the kernel over pairs of inputs, {NAMES[norm_at]}: networks and their limit.",
            )
        )
    return drawn


_AXIS = {"type": "ordinal", "axis": {"format": ".0f", "labelAngle": 0, "labelOverlap": True}}
HEATMAP = {
    "facet": {"field": "network", "type": "nominal", "title": None, "sort": ["networks", "infinite width"]},
    "columns": 2,
    "spec": {
        "width": 260,
        "height": 260,
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "x", **_AXIS},
            "y": {"field": "other", "title": "other x", "sort": "descending", **_AXIS},
            "color": {"field": "kernel", "type": "quantitative", "scale": {"scheme": "viridis"}, "title": "kernel"},
        },
    },
}
