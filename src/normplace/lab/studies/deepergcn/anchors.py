"""res+ stacks on graphs with strong published scores, over their official splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normplace.lab.studies.deepergcn.networks import OWN_WEIGHTS
from normplace.lab.studies.deepergcn.node import NodeTrial, node_part

SHARED = {
    "minesweeper": {"depth": 14, "dropout": 0.2, "epochs": 1000},
    "tolokers": {"depth": 5, "dropout": 0.2, "epochs": 500},
}
"""Settings that the other parts of the study use."""
TUNED = {"depth": 12, "dropout": 0.2, "dropped": "stream", "epochs": 2000, "learning_rate": 1e-2}
"""Settings of the tuned 12-layer GCN in the code of Luo et al. (2024, arXiv 2406.08993), also of width 64."""
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "minesweeper": {
        "softmax learned": SHARED["minesweeper"],
        "mean": SHARED["minesweeper"],
        f"mean{OWN_WEIGHTS}": TUNED,
    },
    "tolokers": {"softmax learned": SHARED["tolokers"], "mean": SHARED["tolokers"]},
}
"""Settings by graph and aggregation."""
SPLITS = 10


def plan(scale: str) -> Iterator[NodeTrial]:
    """The candidates on each graph, at ``full`` only; the one with the best validation score counts."""
    if scale != "full":
        return
    for data, networks in CANDIDATES.items():
        for seed in range(SPLITS):
            for aggregation, settings in networks.items():
                yield NodeTrial(data, "res+", seed=seed, aggregation=aggregation, **settings)


PART = node_part("anchors", plan, most_seeds=SPLITS)
