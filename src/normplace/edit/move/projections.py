"""Find where norms on the queries and keys of attention can be placed.

Two modules that compute only queries and only keys get a hook each. If one projection computes queries, keys and values
together, or the norms come after the rotary embedding, queries and keys are values of expressions in the code of the
attention, see :mod:`normplace.edit.code.expressions`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from normplace._shared.closure import closure
from normplace.analysis.blocks.attention import Operand
from normplace.analysis.dataflow.axes import move_marks
from normplace.analysis.dataflow.operators import ATTENTION, MOVES
from normplace.analysis.recording.ids import BlockIndex, CallId, NodeId, ValueId
from normplace.edit.code.expressions import ExpressionRef, record_expressions
from normplace.edit.model.model_map import ModelMap, SumRef, TensorRef, is_outside_tree
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError, expect_choice

OVER = ("head", "projection")
WHERE = ("before", "after")


@dataclass(frozen=True)
class HeadNormRequest:
    """Which norms on queries and keys to add.

    Attributes:
        kind: The kind of norm; ``none`` to remove those that an earlier move added.
        over: ``head`` for each head separately, ``projection`` for all heads together.
        where: ``before`` or ``after`` the rotary embedding.
    """

    kind: str
    over: str = "head"
    where: str = "before"

    def __post_init__(self) -> None:
        expect_choice("qk_over", self.over, OVER)
        expect_choice("qk_where", self.where, WHERE)


@dataclass(frozen=True)
class ProjectionRef:
    """Queries or keys of an attention branch.

    Attributes:
        letter: ``q`` or ``k``.
        place: The output of the module that computes them, or the expression that has their value.
        value: The same as a value of the pass.
        width: The number of features that a norm on them has.
        axes: The axes that hold these features, the last one included.
        owner: The name of the module that gets the norm as a child.
    """

    letter: str
    place: TensorRef | SumRef
    value: ValueId
    width: int
    axes: tuple[int, ...]
    owner: str


@dataclass(frozen=True)
class _Source:
    """The features that an operand of attention is computed from.

    Attributes:
        operand: The attention core and its operand.
        value: The output of the product with weights.
        module: The module that returned it; empty if it is computed in the code of another module.
    """

    operand: Operand
    value: ValueId
    module: str


class ProjectionFinder:
    """Finds the queries and keys of attention branches."""

    def __init__(self, model_map: ModelMap, request: HeadNormRequest, arguments: Arguments) -> None:
        self.model_map, self.request, self.arguments = model_map, request, arguments
        self.analysis, self.graph = model_map.analysis, model_map.analysis.graph
        self._axes_of: dict[ValueId, Mapping[ValueId, Sequence[int]]] = {}

    def find(self, block: BlockIndex, branch: int, letters: str) -> list[ProjectionRef]:
        """The queries and keys of an attention branch.

        Raises:
            UsageError: If neither a module nor an expression has their value.
        """
        add, value = self.analysis.branches_of(block)[branch]
        region = self.analysis.regions.of(add, value)
        operands: dict[str, Operand] = {}
        for operand, letter in self.analysis.attention.letters.items():
            if operand[0] in region and letter in letters:
                operands.setdefault(letter, operand)
        sizes = [self._head_size(*operand, letter) for letter, operand in operands.items()]
        if set(operands) != set(letters):
            raise self._refusal(block, "the audit does not find them")
        refs = []
        for (letter, operand), size in zip(operands.items(), sizes, strict=True):
            source = self._source(operand, block)
            ref = self._hooked(letter, source, size) or self._wrapped(letter, source, size)
            if ref is None:
                raise self._refusal(block, self._reason(source))
            refs.append(ref)
        return refs

    def _head_size(self, node: NodeId, value: ValueId, letter: str) -> int:
        """The number of features per head; a product reads the keys transposed."""
        shape = self.graph.values[value].shape
        is_transposed = letter == "k" and self.graph.nodes[node].name not in ATTENTION
        return shape[-2] if is_transposed else shape[-1]

    def _source(self, operand: Operand, block: BlockIndex) -> _Source:
        """The nearest features that an operand of attention is computed from by a product with weights."""
        queue, seen = [operand[1]], set()
        while queue:
            value = queue.pop(0)
            node = self.graph.maker(value)
            if node is None or value in seen:
                continue
            seen.add(value)
            for index, _ in self.model_map.returned_by.get(value, ()):
                call = self.analysis.tape.calls[index]
                if call.results == {None: value} and call.parent >= 0 and self._is_weighted_leaf(call.path):
                    return _Source(operand, value, call.path)
            if not self.graph.is_barrier(node):
                queue += self.graph.data_inputs(node)
            elif any(self.graph.is_weight(weight) for weight in node.inputs):
                return _Source(operand, value, "")
        raise self._refusal(block, "no product with weights computes them")

    def _is_weighted_leaf(self, path: str) -> bool:
        if not path or is_outside_tree(path):
            return False
        module = self.model_map.model.get_submodule(path)
        return not any(True for _ in module.children()) and hasattr(module, "weight")

    def _hooked(self, letter: str, source: _Source, size: int) -> ProjectionRef | None:
        """The output of a module that computes only queries, or only keys, with nothing but views between."""
        attention = self.analysis.attention
        if not source.module or attention.letters_of(attention.barriers_after(source.value)) != letter:
            return None
        if self.request.where == "after" and not self._is_moved(source.value, source.operand[1]):
            return None
        width = self.model_map.width(source.value)
        place = TensorRef(source.module, (None,), width)
        owner = source.module.rpartition(".")[0]
        return ProjectionRef(letter, place, source.value, self._norm_width(size, width), (-1,), owner)

    def _norm_width(self, size: int, width: int) -> int:
        return size if self.request.over == "head" else width

    def _wrapped(self, letter: str, source: _Source, size: int) -> ProjectionRef | None:
        """The first expression whose value is the queries or the keys.

        One outside of conditions is preferred, then one that is assigned to a variable.
        """
        candidates = []
        for ref, value in self._expressions(source):
            axes = self._axes(source, value, size) if self._is_candidate(letter, source, value) else None
            if axes is not None:
                candidates.append(((ref.depth, not ref.is_assigned, value, ref.position), ref, value, axes))
        if not candidates:
            return None
        _, ref, value, axes = min(candidates, key=lambda candidate: candidate[0])
        shape = self.graph.values[value].shape
        width = math.prod(shape[axis] for axis in axes)
        axes = tuple(axis - len(shape) for axis in axes)
        return ProjectionRef(letter, SumRef(ref.module, ref.method, ref.position, 0, 1), value, width, axes, ref.module)

    def _expressions(self, source: _Source) -> Iterator[tuple[ExpressionRef, ValueId]]:
        """The expressions in the modules around an attention core, with their values."""
        for path in self._enclosing(source.operand[0]):
            yield from self._recorded.get(path, ())

    def _enclosing(self, core: NodeId) -> list[str]:
        """The modules that an attention core runs in, up to the one that adds its branch."""
        tape, paths = self.analysis.tape, []
        for call in tape.enclosing_calls(self.graph.nodes[core].call):
            if not is_outside_tree(tape.path(call)):
                paths.append(tape.path(call))
            if call in self._adding_calls:
                break
        return paths

    @cached_property
    def _adding_calls(self) -> set[CallId]:
        return {add.call for add in self.analysis.adds}

    @cached_property
    def _recorded(self) -> dict[str, list[tuple[ExpressionRef, ValueId]]]:
        """The expressions of every module that contains attention, recorded in one pass.

        Expressions that a call of their module evaluates several times, as in a helper that splits the heads of queries
        and of keys, are left out.
        """
        calls = Counter(call.path for call in self.analysis.tape.calls)
        paths = {path: None for core, _ in self.analysis.attention.letters for path in self._enclosing(core)}
        recorded: dict[str, list[tuple[ExpressionRef, ValueId]]] = {}
        for ref, values in record_expressions(self.analysis, self.arguments, paths).items():
            if len(values) <= calls[ref.module]:
                recorded.setdefault(ref.module, []).extend((ref, value) for value in values)
        return recorded

    def _is_candidate(self, letter: str, source: _Source, value: ValueId) -> bool:
        """Whether attention reads the source only through a value, as this operand and no other."""
        attention, operand = self.analysis.attention, source.operand[1]
        if self.request.where == "after":
            is_placed = self._is_moved(value, operand)
        else:
            is_placed = self._is_moved(source.value, value) and self._dominates(value, source.value, operand)
        readers = attention.barriers_after(value) if is_placed else []
        return attention.letters_of(readers) == letter and all(reader in attention.letters for reader in readers)

    def _is_moved(self, first: ValueId, last: ValueId) -> bool:
        """Whether a value is a view or part of another one, up to fixed factors and a bias."""

        def preceding(value: ValueId) -> Sequence[ValueId]:
            node = self.graph.maker(value)
            if node is None or value == first or not self._keeps_features(value):
                return ()
            return self.graph.data_inputs(node)

        values = set(closure([last], preceding))
        return first in values and all(map(self._keeps_features, values - {first}))

    def _keeps_features(self, value: ValueId) -> bool:
        node = self.graph.maker(value)
        if node is None:
            return False
        is_alone = len(self.graph.data_inputs(node)) == 1
        if node.name in ("mul", "div", "cat"):
            return is_alone  # a cache may be empty
        return node.name in MOVES or (node.name == "add" and any(map(self.graph.is_weight, node.inputs)))

    def _dominates(self, value: ValueId, first: ValueId, last: ValueId) -> bool:
        """Whether every path from one value to another passes through a third."""

        def preceding(current: ValueId) -> Sequence[ValueId]:
            node = self.graph.maker(current)
            if node is None or current == value or self.graph.is_barrier(node):
                return ()
            return self.graph.data_inputs(node)

        return first not in closure([last], preceding)

    def _axes(self, source: _Source, value: ValueId, size: int) -> tuple[int, ...] | None:
        """The axes of a value that hold the features to normalize; None if the last one does not."""
        if source.value not in self._axes_of:
            self._axes_of[source.value] = self._marked_axes(source.value)
        marked = self._axes_of[source.value].get(value, ())
        shape = self.graph.values[value].shape
        if not marked or marked[-1] != len(shape) - 1:
            return None
        if self.request.over == "projection":
            return tuple(marked)
        return (marked[-1],) if shape[-1] == size else None

    def _marked_axes(self, source: ValueId) -> Mapping[ValueId, Sequence[int]]:
        """The axes of every value computed from a source that run along its features."""
        shape = self.graph.values[source].shape
        marks: dict[ValueId, tuple[int, ...]] = {source: (*[0] * (len(shape) - 1), 1)}
        for node in self.graph.nodes:
            known = [value for value in node.inputs if value in marks]
            if not known or self.graph.is_barrier(node) or node.op is None:
                continue
            old = self.graph.values[known[0]].shape
            for output in node.outputs:
                new = self.graph.values[output].shape
                moved = move_marks(node.op, known[0], marks[known[0]], old, new)
                if moved is not None and len(moved) == len(new):
                    marks[output] = moved
        return {value: [axis for axis, mark in enumerate(axes) if mark] for value, axes in marks.items()}

    def _reason(self, source: _Source) -> str:
        where = self.graph.path(self.graph.nodes[source.operand[0]]) or "the model"
        return f"no expression in the code of {where!r} has the value of one of them alone"

    def _refusal(self, block: BlockIndex, reason: str) -> UsageError:
        return UsageError(
            f"cannot put norms on queries and keys of block {self.model_map.label(block)}, because {reason}: write the "
            "attention as a module that passes queries and keys to it as separate tensors."
        )
