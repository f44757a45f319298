"""How far the res+ stack gets on graphs with strong published scores, over their official splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normplace.lab.studies.deepergcn.network import OWN
from normplace.lab.studies.deepergcn.node import NodeTrial, label, ready, run
from normplace.lab.trials.study import Part

PUBLISHED = {"minesweeper": (0.9786, 0.0024), "tolokers": (0.8378, 0.0043)}
"""ROC-AUC, mean and deviation: a tuned 12-layer GCN (Luo et al. 2024, arXiv 2406.08993) and GAT-sep (Platonov et al.
2023, arXiv 2302.11640)."""
SHARED = {
    "minesweeper": {"depth": 14, "dropout": 0.2, "epochs": 1000},
    "tolokers": {"depth": 5, "dropout": 0.2, "epochs": 500},
}
"""Of the networks that the study's other parts compare."""
TUNED = {"depth": 12, "dropout": 0.2, "dropped": "stream", "epochs": 2000, "learning_rate": 1e-2}
"""Those of the 12-layer GCN in the published code of Luo et al., whose width of 64 is the default here too."""
CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "minesweeper": {
        "softmax learned": SHARED["minesweeper"],
        "mean": SHARED["minesweeper"],
        f"mean{OWN}": TUNED,
    },
    "tolokers": {"softmax learned": SHARED["tolokers"], "mean": SHARED["tolokers"]},
}
"""By data and aggregation, how a network is built and trained."""
SPLITS = 10


def plan(scale: str) -> Iterator[NodeTrial]:
    """Some networks on each graph, at ``full`` alone; the best by validation is the one that counts."""
    if scale != "full":
        return
    for data, networks in CANDIDATES.items():
        for seed in range(SPLITS):
            for aggregation, settings in networks.items():
                yield NodeTrial(data, "res+", seed=seed, aggregation=aggregation, **settings)


PART = Part(name="anchors", config=NodeTrial, plan=plan, run=run, label=label, ready=ready)
