"""ResidualAdd adds, found by what is added to what.

An add is residual when one operand, the branch, was made from the other, the skip, by way of a mixing operator, while
the skip itself came to the add unmixed. It may be written ``x + f(x)`` or ``x += f(x)``, be part of a fused product,
be gated, or scatter experts back into the stream.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import ADDS, CONVOLUTIONS, GATES, KEEPS, MOVES, NORMS, POOLS, PRODUCTS
from normplace.analysis.norms.find import Norm

LINEAR = PRODUCTS | CONVOLUTIONS
BESIDE_LINEAR = MOVES | POOLS | NORMS.keys() | {"mul", "add", "max", "amax", "mean"}


@dataclass(frozen=True)
class ResidualAdd:
    """One residual add.

    Attributes:
        node: The node that adds.
        skip: The operand that carries the stream.
        branch: The operand that was made from it.
        fork: Where the two part.
        output: The sum.
        call: The module call that adds.
        projected: Whether the skip passes one linear map, as where a stage changes its width.
    """

    node: int
    skip: int
    branch: int
    fork: int
    output: int
    call: int
    projected: bool = False


@dataclass
class Reachability:
    """For each value the landmarks upstream of it, as bit sets, along several kinds of path.

    Attributes:
        any: All paths.
        mixed: Paths with a mixing operator.
        once: Paths with a barrier.
        twice: Paths with two.
        plain: Paths without barrier or norm that follow the skip of residual adds.
        stream: The same, norms allowed.
        bit: The bit of each landmark, in the order of the pass.
        landmarks: The landmark of each bit.
        sums: The bits of the residual adds' results.
    """

    any: dict[int, int] = field(default_factory=dict)
    mixed: dict[int, int] = field(default_factory=dict)
    once: dict[int, int] = field(default_factory=dict)
    twice: dict[int, int] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)
    stream: dict[int, int] = field(default_factory=dict)
    bit: dict[int, int] = field(default_factory=dict)
    landmarks: list[int] = field(default_factory=list)
    sums: int = 0

    def add_landmark(self, value: int) -> None:
        """Give a value its bit, and let it reach itself."""
        if value not in self.bit:
            self.bit[value] = 1 << len(self.landmarks)
            self.landmarks.append(value)
        for paths in (self.any, self.plain, self.stream):
            paths[value] = paths.get(value, 0) | self.bit[value]

    def latest(self, bits: int) -> int:
        """The landmark of a set that the pass came to last."""
        return self.landmarks[bits.bit_length() - 1]

    def members(self, bits: int) -> Iterator[int]:
        """The landmarks of a set, latest first."""
        while bits:
            top = bits.bit_length() - 1
            yield self.landmarks[top]
            bits &= ~(1 << top)

    def joins(self, residual: ResidualAdd, before: ResidualAdd) -> bool:
        """Whether an add belongs to the block of the one before it: their branches read the same stream."""
        since = self.any.get(residual.branch, 0) & self.sums
        return before.fork == residual.fork and since.bit_length() <= self.bit[residual.fork].bit_length()

    def comes_from(self, value: int, source: int) -> bool:
        """Whether any path leads from ``source`` to ``value``."""
        return bool(self.any.get(value, 0) & self.bit.get(source, 0))

    def comes_plainly(self, value: int, source: int) -> bool:
        """Whether one leads there without barrier or norm."""
        return bool(self.plain.get(value, 0) & self.bit.get(source, 0))


def find_residuals(
    graph: Graph, norms: Sequence[Norm], refused: Iterable[int] = ()
) -> tuple[list[ResidualAdd], Reachability]:
    """Every residual add in the order of the pass, and the reachability that follows from them.

    Args:
        graph: The graph.
        norms: Its norms.
        refused: Nodes that are known to be no residual adds.
    """
    dropped = set(refused)
    while True:
        residuals, reach = _pass(graph, norms, dropped)
        inner = {residual.node for residual, continued in nested(residuals, reach) if not continued}
        if not inner:
            return residuals, reach
        dropped |= inner


def _pass(graph: Graph, norms: Sequence[Norm], refused: set[int]) -> tuple[list[ResidualAdd], Reachability]:
    reach, residuals = Reachability(), []
    inside = {at: norm for norm in norms for at in norm.nodes}
    marked = {value for norm in norms for value in (norm.input, norm.output)}
    for value, readers in graph.consumers.items():
        parted = len(readers) > 1 or len(graph.nodes[readers[0]].outputs) > 1
        if parted and graph.is_features(value):
            # A view of a value is that value, but a parameter becomes a stream only where it is repeated.
            marked.add([number for number in graph.unchanged(value, KEEPS) if graph.is_features(number)][-1])
    for value in marked:
        if value not in graph.producer:
            reach.add_landmark(value)
    for at, node in enumerate(graph.nodes):
        norm = inside.get(at)
        residual = None
        if norm is None and at not in refused:
            residual = _residual(graph, reach, at, node)
            if residual is not None and residual.projected and spans(residuals, reach, residual):
                residual = None
        if residual is not None:
            residuals.append(residual)
        _step(graph, reach, node, norm, residual)
        if at in refused:  # what is added within a branch is not a stream
            for value in node.outputs:
                reach.plain[value] = reach.stream[value] = 0
        for value in node.outputs:
            if value in marked or (residual is not None and value == residual.output):
                reach.add_landmark(value)
        if residual is not None:
            reach.sums |= reach.bit[residual.output]
    return residuals, reach


def _step(graph: Graph, reach: Reachability, node: Node, norm: Norm | None, residual: ResidualAdd | None) -> None:
    """Carry reachability over one node."""
    inputs = [number for number in node.inputs if graph.is_data(number)]
    if norm is not None and norm.output in node.outputs:
        inputs = [norm.input]
    anywhere = once = twice = mixed = plain = stream = 0
    for value in inputs:
        anywhere |= reach.any.get(value, 0)
        once |= reach.once.get(value, 0)
        twice |= reach.twice.get(value, 0)
        mixed |= reach.mixed.get(value, 0)
        plain |= reach.plain.get(value, 0)
        stream |= reach.stream.get(value, 0)
    if residual is not None:
        plain, stream = reach.plain.get(residual.skip, 0), reach.stream.get(residual.skip, 0)
    kept = node.inputs[0] if node.name == "sub" and graph.is_data(node.inputs[0]) else node.copies
    if kept is not None and norm is None:  # what is taken off a stream, or weighs its copies, is not part of it
        plain, stream = reach.plain.get(kept, 0), reach.stream.get(kept, 0)
    if graph.is_mixing(node):
        mixed = anywhere
    if graph.is_barrier(node):
        plain = stream = 0
        once, twice = anywhere, twice | once
    elif node.name == "mul" and norm is None:
        stream = _through_product(graph, reach, node)
    if norm is not None:
        plain = 0
    for value in node.outputs:
        reach.any[value], reach.mixed[value] = anywhere, mixed
        reach.once[value], reach.twice[value] = once, twice
        reach.plain[value], reach.stream[value] = plain, stream


def _through_product(graph: Graph, reach: Reachability, node: Node) -> int:
    """A stream may be scaled or gated and stay one; the product of two sets of features is a new one."""
    factors = graph.data_inputs(node)
    sizes = [math.prod(graph.values[value].shape) for value in factors]
    whole = math.prod(graph.values[node.outputs[0]].shape)
    if len(factors) < 2:
        return _union(reach.stream, [value for value, size in zip(factors, sizes, strict=True) if size == whole])
    carried = [
        one
        for one, other, size, beside in zip(factors, factors[::-1], sizes, sizes[::-1], strict=False)
        if size == whole and (beside < whole or graph.is_gate(other))
    ]
    return _union(reach.stream, carried)


def _union(paths: dict[int, int], values: Iterable[int]) -> int:
    bits = 0
    for value in values:
        bits |= paths.get(value, 0)
    return bits


def operands(graph: Graph, node: Node) -> list[int]:
    """What a node adds up: both operands of an add, or the parts of a stack that is summed."""
    if node.name in ADDS:
        return graph.data_inputs(node)
    if node.name == "sub":
        held = graph.data_inputs(node) if graph.is_features(node.inputs[0]) else []
        return [] if len(held) == 2 and _is_added_back(graph, node.outputs[0], held[1]) else held
    if node.name == "sum" and node.inputs:
        stacked = graph.maker(node.inputs[0])
        if stacked is not None and stacked.name == "stack":
            return graph.data_inputs(stacked)
    return []


def _is_added_back(graph: Graph, value: int, taken: int) -> bool:
    """Whether what was taken off is added again to a share of the difference, which interpolates between the two."""
    queue = [value]
    while queue:
        for node in graph.readers(queue.pop()):
            if node.name == "add" and taken in node.inputs:
                return True
            if node.name in MOVES or node.name == "mul":
                queue += node.outputs
    return False


def _residual(graph: Graph, reach: Reachability, at: int, node: Node) -> ResidualAdd | None:
    """The residual add that a node is, if it is one."""
    values = operands(graph, node)
    if len(values) < 2:
        return None
    output = node.outputs[0]
    for skip in values[:1] if node.name == "sub" else values:
        if not _is_whole(graph, skip, output):
            continue
        for branch in values:
            common = reach.stream.get(skip, 0) & reach.mixed.get(branch, 0)
            # Where both operands still share a later value unmixed, they part there, and no branch lies between.
            shared = reach.stream.get(skip, 0) & reach.stream.get(branch, 0)
            if branch == skip or common.bit_length() < max(shared.bit_length(), 1):
                continue
            # Where both operands hold an earlier value and something made of it, two streams meet, unless one holds it
            # behind a norm: a branch that adds to its input, or whose identity experts return it.
            meeting = shared and reach.bit[reach.latest(shared)]
            both = meeting & reach.mixed.get(skip, 0) & reach.mixed.get(branch, 0)
            if both and not _reads_normed(reach, skip, branch, meeting):
                continue
            fork = reach.latest(common)
            # A learned embedding that is added to a stream again, as for queries in every layer, is not its skip.
            if graph.is_weight(fork) and reach.stream.get(branch, 0) & reach.sums:
                continue
            return ResidualAdd(at, skip, branch, fork, output, node.call)
    if node.name != "sub":
        for skip, branch in (values[:2], values[1::-1]):
            fork = _projection(graph, reach, skip) if _is_whole(graph, skip, output) else None
            # The branch must mix the fork at least once before its own last mixing, or the two are merely summed.
            if fork is None or not reach.twice.get(branch, 0) & reach.bit[fork] or _is_linear(graph, branch, fork):
                continue
            if not _feeds_gates(graph, output):
                return ResidualAdd(at, skip, branch, fork, output, node.call, projected=True)
    return None


def _is_whole(graph: Graph, value: int, output: int) -> bool:
    """Whether a sum is as large as this operand, so that it was not merely spread over it."""
    return math.prod(graph.values[value].shape) == math.prod(graph.values[output].shape)


def _projection(graph: Graph, reach: Reachability, value: int) -> int | None:
    """The value of which this one is a linear map with learned weights, normalized or not."""
    crossed = False
    while True:
        node = graph.maker(value)
        if node is None:
            return None
        if graph.is_barrier(node):
            if crossed or node.name not in LINEAR or all(map(graph.is_data, node.inputs)):
                return None
            crossed = True
        elif node.name not in BESIDE_LINEAR:
            return None
        held = graph.factors(node)
        if len(held) != 1:
            return None
        value = held[0]
        if crossed and value in reach.bit and len(graph.consumers[value]) > 1:
            return value


def _reads_normed(reach: Reachability, skip: int, branch: int, value: int) -> bool:
    """Whether a branch carries a value on only behind its input norm, which the skip carries on as it is."""
    return bool(value & reach.plain.get(skip, 0) and not value & reach.plain.get(branch, 0))


def spans(residuals: Iterable[ResidualAdd], reach: Reachability, outer: ResidualAdd) -> bool:
    """Whether other adds lie between a fork and the branch, as between the levels of a pyramid of features."""
    if not reach.any.get(outer.branch, 0) & ~reach.any.get(outer.fork, 0) & reach.sums:
        return False
    return any(
        reach.comes_from(outer.branch, inner.output) and reach.comes_from(inner.fork, outer.fork) for inner in residuals
    )


def _feeds_gates(graph: Graph, value: int) -> bool:
    """Whether all that reads a sum, whole or in parts, is a function with values between 0 and 1, or -1 and 1."""
    queue, gates = [value], False
    while queue:
        for node in graph.readers(queue.pop()):
            if node.name in GATES:
                gates = True
            elif node.name in MOVES or (node.name in ("add", "sub") and len(graph.data_inputs(node)) == 1):
                queue += node.outputs
            else:
                return False
    return gates


def _is_linear(graph: Graph, value: int, fork: int) -> bool:
    """Whether a branch is a linear map of its fork, which adds up with a projection to one, as low-rank updates do."""
    while value != fork:
        node = graph.maker(value)
        if node is None or node.name not in LINEAR | MOVES | {"mul", "div"}:
            return False
        held = graph.factors(node)
        if len(held) != 1:
            return False
        value = held[0]
    return True


def nested(residuals: Sequence[ResidualAdd], reach: Reachability) -> Iterator[tuple[ResidualAdd, bool]]:
    """Adds inside the branch of another whose skip was already mixed there, and whether other adds continue them.

    One that nothing continues carries no stream: it is a mere shortcut, such as the direct term of a state-space layer.
    A skip around a stack of adds continues that stack.
    """
    continued: set[int] = set()
    for residual in residuals:
        before = reach.stream.get(residual.skip, 0) & reach.sums
        if before:
            continued |= {residual.output, reach.latest(before)}
    stacks = [residual for residual in residuals if residual.output in continued]
    forks: dict[int, int] = {}  # of the branches that each sum is in
    for outer in residuals:
        inside = reach.any.get(outer.branch, 0) & ~reach.any.get(outer.fork, 0) & reach.sums
        for value in reach.members(inside):
            forks[value] = forks.get(value, 0) | reach.bit[outer.fork]
    for residual in residuals:
        if reach.mixed.get(residual.skip, 0) & forks.get(residual.output, 0):
            yield residual, residual.output in continued or spans(stacks, reach, residual)
