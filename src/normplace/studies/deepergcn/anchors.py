"""How far the res+ stack gets on graphs with strong published scores, over their official splits."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.lab.study import Part
from normplace.studies.deepergcn.node import NodeTrial, label, ready, run

PUBLISHED = {"minesweeper": (0.9786, 0.0024), "tolokers": (0.8378, 0.0043)}
"""ROC-AUC, mean and deviation: a tuned 12-layer GCN (Luo et al. 2024, arXiv 2406.08993) and GAT-sep (Platonov et al.
2023, arXiv 2302.11640)."""
CANDIDATES = {"minesweeper": ("softmax learned", "mean"), "tolokers": ("softmax learned", "mean")}
DEPTH = {"minesweeper": 14, "tolokers": 5}
EPOCHS = {"minesweeper": 1000, "tolokers": 500}
SPLITS = 10


def plan(scale: str) -> Iterator[NodeTrial]:
    """Two aggregations on each graph, at ``full`` alone; the better by validation is the one that counts."""
    if scale != "full":
        return
    for data, aggregations in CANDIDATES.items():
        for seed in range(SPLITS):
            for aggregation in aggregations:
                yield NodeTrial(
                    data, "res+", DEPTH[data], seed, aggregation=aggregation, dropout=0.2, epochs=EPOCHS[data]
                )


PART = Part(name="anchors", config=NodeTrial, plan=plan, run=run, label=label, ready=ready)
