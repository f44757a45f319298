"""Which operand of attention a value is: queries, keys or values.

Attention, with or without a softmax, combines values by the agreement of queries and keys. The three operands differ
in what is summed over on the way to the end of the branch:

=========  =========  ============
operand    rows       features
=========  =========  ============
queries    kept       summed over
keys       summed     summed over
values     summed     kept
=========  =========  ============

So the axes of a value are tracked through views, elementwise operators, reductions and products.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace

from normplace.analysis.dataflow.axes import Marks, move_marks
from normplace.analysis.dataflow.graph import Graph, Node, node_argument
from normplace.analysis.dataflow.operators import BIASED_PRODUCTS, PRODUCTS, REDUCTIONS
from normplace.analysis.recording.ids import NodeId, ValueId

ROWS, FEATURES = 1, 2
PICKS = {"topk": 2, "sort": 1, "argsort": 1, "argmax": 1}
"""Operators that select along an axis, and the position of the axis among the arguments."""
RUNNING_SUMS = frozenset({"cumsum", "logcumsumexp"})
MAX_STATES = 4096


@dataclass(frozen=True)
class _State:
    """A value on a path.

    Attributes:
        value: The value.
        marks: The marks of its axes.
        summed: The marks that were summed over so far.
        products: The number of products of features with features on the path.
        scored: Whether the other operand of the first such product is itself one.
    """

    value: ValueId
    marks: Marks
    summed: int = 0
    products: int = 0
    scored: bool = False


def operand_role(graph: Graph, value: ValueId) -> str:
    """The operand of attention that a value with features along its last axis is: q, k or v; empty if none.

    A value with several roles, such as the keys of the delta rule, gets the most specific one: only keys lose both
    their rows and their features.
    """
    rank = len(graph.values[value].shape)
    if not rank:
        return ""
    # The first of three or more axes counts examples, which nothing sums over.
    marks = tuple(FEATURES if dim == rank - 1 else ROWS * (rank < 3 or dim > 0) for dim in range(rank))
    ends = _ends(graph, _State(value, marks))
    if any(end.summed == ROWS | FEATURES for end in ends):
        return "k"
    if any(end.summed == ROWS and (end.products > 1 or end.scored) for end in ends):
        return "v"
    return "q" if any(end.summed == FEATURES for end in ends) else ""


def sums_rows(graph: Graph, value: ValueId, axis: int, region: Set[NodeId]) -> bool:
    """Whether a product with weights that reads a value sums over its rows, as the mixing of tokens in MLP-Mixer.

    Args:
        graph: The graph.
        value: The value, with three or more axes, the first of which counts examples.
        axis: The axis of its features.
        region: The nodes to follow it through.
    """
    rank = len(graph.values[value].shape)
    if rank < 3:
        return False
    start = _State(value, tuple(FEATURES if dim == axis % rank else ROWS * (dim > 0) for dim in range(rank)))
    queue, seen = [start], {start}
    while queue and len(seen) < MAX_STATES:
        state = queue.pop()
        for node in (graph.nodes[index] for index in graph.consumers.get(state.value, ()) if index in region):
            if node.name in PRODUCTS:
                left, right = node.inputs[1:3] if node.name in BIASED_PRODUCTS else node.inputs[:2]
                summed, other = (-1, right) if left == state.value else (-2, left)
                if not graph.is_data(other) and len(state.marks) > 1 and state.marks[summed] == ROWS:
                    return True
                continue
            for after in () if node.name in REDUCTIONS else _after(graph, node, state):
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
    return False


def _ends(graph: Graph, start: _State) -> list[_State]:
    """The states at the ends of all paths from a value: at products with weights, and where nothing reads it."""
    queue, seen, ends = [start], {start}, []
    while queue and len(seen) < MAX_STATES:
        state = queue.pop()
        readers = graph.consumers.get(state.value, ()) if any(state.marks) else ()
        following = [after for node in readers for after in _after(graph, graph.nodes[node], state)]
        if not following:
            ends.append(state)
        for after in following:
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return [end for end in ends if end.products]


def _after(graph: Graph, node: Node, state: _State) -> list[_State]:
    """The states of a node's results; empty if the path ends here."""
    if node.name in PRODUCTS and not graph.is_barrier(node):
        return []
    if node.name in PRODUCTS:
        return _through_product(graph, node, state)
    if graph.is_barrier(node) or not node.outputs:
        return []
    if node.name in PICKS:
        return _picked(node, state)
    if node.name in REDUCTIONS or node.name == "logsumexp":
        return _through_reduction(graph, node, state)
    if node.name in RUNNING_SUMS and isinstance(dim := node_argument(node, 1), int):
        state = replace(state, summed=state.summed | state.marks[dim])
    states = []
    for output in node.outputs:
        if not graph.is_features(output):
            continue
        old, new = graph.values[state.value].shape, graph.values[output].shape
        marks = state.marks if node.op is None else move_marks(node.op, state.value, state.marks, old, new)
        if node.name in ("select", "unbind") and marks is not None and ROWS in state.marks and ROWS not in marks:
            continue  # a recurrence reads one row at a time, so its rows cannot be tracked
        if marks is not None:
            states.append(replace(state, value=output, marks=marks))
    return states


