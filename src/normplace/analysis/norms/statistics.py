"""Divisions of a value by a statistic of itself, which is what a norm written out in code comes to.

Somewhere a root is taken of reduced squares of x, and x, or x less its mean, is divided by that root. Both ends are
walked to from the root: back to what it is a statistic of, forward to what is divided by it, and where the two are the
same value, that value is normalized.

A softmax divides by a sum of exponentials, routing weights by a sum of magnitudes, a quantizer by a largest value:
there is no root, or nothing squared, so none of them is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from normplace.analysis.dataflow.graph import Graph, Node, argument, constant
from normplace.analysis.dataflow.operators import (
    CASTS,
    EVEN,
    FOLDS,
    KEEPS,
    MOVES,
    REDUCTIONS,
    RESHAPES,
    ROOTS,
    SHIFTS,
    SPREAD_OF_VALUES,
    SPREADS,
)

HOMOGENEOUS = MOVES | FOLDS | {"pow", "square", "abs", "sub", "rsub", "real"}
SCALING = MOVES | {"mul"}
LENGTHS = frozenset({"linalg_vector_norm", "norm"})


@dataclass(frozen=True)
class Division:
    """A value divided by its own statistic.

    Attributes:
        value: What is normalized.
        node: The node that divides.
        nodes: That node and those the statistic was made by.
        kind: What norm that makes.
        eps: What was added under the root or to it.
        eps_inside: What was added under it.
        eps_dtype: The dtype it was added in.
        precision: The dtype of the squares that were summed.
        extent: The smallest and largest number whose root was taken, where that was measured.
    """

    value: int
    node: int
    nodes: frozenset[int]
    kind: str
    eps: float | None
    eps_inside: float | None
    eps_dtype: torch.dtype | None
    precision: torch.dtype
    extent: tuple[float, float] | None


@dataclass
class _Statistic:
    """What a root was taken of.

    Attributes:
        root: The node that takes it.
        nodes: The nodes between it and its sources.
        sources: Values of which it is a statistic: squared and reduced on the way.
        names: The operators on the way.
        eps: What was added on the way.
        eps_dtype: The dtype it was added in.
        reduction: The first reduction met.
        precision: The narrowest dtype of what was summed.
        buffers: Whether a buffer was met, as running statistics are.
        divisor: A number by which it was divided.
    """

    root: Node
    nodes: set[int]
    sources: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    eps: float | None = None
    eps_dtype: torch.dtype | None = None
    reduction: Node | None = None
    precision: torch.dtype = torch.float64
    buffers: bool = False
    divisor: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether it was not taken of anything in this pass."""
        return self.buffers and not self.sources

    def note(self, node: Node, dtype: torch.dtype) -> None:
        """Take a node on the way into account."""
        self.names.add(node.name)
        if node.name in REDUCTIONS and self.reduction is None:
            self.reduction = node
        if node.name in FOLDS:
            # A reduction that squares by itself does so in float32 at least; squares made before it are what they are.
            held = torch.promote_types(dtype, torch.float32) if node.name in EVEN else dtype
            self.precision = min(self.precision, held, key=lambda kind: torch.finfo(kind).bits)


def is_root(node: Node) -> bool:
    """Whether a node takes a square root, that of a sum of squares included."""
    if node.name in LENGTHS:
        return _is_euclidean(node)
    return node.name in ROOTS or (node.name == "pow" and constant(node) in (0.5, -0.5))


def _is_euclidean(node: Node) -> bool:
    """Whether a vector norm is the one of order 2."""
    order = argument(node, 1, key="ord" if node.name == "linalg_vector_norm" else "p")
    return order is None or order == 2


def divided_by(graph: Graph, at: int) -> Division | None:
    """The norm that divides by the root at node ``at``, if one does."""
    statistic = _statistic(graph, at)
    if not statistic.sources and not statistic.buffers:
        return None
    root = statistic.root
    inverted = root.name == "rsqrt" or (root.name == "pow" and constant(root) == -0.5)
    queue = [(root.outputs[0], inverted, (statistic.eps, statistic.eps_dtype), frozenset(statistic.nodes))]
    while queue:
        value, inverted, eps, nodes = queue.pop(0)
        for index in graph.consumers.get(value, ()):
            node, inside = graph.nodes[index], nodes | {index}
            others = [number for number in node.inputs if number != value]
            if node.name in ("mul", "div") and others and graph.is_features(others[0]):
                divides = inverted if node.name == "mul" else not inverted and node.inputs[-1] == value
                found = _numerator(graph, others[0], statistic) if divides else None
                if found is not None:
                    return _division(graph, index, inside, statistic, found, eps)
            elif node.name in SHIFTS and len(graph.data_inputs(node)) < 2:
                added = constant(node), graph.values[node.outputs[0]].dtype
                queue.append((node.outputs[0], inverted, added if added[0] else eps, inside))
            elif node.name == "reciprocal" or (node.name == "pow" and constant(node) == -1):
                queue.append((node.outputs[0], not inverted, eps, inside))
            elif node.name in SCALING and len(others) < 2:
                queue.append((node.outputs[0], inverted, eps, inside))
            elif node.name == "div":
                queue.append((node.outputs[0], inverted == (node.inputs[0] == value), eps, inside))
    return None


