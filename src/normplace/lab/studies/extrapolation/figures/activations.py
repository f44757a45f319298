"""The diagonal of the tangent kernel of other activations."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.extrapolation.activations import ACTIVATIONS, COMPARED, PART
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw Θ(x, x) of networks and of their infinite-width limit, one panel per activation."""
    rows = []
    for activation, name in ACTIVATIONS.items():
        for norm_at in COMPARED:
            selected = pick(records, PART.name, activation=activation, norm_at=norm_at)
            if not selected:
                continue
            group: Group = ({"activation": name, "network": NAMES[norm_at]}, selected)
            rows += [row for row in mean_rows([group], "x", "diagonal", band=False) if row["x"] > 0]
            limit: Group = ({"activation": name, "network": f"{NAMES[norm_at]}, infinite width"}, selected)
            rows += [
                {**row, "diagonal": row.pop("infinite")}
                for row in mean_rows([limit], "x", "infinite", band=False)
                if row["x"] > 0
            ]
    order = [f"{NAMES[norm_at]}{suffix}" for norm_at in COMPARED for suffix in ("", ", infinite width")]
    return [
        Figure(
            title="Diagonal of the tangent kernel, by activation",
            caption="Θ(x, x) of networks of width 512 at initialization, mean over seeds, and of the infinite-width "
            "limit, on logarithmic axes. A power of the input is a straight line.",
            rows=rows,
            spec=curves(
                x={"field": "x", "title": "input", "scale": {"type": "log"}},
                y={"field": "diagonal", "title": "Θ(x, x)", "scale": {"type": "log"}},
                series="network",
                order=order,
                facet="activation",
                panels=list(ACTIVATIONS.values()),
            )
            | {"resolve": {"scale": {"y": "independent"}}},
            alt="Diagonal of the kernel against the input, one panel per activation.",
        )
    ]
