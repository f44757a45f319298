"""Accuracy of copying strings of varying length, within and beyond the trained lengths."""

from __future__ import annotations

from normplace.lab.report.rows import Group, mean_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.copying_variable import PART, VARIANTS
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw accuracy by length."""
    networks = {
        f"{TITLES[network]}, {'no' if positions == 'none' else positions} positions": selected
        for network, positions in VARIANTS
        if (selected := pick(records, PART.name, network=network, positions=positions))
    }
    if not networks:
        return []
    longest = next(iter(networks.values()))[0].config["longest"]
    rows = []
    for score in ("string", "character"):
        groups: list[Group] = [({"measure": score, "network": name}, selected) for name, selected in networks.items()]
        rows += [{"accuracy": row.pop(score), **row} for row in mean_rows(groups, "length", score)]
    return [
        Figure(
            title="Copying strings of varying length, within and beyond the trained lengths",
            caption="Share of correct strings and characters under teacher forcing, after training on packed "
            f"strings of up to {longest} characters (dashed line), at equal parameter counts. Mean over seeds with "
            "its 95% interval.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "characters", "scale": {"type": "log", "nice": False}},
                y={"field": "accuracy", "title": "accuracy", "scale": {"domain": [0, 1]}},
                series="network",
                order=list(networks),
                low="low",
                high="high",
                facet="measure",
                panels=("string", "character"),
                rules=(longest,),
            ),
            alt="Two panels, string and character accuracy against the length of strings, one line for each network.",
        )
    ]
