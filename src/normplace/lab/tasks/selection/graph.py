"""An undirected graph as its neighbour lists, from edges or from a file.

Self-loops are dropped and repeated edges, in either direction, are merged. Node ids are 0, 1, ..., ``num_nodes`` - 1;
any other id is an error, and :func:`relabel` turns ids of any kind into these. Nodes without edges are kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import read_arrays

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def takes_graph(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, which refuses a first argument that is not a :class:`Graph`."""

    @functools.wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        graph = args[0] if args else kwargs.get("graph")
        if not isinstance(graph, Graph):
            raise UsageError(f"{function.__name__} takes a Graph, got {type(graph).__name__}: use Graph.from_edges.")
        return function(*args, **kwargs)

    return checked


@dataclass(frozen=True, eq=False, repr=False)
class Graph:
    """An undirected graph without self-loops or repeated edges; build one with :meth:`from_edges`.

    The constructor copies and checks both arrays, since compiled loops follow them without checks.

    Attributes:
        indptr: Where each node's neighbours start in ``indices``; int64, one longer than there are nodes.
        indices: All neighbours, ascending within a node; int32.

    Raises:
        UsageError: If the arrays are not the neighbour lists of an undirected graph.

    Example:
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
        """The graph of arrays that this module computed itself."""
        graph = object.__new__(cls)
        for name, array in (("indptr", indptr), ("indices", indices)):
            array.flags.writeable = False
            object.__setattr__(graph, name, array)
        return graph

    def __reduce__(self) -> tuple:
        return Graph, (self.indptr, self.indices)  # so that a copy or another process's is read-only too

    def __repr__(self) -> str:
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges})"

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """How many edges there are, each counted once."""
        return len(self.indices) // 2

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """The number of neighbours of each node."""
        found = np.diff(self.indptr)
        found.flags.writeable = False
        return found

    def neighbors(self, node: int) -> NDArray[np.int32]:
        """The neighbours of a node, ascending.

        Raises:
            UsageError: If there is no such node.
        """
        if isinstance(node, bool) or not isinstance(node, int | np.integer) or not 0 <= node < self.num_nodes:
            raise UsageError(f"a node is an integer from 0 to {self.num_nodes - 1}, not {node!r}.")
        return self.indices[self.indptr[node] : self.indptr[node + 1]]

    def edges(self) -> NDArray[np.int64]:
        """The edges as rows (smaller id, larger id), in ascending order."""
        source = np.repeat(np.arange(self.num_nodes), self.degrees)
        once = source < self.indices
        return np.stack([source[once], self.indices[once]], axis=1).astype(np.int64)

    def without(self, removed: NDArray[np.bool_]) -> tuple[Graph, NDArray[np.int64]]:
        """What is left after removing nodes, and the former id of each node that is left.

        Args:
            removed: One flag per node.

        Raises:
            UsageError: If no node is left, or there is not one flag per node.
        """
        if not isinstance(removed, np.ndarray) or removed.dtype != bool or removed.shape != (self.num_nodes,):
            raise UsageError(f"removed must be an array of {self.num_nodes} booleans, one for each node.")
        kept = np.flatnonzero(~removed)
        if not len(kept):
            raise UsageError("the graph is empty: leave at least one node.")
        source = np.repeat(np.arange(self.num_nodes), self.degrees)
        stays = ~(removed[source] | removed[self.indices])
        # New ids are in the order of the former ones, so neighbours stay sorted.
        fresh = np.cumsum(~removed) - 1
        counts = np.bincount(fresh[source[stays]], minlength=len(kept))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Graph._unchecked(indptr, fresh[self.indices[stays]].astype(np.int32)), kept

    @classmethod
    def from_edges(cls, edges: ArrayLike, num_nodes: int | None = None) -> Graph:
        """The graph of an edge list.

        Args:
            edges: Integers of shape (number of edges, 2).
            num_nodes: How many nodes there are. When None, the ids that occur must be 0, 1, 2, ... without gaps, so
                that a stray id does not pass for a graph full of isolated nodes.

        Raises:
            UsageError: If the ids or the shape are not as described, or there is no node at all.
        """
        pairs = _pairs(edges)
        if num_nodes is None:
            num_nodes = len(np.unique(pairs))
            if len(pairs) and (pairs.min() < 0 or pairs.max() >= num_nodes):
                raise UsageError(
                    f"the {num_nodes} ids are not 0 to {num_nodes - 1} (they go from {pairs.min()} to {pairs.max()}): "
                    "give num_nodes if the others are isolated nodes, or renumber with relabel(edges)."
                )
        if isinstance(num_nodes, bool) or not isinstance(num_nodes, int | np.integer):
            raise UsageError(f"num_nodes is an integer, not {num_nodes!r}.")
        if num_nodes < 1:
            raise UsageError("the graph is empty: give at least one node.")
        if num_nodes >= 2**31:
            raise UsageError(f"num_nodes is {num_nodes}, and at most {2**31 - 1} fit the 32-bit ids.")
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
        raise UsageError(f"node ids are integers, not {pairs.dtype}: renumber with relabel(edges).")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise UsageError(
            f"edges have the shape (number of edges, 2), not {pairs.shape}; transpose a (2, E) edge_index."
        )
    return pairs.astype(np.int64)


def _assemble(pairs: NDArray[np.int64], num_nodes: int) -> Graph:
    low, high = pairs.min(axis=1, initial=num_nodes), pairs.max(axis=1, initial=-1)
    code = np.unique((low * num_nodes + high)[low != high])
    low, high = np.divmod(code, num_nodes)
    source, target = np.concatenate([low, high]), np.concatenate([high, low])
    by_source = np.argsort(source * num_nodes + target, kind="stable")
    counts = np.bincount(source, minlength=num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Graph._unchecked(indptr, target[by_source].astype(np.int32))


def _check_rows(indptr: ArrayLike, indices: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Read-only copies of neighbour lists that are those of an undirected graph."""
    start, near = np.asarray(indptr), np.asarray(indices)
    for name, array in (("indptr", start), ("indices", near)):
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise UsageError(f"{name} must be a flat array of integers, got {array.dtype} of shape {array.shape}.")
    num_nodes = len(start) - 1
    if not 1 <= num_nodes < 2**31:
        raise UsageError(f"indptr must have 1 to {2**31 - 1} nodes and one entry more, got {len(start)} entries.")
    start = start.astype(np.int64)
    if start[0] != 0 or start[-1] != len(near) or (np.diff(start) < 0).any():
        raise UsageError(f"indptr must rise from 0 to the {len(near)} entries of indices: use Graph.from_edges(edges).")
    if len(near) and not (int(near.min()) >= 0 and int(near.max()) < num_nodes):
        raise UsageError(f"indices must be from 0 to {num_nodes - 1}, got {int(near.min())} to {int(near.max())}.")
    source, target = np.repeat(np.arange(num_nodes), np.diff(start)), near.astype(np.int64)
    there, back = source * num_nodes + target, target * num_nodes + source
    if (np.diff(there) < 1).any() or (source == target).any() or not np.array_equal(there, np.sort(back)):
        raise UsageError(
            "indices must list every edge at both ends, ascending, without repeats and self-loops: use "
            "Graph.from_edges(edges)."
        )
    found = start, target.astype(np.int32)
    for array in found:
        array.flags.writeable = False
    return found


