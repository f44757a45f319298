"""Accuracy of CausalRN without its ingredients."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.causalrn.ablation import ACTIVATIONS, NORMS, PART
from normplace.lab.studies.causalrn.figures.scores import accuracy_dots, accuracy_rows
from normplace.lab.studies.causalrn.networks import PAIR_NORMS
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

POST_NORMS = {True: "norm after the sum", False: "no norm after the sum"}


def figures(records: Records) -> list[Figure]:
    """Draw character accuracy by activation, pair norm and norm after the sum."""
    groups: list[Group] = [
        (
            {"after": title, "pairs": PAIR_NORMS[pair_norm], "activation": activation},
            pick(records, PART.name, pair_norm=pair_norm, activation=activation, post_norm=post_norm),
        )
        for post_norm, title in POST_NORMS.items()
        for pair_norm in NORMS
        for activation in ACTIVATIONS
    ]
    rows = accuracy_rows(groups, "character")
    return [
        Figure(
            title="Ablation of CausalRN: character accuracy",
            caption="After training on strings of one length; mean and range over seeds.",
            rows=rows,
            spec=accuracy_dots(
                "character",
                "activation",
                ACTIVATIONS,
                POST_NORMS.values(),
                series="pairs",
                sources=PAIR_NORMS.values(),
                facet="after",
            ),
            alt="Two panels, with and without the norm after the sum; in each, a point with its range for every "
            "activation and pair norm.",
        )
    ]
