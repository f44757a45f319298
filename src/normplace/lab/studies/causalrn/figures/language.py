"""Bits per byte of text."""

from __future__ import annotations

from normplace.lab.studies.causalrn.figures.scores import score_figures
from normplace.lab.studies.causalrn.language import PART
from normplace.lab.trials.per_seed import Records
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the bits per byte of every network."""
    return score_figures(
        records,
        PART.name,
        "text",
        "{} text",
        "bits_per_byte",
        "bits per byte",
        title="Language modeling on bytes",
        caption="On held-out files; mean over seeds with its 95% interval, at equal parameter counts and equal numbers "
        "of bytes read.",
    )