def relabel(edges: ArrayLike) -> tuple[NDArray[np.int64], NDArray]:
    """Edges with their ids renumbered 0, 1, 2, ... in ascending order of the former ids.

    Args:
        edges: Ids of any sortable kind, shape (number of edges, 2).

    Returns:
        The edges, and the former id of each node.

    Raises:
        UsageError: If the shape is another, or an id is not a number.

    Example:
        >>> edges, names = relabel([["b", "a"], ["b", "z"]])
        >>> edges.tolist(), names.tolist()
        ([[1, 0], [1, 2]], ['a', 'b', 'z'])
    """
    pairs = np.asarray(edges)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise UsageError(f"edges have the shape (number of edges, 2), not {pairs.shape}.")
    if pairs.dtype.kind == "f" and np.isnan(pairs).any():
        raise UsageError("an id in the edge list is NaN: remove that edge.")
    names, positions = np.unique(pairs, return_inverse=True)
    return positions.reshape(pairs.shape).astype(np.int64), names


def load_graph(path: str | Path) -> Graph:
    """The graph in an ``.npz`` file with the fields ``num_nodes`` and ``edges``.

    Raises:
        UsageError: If there is no such file, it is not of this kind, or a field is missing.
    """
    arrays = read_arrays(Path(path), ("num_nodes", "edges"), str(path))
    try:
        num_nodes = int(arrays["num_nodes"])
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{path} has a num_nodes that is not a number: {error}.") from error
    return Graph.from_edges(arrays["edges"], num_nodes)


