"""Accuracy of copying at the published size, by length and along the training."""

from __future__ import annotations

from normplace.lab.studies.causalrn.copying_fixed import MAIN
from normplace.lab.studies.causalrn.figures.courses import course_figures
from normplace.lab.studies.causalrn.figures.scores import accuracy_at_lengths
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.studies.causalrn.published_copying import PART
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure

SCORES = {"string_in_budget": "string", "character_in_budget": "character"}
NETWORKS = {
    TITLES[network] + (", equal width" if size == "published" else ""): {"network": network, "size": size}
    for network, size in MAIN
}


def figures(records: Records) -> list[Figure]:
    """Draw accuracy by length, and along the training at the longest length."""
    lengths = config_values(records, PART.name, "length")
    if not lengths:
        return []
    by_length = accuracy_at_lengths(
        {
            name: {length: pick(records, PART.name, length=length, **fields) for length in lengths}
            for name, fields in NETWORKS.items()
        },
        SCORES,
        title="Published size: accuracy of copying by length",
        caption="Share of correct strings and characters under teacher forcing, after at most 2,000 steps on strings "
        "of that length. Mean and range over seeds; equal parameter counts except at equal width.",
    )
    longest = {name: pick(records, PART.name, length=lengths[-1], **fields) for name, fields in NETWORKS.items()}
    title = f"Published size: accuracy along the training, {lengths[-1]} characters"
    return [by_length, *course_figures(longest, title, "12 layers of width 192, 320 strings per step.")]
