"""Accuracy of the hand-built retrieval head."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.figures.scores import accuracy_rows
from normplace.lab.studies.causalrn.head import PART, VARIANTS
from normplace.lab.studies.causalrn.networks import PAIR_NORMS
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw accuracy by number of keys."""
    heads = {f"{PAIR_NORMS[norm]}, {activation}": (norm, activation) for norm, activation in VARIANTS}
    groups: list[Group] = [
        ({"head": name, "length": n}, pick(records, PART.name, pair_norm=norm, activation=activation, length=n))
        for name, (norm, activation) in heads.items()
        for n in config_values(records, PART.name, "length")
    ]
    rows = accuracy_rows(groups, "accuracy")
    return [
        Figure(
            title="A retrieval head built by hand: accuracy by number of keys",
            caption="One layer without training: the query cancels its key, and small channels mark the values. Mean "
            "and range over seeds.",
            rows=rows,
            spec=curves(
                x={"field": "length", "title": "keys", "scale": {"type": "log", "nice": False}},
                y={"field": "value", "title": "accuracy", "scale": {"domain": [0, 1]}},
                series="head",
                order=list(heads),
                band=True,
            ),
            alt="Accuracy against the number of keys, one line for each pair norm and activation.",
        )
    ]