def check_nodes(graph: Graph, nodes: ArrayLike, what: str) -> NDArray[np.int64]:
    """A user's node ids as an array.

    Args:
        graph: The graph they are of.
        nodes: Ids, each once.
        what: Their name in an error.

    Raises:
        UsageError: If they are not distinct ids of the graph.
    """
    found = np.asarray(nodes)
    if found.size == 0:
        return np.empty(0, np.int64)
    if found.dtype.kind not in "iu" or found.ndim != 1:
        raise UsageError(f"{what} is a flat list of integer ids, not {found.dtype} of shape {found.shape}.")
    if len(found) > graph.num_nodes:
        raise UsageError(f"{what} has {len(found)} nodes, and the graph only {graph.num_nodes}.")
    wrong = (found < 0) | (found >= graph.num_nodes)
    if wrong.any():
        raise UsageError(f"{what} has id {found[wrong][0]}, which is not from 0 to {graph.num_nodes - 1}.")
    found = found.astype(np.int64)
    seen, counts = np.unique(found, return_counts=True)
    if len(seen) < len(found):
        raise UsageError(f"{what} has node {seen[counts > 1][0]} more than once.")
    return found


def check_orders(graph: Graph, orders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Several orders of all nodes, one a row.

    Raises:
        UsageError: If a row is not a permutation of the nodes.
    """
    found = np.asarray(orders)
    if found.dtype.kind not in "iu" or found.ndim != 2 or found.shape[1] != graph.num_nodes:
        raise UsageError(
            f"orders must be integers of shape (orders, {graph.num_nodes}), got {found.dtype} of shape {found.shape}."
        )
    if not (np.sort(found, axis=1) == np.arange(graph.num_nodes)).all():
        raise UsageError(f"an order must contain each of the {graph.num_nodes} nodes once.")
    return found.astype(np.int64)


def check_scores(graph: Graph, scores: ArrayLike, what: str = "scores") -> NDArray[np.float64]:
    """A user's score per node as an array.

    Raises:
        UsageError: If there is not one number per node.
    """
    try:
        found = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} must hold one number for each of {graph.num_nodes} nodes.") from error
    if found.shape != (graph.num_nodes,):
        raise UsageError(f"{what} has shape {found.shape}: give one number for each of {graph.num_nodes} nodes.")
    if np.isnan(found).any():
        raise UsageError(f"{what} has NaN at node {int(np.flatnonzero(np.isnan(found))[0])}.")
    return found


def check_generator(generator: np.random.Generator | None) -> None:
    """Refuse what does not draw random numbers.

    Raises:
        UsageError: If it is not a numpy.random.Generator.
    """
    if not isinstance(generator, np.random.Generator):
        raise UsageError(f"generator must be a numpy.random.Generator, got {type(generator).__name__}.")


def check_budget(graph: Graph, k: int) -> int:
    """How many nodes a user wants.

    Raises:
        UsageError: If it is not an integer from 1 to the number of nodes.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= graph.num_nodes:
        raise UsageError(f"k is an integer from 1 to the number of nodes, {graph.num_nodes}, not {k!r}.")
    return int(k)
