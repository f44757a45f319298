"""Tables of the PostDeg page: degree as input, independent sets, recommenders at their plateau, and Twitch."""

from __future__ import annotations

from normplace._shared.text_table import markdown_table
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.studies.postdeg import extended, mis, plateau, social
from normplace.lab.studies.postdeg.claims.extended import extended_score
from normplace.lab.studies.postdeg.claims.plateau import SCORES, at_best_rate, best_rate
from normplace.lab.studies.postdeg.measures import improvement
from normplace.lab.studies.postdeg.selection import TASKS
from normplace.lab.trials.per_seed import Measure, metric
from normplace.models.convolutions import AGGREGATIONS
from papers import committed

FULL = ("postdeg", "full")


def degree_input() -> str:
    """Improvement of the network with degree as input and no scale over PostDeg with other inputs."""
    names = {
        "constant": "constant",
        "random": "random",
        "noisy-degree": "noisy degree",
        "clipped-degree": "clipped degree",
        "coarse-degree": "quarters of the degree",
    }
    reference = extended.baseline({"features": "degree"})
    rows = []
    for features, name in names.items():
        cells = []
        for task in TASKS:
            postdeg = extended_score(task, {"features": features})
            cells.append(_cell(100 * improvement(task, extended_score(task, reference), postdeg), "+.1f", "%"))
        rows.append([name, *cells])
    return markdown_table(("input of PostDeg", *TASKS.values()), rows, right_from=1)


def sets() -> str:
    """Mean size of the independent sets of every method, and the published size of KaMIS's."""
    titles = {**mis.LEARNED, **mis.CLASSICAL}
    rows = [
        [title, *(_cell(metric(mis.PART.name, "size", family=name, method=method), ".2f") for name in mis.FAMILIES)]
        for method, title in titles.items()
    ]
    rows.append(["KaMIS, published", *(f"{family.kamis:.2f}" for family in mis.FAMILIES.values())])
    return markdown_table(("method", *(family.title for family in mis.FAMILIES.values())), rows, right_from=1)


def plateaus() -> str:
    """Scores and best learning rate of every recommender, with the end of its training."""
    records = committed.records(*FULL)
    rows: list[list[str]] = []
    for dataset, title in plateau.DATASETS.items():
        for cell in plateau.NORMALIZED:
            rate, rates = best_rate(records, dataset, cell)
            if rate is not None:
                edge = "" if rates[0] < rate < rates[-1] else "\\*"
                numbers = [_cell(at_best_rate(name, dataset, cell), ".3f") for name in ("held_out", *SCORES)]
                epochs = at_best_rate("best_epoch", dataset, cell)(records).mean()
                rows.append([title, cell, f"{rate:g}{edge}", *numbers, f"{epochs:.0f}"])
    headings = ("data", "network", "learning rate", "held-out recall@20", *SCORES.values(), "best epoch")
    return markdown_table(headings, rows)


def twitch() -> str:
    """Test ROC-AUC by graph, input and aggregation, and its change by the scale before and after the norm."""
    rows = []
    for graph in social.TWITCH:
        for inputs, title in social.INPUTS.items():
            for aggregation, name in AGGREGATIONS.items():
                variant = {"aggregation": aggregation, "graph": graph, **social.recorded_input(inputs)}
                none, before, after = (
                    metric(social.PART.name, "test", slot=slot, **variant) for slot in ("none", "before", "after")
                )
                changes = [_cell(scaled - none, "+.3f") for scaled in (before, after)]
                rows.append([graph, title, name, _cell(none, ".3f"), *changes])
    return markdown_table(("graph", "input", "aggregation", "no scale", "before LayerNorm", "after LayerNorm"), rows)


def _cell(measure: Measure, number: str, unit: str = "") -> str:
    """The mean over seeds with its interval; empty without records."""
    values = measure(committed.records(*FULL))
    return estimate_text(values, number, unit) if values else ""
