"""Accuracy of CausalRN without its ingredients, at the published size and with two budgets."""

from __future__ import annotations

from normplace.lab.report.rows import Group
from normplace.lab.studies.causalrn.figures.scores import accuracy_dots, accuracy_rows
from normplace.lab.studies.causalrn.networks import PAIR_NORMS
from normplace.lab.studies.causalrn.published_ablation import GRID, ONE_CHANGE, PART, Cell
from normplace.lab.studies.causalrn.published_size import BUDGET, LONGER
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure
from normplace.models.sequence.relation import ACTIVATIONS

BUDGETS = {f"{BUDGET:,} steps": "character_in_budget", f"{LONGER:,} steps": "character"}
POST_NORMS = {True: "norm after the sum", False: "no norm after the sum"}
BEFORE = ", masked before"


def figures(records: Records) -> list[Figure]:
    """Draw the character accuracy of every cell after each budget."""
    rows = [
        row
        for budget, metric in BUDGETS.items()
        for row in accuracy_rows([_group(records, cell, budget) for cell in (*ONE_CHANGE, *GRID)], metric)
    ]
    return [
        Figure(
            title="Published size: ablation of CausalRN, by number of steps",
            caption="Character accuracy on strings of 128 characters, mean and range over seeds. Masked "
            "before: with the published order of mask and activation.",
            rows=rows,
            spec=accuracy_dots(
                "character",
                "activation",
                [*ACTIVATIONS, f"elu{BEFORE}"],
                [f"{budget}, {title}" for budget in BUDGETS for title in POST_NORMS.values()],
                series="pairs",
                sources=PAIR_NORMS.values(),
            ),
            alt="Four panels, for two numbers of steps with and without the norm after the sum; in each, a point with "
            "its range for every activation and pair norm.",
        )
    ]


def _group(records: Records, cell: Cell, budget: str) -> Group:
    """The records of a cell; those with the published budget only are not in the panels of the longer training."""
    selected = pick(records, PART.name, **cell._asdict())
    if BUDGETS[budget] == "character":
        selected = [record for record in selected if record.config["steps"] > record.config["budget"]]
    columns = {
        "panel": f"{budget}, {POST_NORMS[cell.post_norm]}",
        "activation": cell.activation + (BEFORE if cell.masking == "before" else ""),
        "pairs": PAIR_NORMS[cell.pair_norm],
    }
    return columns, selected
