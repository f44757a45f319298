"""The slots of a topology scale, and how the scores of a policy become an order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from normplace.models.policy import NeighborLists, Policy

SLOTS = {"none": "no scale", "before": "before the norm", "after": "after the norm", "head": "at the head only"}
FLOAT32, FLOAT64 = "float32", "float64"
SCORINGS = {
    FLOAT32: "scores in float32, ties by node id",
    FLOAT64: "scores in float64, ties at random",
}
"""How scores become an order. Trials were recorded with ``float32`` first; where all scores are equal, their order then
follows rounding errors, which depend on degree. Such cells were recomputed with ``float64``."""


def scores(policy: Policy, graph: NeighborLists, seed: int, scoring: str) -> NDArray[np.float64]:
    """One score per node, by a key of :data:`SCORINGS`."""
    if scoring == FLOAT64:
        return policy.score(graph, seed)
    with torch.no_grad():
        return policy([policy.prepare(graph)], torch.Generator().manual_seed(seed)).double().cpu().numpy()
