"""An undirected graph in CSR form, from edges or from a file.

Self-loops are dropped, and duplicate edges in either direction are merged. Node ids are 0, 1, ..., ``num_nodes`` - 1;
:func:`relabel` maps other ids to these. Nodes without edges are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace._shared.edge_keys import rows_of_keys, sorted_keys
from normplace.errors import UsageError
from normplace.lab.tasks.data_files import read_arrays


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected graph without self-loops or duplicate edges; build one with :meth:`from_edges`.

    The constructor copies and checks both arrays, because compiled loops index them without bounds checks.

    Attributes:
        indptr: Start of each node's neighbors in ``indices``; int64, of length nodes + 1.
        indices: The neighbors of all nodes, ascending within a node; int32.

    Raises:
        UsageError: If the arrays are not the CSR form of an undirected graph.

    Examples:
        >>> graph = Graph.from_edges([[0, 1], [1, 2], [2, 1], [3, 3]])
        >>> graph
        Graph(num_nodes=4, num_edges=2)
        >>> graph.neighbors(1).tolist()
        [0, 2]
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]

    def __post_init__(self) -> None:
        indptr, indices = _check_rows(self.indptr, self.indices)
        object.__setattr__(self, "indptr", indptr)
        object.__setattr__(self, "indices", indices)

    @classmethod
    def _unchecked(cls, indptr: NDArray[np.int64], indices: NDArray[np.int32]) -> Graph:
        """The graph of arrays that are known to be valid."""
        graph = object.__new__(cls)
        for name, array in (("indptr", indptr), ("indices", indices)):
            array.flags.writeable = False
            object.__setattr__(graph, name, array)
        return graph

    def __reduce__(self) -> tuple:
        return Graph, (self.indptr, self.indices)  # so that the arrays of a copy are read-only too

    def __repr__(self) -> str:
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of undirected edges."""
        return len(self.indices) // 2

    @property
    def degrees(self) -> NDArray[np.int64]:
        """Number of neighbors of each node."""
        return self._degrees

    @cached_property
    def _degrees(self) -> NDArray[np.int64]:
        degrees = np.diff(self.indptr)
        degrees.flags.writeable = False
        return degrees

    def neighbors(self, node: int) -> NDArray[np.int32]:
        """The neighbors of a node, ascending.

        Raises:
            UsageError: If there is no such node.
        """
        if isinstance(node, bool) or not isinstance(node, int | np.integer) or not 0 <= node < self.num_nodes:
            raise UsageError(f"node must be an integer from 0 to {self.num_nodes - 1}, got {node!r}.")
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def edges(self) -> NDArray[np.int64]:
        """The edges as rows (smaller id, larger id), in ascending order."""
        source = np.repeat(np.arange(self.num_nodes), self.degrees)
        once = source < self.indices
        return np.stack([source[once], self.indices[once]], axis=1).astype(np.int64)

    def without(self, removed: NDArray[np.bool_]) -> tuple[Graph, NDArray[np.int64]]:
        """The subgraph without some nodes, and the former id of each of its nodes.

        Args:
            removed: Mask of the nodes to remove.

        Raises:
            UsageError: If all nodes are removed, or the mask has another shape.
        """
        if not isinstance(removed, np.ndarray) or removed.dtype != bool or removed.shape != (self.num_nodes,):
            raise UsageError(f"removed must be an array of {self.num_nodes} booleans, one for each node.")
        kept = np.flatnonzero(~removed)
        if not len(kept):
            raise UsageError("the graph is empty: keep at least one node.")
        source = np.repeat(np.arange(self.num_nodes), self.degrees)
        stays = ~(removed[source] | removed[self.indices])
        # New ids keep the order of the former ones, so neighbors stay sorted.
        new_id = np.cumsum(~removed) - 1
        counts = np.bincount(new_id[source[stays]], minlength=len(kept))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Graph._unchecked(indptr, new_id[self.indices[stays]].astype(np.int32)), kept

    @classmethod
    def from_edges(cls, edges: ArrayLike, num_nodes: int | None = None) -> Graph:
        """The graph of an edge list.

        Args:
            edges: Integers of shape (edges, 2).
            num_nodes: Number of nodes. If None, the ids must be 0, 1, 2, ... without gaps, so that a stray id does not
                create many isolated nodes.

        Raises:
            UsageError: If the ids or the shape are invalid, or there are no nodes.
        """
        pairs = _pairs(edges)
        if num_nodes is None:
            num_nodes = len(np.unique(pairs))
            if len(pairs) and (pairs.min() < 0 or pairs.max() >= num_nodes):
                raise UsageError(
                    f"the {num_nodes} ids are not 0 to {num_nodes - 1} (they are from {pairs.min()} to {pairs.max()}): "
                    "pass num_nodes if the others are isolated nodes, or renumber with relabel(edges)."
                )
        if isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer):
            raise UsageError(f"num_nodes must be an integer, got {num_nodes!r}.")
        if num_nodes < 1:
            raise UsageError("the graph is empty: it needs at least one node.")
        if num_nodes >= 2**31:
            raise UsageError(f"num_nodes is {num_nodes}, but 32-bit ids allow at most {2**31 - 1}.")
        wrong = (pairs < 0) | (pairs >= num_nodes)
        if wrong.any():
            raise UsageError(
                f"the edge list has id {pairs[wrong][0]}, which is not from 0 to {num_nodes - 1}: "
                "correct num_nodes, or renumber with relabel(edges)."
            )
        return _assemble(pairs, int(num_nodes))


