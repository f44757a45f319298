"""Many graphs with labels, concatenated, and batches of them gathered by index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.gathering import gather_graphs
from normplace.lab.tasks.graphs.molecules import (
    ATOM_SIZES,
    BOND_SIZES,
    GRAPHS,
    Molecules,
    check_categories,
    load_molhiv,
)
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask, find_folder
from normplace.lab.tasks.graphs.ogb.files import read_split
from normplace.lab.tasks.graphs.ogb.node_graph import interleave, sum_of_edges
from normplace.lab.tasks.graphs.ogb.raw_graphs import read_raw

STORED = ("x", "edge_index", "edge_attr", "y")


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """A batch of graphs as one disjoint graph.

    Args:
        x: Features or categories of the nodes.
        edge_index: Source and target of each edge in both directions, 2 × E.
        edge_attr: Features or categories of the edges.
        batch: Index of the graph of each node.
        y: Labels, graphs × labels; NaN where a label is unknown.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    batch: Tensor
    y: Tensor

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class GraphSet:
    """All graphs of a task, concatenated, and their split.

    Args:
        x: Features or categories of all nodes; None if a batch sums those of their edges.
        edge_index: Source and target of each edge, numbered within each graph.
        edge_attr: Features or categories of the edges.
        nodes: Number of nodes of each graph, on the CPU.
        edges: Number of stored edges of each graph, on the CPU.
        y: Labels, graphs × labels, float32; NaN where a label is unknown.
        both_directions: Whether a batch adds the reverse of each edge, which halves the memory of the set.
        train: Indices of the training graphs, on the CPU.
        valid: Indices of the validation graphs.
        test: Indices of the test graphs.
    """

    x: Tensor | None
    edge_index: Tensor
    edge_attr: Tensor
    nodes: Tensor
    edges: Tensor
    y: Tensor
    both_directions: bool
    train: Tensor
    valid: Tensor
    test: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_bytes(self) -> int:
        """Size of the tensors that :meth:`to` moves."""
        return sum(tensor.nbytes for name in STORED if (tensor := getattr(self, name)) is not None)

    def to(self, device: torch.device | str) -> GraphSet:
        """The same graphs with nodes, edges and labels on ``device``."""
        stored = {name: getattr(self, name) for name in STORED}
        return replace(self, **{name: None if one is None else one.to(device) for name, one in stored.items()})

    def batch(self, indices: Tensor, device: torch.device | str | None = None) -> GraphBatch:
        """A batch of graphs.

        Args:
            indices: Indices of the graphs, on the CPU, in any order.
            device: Where the batch is needed; by default where the graphs are.

        Raises:
            UsageError: If an index is out of range, or there are none.
        """
        chosen = gather_graphs(self.nodes, self.edges, indices, self.edge_index)
        pairs, attr = chosen.edge_index, self.edge_attr[chosen.edges]
        if self.both_directions:
            pairs, attr = interleave(pairs), attr.repeat_interleave(2, 0)
        x = sum_of_edges(pairs[0], attr, len(chosen.nodes)) if self.x is None else self.x[chosen.nodes]
        if not attr.is_floating_point():
            x, attr = x.long(), attr.long()
        home = self.edge_index.device
        parts = (x, pairs, attr, chosen.batch, self.y[indices.to(home)])
        return GraphBatch(*(part.to(device or home) for part in parts))


def load_graph_set(task: OgbTask, folder: Path) -> GraphSet:
    """Read graphs with labels from OGB's files; ogbg-molhiv also from those of :func:`load_molhiv`.

    Raises:
        UsageError: If a file is missing or damaged, or contradicts the others.
    """
    if task.name == "ogbg-molhiv" and (folder / GRAPHS).is_file():
        return from_molecules(load_molhiv(str(folder / GRAPHS)))
    home = find_folder(task, folder)
    raw = read_raw(task, home)
    if raw.edge_feat is None or (raw.node_feat is None and task.categorical):
        raise UsageError(f"{home} has no features of {'atoms and bonds' if task.categorical else 'edges'}.")
    if task.categorical:
        assert raw.node_feat is not None
        check_categories("node-feat", raw.node_feat, ATOM_SIZES, str(home))
        check_categories("edge-feat", raw.edge_feat, BOND_SIZES, str(home))
    kind = np.uint8 if task.categorical else np.float32
    x, attr = (
        None if table is None else torch.from_numpy(table.astype(kind, copy=False))
        for table in (raw.node_feat, raw.edge_feat)
    )
    assert attr is not None
    split = read_split(home / "split" / task.split, len(raw.nodes))
    return GraphSet(
        x,
        torch.from_numpy(raw.edge_index),
        attr,
        torch.from_numpy(raw.nodes),
        torch.from_numpy(raw.edges),
        torch.from_numpy(raw.labels),
        raw.both_directions,
        *split,
    )


def from_molecules(molecules: Molecules) -> GraphSet:
    """The molecules of ogbg-molhiv as a set of graphs."""
    return GraphSet(
        molecules.x,
        molecules.edge_index,
        molecules.bond,
        molecules.nodes,
        molecules.edges,
        molecules.y.float()[:, None],
        False,
        molecules.train,
        molecules.valid,
        molecules.test,
    )
