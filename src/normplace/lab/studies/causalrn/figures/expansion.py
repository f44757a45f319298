"""Accuracy of CausalRN with other widths of the relation, heads and depths."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.causalrn.expansion import PART, Shape
from normplace.lab.studies.causalrn.figures.scores import accuracy_dots, accuracy_rows
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Figure


def figures(records: Records) -> list[Figure]:
    """Draw the character accuracy of every shape, one panel for each form and length."""
    shapes = dict.fromkeys(
        Shape(*(record.config[field] for field in Shape._fields)) for record in pick(records, PART.name)
    )
    panels = {
        (form, length): f"{TITLES[form]}, {length} characters"
        for form in ("pairwise", "scan")
        for length in config_values(records, PART.name, "length", form=form)
    }
    groups: list[Group] = [
        (
            {"panel": panel, "shape": shape.title, "source": "measured"},
            pick(records, PART.name, form=form, length=length, **shape._asdict()),
        )
        for (form, length), panel in panels.items()
        for shape in shapes
    ]
    rows = accuracy_rows(groups, "character_in_budget")
    return [
        Figure(
            title="Width of the relation, heads and depth of CausalRN: character accuracy",
            caption="After at most 2,000 steps on strings of one length; mean and range over seeds. The "
            "first row of the pairwise form with 192 pair channels is the published network.",
            rows=rows,
            spec=accuracy_dots("character", "shape", [shape.title for shape in shapes], panels.values()),
            alt="One panel for each form and length of strings, with a point and its range for every network.",
        )
    ]
