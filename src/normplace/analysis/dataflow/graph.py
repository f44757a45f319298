"""The tape as a graph of operators and values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from normplace.analysis.dataflow.axes import COPIES, REPEATS, Marks, moved, repeated
from normplace.analysis.dataflow.operators import (
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
    ZEROS,
)
from normplace.analysis.recording.tape import Op, Ref, Tape, Value


@dataclass(slots=True)
class Node:
    """One operator of the graph, after fused adds were taken apart.

    Attributes:
        name: The operator.
        inputs: Values read, in the order of the arguments.
        outputs: Values returned.
        call: The module call it ran in.
        op: The operator as recorded; None for a part of one.
        copies: Of a product that only weighs the copies of a stream against each other: the operand that holds them.
        squares: Whether it is a product of each row with itself, which is its squared length.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: int
    op: Op | None = None
    copies: int | None = None
    squares: bool = False


@dataclass
class Graph:
    """A tape with producers and consumers.

    Args:
        tape: What was recorded.
    """

    tape: Tape
    nodes: list[Node] = field(init=False, default_factory=list)
    producer: dict[int, int] = field(init=False, default_factory=dict)
    consumers: dict[int, list[int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._data = [value.origin == "input" for value in self.values]
        self._copies: dict[int, Marks] = {}
        self._gates: set[int] = set()
        for number in _empty_streams(self.tape):
            self._data[number] = True
        for op in self.tape.ops:
            for node in self._normal(op):
                at = len(self.nodes)
                self.nodes.append(node)
                follows = any(self._data[number] for number in node.inputs) or self._is_latent(node)
                for number in node.outputs:
                    self.producer[number] = at
                    self._data[number] |= follows
                for number in dict.fromkeys(node.inputs):
                    self.consumers.setdefault(number, []).append(at)
                node.squares = node.name in PRODUCTS and self._squares(node)
                self._follow_copies(node)
                held = self.data_inputs(node) if self._gates and node.name in GATE_ARITHMETIC else ()
                if node.name in GATES or (held and self._gates.issuperset(held) and not self._is_squashed(node)):
                    self._gates.update(node.outputs)

    @property
    def values(self) -> list[Value]:
        """Every value, those that fused operators hid included."""
        return self.tape.values

    def _normal(self, op: Op) -> Iterator[Node]:
        """The operator, its fused add or product taken apart where that could be a residual add."""
        if op.name in SHAPED:
            yield Node(op.name, (), op.outputs, op.call, op)
            return
        first = op.inputs[0] if op.inputs else -1
        if op.name in BIASED_PRODUCTS and self._data[first]:
            hidden = self._hidden(op.outputs[0])
            yield Node("mm", op.inputs[1:], (hidden,), op.call)
            yield Node("add", (first, hidden), op.outputs, op.call)
        elif op.name == "addcmul" and len(op.inputs) == 3:
            hidden = self._hidden(op.outputs[0])
            yield Node("mul", op.inputs[1:], (hidden,), op.call)
            yield Node("add", (first, hidden), op.outputs, op.call)
        elif op.name == "lerp":
            yield Node("add", op.inputs[:2], op.outputs, op.call)
        else:
            yield Node(op.name, op.inputs, op.outputs, op.call, op)

    def _hidden(self, like: int) -> int:
        value = self.values[like]
        self.values.append(Value(value.shape, value.dtype, "op"))
        self._data.append(False)
        return len(self.values) - 1

    def _is_latent(self, node: Node) -> bool:
        """Whether a parameter is repeated for every example here, and so begins a stream as an input would."""
        if node.name not in ("expand", "repeat") or len(self.values[node.outputs[0]].shape) < 3:
            return False
        return self.is_weight(node.inputs[0])

    def _follow_copies(self, node: Node) -> None:
        """Note which axes of a node's results count copies of a value, as the streams of hyper-connections are.

        A product that sums over such an axis weighs the copies against each other, and makes no new features.
        """
        if not (self._copies or node.name in REPEATS) or node.op is None or not node.outputs:
            return
        if not self.values[node.outputs[0]].dtype.is_floating_point:
            return
        shape = self.values[node.outputs[0]].shape
        data = [number for number in node.inputs if self._data[number]]
        if node.name in REPEATS and len(set(data)) == 1:
            marks = repeated(node.op, self.values[data[0]].shape, shape)
            if COPIES in marks:
                self._copies[node.outputs[0]] = marks
                return
        held = [number for number in node.inputs if number in self._copies]
        if not held or (node.name in BARRIERS and node.name not in PRODUCTS) or node.name in REDUCTIONS:
            return
        if node.name in PRODUCTS:
            if len(node.inputs) == 2:
                self._weigh_copies(node, held)
            return
        for output in node.outputs:
            shape = self.values[output].shape
            whole = [number for number in node.inputs if self._data[number] and self.values[number].shape == shape]
            if node.name != "add" and held != [number for number in node.inputs if number in {*held, *whole}]:
                continue  # what a set of copies scales is not one
            for number in held:
                marks = moved(node.op, number, self._copies[number], self.values[number].shape, shape)
                if marks is not None and any(mark & COPIES for mark in marks):
                    self._copies[output] = marks

    def _weigh_copies(self, node: Node, held: list[int]) -> None:
        for number in held:
            left = node.inputs[0] == number
            marks, weights = self._copies[number], node.inputs[1 if left else 0]
            summed, kept = (-1, -2) if left else (-2, -1)
            if len(marks) < 2 or marks[summed] != COPIES or marks[kept] & COPIES:
                continue
            if any(len(self.factors(barrier)) > 1 for barrier in self.barriers_before(weights)):
                continue  # attention among the copies
            made = [0] * len(self.values[node.outputs[0]].shape)
            made[summed], made[kept] = COPIES, marks[kept]
            self._copies[node.outputs[0]] = tuple(made)
            node.copies = number

    def _is_squashed(self, node: Node) -> bool:
        """Whether a learned gain scales a tanh, which is then features in the place of a norm, and no gate."""
        makers = [self.maker(number) for number in self.data_inputs(node)]
        scaled = node.name == "mul" and any(self.is_weight(number) for number in node.inputs)
        return scaled and any(maker is not None and maker.name == "tanh" for maker in makers)

    def _squares(self, node: Node) -> bool:
        """Whether one value is both operands, and all that is kept of each row is a number, as of ``einsum``."""
        if len(node.inputs) != 2:
            return False
        first, second = (self.origin(number, KEEPS) for number in node.inputs)
        rows = math.prod(self.values[node.inputs[0]].shape) // max(self.values[node.inputs[0]].shape[-1:] or (1,))
        return first == second and math.prod(self.values[node.outputs[0]].shape) == rows

    def barriers_before(self, value: int) -> Iterator[Node]:
        """The first barriers on every way back from a value."""
        queue, seen = [value], set()
        while queue:
            at = self.producer.get(queue.pop())
            if at is None or at in seen:
                continue
            seen.add(at)
            node = self.nodes[at]
            if self.is_barrier(node):
                yield node
            else:
                queue += self.data_inputs(node)

    def is_data(self, value: int) -> bool:
        """Whether the value depends on the model's inputs."""
        return self._data[value]

    def is_features(self, value: int) -> bool:
        """Whether it depends on the inputs and holds real or complex numbers."""
        dtype = self.values[value].dtype
        return self._data[value] and (dtype.is_floating_point or dtype.is_complex)

    def maker(self, value: int) -> Node | None:
        """The operator that returned a value."""
        at = self.producer.get(value)
        return None if at is None else self.nodes[at]

    def readers(self, value: int) -> list[Node]:
        """The operators that read a value."""
        return [self.nodes[at] for at in self.consumers.get(value, ())]

    def path(self, node: Node) -> str:
        """The module a node ran in."""
        return self.tape.calls[node.call].path if node.call >= 0 else ""

    def data_inputs(self, node: Node) -> list[int]:
        """The inputs of a node that are features."""
        return [number for number in node.inputs if self.is_features(number)]

    def unchanged(self, value: int, through: Set[str] = MOVES) -> Iterator[int]:
        """The value and what it was before moving operators, nearest first."""
        while True:
            yield value
            node = self.maker(value)
            if node is None or node.name not in through or not node.inputs:
                return
            value = next((number for number in node.inputs if self.is_features(number)), node.inputs[0])

    def origin(self, value: int, through: Set[str] = MOVES) -> int:
        """What a value was before all moving operators."""
        for number in self.unchanged(value, through):
            value = number
        return value

    def is_weight(self, value: int) -> bool:
        """Whether it is a parameter, or a part of one that was picked, viewed, cast or shifted by a constant."""
        while True:
            for number in self.unchanged(value):
                if self.values[number].origin == "parameter":
                    return True
                value = number
            node = self.maker(value)
            if node is None or node.name not in ("add", "sub", "rsub") or len(node.inputs) != 1:
                return False
            value = node.inputs[0]

    def factors(self, node: Node) -> list[int]:
        """The operands of a product that are features and no weights."""
        return [number for number in self.data_inputs(node) if not self.is_weight(number)]

    def is_gate(self, value: int) -> bool:
        """Whether a value comes straight from functions with values between 0 and 1, or -1 and 1, and nothing else."""
        return value in self._gates

    def is_barrier(self, node: Node) -> bool:
        """Whether new features come out of a node: products, attention, convolutions, transforms, operators unknown."""
        if node.name in BARRIERS:
            return node.copies is None and not node.squares
        return "::" in node.name and any(self.values[number].origin == "parameter" for number in node.inputs)

    def is_mixing(self, node: Node) -> bool:
        """Whether a path through this node makes a branch of what would otherwise be a mere rescaling."""
        return node.name in POOLS or self.is_barrier(node)

    @cached_property
    def used(self) -> set[int]:
        """The values that the model's outputs depend on."""
        seen, queue = set(), list(self.tape.outputs)
        while queue:
            number = queue.pop()
            if number not in seen:
                seen.add(number)
                node = self.maker(number)
                queue += node.inputs if node is not None else ()
        return seen


def _empty_streams(tape: Tape) -> Iterator[int]:
    """Zeros that begin a stream: a branch reads them, and its result is added to them."""
    zeros: dict[int, int] = {}
    added: set[int] = set()
    read: Counter[int] = Counter()
    for op in tape.ops:
        if op.name in ZEROS and tape.values[op.outputs[0]].dtype.is_floating_point:
            zeros[op.outputs[0]] = op.outputs[0]
        elif op.name in KEEPS and op.inputs and op.inputs[0] in zeros:
            zeros[op.outputs[0]] = zeros[op.inputs[0]]
        elif zeros:
            held = {zeros[number] for number in op.inputs if number in zeros}
            read.update(held)
            if op.name == "add" and len(op.inputs) == 2 and op.outputs[0] not in op.inputs:
                shapes = {tape.values[number].shape for number in (*op.inputs, *op.outputs)}
                added |= held if len(shapes) == 1 else set()
    for value, first in zeros.items():
        if first in added and read[first] > 1:
            yield value


def constant(node: Node) -> float | None:
    """The number by which a node multiplies, divides or shifts its only tensor, if it is written in the code."""
    for held in node.op.args[:2] if node.op is not None else ():
        if isinstance(held, int | float) and not isinstance(held, bool | Ref):
            return float(held)
    return None


def argument(node: Node, at: int, default: Any = None, key: str = "") -> Any:
    """A positional argument of the recorded operator, or the keyword's."""
    if node.op is None:
        return default
    return node.op.args[at] if at < len(node.op.args) else node.op.kwargs.get(key, default)
