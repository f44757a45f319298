"""Cost by sequence length."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import curves
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.studies.causalrn.scaling import FORMS, PART
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure

COSTS = {
    "elements": "elements read, forward pass",
    "peak_bytes": "bytes, training step",
    "state_rows": "rows, decoding state",
}


def figures(records: Records) -> list[Figure]:
    """Draw every cost against the length."""
    forms = [form for form in FORMS if pick(records, PART.name, form=form)]
    rows = []
    for name, panel in COSTS.items():
        groups: list[Group] = [
            ({"cost": panel, "form": TITLES[form], "length": n}, pick(records, PART.name, form=form, length=n))
            for form in forms
            for n in config_values(records, PART.name, "length")
        ]
        rows += score_rows(groups, name)
    spec = curves(
        x={"field": "length", "title": "tokens", "scale": {"type": "log", "nice": False}},
        y={"field": "value", "title": "cost", "scale": {"type": "log"}},
        series="form",
        order=[TITLES[form] for form in forms],
        facet="cost",
        panels=list(COSTS.values()),
    )
    return [
        Figure(
            title="Cost of a sequence by its length",
            caption="Counted on a CPU: elements read by the operations of a forward pass, peak memory of a training "
            "step without weights and gradients, and rows of the decoding state per layer. Both axes logarithmic.",
            rows=rows,
            spec={**spec, "resolve": {"scale": {"y": "independent"}}},
            alt="Three panels of cost against length, one line for the scan and one for the pairwise form.",
        )
    ]
