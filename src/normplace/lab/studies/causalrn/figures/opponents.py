"""CausalRN against Transformers with several kinds of position and recurrent networks."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.causalrn.figures.courses import course_figures
from normplace.lab.studies.causalrn.figures.scores import accuracy_dots, accuracy_rows
from normplace.lab.studies.causalrn.opponents import PART, WIDE, Opponent
from normplace.lab.studies.causalrn.published_measures import chosen_rate
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

BUDGETS = {"string_in_budget": "published steps", "string": "all steps"}


def figures(records: Records) -> list[Figure]:
    """Draw the string accuracy of every network by length and budget, and its accuracy along the training."""
    networks = dict.fromkeys(
        Opponent(*(record.config[field] for field in Opponent._fields)) for record in pick(records, PART.name)
    )
    rates = {opponent: chosen_rate(records, opponent) for opponent in networks}
    lengths = config_values(records, PART.name, "length")
    panels = {
        (length, metric): f"{length} characters, {title}" for length in lengths for metric, title in BUDGETS.items()
    }
    rows = []
    for (length, metric), panel in panels.items():
        groups: list[Group] = [
            (
                {"panel": panel, "network": opponent.title, "source": "measured"},
                _picked(records, opponent, rate, length),
            )
            for opponent, rate in rates.items()
        ]
        rows += accuracy_rows(groups, metric)
    longest = {
        opponent.title: _picked(records, opponent, rate, lengths[-1])
        for opponent, rate in rates.items()
        if rate and opponent not in WIDE
    }
    courses = course_figures(
        longest, "Opponents: accuracy along the training", f"Strings of {lengths[-1] if lengths else 0} characters."
    )
    return [
        Figure(
            title="Opponents: strings copied without an error",
            caption="At CausalRN's parameter count unless the width is equal, each at the better of two learning "
            "rates. The published steps are 2,000; Transformers train for up to 6,000. Mean and range over "
            "seeds.",
            rows=rows,
            spec=accuracy_dots("string", "network", [opponent.title for opponent in networks], panels.values()),
            alt="One panel for each length and number of steps, with a point and its range for every network.",
        ),
        *courses,
    ]


def _picked(records: Records, opponent: Opponent, rate: float | None, length: int) -> list[TrialRecord]:
    """The records of a network at its better learning rate."""
    return pick(records, PART.name, **opponent._asdict(), learning_rate=rate, length=length)
