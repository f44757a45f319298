"""Checks of the arguments of node-selection functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from numbers import Real
from typing import ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, expect_whole
from normplace.lab.tasks.selection.graph import Graph

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def takes_graph(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Check that the first argument of a function is a :class:`Graph`."""

    @functools.wraps(function)
    def checked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        graph = args[0] if args else kwargs.get("graph")
        if not isinstance(graph, Graph):
            kind = f"{type(graph).__module__}.{type(graph).__qualname__}".removeprefix("builtins.")
            raise UsageError(
                f"{function.__name__} needs a Graph of normplace, got {kind}: build one with Graph.from_edges(edges)."
            )
        return function(*args, **kwargs)

    return checked


def check_nodes(graph: Graph, nodes: ArrayLike, what: str) -> NDArray[np.int64]:
    """Node ids as an array.

    Raises:
        UsageError: If they are not distinct node ids of the graph.
    """
    ids = np.asarray(nodes)
    if ids.size == 0:
        return np.empty(0, np.int64)
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise UsageError(f"{what} must be a flat list of integer ids, got {ids.dtype} of shape {ids.shape}.")
    if len(ids) > graph.num_nodes:
        raise UsageError(f"{what} has {len(ids)} nodes, but the graph has only {graph.num_nodes}.")
    wrong = (ids < 0) | (ids >= graph.num_nodes)
    if wrong.any():
        raise UsageError(f"{what} has id {ids[wrong][0]}, which is not from 0 to {graph.num_nodes - 1}.")
    ids = ids.astype(np.int64)
    seen, counts = np.unique(ids, return_counts=True)
    if len(seen) < len(ids):
        raise UsageError(f"{what} has node {seen[counts > 1][0]} more than once.")
    return ids


def check_orders(graph: Graph, orders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Several orders of all nodes, one per row.

    Raises:
        UsageError: If a row is not a permutation of the nodes.
    """
    rows = np.asarray(orders)
    if rows.dtype.kind not in "iu" or rows.ndim != 2 or rows.shape[1] != graph.num_nodes:
        raise UsageError(
            f"orders must be integers of shape (orders, {graph.num_nodes}), got {rows.dtype} of shape {rows.shape}."
        )
    if not (np.sort(rows, axis=1) == np.arange(graph.num_nodes)).all():
        raise UsageError(f"an order must contain each of the {graph.num_nodes} nodes once.")
    return rows.astype(np.int64)


def check_scores(graph: Graph, scores: ArrayLike) -> NDArray[np.float64]:
    """The scores of the nodes as an array.

    Raises:
        UsageError: If there is not one number per node, or one is NaN.
    """
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"scores must be one number for each of {graph.num_nodes} nodes.") from error
    if values.shape != (graph.num_nodes,):
        raise UsageError(f"scores have shape {values.shape}: pass one number for each of {graph.num_nodes} nodes.")
    if np.isnan(values).any():
        raise UsageError(f"scores have NaN at node {int(np.flatnonzero(np.isnan(values))[0])}.")
    return values


def check_generator(generator: np.random.Generator | None) -> None:
    """Check a random generator.

    Raises:
        UsageError: If it is not a numpy.random.Generator.
    """
    if not isinstance(generator, np.random.Generator):
        raise UsageError(f"generator must be a numpy.random.Generator, got {type(generator).__name__}.")


def check_budget(graph: Graph, k: int, name: str = "budget") -> int:
    """The number of nodes to select, an argument of that name.

    Raises:
        UsageError: If it is not an integer from 1 to the number of nodes.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= graph.num_nodes:
        raise UsageError(f"{name} must be an integer from 1 to {graph.num_nodes}, the number of nodes, got {k!r}.")
    return int(k)


def check_count(name: str, value: int) -> int:
    """A positive number of things.

    Raises:
        UsageError: If it is not a whole number of at least 1.
    """
    expect_whole(1, **{name: value})
    return int(value)


def check_probability(name: str, value: float) -> None:
    """Check a probability or a share.

    Raises:
        UsageError: If it is not a number from 0 to 1.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise UsageError(f"{name} must be a number from 0 to 1, got {value!r}.")


def check_seed(seed: int, bits: int = 64) -> int:
    """A random seed.

    Raises:
        UsageError: If it is not an integer from 0 to 2**bits - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**bits:
        raise UsageError(f"seed must be an integer from 0 to 2**{bits} - 1, got {seed!r}.")
    return int(seed)
