"""Recall and NDCG of every variant beside LightGCN's published row, what became of row lengths, and training curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.postdeg.claims.recommend import MEASURES, PUBLISHED
from normplace.lab.studies.postdeg.recommend import CELLS, PART
from normplace.lab.trials.claims import pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure

HERE, THEIRS = "measured here", "published"
BARE = "no scale"
NAMES = {"gowalla": "Gowalla", "movielens": "MovieLens 100K", "own": "own data"}


def figures(lines: Sequence[TrialRecord]) -> list[Figure]:
    """Three figures for each data set, from the lines of successful trials."""
    found = []
    for dataset, name in NAMES.items():
        chosen = {
            cell: picked
            for cell, fields in CELLS.items()
            if (picked := pick(lines, PART.name, dataset=dataset, **fields))
        }
        if chosen:
            groups: list[Group] = [({"network": cell}, picked) for cell, picked in chosen.items()]
            found += [_scores(dataset, name, groups), _lengths(name, groups), _training(name, groups)]
    return found


def _order(groups: Sequence[Group]) -> list[str]:
    return [str(columns["network"]) for columns, _ in groups]


def _scores(dataset: str, name: str, groups: Sequence[Group]) -> Figure:
    rows: list[dict[str, Any]] = []
    for metric, title in MEASURES.items():
        rows += score_rows(
            [({**columns, "measure": title, "source": HERE}, found) for columns, found in groups], metric
        )
        if dataset == "gowalla":
            rows += [
                {"network": cell, "measure": title, "source": THEIRS, "value": values[metric]}
                for cell, values in PUBLISHED.items()
                if cell in _order(groups)
            ]
    published = " The published numbers are those of LightGCN's code, of one seed." if dataset == "gowalla" else ""
    return Figure(
        title=f"{name}: recall and NDCG of the first 20 items",
        caption="Mean over seeds with its 95% interval, after the last epoch; d is a node's degree, standing before or "
        f"after the norm of every block.{published}",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "value"},
            rows="network",
            order=_order(groups),
            low="low",
            high="high",
            series="source",
            sources=(HERE, THEIRS) if published else (HERE,),
            facet="measure",
            panels=list(MEASURES.values()),
        ),
        alt="Two panels, recall and NDCG, with a point and interval for each network.",
    )


def _lengths(name: str, groups: Sequence[Group]) -> Figure:
    panel = "exponent"
    rows = score_rows(
        [({**columns, "measure": panel, "source": HERE}, found) for columns, found in groups], "length_slope"
    )
    return Figure(
        title=f"{name}: how the length of an item's row follows its degree",
        caption="Exponent p of the least-squares fit length ~ degree^p over items after training, the mean over seeds "
        "with its 95% interval.",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "exponent"},
            rows="network",
            order=_order(groups),
            low="low",
            high="high",
            series="source",
            sources=(HERE,),
            facet="measure",
            panels=[panel],
        ),
        alt="The exponent with its interval for each network.",
    )


def _training(name: str, groups: Sequence[Group]) -> Figure:
    parted: list[Group] = []
    for columns, found in groups:
        network, _, scale = str(columns["network"]).partition(", d^")
        parted.append(({"network": network, "scale": f"d^{scale}" if scale else BARE}, found))
    return Figure(
        title=f"{name}: recall over the training",
        caption="Recall@20 on the test items, the mean over seeds with its 95% interval. It was recorded, and chose "
        "nothing: every network trains for the same epochs and the last one counts.",
        rows=mean_rows(parted, "epoch", "recall"),
        spec=curves(
            x={"field": "epoch", "title": "epoch"},
            y={"field": "recall", "title": "recall@20", "scale": {"zero": False}},
            series="scale",
            order=list(dict.fromkeys(str(columns["scale"]) for columns, _ in parted)),
            low="low",
            high="high",
            facet="network",
            panels=list(dict.fromkeys(str(columns["network"]) for columns, _ in parted)),
            columns=2,
            width=300,
            height=190,
        ),
        alt="Recall against epochs, a panel for each network and a line with its band for each scale.",
    )