def _through_product(graph: Graph, node: Node, state: _State) -> list[_State]:
    """A product of two sets of features sums over the axis they share."""
    factors = graph.factors(node)
    if len(factors) < 2 or len(node.inputs) != 2:
        return []
    states = []
    for side, value in enumerate(node.inputs):
        if value != state.value:
            continue
        rank = len(state.marks)
        kept, summed = (rank - 2, rank - 1) if side == 0 else (rank - 1, rank - 2)
        if rank < 2:
            return []
        shape = graph.values[node.outputs[0]].shape
        marks = [0] * len(shape)
        marks[: rank - 2] = state.marks[: rank - 2]
        marks[-2 if side == 0 else -1] = state.marks[kept]
        scored = state.scored or (state.products == 0 and graph.is_after_pairing(node.inputs[1 - side]))
        # Summing over an axis of size 1 changes nothing.
        over = state.marks[summed] if graph.values[value].shape[summed] > 1 else 0
        states.append(_State(node.outputs[0], tuple(marks), state.summed | over, state.products + 1, scored))
    return states


def _through_reduction(graph: Graph, node: Node, state: _State) -> list[_State]:
    """A reduction sums over its axes; after a multiplication of features it is the sum of a product."""
    rank, shape = len(state.marks), graph.values[node.outputs[0]].shape
    dims = node_argument(node, 2 if node.name in ("linalg_vector_norm", "norm") else 1, key="dim")
    dims = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    over = {dim % rank for dim in dims} if isinstance(dims, tuple) and dims else set(range(rank))
    marks = [0 if dim in over else mark for dim, mark in enumerate(state.marks)]
    if len(shape) < rank:
        marks = [mark for dim, mark in enumerate(marks) if dim not in over]
    if len(marks) != len(shape):
        return []
    summed = state.summed
    for dim in over:
        summed |= state.marks[dim]
    products = state.products + (node.name == "sum" and _is_outer(graph, node.inputs[0]))
    return [_State(value, tuple(marks), summed, products, state.scored) for value in node.outputs[:1]]


def _picked(node: Node, state: _State) -> list[_State]:
    """Selecting the largest scores along an axis, as an indexer does, counts as summing over it."""
    dim = node_argument(node, PICKS[node.name], -1, key="dim")
    if not isinstance(dim, int):
        return []
    return [replace(state, value=node.outputs[0], marks=(), summed=state.summed | state.marks[dim])]


def _is_outer(graph: Graph, value: ValueId) -> bool:
    """Whether a value is a product of two sets of features, each broadcast over the axes of the other."""
    node, size = graph.maker(value), math.prod(graph.values[value].shape)
    while node is not None and node.name == "mul":
        factors = graph.factors(node)
        if len(factors) == 2 and all(math.prod(graph.values[factor].shape) < size for factor in factors):
            return True
        node = graph.maker(max(factors, key=lambda factor: math.prod(graph.values[factor].shape))) if factors else None
    return False
