"""Which earlier values a value was computed from, along which kinds of path."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import CallId, NodeId, ValueId


@dataclass(frozen=True)
class ResidualAdd:
    """One residual add.

    Attributes:
        node: The node that adds.
        skip: The operand that carries the stream.
        branch: The operand computed from the stream.
        fork: The value at which skip and branch separate.
        output: The sum.
        call: The module call that adds.
        projected: Whether a linear map is on the skip, as where a stage changes its width.
    """

    node: NodeId
    skip: ValueId
    branch: ValueId
    fork: ValueId
    output: ValueId
    call: CallId
    projected: bool = False


Landmarks = int
"""A set of landmarks as bits, in the order of the pass."""


@dataclass
class Reachability:
    """For each value, the landmarks it was computed from, along several kinds of path.

    Landmarks are the values where paths separate: forks, inputs and outputs of norms, and residual sums.

    Attributes:
        any: Along any path.
        mixed: Along paths with a mixing operator.
        once: Along paths with a barrier.
        twice: Along paths with two barriers.
        plain: Along paths without barrier or norm, through the skips of residual adds.
        stream: The same, norms allowed.
        bit: The bit of each landmark.
        landmarks: The landmark of each bit.
        sums: The bits of residual sums.
    """

    any: dict[ValueId, Landmarks] = field(default_factory=dict)
    mixed: dict[ValueId, Landmarks] = field(default_factory=dict)
    once: dict[ValueId, Landmarks] = field(default_factory=dict)
    twice: dict[ValueId, Landmarks] = field(default_factory=dict)
    plain: dict[ValueId, Landmarks] = field(default_factory=dict)
    stream: dict[ValueId, Landmarks] = field(default_factory=dict)
    bit: dict[ValueId, Landmarks] = field(default_factory=dict)
    landmarks: list[ValueId] = field(default_factory=list)
    sums: Landmarks = 0

    def add_landmark(self, value: ValueId) -> None:
        """Make a value a landmark, which it reaches itself."""
        if value not in self.bit:
            self.bit[value] = 1 << len(self.landmarks)
            self.landmarks.append(value)
        for paths in (self.any, self.plain, self.stream):
            paths[value] = paths.get(value, 0) | self.bit[value]

    def latest(self, landmarks: Landmarks) -> ValueId:
        """The last landmark of a set in the order of the pass."""
        return self.landmarks[landmarks.bit_length() - 1]

    def members(self, landmarks: Landmarks) -> Iterator[ValueId]:
        """The landmarks of a set, latest first."""
        while landmarks:
            top = landmarks.bit_length() - 1
            yield self.landmarks[top]
            landmarks &= ~(1 << top)

    def joins(self, add: ResidualAdd, previous: ResidualAdd) -> bool:
        """Whether an add belongs to the block of the previous one: their branches read the same stream."""
        since = self.any.get(add.branch, 0) & self.sums
        return previous.fork == add.fork and since.bit_length() <= self.bit[add.fork].bit_length()

    def comes_from(self, value: ValueId, source: ValueId) -> bool:
        """Whether any path leads from ``source`` to ``value``."""
        return bool(self.any.get(value, 0) & self.bit.get(source, 0))

    def comes_plainly(self, value: ValueId, source: ValueId) -> bool:
        """Whether a path without barrier or norm leads from ``source`` to ``value``."""
        return bool(self.plain.get(value, 0) & self.bit.get(source, 0))

    def inside_branch(self, add: ResidualAdd) -> Landmarks:
        """The landmarks between the fork and the end of a branch."""
        return self.any.get(add.branch, 0) & ~self.any.get(add.fork, 0)

    def spans(self, adds: Iterable[ResidualAdd], outer: ResidualAdd) -> bool:
        """Whether other adds are between a fork and its branch, as between the levels of a feature pyramid."""
        if not self.inside_branch(outer) & self.sums:
            return False
        return any(
            self.comes_from(outer.branch, inner.output) and self.comes_from(inner.fork, outer.fork) for inner in adds
        )

    def propagate(self, graph: Graph, node: Node, norm: Norm | None, add: ResidualAdd | None) -> None:
        """Compute the landmarks of a node's outputs from those of its inputs."""
        inputs = [value for value in node.inputs if graph.is_data(value)]
        if norm is not None and norm.output in node.outputs:
            inputs = [norm.input]
        anywhere, once = _union(self.any, inputs), _union(self.once, inputs)
        twice, mixed = _union(self.twice, inputs), _union(self.mixed, inputs)
        plain, stream = _union(self.plain, inputs), _union(self.stream, inputs)
        if add is not None:
            plain, stream = self.plain.get(add.skip, 0), self.stream.get(add.skip, 0)
        carrier = node.inputs[0] if node.name == "sub" and graph.is_data(node.inputs[0]) else node.copies
        if carrier is not None and norm is None:  # the subtrahend, or the weights of copies, are not the stream
            plain, stream = self.plain.get(carrier, 0), self.stream.get(carrier, 0)
        if graph.is_mixing(node):
            mixed = anywhere
        if graph.is_barrier(node):
            plain = stream = 0
            once, twice = anywhere, twice | once
        elif node.name == "mul" and norm is None:
            stream = self._stream_through_product(graph, node)
        if norm is not None:
            plain = 0
        for value in node.outputs:
            self.any[value], self.mixed[value] = anywhere, mixed
            self.once[value], self.twice[value] = once, twice
            self.plain[value], self.stream[value] = plain, stream

    def _stream_through_product(self, graph: Graph, node: Node) -> Landmarks:
        """A scaled or gated stream is still the stream; a product of two sets of features is not."""
        factors = graph.data_inputs(node)
        sizes = [math.prod(graph.values[value].shape) for value in factors]
        full_size = math.prod(graph.values[node.outputs[0]].shape)
        if len(factors) < 2:
            carriers = [value for value, size in zip(factors, sizes, strict=True) if size == full_size]
        else:
            carriers = [
                value
                for value, other, size, other_size in zip(factors, factors[::-1], sizes, sizes[::-1], strict=False)
                if size == full_size and (other_size < full_size or graph.is_gate(other))
            ]
        return _union(self.stream, carriers)


def _union(paths: Mapping[ValueId, Landmarks], values: Sequence[ValueId]) -> Landmarks:
    """The landmarks of all the values; the same object for a single value, since sets are large in deep models."""
    if len(values) == 1:
        return paths.get(values[0], 0)
    landmarks = 0
    for value in values:
        landmarks |= paths.get(value, 0)
    return landmarks
