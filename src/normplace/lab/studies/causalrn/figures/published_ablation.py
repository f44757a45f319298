"""Accuracy of CausalRN without its ingredients, at the published size and with two budgets."""

from __future__ import annotations

from normplace.lab.report.rows import Group, score_rows
from normplace.lab.report.specs import dots
from normplace.lab.studies.causalrn.networks import PAIR_NORMS
from normplace.lab.studies.causalrn.published_ablation import GRID, ONE_CHANGE, PART, Cell
from normplace.lab.studies.causalrn.published_size import BUDGET, LONGER
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

BUDGETS = {f"{BUDGET:,} steps": "character_in_budget", f"{LONGER:,} steps": "character"}


def figures(records: Records) -> list[Figure]:
    """Draw the character accuracy of every cell after each budget."""
    cells = {_title(cell): cell for cell in (*ONE_CHANGE, *GRID)}
    groups: dict[str, list[Group]] = {}
    for panel, metric in BUDGETS.items():
        for name, (pair_norm, activation, post_norm, masking) in cells.items():
            fields = {"activation": activation, "post_norm": post_norm, "masking": masking}
            selected = pick(records, PART.name, pair_norm=pair_norm, **fields)
            if metric == "character":  # networks that trained for the published budget only are not in this panel
                selected = [record for record in selected if record.config["steps"] != BUDGET]
            columns = {"budget": panel, "cell": name, "pairs": PAIR_NORMS[pair_norm]}
            groups.setdefault(metric, []).append((columns, selected))
    rows = [row for metric, group in groups.items() for row in score_rows(group, metric)]
    if not rows:
        return []
    shown = {row["cell"] for row in rows}
    return [
        Figure(
            title="Published size: ablation of CausalRN, by number of steps",
            caption="Character accuracy on strings of 128 characters, mean over seeds with its 95% interval. Rows name "
            "the activation and what is missing or changed.",
            rows=rows,
            spec=dots(
                x={"field": "value", "title": "character accuracy", "scale": {"domain": [0, 1]}},
                rows="cell",
                order=[name for name in cells if name in shown],
                low="low",
                high="high",
                series="pairs",
                sources=list(PAIR_NORMS.values()),
                facet="budget",
                panels=list(BUDGETS),
            ),
            alt="Two panels, one for each number of steps; in each, a point with its interval for every cell.",
        )
    ]


def _title(cell: Cell) -> str:
    pair_norm, activation, post_norm, masking = cell
    changes = [PAIR_NORMS[pair_norm]] if pair_norm != "joint" else []
    changes += [] if post_norm else ["no norm after the sum"]
    changes += ["masked before"] if masking == "before" else []
    return ", ".join([activation, *changes])
