"""The tape as a graph of operators and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from normplace._shared.closure import closure
from normplace.analysis.dataflow.axes import COPIES, FEATURES, REPEATS, Marks, move_marks, repeat_marks
from normplace.analysis.dataflow.empty_streams import empty_streams
from normplace.analysis.dataflow.operators import (
    AGGREGATIONS,
    BARRIERS,
    BIASED_PRODUCTS,
    GATE_ARITHMETIC,
    GATES,
    KEEPS,
    MOVES,
    POOLS,
    PRODUCTS,
    REDUCTIONS,
    SHAPED,
    SPARSE_PRODUCTS,
    TRANSPOSES,
)
from normplace.analysis.recording.ids import CallId, NodeId, ValueId
from normplace.analysis.recording.tape import Op, Tape, Value, ValueRef


@dataclass(slots=True)
class Node:
    """One operator of the graph. Fused adds are split into a product and an add.

    Attributes:
        name: The operator.
        inputs: Values read, in argument order.
        outputs: Values returned.
        call: The module call it ran in.
        op: The operator as recorded; None for a part of a split one.
        copies: Of a product that only combines copies of a stream, or a stack: the operand that holds them.
        squares: Whether it multiplies each row with itself, which gives the squared length.
    """

    name: str
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    call: CallId
    op: Op | None = None
    copies: ValueId | None = None
    squares: bool = False


@dataclass
class Graph:
    """A tape with producers and consumers.

    Args:
        tape: The recorded pass. Values inside split operators are appended to it.

    Attributes:
        nodes: The operators in the order of the pass.
        producer: The node that returned each value.
        consumers: The nodes that read each value.
    """

    tape: Tape
    nodes: list[Node] = field(init=False, default_factory=list)
    producer: dict[ValueId, NodeId] = field(init=False, default_factory=dict)
    consumers: dict[ValueId, list[NodeId]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._data = [value.origin == "input" for value in self.values]
        self._copies: dict[ValueId, Marks] = {}
        self._stacks: dict[ValueId, Marks] = {}
        self._gates: set[ValueId] = set()
        self._routed: set[ValueId] = set()  # integers and booleans that are computed from features
        for value in empty_streams(self.tape):
            self._data[value] = True
        for op in self.tape.ops:
            for node in self._split(op):
                self._append(node)

    def _append(self, node: Node) -> None:
        node_id = NodeId(len(self.nodes))
        self.nodes.append(node)
        is_data = any(self._data[value] for value in node.inputs) or self._is_repeated_parameter(node)
        is_routed = any(self.is_features(value) or value in self._routed for value in node.inputs)
        for value in node.outputs:
            self.producer[value] = node_id
            self._data[value] |= is_data
            if is_routed and not self.is_features(value):
                self._routed.add(value)
        for value in dict.fromkeys(node.inputs):
            self.consumers.setdefault(value, []).append(node_id)
        node.squares = node.name in PRODUCTS and self._is_squared_length(node)
        self._track_copies(node)
        self._track_stacks(node)
        features = self.data_inputs(node) if self._gates and node.name in GATE_ARITHMETIC else ()
        if node.name in GATES or (features and self._gates.issuperset(features) and not self._is_scaled_tanh(node)):
            self._gates.update(node.outputs)

    @property
    def values(self) -> list[Value]:
        """Every value, including those inside split operators."""
        return self.tape.values

    def _split(self, op: Op) -> Iterator[Node]:
        """The nodes of an operator; a fused add or product that could be a residual add gets a node for each part."""
        if op.name in SHAPED:
            yield Node(op.name, (), op.outputs, op.call, op)
            return
        name = self._product_name(op)
        if name in BIASED_PRODUCTS and self._data[op.inputs[0]]:
            product = self._append_value(op.outputs[0])
            yield Node("mm", op.inputs[1:], (product,), op.call)
            yield Node("add", (op.inputs[0], product), op.outputs, op.call)
        elif op.name == "addcmul" and len(op.inputs) == 3:
            product = self._append_value(op.outputs[0])
            yield Node("mul", op.inputs[1:], (product,), op.call)
            yield Node("add", (op.inputs[0], product), op.outputs, op.call)
        elif op.name == "lerp":
            yield Node("add", op.inputs[:2], op.outputs, op.call)
        else:
            yield Node(name, op.inputs, op.outputs, op.call, op)

    def _product_name(self, op: Op) -> str:
        """The name of an operator, of products with a sparse matrix by what they sum over.

        A sparse matrix on the left of features sums over rows, as an adjacency does. Left of transposed features, or on
        the right, it sums over features, as a pruned weight does.
        """
        if op.name not in PRODUCTS | SPARSE_PRODUCTS or not any(self.values[value].is_sparse for value in op.inputs):
            return op.name
        left, value = op.inputs[-2:]
        transposed = not self.values[left].is_sparse
        while not transposed and (node := self.maker(value)) is not None and node.name in KEEPS:
            transposed, value = node.name in TRANSPOSES, node.inputs[0]
        weighs = "mm" if len(op.inputs) == 2 else "addmm"
        return weighs if transposed else op.name if op.name in SPARSE_PRODUCTS else "_sparse_addmm"

    def _append_value(self, like: ValueId) -> ValueId:
        value = self.values[like]
        self.values.append(Value(value.shape, value.dtype, "op"))
        self._data.append(False)
        return ValueId(len(self.values) - 1)

    def _is_repeated_parameter(self, node: Node) -> bool:
        """Whether a parameter is repeated for every example, and so starts a stream as an input does."""
        if node.name not in ("expand", "repeat") or len(self.values[node.outputs[0]].shape) < 3:
            return False
        return self.is_weight(node.inputs[0])

    def _track_copies(self, node: Node) -> None:
        """Mark the axes of a node's results that count copies of a value, as the streams of hyper-connections do.

        A product that sums over such an axis combines the copies and makes no new features.
        """
        if not (self._copies or node.name in REPEATS) or node.op is None or not node.outputs:
            return
        if not self.values[node.outputs[0]].dtype.is_floating_point:
            return
        data = [value for value in node.inputs if self._data[value]]
        if node.name in REPEATS and len(set(data)) == 1:
            marks = repeat_marks(node.op, self.values[data[0]].shape, self.values[node.outputs[0]].shape)
            if COPIES in marks:
                self._copies[node.outputs[0]] = marks
                return
        copies = [value for value in node.inputs if value in self._copies]
        if not copies or (node.name in BARRIERS and node.name not in PRODUCTS) or node.name in REDUCTIONS:
            return
        if node.name in PRODUCTS:
            if len(node.inputs) == 2:
                self._combine_copies(node, copies)
            return
        for output in node.outputs:
            shape = self.values[output].shape
            full = [value for value in node.inputs if self._data[value] and self.values[value].shape == shape]
            if node.name != "add" and copies != [value for value in node.inputs if value in {*copies, *full}]:
                continue  # features that copies scale are not copies
            for value in copies:
                marks = move_marks(node.op, value, self._copies[value], self.values[value].shape, shape)
                if marks is not None and any(mark & COPIES for mark in marks):
                    self._copies[output] = marks

    def _combine_copies(self, node: Node, copies: list[ValueId]) -> None:
        """Mark a product that sums over the axis of copies."""
        for value in copies:
            left = node.inputs[0] == value
            marks, weights = self._copies[value], node.inputs[1 if left else 0]
            summed, kept = (-1, -2) if left else (-2, -1)
            if len(marks) < 2 or marks[summed] != COPIES or marks[kept] & COPIES:
                continue
            if self.is_after_pairing(weights):
                continue  # attention between the copies
            result = [0] * len(self.values[node.outputs[0]].shape)
            result[summed], result[kept] = COPIES, marks[kept]
            self._copies[node.outputs[0]] = tuple(result)
            node.copies = value

    def _track_stacks(self, node: Node) -> None:
        """Mark a product that only adds up a stack of values by fixed weights, as of the layers of DenseFormer."""
        if node.op is None or not node.outputs or not (self._stacks or node.name == "stack"):
            return
        output = node.outputs[0]
        shape = self.values[output].shape
        if node.name == "stack" and len(self.data_inputs(node)) > 1:
            dim = node_argument(node, 1, 0, key="dim") % len(shape)
            self._stacks[output] = tuple(COPIES if axis == dim else FEATURES for axis in range(len(shape)))
        elif node.name in KEEPS and node.inputs[0] in self._stacks:
            marks = move_marks(
                node.op, node.inputs[0], self._stacks[node.inputs[0]], self.values[node.inputs[0]].shape, shape
            )
            if marks is not None:
                self._stacks[output] = marks
        elif node.name in PRODUCTS and len(node.inputs) == 2:
            for value, weights, summed in (*node.inputs, -1), (*node.inputs[::-1], -2):
                sizes = self.values[value].shape
                if value not in self._stacks or self._data[weights] or len(sizes) < 2:
                    continue
                if self._stacks[value][summed] == COPIES and math.prod(shape) * sizes[summed] == math.prod(sizes):
                    node.copies = value

    def _is_scaled_tanh(self, node: Node) -> bool:
        """Whether a learned gain scales a tanh, which then replaces a norm and is not a gate."""
        makers = [self.maker(value) for value in self.data_inputs(node)]
        scaled = node.name == "mul" and any(self.is_weight(value) for value in node.inputs)
        return scaled and any(maker is not None and maker.name == "tanh" for maker in makers)

    def _is_squared_length(self, node: Node) -> bool:
        """Whether both operands are one value and the result has one number for each row, as of ``einsum``."""
        if len(node.inputs) != 2:
            return False
        first, second = (self.origin(value, KEEPS) for value in node.inputs)
        shape = self.values[node.inputs[0]].shape
        rows = math.prod(shape) // max(shape[-1:] or (1,))
        return first == second and math.prod(self.values[node.outputs[0]].shape) == rows

    def computed_from(self, values: Iterable[ValueId], passes: Callable[[Node], bool]) -> Iterator[ValueId]:
        """The values, and everything that is computed from them by nodes that pass, each value once."""
        return closure(
            values, lambda value: (output for node in self.readers(value) if passes(node) for output in node.outputs)
        )

    def barriers_before(self, value: ValueId) -> set[NodeId]:
        """The last barriers on every path to a value."""

        def preceding(value: ValueId) -> Sequence[ValueId]:
            node = self.maker(value)
            return () if node is None or self.is_barrier(node) else self.data_inputs(node)

        makers = (self.producer.get(earlier) for earlier in closure([value], preceding))
        return {node_id for node_id in makers if node_id is not None and self.is_barrier(self.nodes[node_id])}

    def is_after_pairing(self, value: ValueId) -> bool:
        """Whether one of the last barriers before a value multiplies features with features."""
        return any(len(self.factors(self.nodes[barrier])) > 1 for barrier in self.barriers_before(value))

    def is_data(self, value: ValueId) -> bool:
        """Whether the value depends on the model's inputs."""
        return self._data[value]

    def is_features(self, value: ValueId) -> bool:
        """Whether the value depends on the inputs and holds real or complex numbers."""
        dtype = self.values[value].dtype
        return self._data[value] and (dtype.is_floating_point or dtype.is_complex)

    def maker(self, value: ValueId) -> Node | None:
        """The operator that returned a value."""
        node_id = self.producer.get(value)
        return None if node_id is None else self.nodes[node_id]

    def readers(self, value: ValueId) -> list[Node]:
        """The operators that read a value."""
        return [self.nodes[node_id] for node_id in self.consumers.get(value, ())]

    def path(self, node: Node) -> str:
        """The name of the module that a node ran in."""
        return self.tape.path(node.call)

    def data_inputs(self, node: Node) -> list[ValueId]:
        """The inputs of a node that are features."""
        return [value for value in node.inputs if self.is_features(value)]

    def unchanged(self, value: ValueId, through: Set[str] = MOVES) -> Iterator[ValueId]:
        """The value and what it was before moving operators, nearest first."""
        while True:
            yield value
            node = self.maker(value)
            if node is None or node.name not in through or not node.inputs:
                return
            value = next((read for read in node.inputs if self.is_features(read)), node.inputs[0])

    def origin(self, value: ValueId, through: Set[str] = MOVES) -> ValueId:
        """What a value was before all moving operators."""
        for earlier in self.unchanged(value, through):
            value = earlier
        return value

    def is_weight(self, value: ValueId) -> bool:
        """Whether it is a parameter, or a part of one that was selected, viewed, cast or shifted by a constant."""
        while True:
            for earlier in self.unchanged(value):
                if self.values[earlier].origin == "parameter":
                    return True
                value = earlier
            node = self.maker(value)
            if node is None or node.name not in ("add", "sub", "rsub") or len(node.inputs) != 1:
                return False
            value = node.inputs[0]

    def factors(self, node: Node) -> list[ValueId]:
        """The operands of a product that are features and not weights."""
        return [value for value in self.data_inputs(node) if not self.is_weight(value)]

    def scaled(self, node: Node) -> ValueId | None:
        """The features that a node moves or scales: the only ones it reads, or those of full size in a product."""
        values = self.data_inputs(node)
        if node.name == "mul" and len(values) == 2:
            size = math.prod(self.values[node.outputs[0]].shape)
            values = [value for value in values if math.prod(self.values[value].shape) == size]
        return values[0] if len(values) == 1 else None

    def is_gate(self, value: ValueId) -> bool:
        """Whether a value is computed only from functions with a range of 0 to 1 or -1 to 1, such as a sigmoid."""
        return value in self._gates

    def is_barrier(self, node: Node) -> bool:
        """Whether a node makes new features: products, attention, convolutions, transforms, unknown operators."""
        if node.name in BARRIERS:
            return node.copies is None and not node.squares
        if "::" not in node.name or node.name in AGGREGATIONS:
            return False
        return any(self.values[value].origin == "parameter" for value in node.inputs)

    def aggregates_edges(self, node: Node) -> bool:
        """Whether a node adds up features by an index that does not depend on features, as along the edges of a graph.

        The index by which experts return their tokens depends on features. A sparse matrix that sums over rows is an
        adjacency.
        """
        if node.name in SPARSE_PRODUCTS:
            return True
        if node.name not in AGGREGATIONS or not self.data_inputs(node):
            return False
        indices = [value for value in node.inputs if not self.values[value].dtype.is_floating_point]
        return bool(indices) and not any(map(self.is_routed, indices))

    def is_routed(self, value: ValueId) -> bool:
        """Whether the value holds integers or booleans that are computed from features."""
        return value in self._routed

    def is_mixing(self, node: Node) -> bool:
        """Whether a path through this node is a branch rather than a rescaled skip."""
        return node.name in POOLS or self.is_barrier(node)

    @cached_property
    def used(self) -> set[ValueId]:
        """The values that the model's outputs depend on."""

        def read_by_maker(value: ValueId) -> Sequence[ValueId]:
            node = self.maker(value)
            return () if node is None else node.inputs

        return set(closure(self.tape.outputs, read_by_maker))


def constant(node: Node) -> float | None:
    """The number by which a node multiplies, divides or shifts its only tensor."""
    for argument in node.op.args[:2] if node.op is not None else ():
        if isinstance(argument, int | float) and not isinstance(argument, bool | ValueRef):
            return float(argument)
    return None


def node_argument(node: Node, index: int, default: Any = None, key: str = "") -> Any:
    """A positional or keyword argument of the recorded operator."""
    return default if node.op is None else node.op.argument(index, default, key)
