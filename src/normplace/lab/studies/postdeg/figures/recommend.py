"""Recall and NDCG compared with LightGCN's published scores, embedding lengths, and training curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normplace.lab.report.rows import Group, mean_rows, score_rows
from normplace.lab.report.specs import curves, dots
from normplace.lab.studies.postdeg.claims.recommend import SCORES
from normplace.lab.studies.postdeg.published import GOWALLA
from normplace.lab.studies.postdeg.recommend import CELLS, PART
from normplace.lab.trials.per_seed import Records, pick
from normplace.lab.trials.study import Figure

HERE, PUBLISHED = "measured here", "published"
NO_SCALE = "no scale"
NAMES = {"gowalla": "Gowalla", "movielens": "MovieLens 100K", "own": "own data"}


def figures(records: Records) -> list[Figure]:
    """Draw three figures for each data set."""
    drawn: list[Figure] = []
    for dataset, name in NAMES.items():
        by_cell = {
            cell: selected
            for cell, fields in CELLS.items()
            if (selected := pick(records, PART.name, dataset=dataset, **fields))
        }
        if by_cell:
            groups: list[Group] = [({"network": cell}, selected) for cell, selected in by_cell.items()]
            drawn += [_scores(dataset, name, groups), _lengths(name, groups), _training(name, groups)]
    return drawn


def _order(groups: Sequence[Group]) -> list[str]:
    return [str(columns["network"]) for columns, _ in groups]


def _scores(dataset: str, name: str, groups: Sequence[Group]) -> Figure:
    rows: list[dict[str, Any]] = []
    for metric, title in SCORES.items():
        rows += score_rows(
            [({**columns, "measure": title, "source": HERE}, selected) for columns, selected in groups], metric
        )
        if dataset == "gowalla":
            rows += [
                {"network": cell, "measure": title, "source": PUBLISHED, "value": values[metric]}
                for cell, values in GOWALLA.items()
                if cell in _order(groups)
            ]
    published = " Published: LightGCN's code, one seed." if dataset == "gowalla" else ""
    return Figure(
        title=f"{name}: recall and NDCG of the first 20 items",
        caption="Mean over seeds with its 95% interval, after the last epoch; d is a node's degree, before or "
        f"after the norm of every block.{published}",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "value"},
            rows="network",
            order=_order(groups),
            series="source",
            sources=(HERE, PUBLISHED) if published else (HERE,),
            facet="measure",
            panels=list(SCORES.values()),
        ),
        alt="Two panels, recall and NDCG, with a point and interval for each network.",
    )


def _lengths(name: str, groups: Sequence[Group]) -> Figure:
    panel = "exponent"
    rows = score_rows(
        [({**columns, "measure": panel, "source": HERE}, selected) for columns, selected in groups], "length_slope"
    )
    return Figure(
        title=f"{name}: length of an item's embedding against its degree",
        caption="Exponent p of the least-squares fit length ~ degree^p over items after training; mean over seeds "
        "with its 95% interval.",
        rows=rows,
        spec=dots(
            x={"field": "value", "title": "exponent"},
            rows="network",
            order=_order(groups),
            series="source",
            sources=(HERE,),
            facet="measure",
            panels=[panel],
        ),
        alt="The exponent with its interval for each network.",
    )


def _training(name: str, groups: Sequence[Group]) -> Figure:
    by_scale: list[Group] = []
    for columns, selected in groups:
        network, _, scale = str(columns["network"]).partition(", d^")
        by_scale.append(({"network": network, "scale": f"d^{scale}" if scale else NO_SCALE}, selected))
    return Figure(
        title=f"{name}: recall during training",
        caption="Recall@20 on the test items, mean over seeds with its 95% interval. It is not used to select a model: "
        "the last epoch counts.",
        rows=mean_rows(by_scale, "epoch", "recall"),
        spec=curves(
            x={"field": "epoch", "title": "epoch"},
            y={"field": "recall", "title": "recall@20", "scale": {"zero": False}},
            series="scale",
            order=list(dict.fromkeys(str(columns["scale"]) for columns, _ in by_scale)),
            band=True,
            facet="network",
            panels=list(dict.fromkeys(str(columns["network"]) for columns, _ in by_scale)),
            columns=2,
            width=300,
            height=190,
        ),
        alt="Recall against epochs, a panel for each network and a line with a band for each scale.",
    )
