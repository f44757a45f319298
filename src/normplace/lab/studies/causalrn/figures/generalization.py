"""Accuracy on strings longer than those in training, by kind of position."""

from __future__ import annotations

from normplace.lab.studies.causalrn.figures.scores import accuracy_by_length
from normplace.lab.studies.causalrn.generalization import PART, Variant
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the accuracy by length, one figure for each longest trained length."""
    return [_figure(records, longest) for longest in config_values(records, PART.name, "longest")]


def _figure(records: Records, longest: int) -> Figure:
    variants = dict.fromkeys(
        Variant(*(record.config[field] for field in Variant._fields))
        for record in pick(records, PART.name, longest=longest)
    )
    return accuracy_by_length(
        {variant.title: pick(records, PART.name, longest=longest, **variant._asdict()) for variant in variants},
        longest,
        title=f"Length generalization: trained on strings of up to {longest} characters",
        caption="Share of correct strings and characters under teacher forcing, by length, at equal parameter counts. "
        "The dashed line is the longest trained length. Mean and range over seeds.",
    )
