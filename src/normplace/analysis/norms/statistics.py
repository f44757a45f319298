"""Divisions of a value by its own statistic: norms that are written out in code.

Such a norm takes the root of reduced squares of x, and divides x, or x minus its mean, by that root. From the root the
graph is followed back to the values that the root is a statistic of, and forward to the value that is divided by it. If
the two are the same value, that value is normalized.

A softmax divides by a sum of exponentials, routing weights by a sum of magnitudes, a quantizer by a maximum. They have
no root or no squares, so they are not found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from normplace.analysis.dataflow.graph import Graph, Node, constant, node_argument
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
from normplace.analysis.recording.ids import NodeId, ValueId

HOMOGENEOUS = MOVES | FOLDS | {"pow", "square", "abs", "sub", "rsub", "real"}
SCALING = MOVES | {"mul"}
LENGTHS = frozenset({"linalg_vector_norm", "norm"})


@dataclass(frozen=True)
class Division:
    """A value divided by its own statistic.

    Attributes:
        value: The value that is normalized.
        node: The node that divides.
        nodes: That node and the nodes that compute the statistic.
        kind: The kind of norm.
        eps: The number added under the root or to it.
        eps_inside: The number added under the root.
        eps_dtype: The dtype in which it is added.
        precision: The dtype of the summed squares.
        extent: The smallest and largest number under the root, if measured.
        axis: The axis of the features: -1, or 1 for feature maps.
    """

    value: ValueId
    node: NodeId
    nodes: frozenset[NodeId]
    kind: str
    eps: float | None
    eps_inside: float | None
    eps_dtype: torch.dtype | None
    precision: torch.dtype
    extent: tuple[float, float] | None
    axis: int = -1


@dataclass
class _Statistic:
    """The number under a root.

    Attributes:
        root: The node that takes the root.
        nodes: The nodes between the earliest source and the root.
        sources: Values that the number is a statistic of: squared and reduced on the way.
        read_dtypes: The dtype that each of the nodes reads.
        eps: The number added on the way.
        eps_dtype: The dtype in which it is added.
        reduction: The reduction nearest to the root.
        has_buffers: Whether it depends on a buffer, as running statistics do.
        divisor: The number by which it is divided.
    """

    root: Node
    nodes: set[NodeId]
    sources: set[ValueId] = field(default_factory=set)
    read_dtypes: dict[NodeId, torch.dtype] = field(default_factory=dict)
    eps: float | None = None
    eps_dtype: torch.dtype | None = None
    reduction: Node | None = None
    has_buffers: bool = False
    divisor: float | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether it comes from buffers alone."""
        return self.has_buffers and not self.sources

    def include(self, node_id: NodeId, node: Node, dtype: torch.dtype) -> None:
        """Include an operator on the way, which reads this dtype."""
        self.read_dtypes[node_id] = dtype
        if node.name in REDUCTIONS and self.reduction is None:
            self.reduction = node

    def after(self, graph: Graph, value: ValueId) -> tuple[set[str], torch.dtype]:
        """The operators between a value and the root, and the narrowest dtype of the summed values."""
        first, precision = graph.producer.get(value, -1), torch.float64
        dtypes = {node_id: dtype for node_id, dtype in self.read_dtypes.items() if node_id > first}
        for node_id, dtype in dtypes.items():
            name = graph.nodes[node_id].name
            if name in FOLDS:
                # A reduction that also squares works in float32 at least; separate squares have their own dtype.
                squares = torch.promote_types(dtype, torch.float32) if name in EVEN else dtype
                precision = min(precision, squares, key=lambda kind: torch.finfo(kind).bits)
        return {graph.nodes[node_id].name for node_id in dtypes}, precision


def is_root(node: Node) -> bool:
    """Whether a node takes a square root, as a Euclidean length does."""
    if node.name in LENGTHS:
        return _is_euclidean(node)
    return node.name in ROOTS or (node.name == "pow" and constant(node) in (0.5, -0.5))


