"""One graph whose nodes have labels: ogbn-arxiv, ogbn-products, ogbn-proteins, and the papers of ogbn-mag."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.graph_batches import interleave, sum_of_edges
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask, find_folder
from normplace.lab.tasks.graphs.ogb.files import read_split
from normplace.lab.tasks.graphs.ogb.raw_graphs import RawGraphs, read_raw


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """A graph with features and labels of its nodes, and the official split.

    Args:
        x: Features of the nodes, float32, nodes × width.
        edge_index: Source and target of each edge, 2 × E.
        edge_attr: Features of the edges, E × width, or None.
        y: Labels, float32, nodes × labels; NaN where a label is unknown.
        train: Indices of the training nodes.
        valid: Indices of the validation nodes.
        test: Indices of the test nodes.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.y)

    @property
    def num_edges(self) -> int:
        """Number of directed edges."""
        return self.edge_index.shape[1]

    @property
    def num_bytes(self) -> int:
        """Size of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def to(self, device: torch.device | str) -> NodeGraph:
        """The same graph on ``device``."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self._tensors().items()})

    def _tensors(self) -> dict[str, Tensor]:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


def load_node_graph(task: OgbTask, folder: Path) -> NodeGraph:
    """Read a graph with node labels from OGB's files.

    Nodes without features, as those of ogbn-proteins, get the sum of the features of their edges and the one-hot code
    of their species, as in DeeperGCN. The edges are those of OGB; see :func:`undirected` and :func:`with_self_loops`.

    Raises:
        UsageError: If a file is missing or damaged, or contradicts the others.
    """
    home = find_folder(task, folder)
    raw = read_raw(task, home)
    pairs, edge_attr = add_reverse(raw)
    num_nodes = int(raw.nodes[0])
    if raw.node_feat is not None:
        x = torch.from_numpy(raw.node_feat.astype(np.float32, copy=False))
    elif edge_attr is not None:
        x = sum_of_edges(pairs[0], edge_attr, num_nodes)
    else:
        raise UsageError(f"{home} has neither node-feat nor edge-feat: download the data set again.")
    if raw.species is not None:
        x = torch.cat([x, _one_hot(raw.species, num_nodes, str(home))], 1)
    part = home / "split" / task.split
    split = read_split(part / task.node_type if task.node_type else part, num_nodes)
    y = torch.from_numpy(raw.labels)
    return NodeGraph(x, pairs, edge_attr, y, *split)


def add_reverse(raw: RawGraphs) -> tuple[Tensor, Tensor | None]:
    """Edges and their features, each edge followed by its reverse if the files have it once."""
    pairs = torch.from_numpy(raw.edge_index).long()
    attr = None if raw.edge_feat is None else torch.from_numpy(raw.edge_feat)
    if not raw.both_directions:
        return pairs, attr
    return interleave(pairs), None if attr is None else attr.repeat_interleave(2, 0)


def undirected(graph: NodeGraph) -> NodeGraph:
    """The graph with every edge in both directions, once each, sorted.

    Raises:
        UsageError: If the edges have features, which the two directions would share.
    """
    if graph.edge_attr is not None:
        raise UsageError("edges with features are not made undirected: their directions may differ.")
    both = torch.cat([graph.edge_index, graph.edge_index.flip(0)], 1)
    keys = torch.unique(both[0] * graph.num_nodes + both[1])
    return replace(graph, edge_index=torch.stack([keys // graph.num_nodes, keys % graph.num_nodes]))


def with_self_loops(graph: NodeGraph) -> NodeGraph:
    """The graph with one more edge from each node to itself.

    Raises:
        UsageError: If the edges have features, which a self-loop would lack.
    """
    if graph.edge_attr is not None:
        raise UsageError("a self-loop has no features, but the edges of this graph have.")
    loops = torch.arange(graph.num_nodes, device=graph.edge_index.device).expand(2, -1)
    return replace(graph, edge_index=torch.cat([graph.edge_index, loops], 1))


def _one_hot(species: np.ndarray, num_nodes: int, source: str) -> Tensor:
    """The one-hot code of each node's species, in ascending order of their numbers."""
    if species.size != num_nodes:
        raise UsageError(f"{source} has {species.size} species for {num_nodes} nodes: download the data set again.")
    _, code = torch.from_numpy(species.reshape(-1)).unique(return_inverse=True)
    return torch.nn.functional.one_hot(code).float()
