"""Find residual adds by dataflow.

An add is residual if one operand, the branch, was computed from the other, the skip, through a mixing operator, while
the skip itself reached the add unmixed. It may be written ``x + f(x)`` or ``x += f(x)``, be part of a fused product,
be gated, or scatter the results of experts into the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import ADDS, CONVOLUTIONS, GATES, KEEPS, MOVES, POOLS, PRODUCTS
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.analysis.residuals.reachability import Landmarks, Reachability, ResidualAdd

LINEAR = PRODUCTS | CONVOLUTIONS
BESIDE_LINEAR = MOVES | POOLS | {"mul", "add", "max", "amax", "mean"}
"""Operators that a projected skip may have next to its linear map, apart from a norm."""


def find_adds(
    graph: Graph, norms: Sequence[Norm], excluded: Iterable[NodeId]
) -> tuple[list[ResidualAdd], Reachability]:
    """Every residual add in the order of the pass, and the reachability that follows from them."""
    excluded = set(excluded)
    while True:
        adds, reachability = _find_once(graph, norms, excluded)
        shortcuts = {add.node for add, continued in nested(adds, reachability) if not continued}
        if not shortcuts:
            return adds, reachability
        excluded |= shortcuts


def _find_once(graph: Graph, norms: Sequence[Norm], excluded: set[NodeId]) -> tuple[list[ResidualAdd], Reachability]:
    reachability, adds = Reachability(), []
    norm_of_node = {node: norm for norm in norms for node in norm.nodes}
    norm_inputs = {norm.output: norm.input for norm in norms}
    landmarks = _landmarks(graph, norms)
    for value in landmarks:
        if value not in graph.producer:
            reachability.add_landmark(value)
    for index, node in enumerate(graph.nodes):
        node_id = NodeId(index)
        norm = norm_of_node.get(node_id)
        add = None
        if norm is None and node_id not in excluded:
            add = _residual_add(graph, reachability, node_id, node, norm_inputs)
            if add is not None and add.projected and reachability.spans(adds, add):
                add = None
        if add is not None:
            adds.append(add)
        reachability.propagate(graph, node, norm, add)
        if node_id in excluded:  # a sum within a branch is not a stream
            for value in node.outputs:
                reachability.plain[value] = reachability.stream[value] = 0
        for value in node.outputs:
            if value in landmarks or (add is not None and value == add.output):
                reachability.add_landmark(value)
        if add is not None:
            reachability.sums |= reachability.bit[add.output]
    return adds, reachability


def _landmarks(graph: Graph, norms: Sequence[Norm]) -> set[ValueId]:
    """The inputs and outputs of norms, and the features that several operators read."""
    landmarks = {value for norm in norms for value in (norm.input, norm.output)}
    for value, readers in graph.consumers.items():
        forks = len(readers) > 1 or len(graph.nodes[readers[0]].outputs) > 1
        if forks and graph.is_features(value):
            # A view counts as the viewed value, but a parameter becomes a stream only where it is repeated.
            landmarks.add([number for number in graph.unchanged(value, KEEPS) if graph.is_features(number)][-1])
    return landmarks


def operands(graph: Graph, node: Node) -> list[ValueId]:
    """What a node adds up: the operands of an add, or the parts of a stack that is summed."""
    if node.name in ADDS:
        return graph.data_inputs(node)
    if node.name == "sub":
        values = graph.data_inputs(node) if graph.is_features(node.inputs[0]) else []
        return [] if len(values) == 2 and _is_added_back(graph, node.outputs[0], values[1]) else values
    if node.name == "sum" and node.inputs:
        stacked = graph.maker(node.inputs[0])
        if stacked is not None and stacked.name == "stack":
            return graph.data_inputs(stacked)
    return []


def _is_added_back(graph: Graph, difference: ValueId, subtracted: ValueId) -> bool:
    """Whether a scaled difference is added to what was subtracted, which interpolates between the two operands."""
    scaled = graph.computed_from([difference], lambda node: node.name in MOVES or node.name == "mul")
    return any(node.name == "add" and subtracted in node.inputs for value in scaled for node in graph.readers(value))


def _residual_add(
    graph: Graph, reachability: Reachability, node_id: NodeId, node: Node, norm_inputs: Mapping[ValueId, ValueId]
) -> ResidualAdd | None:
    """The residual add that a node is, or None."""
    values = operands(graph, node)
    if len(values) < 2 or not graph.values[node.outputs[0]].shape:  # a sum of losses has no features
        return None
    stream, mixed = reachability.stream, reachability.mixed
    output = node.outputs[0]
    for skip in values[:1] if node.name == "sub" else values:
        if not _has_full_size(graph, skip, output):
            continue
        for branch in values:
            common = stream.get(skip, 0) & mixed.get(branch, 0)
            # If both operands come from a later value unmixed, they separate there, with no branch between them.
            latest = stream.get(skip, 0) & reachability.any.get(branch, 0)
            shared = stream.get(skip, 0) & stream.get(branch, 0)
            if branch == skip or common.bit_length() < max(latest.bit_length(), 1):
                continue
            # If both operands contain an earlier value and something computed from it, two streams meet, unless one
            # operand contains it after a norm: a branch that adds to its input, or identity experts that return it.
            meeting = shared and reachability.bit[reachability.latest(shared)]
            in_both = meeting & mixed.get(skip, 0) & mixed.get(branch, 0)
            if in_both and not _only_after_norm(reachability, skip, branch, meeting):
                continue
            fork = reachability.latest(common)
            # A stream to which an earlier value of it is added again, such as the embedding, has no new branch.
            if stream.get(branch, 0) & reachability.bit[fork] and reachability.comes_plainly(branch, fork):
                continue
            # A learned embedding that is added to a stream in every layer, as for queries, is not its skip.
            if graph.is_weight(fork) and stream.get(branch, 0) & reachability.sums:
                continue
            return ResidualAdd(node_id, skip, branch, fork, output, node.call)
    if node.name != "sub":
        for skip, branch in (values[:2], values[1::-1]):
            is_full = _has_full_size(graph, skip, output)
            fork = _projection_input(graph, reachability, skip, norm_inputs) if is_full else None
            # The branch must cross two barriers after the fork; otherwise two linear maps are merely summed.
            if fork is None or not reachability.twice.get(branch, 0) & reachability.bit[fork]:
                continue
            if not _is_linear(graph, branch, fork) and not _feeds_gates(graph, output):
                return ResidualAdd(node_id, skip, branch, fork, output, node.call, projected=True)
    return None


def _has_full_size(graph: Graph, value: ValueId, output: ValueId) -> bool:
    """Whether an operand is as large as the sum, so that it is not broadcast."""
    return math.prod(graph.values[value].shape) == math.prod(graph.values[output].shape)


def _projection_input(
    graph: Graph, reachability: Reachability, value: ValueId, norm_inputs: Mapping[ValueId, ValueId]
) -> ValueId | None:
    """The input of the learned linear map, with or without a norm, that computed a value; None for other values."""
    crossed = False
    while True:
        if value in norm_inputs:
            value = norm_inputs[value]
        else:
            node = graph.maker(value)
            if node is None:
                return None
            if graph.is_barrier(node):
                if crossed or node.name not in LINEAR or all(map(graph.is_data, node.inputs)):
                    return None
                crossed = True
            elif node.name not in BESIDE_LINEAR:
                return None
            factors = graph.factors(node)
            if len(factors) != 1:
                return None
            value = factors[0]
        if crossed and value in reachability.bit and len(graph.consumers[value]) > 1:
            return value


def _only_after_norm(reachability: Reachability, skip: ValueId, branch: ValueId, landmark: Landmarks) -> bool:
    """Whether a branch contains a landmark only after a norm, while the skip contains the landmark itself."""
    return bool(landmark & reachability.plain.get(skip, 0) and not landmark & reachability.plain.get(branch, 0))


def _feeds_gates(graph: Graph, value: ValueId) -> bool:
    """Whether everything that reads a sum, whole or in parts, is a gate such as a sigmoid."""

    def passes(node: Node) -> bool:
        return node.name in MOVES or (node.name in ("add", "sub") and len(graph.data_inputs(node)) == 1)

    parts = graph.computed_from([value], passes)
    readers = [node for part in parts for node in graph.readers(part) if not passes(node)]
    return bool(readers) and all(node.name in GATES for node in readers)


def _is_linear(graph: Graph, value: ValueId, fork: ValueId) -> bool:
    """Whether a branch is a linear map of its fork, as a low-rank update is."""
    while value != fork:
        node = graph.maker(value)
        if node is None or node.name not in LINEAR | MOVES | {"mul", "div"}:
            return False
        factors = graph.factors(node)
        if len(factors) != 1:
            return False
        value = factors[0]
    return True


def nested(adds: Sequence[ResidualAdd], reachability: Reachability) -> Iterator[tuple[ResidualAdd, bool]]:
    """Adds inside the branch of another add whose skip was already mixed there, and whether other adds continue them.

    An add that nothing continues carries no stream: it is a shortcut, such as the direct term of a state-space layer.
    A skip around a stack of adds continues that stack.
    """
    continued: set[ValueId] = set()
    for add in adds:
        earlier = reachability.stream.get(add.skip, 0) & reachability.sums
        if earlier:
            continued |= {add.output, reachability.latest(earlier)}
    stacks = [add for add in adds if add.output in continued]
    forks: dict[ValueId, Landmarks] = {}  # forks of the branches that contain each sum
    for outer in adds:
        for value in reachability.members(reachability.inside_branch(outer) & reachability.sums):
            forks[value] = forks.get(value, 0) | reachability.bit[outer.fork]
    for add in adds:
        if reachability.mixed.get(add.skip, 0) & forks.get(add.output, 0):
            yield add, add.output in continued or reachability.spans(stacks, add)


def between_branches(adds: Sequence[ResidualAdd], reachability: Reachability) -> Iterator[ResidualAdd]:
    """Adds inside a branch of features that an earlier branch of its stream reads, such as the first layer's values.

    Their skip is not a stream, and nothing continues them. It is computed in the earlier branch, or their branch
    continues that one, as where several layers share an embedding of values.
    """
    streams = [reachability.stream.get(add.skip, 0) for add in adds]
    for add, stream in zip(adds, streams, strict=True):
        fork, output = reachability.bit[add.fork], reachability.bit[add.output]
        if stream & reachability.sums or any(other & output for other in streams):
            continue
        outer = [index for index, other in enumerate(adds) if reachability.inside_branch(other) & output]
        if any(
            streams[index] & reachability.bit[earlier.output]
            and reachability.inside_branch(earlier) & fork
            and (
                reachability.mixed.get(add.fork, 0) & reachability.bit[earlier.fork]
                or reachability.comes_from(add.branch, earlier.output)
            )
            for index in outer
            for earlier in adds
        ):
            yield add


def bypassed(adds: Sequence[ResidualAdd], norms: Sequence[Norm], reachability: Reachability) -> Iterator[ResidualAdd]:
    """Adds whose sum only a branch reads, while the skip around that branch starts before the sum.

    Such a sum is an argument of one branch, as of features and a position that is computed from them.
    """
    read = 0
    for add in adds:
        read |= reachability.stream.get(add.skip, 0)
    for norm in norms:
        read |= reachability.plain.get(norm.input, 0)
    for add in adds:
        output = reachability.bit[add.output]
        if read & output:
            continue
        outer = next((other for other in adds if reachability.inside_branch(other) & output), None)
        if outer is not None and reachability.stream.get(outer.skip, 0) & reachability.bit[add.fork]:
            yield add