def _is_euclidean(node: Node) -> bool:
    """Whether a vector norm has order 2."""
    order = node_argument(node, 1, key="ord" if node.name == "linalg_vector_norm" else "p")
    return order is None or order == 2


def find_division(graph: Graph, root_id: NodeId) -> Division | None:
    """The division of a value by the root of its own statistic, or None."""
    statistic = _statistic(graph, root_id)
    if not statistic.sources and not statistic.has_buffers:
        return None
    root = statistic.root
    inverted = root.name == "rsqrt" or (root.name == "pow" and constant(root) == -0.5)
    queue = [(root.outputs[0], inverted, (statistic.eps, statistic.eps_dtype), frozenset(statistic.nodes))]
    while queue:
        value, inverted, eps, nodes = queue.pop(0)
        for node_id in graph.consumers.get(value, ()):
            node, path = graph.nodes[node_id], nodes | {node_id}
            others = [number for number in node.inputs if number != value]
            if node.name in ("mul", "div") and others and graph.is_features(others[0]):
                divides = inverted if node.name == "mul" else not inverted and node.inputs[-1] == value
                numerator = _numerator(graph, others[0], statistic) if divides else None
                if numerator is not None:
                    return _division(graph, node_id, path, statistic, numerator, eps)
            elif node.name in SHIFTS and len(graph.data_inputs(node)) < 2:
                added = constant(node), graph.values[node.outputs[0]].dtype
                queue.append((node.outputs[0], inverted, added if added[0] else eps, path))
            elif node.name == "reciprocal" or (node.name == "pow" and constant(node) == -1):
                queue.append((node.outputs[0], not inverted, eps, path))
            elif node.name in SCALING and len(others) < 2:
                queue.append((node.outputs[0], inverted, eps, path))
            elif node.name == "div":
                queue.append((node.outputs[0], inverted == (node.inputs[0] == value), eps, path))
    return None


def _statistic(graph: Graph, root_id: NodeId) -> _Statistic:
    """Follow the graph back from a root to the values it may be a statistic of."""
    root = graph.nodes[root_id]
    statistic = _Statistic(root, {root_id})
    if root.name in REDUCTIONS:
        statistic.include(root_id, root, graph.values[root.inputs[0]].dtype)
    queue, seen = [(root.inputs[0], root.name in FOLDS, root.name in EVEN)], set()
    while queue:
        state = value, reduced, squared = queue.pop()
        if state in seen:
            continue
        seen.add(state)
        if reduced and squared:
            statistic.sources.add(value)
        statistic.has_buffers |= graph.values[value].origin == "buffer"
        node_id = graph.producer.get(value)
        if node_id is None:
            continue
        node = graph.nodes[node_id]
        inputs = _statistic_inputs(graph, node, reduced)
        if not inputs:
            continue
        if node.name in SHIFTS and not (reduced and squared) and constant(node):
            statistic.eps, statistic.eps_dtype = constant(node), graph.values[node.outputs[0]].dtype
        statistic.include(node_id, node, graph.values[node.inputs[0]].dtype)
        if node.name == "div" and not reduced:
            statistic.divisor = constant(node)
        statistic.nodes.add(node_id)
        squares = node.name in EVEN or (node.name == "pow" and constant(node) == 2) or _is_square(graph, node)
        folds = node.name in FOLDS or node.squares
        queue += [(number, reduced or folds, squared or squares) for number in inputs]
    return statistic


def _statistic_inputs(graph: Graph, node: Node, reduced: bool) -> list[ValueId]:
    """The inputs of a node that a statistic may come from; empty if the node ends the search."""
    if node.name in LENGTHS and not _is_euclidean(node):
        return []
    if node.name in HOMOGENEOUS or node.squares:
        return [value for value in node.inputs if graph.values[value].dtype.is_floating_point]
    single = len(graph.data_inputs(node)) < 2
    if (node.name in SHIFTS and single) or (
        node.name in ("mul", "div") and (single or not reduced or _is_square(graph, node))
    ):
        # A mean is a statistic of the summed values, not of their count, whose lower bound of 1 is not an eps.
        is_mean = node.name == "div" and len(node.inputs) == 2 and graph.is_features(node.inputs[0])
        return [node.inputs[0]] if is_mean else list(node.inputs)
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


