"""R² of age from whole and from weaker face descriptors."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.extrapolation.figures.scores import PANELS
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.weak_faces import COMPARED, COMPONENTS, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

DESCRIPTORS = {0: "whole descriptors", COMPONENTS: f"{COMPONENTS} random projections"}


def figures(records: Records) -> list[Figure]:
    """Draw R² outside and inside the data."""
    rows = []
    for metric, panel in PANELS.items():
        groups: list[Group] = [
            (
                {"rows": panel, "descriptors": name, "network": NAMES[norm_at]},
                pick(records, PART.name, components=components, norm_at=norm_at),
            )
            for components, name in DESCRIPTORS.items()
            for norm_at in COMPARED
        ]
        rows += score_rows(groups, metric)
    return [
        Figure(
            title="Faces: R² of age with whole and with weaker descriptors",
            caption="Mean over seeds with its 95% interval. The projections of each seed are new.",
            rows=rows,
            spec=dots(
                x={"field": "value", "title": "R²"},
                rows="descriptors",
                order=list(DESCRIPTORS.values()),
                series="network",
                sources=[NAMES[norm_at] for norm_at in COMPARED],
                facet="rows",
                panels=list(PANELS.values()),
            ),
            alt="Two panels, R² outside and inside the data, for whole and weaker descriptors.",
        )
    ]
