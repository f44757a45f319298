"""Where a model's code can be taken hold of: the modules at the ends of its branches, and its sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.api import summarize
from normplace.analysis.dataflow.graph import Node
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.recording.ids import BlockIndex, ValueId
from normplace.analysis.recording.passes import record_pass
from normplace.analysis.recording.structures import fresh_inputs
from normplace.analysis.recording.tape import Op
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.analysis.results import ResidualBlock
from normplace.edit.attachments import Key
from normplace.edit.capture import RmsRecorder, ValueRecorder
from normplace.edit.layer_numbers import LayerNumbers
from normplace.edit.modules import FixedScaling, LearnedScaling
from normplace.edit.rewrite import Position, method_of, position_of
from normplace.errors import UsageError


@dataclass(frozen=True)
class TensorRef:
    """Tensors of a module's calls.

    Attributes:
        module: The module's name.
        keys: Which of its arguments, or which part of its result.
        width: The size of their last dimension.
    """

    module: str
    keys: tuple[Key, ...]
    width: int


@dataclass(frozen=True)
class SumRef:
    """One evaluation of a sum in a module's code.

    Attributes:
        module: The module's name.
        method: The method of it that adds.
        position: Where in the source.
        evaluation: Which evaluation in one call of the method, counted from 0.
        evaluations: How many there are.
    """

    module: str
    method: str
    position: Position
    evaluation: int
    evaluations: int


class ModelMap:
    """One recorded pass of a model, asked where its blocks begin and end.

    Args:
        model: The model.
        inputs: What it is called with.
        kwargs: The same by name.
    """

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.model, self.inputs, self.kwargs = model, inputs, kwargs
        self.analysis = Analysis(model, record_pass(model, *fresh_inputs((inputs, kwargs))))
        self.audit = summarize(self.analysis)
        self.graph, self.norms = self.analysis.graph, self.analysis.norms
        self.blocks, self.block_of = self.analysis.blocks, self.analysis.block_of
        self.calls = self.graph.tape.calls
        self.names = [site.name for site in self.audit.sites]
        scalings = FixedScaling | LearnedScaling
        self._factors = {path for path, part in model.named_modules() if isinstance(part, scalings)}
        self.layers = LayerNumbers(self.blocks)
        self.gone: set[str] = set()  # names of norms that were taken out since

    def residuals(self, block: int) -> list[ResidualAdd]:
        """The adds of a block."""
        return self.analysis.adds_of(BlockIndex(block))

    @property
    def adds(self) -> Mapping[ValueId, int]:
        """The residual add that returned each sum."""
        return self.analysis.add_of_sum

    def branches(self, block: int) -> list[tuple[ResidualAdd, ValueId]]:
        """The value of each of its branches, with the add it goes to."""
        return self.analysis.branches_of(BlockIndex(block))

    def own_path(self, block: int) -> str:
        """The module that adds."""
        return self.blocks[block].module

    @cached_property
    def repeats(self) -> dict[int, int]:
        """Blocks that are the same modules as an earlier block, called again, with that block."""
        first: dict[object, tuple[int, int]] = {}
        found: dict[int, int] = {}
        for at, block in enumerate(self.blocks):
            made, call = tuple((arm.add, arm.module) for arm in block.branches), self.residuals(at)[0].call
            if all(module is not None for _, module in made):
                earlier, there = first.setdefault(made, (at, call))
                if there != call:
                    found[at] = earlier
        return found

    def entries(self, block: int, arm: int) -> list[TensorRef]:
        """What reads the stream at the beginning of a branch.

        Raises:
            UsageError: If something other than a module does.
        """
        residual, value = self.branches(block)[arm]
        region = self.analysis.regions.of(residual, value)
        stream, queue, found = {residual.fork}, [residual.fork], set()
        above = set(self._upwards(residual.call))
        while queue:
            read = queue.pop()
            for at in self.graph.consumers.get(read, ()):
                node = self.graph.nodes[at]
                if at not in region:
                    continue
                maker = self.graph.maker(read)
                inside = maker is not None and maker.call == node.call  # a view that what makes the stream returns
                if node.call not in above and not (inside and node.name in MOVES):
                    call = next(call for call in self._upwards(node.call) if self.calls[call].parent in above)
                    found.add(call)
                elif node.name in MOVES:
                    stream.update(node.outputs)
                    queue += [number for number in node.outputs if number not in queue]
                else:
                    raise UsageError(
                        f"a norm cannot be put before the branch of block {self._label(block)}, whose code reads the "
                        f"stream itself with {node.name!r}: put that into a module of its own."
                    )
        holds = []
        for call in sorted(found):
            keys = tuple(key for key, number in self.calls[call].arguments.items() if number in stream)
            if not keys or is_outside_tree(self.calls[call].path):
                raise UsageError(
                    f"a norm cannot be put before the branch of block {self._label(block)}, because "
                    f"{self.calls[call].path!r} is made in the pass or is not given the stream as an argument: keep it "
                    "in the tree of modules, and pass the stream as an argument."
                )
            holds.append(TensorRef(self.calls[call].path, keys, self._width(self.calls[call].arguments[keys[0]])))
        if not holds:
            raise UsageError(
                f"a norm cannot be put before the branch of block {self._label(block)}, because no module reads the "
                "stream there: put what does into one."
            )
        return list(dict.fromkeys(holds))

    def exit(self, block: int, arm: int, unscaled: bool = False) -> TensorRef:
        """What returns the value a branch adds.

        Args:
            block: Which block.
            arm: Which of its branches.
            unscaled: Look behind the factors that a move put there.

        Raises:
            UsageError: If something other than a module does.
        """
        residual, value = self.branches(block)[arm]
        above = set(self._upwards(residual.call))
        width = self._width(value)
        for number in self._unscaled(value):
            for at, key in self._returned.get(number, ()):
                path = self.calls[at].path
                if at in above or self._width(number) != width or is_outside_tree(path):
                    continue
                if not (unscaled and path in self._factors):
                    return TensorRef(path, (key,), width)
        raise UsageError(
            f"nothing can be put behind the branch of block {self._label(block)}, because no module returns what it "
            "adds: put the branch into a module of its own."
        )

    @cached_property
    def _returned(self) -> dict[int, list[tuple[int, Key]]]:
        """For each value, the calls that returned it and where in their result it is, each call once."""
        found: dict[int, list[tuple[int, Key]]] = {}
        for at, call in enumerate(self.calls):
            for number, key in {number: key for key, number in reversed(call.results.items())}.items():
                found.setdefault(number, []).append((at, key))
        return found

    def sum(self, block: int) -> SumRef:
        """The sum at the end of a block.

        Raises:
            UsageError: If it is not written in a method of the module that adds.
        """
        residual = self.residuals(block)[-1]
        op, path = self.graph.nodes[residual.node].op, self.own_path(block)
        if op is None or not op.location:
            raise UsageError(
                f"a norm cannot be put on the sum of block {self._label(block)}, which is part of a fused operator: "
                "write it as a sum of its own."
            )
        methods = [method_of(self.model.get_submodule(path), code) for code, _ in op.location]
        depth = next((depth for depth, method in enumerate(methods) if method is not None), None)
        position = None if depth is None else position_of(*op.location[depth])
        if depth is None or position is None:
            raise UsageError(
                f"a norm cannot be put on the sum of block {self._label(block)}, which {op.location[0][0].co_qualname} "
                f"computes outside the methods of {path or 'the model'!r}: write it there."
            )
        method = methods[depth]
        assert method is not None
        # The audit of the result notices where a method is called more than once, and adds once each time.
        where = op.location[: depth + 1]
        turns = [other for other in self._ops[op.call] if other.location[: depth + 1] == where]
        at = next(turn for turn, other in enumerate(turns) if other is op)
        return SumRef(path, method, position, at, len(turns))

    @cached_property
    def _ops(self) -> dict[int, list[Op]]:
        """The operators of each call that know where they were asked for."""
        found: dict[int, list[Op]] = {}
        for op in self.graph.tape.ops:
            if op.location:
                found.setdefault(op.call, []).append(op)
        return found

    def stream_output(self, block: int) -> TensorRef | None:
        """The innermost module that is called once and returns the stream behind a block; None if only the model is."""
        residual = self.residuals(block)[-1]
        values, paths = self._behind(residual.output), Counter(call.path for call in self.calls)
        for call in self._upwards(residual.call):
            key = next((key for key, number in self.calls[call].results.items() if number in values), False)
            path = self.calls[call].path
            if key is not False and path != "" and paths[path] == 1 and not is_outside_tree(path):
                return TensorRef(path, (key,), self._width(residual.output))
        return None

    def has_head(self, block: int) -> bool:
        """Whether features are made of the stream behind a block that is the last of its stream."""
        seen, queue = set(), [self.residuals(block)[-1].output]
        while queue:
            value = queue.pop()
            for node in self.graph.readers(value):
                if self.graph.is_barrier(node):
                    return True
                queue += [number for number in node.outputs if number not in seen]
            seen.add(value)
        return False

    def final_norms(self, block: int) -> list[int]:
        """The norms that end the stream of a block that is its last."""
        bit = self.analysis.reachability.bit[self.residuals(block)[-1].output]
        slots, reach = self.analysis.slots, self.analysis.reachability
        return [
            at
            for at, (norm, slot) in enumerate(zip(self.norms, slots, strict=True))
            if slot.name == "final" and reach.stream.get(norm.input, 0) & bit
        ]

    def arguments_of(self, path: str) -> int:
        """How many arguments a module was called with, the most in any of its calls."""
        return self._argument_counts.get(path, 0)

    @cached_property
    def _argument_counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for call in self.calls:
            found[call.path] = max(found.get(call.path, 0), len(call.arguments))
        return found

    def projections(self, block: int, arm: int) -> tuple[dict[str, tuple[TensorRef, int]], int]:
        """What makes the queries and keys of an attention branch, each with its value, and the size of a head.

        Raises:
            UsageError: If queries and keys do not come from a module each.
        """
        residual, value = self.branches(block)[arm]
        cores = self.analysis.attention
        region = self.analysis.regions.of(residual, value)
        found: dict[str, tuple[TensorRef, int]] = {}
        size = 0
        for (at, read), letter in cores.letters.items():
            if at in region and letter in "qk" and letter not in found:
                path, result = self._projection(read, block)
                found[letter] = (TensorRef(path, (None,), self._width(result)), result)
                if letter == "q":  # the keys may stand transposed
                    size = self._width(read)
        if len(found) < 2 or found["q"][0] == found["k"][0]:
            raise UsageError(
                f"queries and keys of block {self._label(block)} do not come from a module each, so no norm can be put "
                "behind them: split the projection first."
            )
        return found, size

    def _projection(self, value: ValueId, block: int) -> tuple[str, int]:
        queue, seen = [value], set()
        while queue:
            number = queue.pop(0)
            node = self.graph.maker(number)
            if node is None or number in seen:
                continue
            seen.add(number)
            for at, _ in self._returned.get(number, ()):
                call = self.calls[at]
                if call.results == {None: number} and call.parent >= 0 and self._makes(call.path, node):
                    return call.path, number
            if not self.graph.is_barrier(node):
                queue += self.graph.data_inputs(node)
        raise UsageError(
            f"queries and keys of block {self._label(block)} do not come from a module each, so no norm can be put "
            "behind them: split the projection first."
        )

    def _makes(self, path: str, node: Node) -> bool:
        module = self.model.get_submodule(path) if path and not is_outside_tree(path) else None
        return isinstance(module, nn.Module) and not any(True for _ in module.children()) and hasattr(module, "weight")

    def root_mean_squares(self, values: Sequence[int]) -> dict[int, float]:
        """The size of each value, in a second pass; none of a model that has no numbers."""
        recorder = RmsRecorder(self.model, set(values))
        record_pass(self.model, *fresh_inputs((self.inputs, self.kwargs)), recorder)
        return recorder.sizes

    def values(self, wanted: Set[int]) -> dict[int, Tensor]:
        """Copies of chosen values, in a second pass."""
        recorder = ValueRecorder(self.model, wanted)
        record_pass(self.model, *fresh_inputs((self.inputs, self.kwargs)), recorder)
        return recorder.kept

    def _upwards(self, call: int) -> Iterator[int]:
        while call >= 0:
            yield call
            call = self.calls[call].parent

    def _unscaled(self, value: ValueId) -> Iterator[ValueId]:
        """The value and what it was before moves, factors and norms that are gone, nearest first."""
        while True:
            while value in self._normed and self.names[self._normed[value]] in self.gone:
                value = self.norms[self._normed[value]].input
            yield value
            node = self.graph.maker(value)
            if node is None:
                return
            held = self.graph.data_inputs(node)
            if len(held) != 1 or not (node.name in MOVES or node.name in ("mul", "div")):
                return
            value = held[0]

    @cached_property
    def _normed(self) -> dict[int, int]:
        """The norm that returned each value."""
        return {norm.output: at for at, norm in enumerate(self.norms)}

    def _behind(self, value: int) -> set[int]:
        """A value and what its norms made of it."""
        found, queue = {value}, [value]
        while queue:
            made = {self.norms[at].output for at in self._reading.get(queue.pop(), ())} - found
            found |= made
            queue += made
        return found

    @cached_property
    def _reading(self) -> dict[int, list[int]]:
        """The norms that read each value."""
        found: dict[int, list[int]] = {}
        for at, norm in enumerate(self.norms):
            found.setdefault(norm.input, []).append(at)
        return found

    def _width(self, value: int) -> int:
        shape = self.graph.values[value].shape
        return shape[-1] if shape else 1

    def _label(self, block: int) -> str:
        return label(self.blocks[block], block)


def is_outside_tree(path: str) -> bool:
    """Whether a module is made in the pass, or held outside the tree of modules, so that it cannot be edited."""
    return "<" in path


def label(block: ResidualBlock, at: int) -> str:
    """What to call a block in a sentence."""
    return f"{at} ({block.kind} in {block.module or 'the model'})"