@dataclass(frozen=True)
class _Numerator:
    """The value that is divided by its statistic, the nodes from it to the division, and whether it is centred."""

    value: ValueId
    nodes: frozenset[NodeId]
    centred: bool


def _numerator(graph: Graph, value: ValueId, statistic: _Statistic) -> _Numerator | None:
    if statistic.is_frozen:
        return _Numerator(value, frozenset(), True)
    best, nodes, centred = None, set(), False
    while True:
        if value in statistic.sources:
            best = _Numerator(value, frozenset(nodes), centred)
        node_id = graph.producer.get(value)
        node = None if node_id is None else graph.nodes[node_id]
        if node_id is None or node is None or not node.inputs:
            return best
        features = graph.data_inputs(node)
        if node.name == "sub" and len(node.inputs) == 2:
            centred = True
        elif node.name == "mul" and best is None and len(features) == 1:
            value = features[0]  # a factor inside the norm
            nodes.add(node_id)
            continue
        elif node.name not in KEEPS or (node.name in RESHAPES and best is not None):
            return best
        nodes.add(node_id)
        value = node.inputs[0]


def _division(
    graph: Graph,
    node_id: NodeId,
    nodes: frozenset[NodeId],
    statistic: _Statistic,
    numerator: _Numerator,
    eps: tuple[float | None, torch.dtype | None],
) -> Division:
    names, precision = statistic.after(graph, numerator.value)
    if names & SPREADS or _is_shared_by_rows(graph, statistic, numerator):
        kind = "graph"
    elif statistic.is_frozen or not _runs_over_features(graph, statistic.reduction):
        kind = "batch"
    elif numerator.centred or names & SPREAD_OF_VALUES:
        kind = "layer"
    else:
        averaged = "mean" in names or statistic.divisor == graph.values[numerator.value].shape[-1]
        kind = "rms" if averaged else "l2"
    root = statistic.root
    return Division(
        value=numerator.value,
        node=node_id,
        nodes=nodes | numerator.nodes,
        kind=kind,
        eps=eps[0],
        eps_inside=statistic.eps,
        eps_dtype=eps[1],
        precision=precision,
        extent=None if root.name in REDUCTIONS else graph.values[root.inputs[0]].extent,
        axis=1 if _reduced_axes(graph, statistic.reduction) == {1} else -1,
    )


def _is_shared_by_rows(graph: Graph, statistic: _Statistic, numerator: _Numerator) -> bool:
    """Whether all rows of a matrix are divided by one number, as by PyG's LayerNorm of a single graph."""
    shape, root = graph.values[numerator.value].shape, graph.values[statistic.root.outputs[0]].shape
    return len(shape) == 2 and shape[0] > 1 and math.prod(root) == 1


def _runs_over_features(graph: Graph, reduction: Node | None) -> bool:
    """Whether a reduction includes the last dimension, or all, rather than rows alone."""
    reduced = _reduced_axes(graph, reduction)
    if reduction is None or reduced is None:
        return True
    # Images have their features in dimension 1.
    return len(graph.values[reduction.inputs[0]].shape) - 1 in reduced or reduced == {1}


def _reduced_axes(graph: Graph, reduction: Node | None) -> set[int] | None:
    """The axes that a reduction sums over; None if it sums over all."""
    if reduction is None:
        return None
    rank = len(graph.values[reduction.inputs[0]].shape)
    dims = node_argument(reduction, 2 if reduction.name in LENGTHS else 1, key="dim")
    dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(dims, tuple) or not dims or not all(isinstance(dim, int) for dim in dims):
        return None
    return {dim % rank for dim in dims}
