"""Heatmaps of the tangent kernel of finite networks and of their infinite-width limit."""

from __future__ import annotations

import torch

from normplace.lab.studies.extrapolation.kernels import PART, POINTS, grid
from normplace.lab.studies.extrapolation.networks import NAMES, VARIANTS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

SHOWN = frozenset(round(step * (POINTS - 1) / 7) for step in range(8))
"""Grid points that are drawn, both edges included: a quarter of the cells shows the same shape."""


def _mean_kernel(records: Records, series: str) -> list[float]:
    columns = zip(*(record.series[series] for record in records), strict=True)
    return [sum(value for value in column if value is not None) / len(column) for column in columns]


def figures(records: Records) -> list[Figure]:
    """Draw the mean kernel of each variant next to its limit, each with its own color scale."""
    x = grid()[:, 0].tolist()
    first, second = torch.triu_indices(POINTS, POINTS).tolist()
    drawn: list[Figure] = []
    for norm_at in VARIANTS:
        selected = pick(records, PART.name, norm_at=norm_at)
        if not selected:
            continue
        rows = []
        for kind, series in (("networks", "kernel"), ("infinite width", "infinite")):
            for i, j, value in zip(first, second, _mean_kernel(selected, series), strict=True):
                if not {i, j} <= SHOWN:
                    continue
                rows += [{"network": kind, "x": x[a], "other": x[b], "kernel": value} for a, b in {(i, j), (j, i)}]
        drawn.append(
            Figure(
                title=f"Tangent kernel on [-25, 25]², {NAMES[norm_at]}",
                caption=(
                    f"Mean over {len(selected)} networks of width {selected[0].config['width']} at initialization, and "
                    "the infinite-width limit, in NTK parametrization."
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
