"""Map an analysis to a model's code: the module calls and sums at which the ends of its branches can be edited."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from normplace._shared.closure import closure
from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.recording.ids import BlockIndex, CallId, NodeId, NormIndex, ValueId
from normplace.analysis.recording.tape import Call, Op
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.edit.code.rewrite import Position, RewrittenMethod, method_of, position_of
from normplace.edit.model.attachments import Key
from normplace.edit.model.feature_axes import feature_axes
from normplace.edit.model.modules import FixedScaling, LearnedScaling
from normplace.errors import UsageError


@dataclass(frozen=True)
class TensorRef:
    """Tensors among the arguments or the output of a module's calls.

    Attributes:
        module: The module's name.
        keys: Which of its arguments, or which part of its output.
        width: The number of their features.
        axis: The axis of the features: -1, 1 for feature maps, or None if that is not clear.
    """

    module: str
    keys: tuple[Key, ...]
    width: int
    axis: int | None = -1


@dataclass(frozen=True)
class SumRef:
    """One evaluation of a sum in a module's code.

    Attributes:
        module: The module's name.
        method: The method that contains the sum.
        position: The position of the sum in the source.
        evaluation: Which evaluation in one call of the method, counted from 0.
        evaluations: How often one call evaluates the sum.
    """

    module: str
    method: str
    position: Position
    evaluation: int
    evaluations: int


class ModelMap:
    """Where the code of an analysed model can be edited."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.model = analysis, analysis.model
        self._calls = analysis.tape.calls
        self._scalings = {
            path for path, module in self.model.named_modules() if isinstance(module, FixedScaling | LearnedScaling)
        }

    def label(self, block: BlockIndex) -> str:
        """The name of a block in messages."""
        return block_label(self.analysis, block)

    def branch_inputs(self, block: BlockIndex, branch: int) -> list[TensorRef]:
        """The module arguments through which a branch reads the stream.

        Raises:
            UsageError: If something other than a module reads it.
        """
        add, value = self.analysis.branches_of(block)[branch]
        stream, readers = self._stream_readers(block, add, self.analysis.regions.of(add, value))
        refs = []
        for call in sorted(readers):
            path, arguments = self._calls[call].path, self._calls[call].arguments
            keys = tuple(key for key, number in arguments.items() if number in stream)
            if not keys or is_outside_tree(path):
                raise self._no_input_norm(
                    block,
                    f"{path!r} is created during the pass or does not receive the stream as an argument: register it "
                    "as a submodule, and pass the stream as an argument",
                )
            if self._is_reused(path):
                raise self._no_input_norm(
                    block, f"{path!r}, which reads the stream, is called elsewhere too: give each place its own module"
                )
            refs.append(self._tensor_ref(path, keys, arguments[keys[0]]))
        if not refs:
            raise self._no_input_norm(block, "no module reads the stream there: move the code that does into a module")
        return list(dict.fromkeys(refs))

    def _stream_readers(
        self, block: BlockIndex, add: ResidualAdd, region: Set[NodeId]
    ) -> tuple[set[ValueId], set[CallId]]:
        """The values of a branch that are views of the stream, and the outermost calls in the branch that read them."""
        graph, tape = self.analysis.graph, self.analysis.tape
        stream, queue, readers = {add.fork}, [add.fork], set()
        enclosing = set(tape.enclosing_calls(add.call))
        while queue:
            value = queue.pop()
            for node_id in graph.consumers.get(value, ()):
                node = graph.nodes[node_id]
                if node_id not in region:
                    continue
                maker = graph.maker(value)
                is_view_of_output = maker is not None and maker.call == node.call and node.name in MOVES
                if node.call not in enclosing and not is_view_of_output:
                    calls = tape.enclosing_calls(node.call)
                    readers.add(next(call for call in calls if self._calls[call].parent in enclosing))
                elif node.name in MOVES:
                    stream.update(node.outputs)
                    queue += [output for output in node.outputs if output not in queue]
                else:
                    raise self._no_input_norm(
                        block, f"the block's own code reads the stream with {node.name!r}: move that into a module"
                    )
        return stream, readers

    def _tensor_ref(self, path: str, keys: tuple[Key, ...], value: ValueId) -> TensorRef:
        shape, axis = self.analysis.graph.values[value].shape, self.channel_axis(value)
        return TensorRef(path, keys, shape[-1 if axis is None else axis] if shape else 1, axis)

    def _no_input_norm(self, block: BlockIndex, reason: str) -> UsageError:
        return UsageError(f"cannot put a norm before the branch of block {self.label(block)}, because {reason}.")

    def branch_output(
        self, block: BlockIndex, branch: int, removed: Set[str] = frozenset(), skip_scalings: bool = False
    ) -> TensorRef:
        """The module output that a branch adds to the stream.

        Args:
            block: The block.
            branch: Which of its branches.
            removed: The names of norms that were removed since the analysis.
            skip_scalings: Return the output before the scalings that a move added.

        Raises:
            UsageError: If something other than a module returns it.
        """
        add, branch_value = self.analysis.branches_of(block)[branch]
        enclosing = set(self.analysis.tape.enclosing_calls(add.call))
        width, axis = self.width(branch_value), self.channel_axis(branch_value)
        for value in self._unscaled(branch_value, removed):
            for call, key in self.returned_by.get(value, ()):
                path = self._calls[call].path
                if call in enclosing or is_outside_tree(path):
                    continue
                if self.width(value) != width or self.channel_axis(value) != axis or self._is_reused(path):
                    continue
                if not (skip_scalings and path in self._scalings):
                    return self._tensor_ref(path, (key,), value)
        raise UsageError(
            f"cannot put anything after the branch of block {self.label(block)}, because no module returns what it "
            "adds at this place only: move the branch into a module."
        )

    def sum(self, block: BlockIndex) -> SumRef:
        """The sum at the end of a block.

        Raises:
            UsageError: If it is not in a method of the module that adds.
        """
        ref = self.expression_of(self.analysis.adds_of(block)[-1].node, self.owner(block))
        if isinstance(ref, str):
            raise UsageError(f"cannot put a norm on the sum of block {self.label(block)}, because {ref}.")
        return ref

    def expression_of(self, node: NodeId, path: str) -> SumRef | str:
        """The expression of a sum, or the reason why it is not in a method of a module."""
        op = self.analysis.graph.nodes[node].op
        if op is None or not op.location:
            return "it is part of a fused operator: write it as a separate sum"
        methods = [method_of(self.model.get_submodule(path), code) for code, _ in op.location]
        frame = next((frame for frame, method in enumerate(methods) if method is not None), None)
        position = None if frame is None else position_of(*op.location[frame])
        if frame is None or position is None:
            return (
                f"{op.location[0][0].co_qualname} computes it outside the methods of {path or 'the model'!r}: write it "
                "there"
            )
        method = methods[frame]
        assert method is not None
        if not isinstance(vars(self.model.get_submodule(path)).get(method), RewrittenMethod | None):
            return f"{method!r} of {path or 'the model'!r} was replaced on the instance, which its new code would undo"
        # If a method is called several times and adds once per call, the verification of the result notices.
        location = op.location[: frame + 1]
        evaluations = [other for other in self._located_ops[op.call] if other.location[: frame + 1] == location]
        evaluation = next(index for index, other in enumerate(evaluations) if other is op)
        return SumRef(path, method, position, evaluation, len(evaluations))

    def stream_output(self, block: BlockIndex) -> TensorRef | None:
        """The innermost module, called once, that returns the stream after a block; None if only the model does."""
        add = self.analysis.adds_of(block)[-1]
        values = self._with_normed(add.output)
        for call in self.analysis.tape.enclosing_calls(add.call):
            key = next((key for key, value in self._calls[call].results.items() if value in values), False)
            path = self._calls[call].path
            is_called_once = len(self._calls_of_path[path]) == 1
            if key is not False and path != "" and is_called_once and not is_outside_tree(path):
                return self._tensor_ref(path, (key,), add.output)
        return None

    def owner(self, block: BlockIndex) -> str:
        """The name of the module that adds."""
        return self.analysis.blocks[block].module

    @cached_property
    def repeated_blocks(self) -> dict[BlockIndex, BlockIndex]:
        """Blocks that call the modules of an earlier block again, with that block."""
        first: dict[object, tuple[BlockIndex, CallId]] = {}
        repeated: dict[BlockIndex, BlockIndex] = {}
        for index, block in enumerate(self.analysis.blocks):
            modules = tuple((branch.add, branch.module) for branch in block.branches)
            call = self.analysis.adds_of(BlockIndex(index))[0].call
            if all(module is not None for _, module in modules):
                earlier, earlier_call = first.setdefault(modules, (BlockIndex(index), call))
                if earlier_call != call:
                    repeated[BlockIndex(index)] = earlier
        return repeated

    def shortcut_start(self, block: BlockIndex) -> BlockIndex | None:
        """For a branch that reads the stream before earlier blocks of its stream, the first of those; else None."""
        analysis = self.analysis
        stream, add = analysis.blocks[block].stream, analysis.adds_of(block)[0]
        first = None
        for earlier in range(block - 1, -1, -1):
            output = analysis.adds_of(BlockIndex(earlier))[-1].output
            if analysis.blocks[earlier].stream != stream:
                continue
            if analysis.reachability.stream.get(add.fork, 0) & analysis.reachability.bit[output]:
                break
            first = BlockIndex(earlier)
        return first

    def has_head(self, block: BlockIndex) -> bool:
        """Whether features are computed from the stream after the last block of a stream."""
        graph, end = self.analysis.graph, self.analysis.adds_of(block)[-1].output
        computed = graph.computed_from([end], lambda node: True)
        return any(graph.is_barrier(node) for value in computed for node in graph.readers(value))

    def final_norms(self, block: BlockIndex) -> list[NormIndex]:
        """The norms that end the stream of a block, which is its last."""
        reachability = self.analysis.reachability
        bit = reachability.bit[self.analysis.adds_of(block)[-1].output]
        return [
            NormIndex(index)
            for index, (norm, slot) in enumerate(zip(self.analysis.norms, self.analysis.slots, strict=True))
            if slot.name == "final" and reachability.stream.get(norm.input, 0) & bit
        ]

    def argument_count(self, path: str) -> int:
        """The number of tensor arguments of a module, the most in any of its calls."""
        return max((len(call.arguments) for call in self._calls_of_path.get(path, ())), default=0)

    def argument_value(self, ref: TensorRef) -> ValueId:
        """The value of a module's argument in its first call."""
        return self._calls_of_path[ref.module][0].arguments[ref.keys[0]]  # pyright: ignore[reportArgumentType]

    def is_normed(self, ref: TensorRef) -> bool:
        """Whether a module's argument is the output of a norm, up to moves."""
        values = self.analysis.graph.unchanged(self.argument_value(ref))
        return any(value in self.analysis.norm_of_output for value in values)

    @cached_property
    def _calls_of_path(self) -> dict[str, list[Call]]:
        calls: dict[str, list[Call]] = {}
        for call in self._calls:
            calls.setdefault(call.path, []).append(call)
        return calls

    @cached_property
    def returned_by(self) -> dict[ValueId, list[tuple[CallId, Key]]]:
        """For each value, the calls that returned it and its key in their output."""
        returned: dict[ValueId, list[tuple[CallId, Key]]] = {}
        for index, call in enumerate(self._calls):
            for value, key in {value: key for key, value in reversed(call.results.items())}.items():
                returned.setdefault(value, []).append((CallId(index), key))
        return returned

    @cached_property
    def _located_ops(self) -> dict[CallId, list[Op]]:
        """The operators of each call whose source location is known."""
        ops: dict[CallId, list[Op]] = {}
        for op in self.analysis.tape.ops:
            if op.location:
                ops.setdefault(op.call, []).append(op)
        return ops

    def _is_reused(self, path: str) -> bool:
        """Whether a module without parameters, such as an activation or a dropout, is called at several places.

        A module with parameters that is called again is a layer that shares its weights, and so its norms.
        """
        calls = self._calls_of_path[path]
        if len(calls) == 1 or any(True for _ in self.model.get_submodule(path).parameters()):
            return False
        parents = [call.parent for call in calls]
        return len(set(parents)) < len(parents) or len({self.analysis.tape.path(parent) for parent in parents}) > 1

    def _unscaled(self, value: ValueId, removed: Set[str]) -> Iterator[ValueId]:
        """A value and what it was before moves, factors and removed norms, nearest first."""
        analysis = self.analysis
        while True:
            while (norm := analysis.norm_of_output.get(value)) is not None and analysis.sites[norm].name in removed:
                value = analysis.norms[norm].input
            yield value
            node = analysis.graph.maker(value)
            if node is None:
                return
            scaled = analysis.graph.scaled(node)
            if scaled is None or not (node.name in MOVES or node.name in ("mul", "div")):
                return
            value = scaled

    def _with_normed(self, value: ValueId) -> set[ValueId]:
        """A value and the outputs of the norms that read it, directly or in sequence."""

        def normed(value: ValueId) -> list[ValueId]:
            return [self.analysis.norms[norm].output for norm in self.analysis.norms_of_input.get(value, ())]

        return set(closure([value], normed))

    def width(self, value: ValueId) -> int:
        """The size of a value's last dimension."""
        shape = self.analysis.graph.values[value].shape
        return shape[-1] if shape else 1

    def channel_axis(self, value: ValueId) -> int | None:
        """The axis of a value's features: the last one, or 1 for feature maps; None if that is not clear."""
        rank = len(self.analysis.graph.values[value].shape)
        if rank < 4:
            return -1
        return {1: 1, rank - 1: -1}.get(self._feature_axes.get(value, 0))

    @cached_property
    def _feature_axes(self) -> dict[ValueId, int]:
        return feature_axes(self.analysis.graph)


def require_editable(analysis: Analysis) -> None:
    """Refuse a model that cannot be edited safely.

    Raises:
        UsageError: If a block has a user-defined backward pass, or contains something the analysis does not understand.
    """
    for index, block in enumerate(analysis.blocks):
        label = block_label(analysis, BlockIndex(index))
        if block.custom_backward is not None:
            raise UsageError(
                f"block {label} runs in {block.custom_backward}, whose backward pass does not include added norms: "
                "turn reversible or checkpointed layers off."
            )
        if block.unknown:
            unknown = block.unknown[0]
            raise UsageError(
                f"cannot edit block {label}, because the audit does not understand {unknown.operator} in "
                f"{unknown.module!r}: {unknown.reason.rstrip('.')}."
            )


def block_label(analysis: Analysis, block: BlockIndex) -> str:
    """The name of a block in messages: its index, its kind and its module."""
    described = analysis.blocks[block]
    return f"{block} ({described.kind} in {described.module or 'the model'})"


def is_outside_tree(path: str) -> bool:
    """Whether a module is created during the pass, or not registered as a submodule, so that it cannot be edited."""
    return "<" in path
