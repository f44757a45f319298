"""Accuracy of copying strings of varying length, within and beyond the trained lengths."""

from __future__ import annotations

from normplace.lab.studies.causalrn.copying_variable import PART, VARIANTS
from normplace.lab.studies.causalrn.figures.scores import accuracy_by_length
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
    return [
        accuracy_by_length(
            networks,
            longest,
            title="Copying strings of varying length, within and beyond the trained lengths",
            caption="Share of correct strings and characters under teacher forcing, after training on packed "
            f"strings of up to {longest} characters (dashed line), at equal parameter counts. Mean and range "
            "over seeds.",
        )
    ]