def _pairs(edges: ArrayLike) -> NDArray[np.int64]:
    pairs = np.asarray(edges)
    if pairs.size == 0:
        return np.empty((0, 2), np.int64)
    if pairs.dtype.kind not in "iu":
        raise UsageError(f"node ids must be integers, got {pairs.dtype}: renumber with relabel(edges).")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise UsageError(
            f"edges must have shape (edges, 2), got {pairs.shape}: transpose an edge_index of shape (2, edges)."
        )
    return pairs.astype(np.int64, copy=False)


def _assemble(pairs: NDArray[np.int64], num_nodes: int) -> Graph:
    keys = sorted_keys(pairs[:, 0], pairs[:, 1], num_nodes, undirected=True)
    return Graph._unchecked(*rows_of_keys(keys, num_nodes))


def _check_rows(indptr: ArrayLike, indices: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Checked, read-only copies of both arrays."""
    start, near = np.asarray(indptr), np.asarray(indices)
    for name, array in (("indptr", start), ("indices", near)):
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise UsageError(f"{name} must be a flat array of integers, got {array.dtype} of shape {array.shape}.")
    num_nodes = len(start) - 1
    if not 1 <= num_nodes < 2**31:
        raise UsageError(f"indptr must have 2 to 2**31 entries, one more than nodes, got {len(start)}.")
    start = start.astype(np.int64)
    if start[0] != 0 or start[-1] != len(near) or (np.diff(start) < 0).any():
        raise UsageError(f"indptr must rise from 0 to the length of indices, {len(near)}: use Graph.from_edges.")
    if len(near) and not (int(near.min()) >= 0 and int(near.max()) < num_nodes):
        raise UsageError(f"indices must be from 0 to {num_nodes - 1}, got {int(near.min())} to {int(near.max())}.")
    source, target = np.repeat(np.arange(num_nodes), np.diff(start)), near.astype(np.int64)
    pairs, reversed_pairs = source * num_nodes + target, target * num_nodes + source
    if (np.diff(pairs) < 1).any() or (source == target).any() or not np.array_equal(pairs, np.sort(reversed_pairs)):
        raise UsageError(
            "indices must list every edge at both nodes, ascending, without duplicates and self-loops: use "
            "Graph.from_edges(edges)."
        )
    arrays = start, target.astype(np.int32)
    for array in arrays:
        array.flags.writeable = False
    return arrays


def relabel(edges: ArrayLike) -> tuple[NDArray[np.int64], NDArray]:
    """Edges with their ids renumbered 0, 1, 2, ... in ascending order of the former ids.

    Args:
        edges: Ids of any sortable kind, shape (edges, 2).

    Returns:
        The edges, and the former id of each node.

    Raises:
        UsageError: If the shape is wrong, or an id is NaN.

    Examples:
        >>> edges, names = relabel([["b", "a"], ["b", "z"]])
        >>> edges.tolist(), names.tolist()
        ([[1, 0], [1, 2]], ['a', 'b', 'z'])
    """
    pairs = np.asarray(edges)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise UsageError(f"edges must have shape (edges, 2), got {pairs.shape}.")
    if pairs.dtype.kind == "f" and np.isnan(pairs).any():
        raise UsageError("an id in the edge list is NaN: remove that edge.")
    names, positions = np.unique(pairs, return_inverse=True)
    return positions.reshape(pairs.shape).astype(np.int64), names


def load_graph(path: str | Path) -> Graph:
    """The graph in an ``.npz`` file with the fields ``num_nodes`` and ``edges``.

    Raises:
        UsageError: If the file is missing, damaged, or lacks a field.
    """
    arrays = read_arrays(Path(path), ("num_nodes", "edges"), str(path))
    try:
        num_nodes = int(arrays["num_nodes"])
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path} has a num_nodes that is not a number: {error}.") from error
    return Graph.from_edges(arrays["edges"], num_nodes)
