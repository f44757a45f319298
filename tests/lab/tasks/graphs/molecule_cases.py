"""A few small molecules in OGB's form."""

from __future__ import annotations

import numpy as np

from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES

SIZES = (3, 2, 6, 4, 1, 5, 2, 7)


def ogb_graphs(seed=0):
    """Graphs and labels in OGB's form."""
    random = np.random.default_rng(seed)
    graphs = []
    for n in SIZES:
        pairs = np.array([(i, i + 1) for i in range(n - 1)] or np.empty((0, 2)), dtype=np.int64).reshape(-1, 2)
        edges = np.concatenate([pairs, pairs[:, ::-1]]).T
        graph = {
            "node_feat": np.stack([random.integers(0, size, n) for size in ATOM_SIZES], 1),
            "edge_feat": np.stack([random.integers(0, size, edges.shape[1]) for size in BOND_SIZES], 1),
            "edge_index": edges,
            "num_nodes": n,
        }
        graphs.append((graph, np.array([n % 2])))
    return graphs


class OGB(list):
    """A data set with OGB's interface."""

    def get_idx_split(self):
        return {"train": np.array([0, 1, 2, 7]), "valid": np.array([4, 6]), "test": np.array([5, 3])}