def _statistic(graph: Graph, at: int) -> _Statistic:
    """Walk back from a root to all that it may be a statistic of."""
    root = graph.nodes[at]
    found = _Statistic(root, {at})
    if root.name in REDUCTIONS:
        found.note(root, graph.values[root.inputs[0]].dtype)
    queue, seen = [(root.inputs[0], root.name in FOLDS, root.name in EVEN)], set()
    while queue:
        step = value, reduced, squared = queue.pop()
        if step in seen:
            continue
        seen.add(step)
        if reduced and squared:
            found.sources.add(value)
        found.buffers |= graph.values[value].origin == "buffer"
        index = graph.producer.get(value)
        if index is None:
            continue
        node = graph.nodes[index]
        steps = _back(graph, node, reduced)
        if not steps:
            continue
        if node.name in SHIFTS and not (reduced and squared) and constant(node):
            found.eps, found.eps_dtype = constant(node), graph.values[node.outputs[0]].dtype
        found.note(node, graph.values[node.inputs[0]].dtype)
        found.divisor = constant(node) if node.name == "div" else found.divisor
        found.nodes.add(index)
        squares = node.name in EVEN or (node.name == "pow" and constant(node) == 2) or _is_square(graph, node)
        folds = node.name in FOLDS or node.squares
        queue += [(number, reduced or folds, squared or squares) for number in steps]
    return found


def _back(graph: Graph, node: Node, reduced: bool) -> list[int]:
    """Where the walk back goes on from a node; nowhere where it ends."""
    if node.name in LENGTHS and not _is_euclidean(node):
        return []
    if node.name in HOMOGENEOUS or node.squares:
        return [number for number in node.inputs if graph.values[number].dtype.is_floating_point]
    single = len(graph.data_inputs(node)) < 2
    if (node.name in SHIFTS and single) or (
        node.name in ("mul", "div") and (single or not reduced or _is_square(graph, node))
    ):
        return list(node.inputs)
    return []


def _is_square(graph: Graph, node: Node) -> bool:
    if node.squares:
        return True
    if node.name != "mul" or node.op is None or not node.inputs:
        return False
    first, second = node.inputs[0], node.inputs[-1]
    if len(node.inputs) < 2:
        return node.op.args[0] == node.op.args[1]
    return graph.origin(first, CASTS) == graph.origin(second, CASTS)


def _numerator(graph: Graph, value: int, statistic: _Statistic) -> tuple[int, frozenset[int], bool] | None:
    """The value whose statistic divides it, the nodes from it to the division, and whether its mean was taken off."""
    if statistic.is_frozen:
        return value, frozenset(), True
    best, nodes, centred = None, set(), False
    while True:
        if value in statistic.sources:
            best = (value, frozenset(nodes), centred)
        index = graph.producer.get(value)
        node = None if index is None else graph.nodes[index]
        if index is None or node is None or not node.inputs:
            return best
        data = graph.data_inputs(node)
        if node.name == "sub" and len(node.inputs) == 2:
            centred = True
        elif node.name == "mul" and best is None and len(data) == 1:
            value = data[0]  # a factor inside the norm
            nodes.add(index)
            continue
        elif node.name not in KEEPS or (node.name in RESHAPES and best is not None):
            return best
        nodes.add(index)
        value = node.inputs[0]


def _division(
    graph: Graph,
    node: int,
    nodes: frozenset[int],
    statistic: _Statistic,
    numerator: tuple[int, frozenset[int], bool],
    eps: tuple[float | None, torch.dtype | None],
) -> Division:
    value, between, centred = numerator
    if statistic.names & SPREADS:
        kind = "graph"
    elif statistic.is_frozen or not _runs_over_features(graph, statistic.reduction):
        kind = "batch"
    elif centred or statistic.names & SPREAD_OF_VALUES:
        kind = "layer"
    else:
        averaged = "mean" in statistic.names or statistic.divisor == graph.values[value].shape[-1]
        kind = "rms" if averaged else "l2"
    root = statistic.root
    extent = None if root.name in REDUCTIONS else graph.values[root.inputs[0]].extent
    return Division(value, node, nodes | between, kind, eps[0], statistic.eps, eps[1], statistic.precision, extent)


def _runs_over_features(graph: Graph, reduction: Node | None) -> bool:
    """Whether a reduction runs over the last dimension, or over all, rather than over rows alone."""
    if reduction is None:
        return True
    rank = len(graph.values[reduction.inputs[0]].shape)
    dims = argument(reduction, 2 if reduction.name in ("linalg_vector_norm", "norm") else 1, key="dim")
    dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(dims, tuple) or not dims or not all(isinstance(dim, int) for dim in dims):
        return True
    over = {dim % rank for dim in dims}
    # Images keep their features first, so that a reduction over dimension 1 alone runs over features too.
    return rank - 1 in over or over == {1}
