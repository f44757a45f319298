"""Tables of the DeeperGCN page: scores of recipes, the three causes by graph, and orders by aggregation and depth."""

from __future__ import annotations

from collections.abc import Iterator

from normplace._shared.text_table import markdown_table
from normplace.lab.studies.deepergcn import molhiv_official, orders, recipes
from normplace.lab.studies.deepergcn.depth import REAL
from normplace.lab.studies.deepergcn.figures.recipes import NETWORKS
from normplace.lab.studies.deepergcn.measures import change_with_depth, order_score
from normplace.lab.studies.deepergcn.published import ANCHORS, MOLHIV_TEST, MOLHIV_VALID
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.trials.per_seed import PerSeed, Records, metric
from papers import committed

GRAPHS = ("minesweeper", "tolokers", *orders.OTHER)


def recipe_scores() -> str:
    """Test and validation scores of the official recipe and of the candidates, with the published ones."""
    rows = list(_recipe_scores(committed.records("deepergcn", "full")))
    return markdown_table(("task", "network", "seeds", "test ROC-AUC", "validation ROC-AUC"), rows)


def _recipe_scores(records: Records) -> Iterator[list[str]]:
    yield ["molhiv", "paper, DyResGEN-7", "", "{} ± {}".format(*MOLHIV_TEST), "{} ± {}".format(*MOLHIV_VALID)]
    for scale, name in NETWORKS.items():
        yield ["", name, *_scores(records, molhiv_official.PART.name, scale=scale)]
    for data, (mean, deviation) in ANCHORS.items():
        yield [data, "best published", "", f"{mean} ± {deviation}", ""]
        for settings in recipes.ALL_CANDIDATES[data]:
            if metric(recipes.PART.name, "test", data=data, **settings)(records):
                name = recipes.candidate_name(settings)
                yield ["", name, *_scores(records, recipes.PART.name, data=data, **settings)]


def _scores(records: Records, part: str, **fields: str | float) -> list[str]:
    test, val = (metric(part, name, **fields)(records) for name in ("test", "val"))
    return [str(len(test)), estimate_text(test, ".4f"), estimate_text(val, ".4f")]


def causes() -> str:
    """What happens between the shallowest and the deepest stack, by graph and order."""
    records = committed.records("deepergcn", "full")
    rows = [
        [data, f"`{order}`", *(estimate_text(values, number) for values, number in _causes(records, data, order))]
        for data in GRAPHS
        for order in ("plain", "res+")
    ]
    headings = (
        "gradient, first over last layers, first step (log10)",
        "last step (log10)",
        "energy, 112 over 3 layers (log10)",
        "train score, 112 minus 3 layers",
        "test score, 112 minus 3 layers",
    )
    return markdown_table(("graph", "order", *headings), rows)


def _causes(records: Records, data: str, order: str) -> Iterator[tuple[PerSeed, str]]:
    for moment in ("start", "end"):
        yield order_score(order, data, "deepest", name=f"gradient_reach_{moment}")(records), "+.1f"
    yield change_with_depth(order, data, "energy", logarithm=True)(records), "+.2f"
    for side in ("last_train", "last_test"):
        yield change_with_depth(order, data, side)(records), "+.3f"


def order_scores() -> str:
    """Mean test score by graph, depth, order and aggregation; the best validation score of each graph is bold."""
    records = committed.records("deepergcn", "full")
    rows = []
    for data in REAL:
        tests, best = _cells(records, data)
        for depth in (orders.SHALLOW, orders.USUAL, orders.DEEP, orders.DEEPEST):
            for order in orders.ORDERS:
                cells = [(depth, order, aggregation) for aggregation in orders.AGGREGATIONS]
                if any(cell in tests for cell in cells):
                    numbers = [f"{tests[cell]:.3f}" if cell in tests else "" for cell in cells]
                    marked = [
                        f"**{text}**" if cell == best else text for cell, text in zip(cells, numbers, strict=True)
                    ]
                    rows.append([data, str(depth), f"`{order}`", *marked])
    return markdown_table(("graph", "layers", "order", *orders.AGGREGATIONS), rows)


def _cells(records: Records, data: str) -> tuple[dict[tuple[int, str, str], float], tuple[int, str, str]]:
    """Mean test score of every trained cell of a graph, and the cell with the best mean validation score."""
    tests, validation = {}, {}
    planned = dict.fromkeys((trial.depth, trial.order, trial.aggregation) for trial in orders.plan("full"))
    for depth, order, aggregation in planned:
        fields = {"data": data, "depth": depth, "order": order, "aggregation": aggregation}
        if test := metric(orders.PART.name, "test", **fields)(records):
            tests[depth, order, aggregation] = test.mean()
            validation[depth, order, aggregation] = metric(orders.PART.name, "val", **fields)(records).mean()
    return tests, max(validation, key=lambda cell: validation[cell])
