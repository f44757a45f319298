"""Find the weights that read the output of a norm, by dataflow."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.axes import AXIS_MOVES, move_marks
from normplace.analysis.dataflow.graph import Node, constant
from normplace.analysis.dataflow.operators import ATTENTION, CASTS, CONVOLUTIONS, NORMS, PRODUCTS, SPLITS
from normplace.analysis.recording.ids import NodeId, NormIndex, ValueId
from normplace.edit.model.model_map import is_outside_tree
from normplace.edit.model.parameter_regions import Region, parameter_names, reads_of

ROW_MOVES = SPLITS | {"roll", "flip", "index_select", "index", "_unsafe_index", "expand"}
"""Operators that keep every feature of a row together, if they do not work along the axis of the features."""
BIASED = PRODUCTS & {"addmm", "baddbmm", "addmv", "addbmm"}


@dataclass(frozen=True)
class Reader:
    """A product of a norm's output with a part of a parameter.

    Attributes:
        path: The name of the module that computes it.
        node: The product.
        region: The part of the parameter.
        feature_axis: The axis of the parameter that runs along the features.
        factor: What multiplies the norm's output before the product.
    """

    path: str
    node: NodeId
    region: Region
    feature_axis: int
    factor: float


class ReaderFinder:
    """Finds the readers of norms in an analysed model.

    Attributes:
        names: The names of the parameters.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.graph, self.tape = analysis, analysis.graph, analysis.tape
        self.names = parameter_names(analysis)
        # Modules that are called, or whose parameters are read, as a table of positions that is indexed; with parents.
        used = {call.path for call in analysis.tape.calls}
        used |= {name.rpartition(".")[0] for value, name in self.names.items() if self.graph.consumers.get(value)}
        self._used = {parent for path in used for parent in itertools.accumulate(path.split("."), "{}.{}".format)}

    def find(self, norms: Sequence[NormIndex]) -> list[Reader] | str:
        """The readers of a norm in all of its calls, or the reason why its gain cannot be folded."""
        readers: dict[tuple[NodeId, ValueId], Reader] = {}
        for index in norms:
            for reader in self._walk(index):
                if isinstance(reader, str):
                    return reader
                readers[reader.node, reader.region.parameter] = reader
        if not readers:
            return "nothing reads it"
        norm = self.analysis.sites[norms[0]].name
        return self._why_not(list(readers.values()), norm) or list(readers.values())

    def _walk(self, index: NormIndex) -> Iterator[Reader | str]:
        """Follow the output of a norm to the products that read it."""
        norm = self.analysis.norms[index]
        start = norm.output
        queue: list[tuple[ValueId, int, float]] = [(start, len(self.graph.values[start].shape) - 1, 1.0)]
        seen = set()
        while queue:
            value, axis, factor = queue.pop()
            if value in self.tape.outputs:
                yield "it is an output of the model"
                return
            for node_id in self.graph.consumers.get(value, ()):
                node = self.graph.nodes[node_id]
                if node_id in norm.nodes or (node_id, value) in seen or self._is_shape_only(node):
                    continue
                seen.add((node_id, value))
                if node.name in PRODUCTS:
                    yield self._product(node_id, node, value, axis, factor)
                    continue
                moved = self._moved(node, value, axis)
                number = constant(node) if node.name in ("mul", "div") and len(node.inputs) == 1 else None
                if number is not None:
                    factor_after = factor * (number if node.name == "mul" else 1 / number)
                    queue.append((node.outputs[0], axis, factor_after))
                elif isinstance(moved, str):
                    yield moved
                    return
                else:
                    queue += [(output, moved, factor) for output in node.outputs if self.graph.consumers.get(output)]
                    if any(output in self.tape.outputs for output in node.outputs):
                        yield "it is an output of the model"

    def _is_shape_only(self, node: Node) -> bool:
        """Whether a node reads the shape of its operand alone, or returns nothing that is used."""
        return not any(output in self.graph.used for output in node.outputs)

    def _moved(self, node: Node, value: ValueId, axis: int) -> int | str:
        """The axis of the features after an operator, or the reason why it is not linear."""
        where = f"{node.name!r} in {self.graph.path(node) or 'the model'!r}"
        old = self.graph.values[value].shape
        new = self.graph.values[node.outputs[0]].shape if node.outputs else ()
        op = node.op
        if op is None or len(self.graph.data_inputs(node)) != 1 or op.inputs[:1] != (value,):
            return _not_linear(node, where)
        if node.name in CASTS:
            return axis
        if node.name in AXIS_MOVES and node.name not in ("view_as_complex", "view_as_real"):
            if node.name in ("select", "unbind") and op.argument(1, 0) % len(old) == axis:
                return f"{where} takes some of its features"
            marks = move_marks(op, value, tuple(int(dim == axis) for dim in range(len(old))), old, new)
            axes = [] if marks is None else [dim for dim, mark in enumerate(marks) if mark]
            if len(axes) != 1 or new[axes[0]] != old[axis]:
                return f"{where} divides or merges the axis of its features"
            return axes[0]
        if node.name in ROW_MOVES:
            kept = axis - len(old) + len(new)
            if not _works_along(op.args, op.kwargs, node.name, axis, len(old)) and new[kept : kept + 1] == (old[axis],):
                return kept
            return f"{where} takes some of its features"
        if node.name == "mean" and isinstance(dims := op.argument(1, key="dim"), tuple | list):
            reduced = {dim % len(old) for dim in dims}
            if reduced and axis not in reduced:  # a mean over rows also keeps a shift
                return axis if op.argument(2, False, key="keepdim") else axis - sum(dim < axis for dim in reduced)
        return _not_linear(node, where)

    def _product(self, node_id: NodeId, node: Node, value: ValueId, axis: int, factor: float) -> Reader | str:
        """The reader that a product is, or the reason why it is not a product with a parameter along the features."""
        where = f"{node.name!r} in {self.graph.path(node) or 'the model'!r}"
        operands = node.inputs[1:3] if node.name in BIASED else node.inputs[:2]
        if len(operands) != 2 or value not in operands or operands[0] == operands[1]:
            return f"{where} reads it in a way that is not understood"
        is_left = operands[0] == value
        weight = operands[1 if is_left else 0]
        if self.graph.is_data(weight):
            return f"{where} multiplies it with other features"
        rank, weight_rank = len(self.graph.values[value].shape), len(self.graph.values[weight].shape)
        if node.name == "linear":
            contracted, along = rank - 1, weight_rank - 1
        elif is_left:
            contracted, along = rank - 1, max(weight_rank - 2, 0)
        else:
            contracted, along = max(rank - 2, 0), weight_rank - 1
        if contracted != axis:
            return f"{where} does not sum over its features"
        parameter = self.graph.origin(weight)
        if self.graph.values[parameter].origin != "parameter":
            return f"the weights of {where} are computed, not stored"
        for reading, operand, region in reads_of(self.graph, parameter):
            if (reading, operand) == (node_id, weight):
                feature_axis = None if region is None else region.axes[along]
                if region is None or feature_axis is None:
                    return f"{where} reads a view of its weights that is not understood"
                if len(region.ranges[feature_axis]) != self.graph.values[parameter].shape[feature_axis]:
                    return f"{where} reads some of its features"
                return Reader(self.graph.path(node), node_id, region, feature_axis, factor)
        return f"{where} reads a view of its weights that is not understood"

    def _why_not(self, readers: list[Reader], norm: str) -> str | None:
        """The reason why scaling the weights of a norm's readers would change anything else; None if it would not."""
        nodes = {reader.node for reader in readers}
        for parameter in {reader.region.parameter for reader in readers}:
            name, own = self.names[parameter], [reader for reader in readers if reader.region.parameter == parameter]
            if len({(reader.feature_axis, reader.factor) for reader in own}) > 1:
                return f"{name!r} reads it in two ways"
            regions = list({reader.region: None for reader in own})
            if any(one.overlaps(two) for index, one in enumerate(regions) for two in regions[:index]):
                return f"{name!r} reads it in two ways"
            others: list[Region] = []
            for node_id, _, region in reads_of(self.graph, parameter):
                if node_id in nodes or not set(self.graph.nodes[node_id].outputs) & self.graph.used:
                    continue
                if region is None or any(reader.region.overlaps(region) for reader in own):
                    return self._shared(name, self.graph.nodes[node_id])
                others.append(region)
            if reason := self._unread_part(name, parameter, [*regions, *others]):
                return reason
        for reader in readers:
            if (sibling := self._unused_sibling(reader, norm)) is not None:
                return (
                    f"{sibling!r}, which may read it too, was not called on these inputs: pass inputs that call it, or "
                    "remove it"
                )
        return None

    def _shared(self, name: str, node: Node) -> str:
        if node.name in ("embedding", "index_select", "index"):
            return f"its reader {name!r} is tied to the embedding, which does not read it: pass untie=True"
        path = self.graph.path(node)
        return f"{name!r} also multiplies other features in {path or 'the model'!r}"

    def _unread_part(self, name: str, parameter: ValueId, regions: list[Region]) -> str | None:
        """Experts of one parameter that were not chosen for any token of the pass."""
        shape = self.graph.values[parameter].shape
        for axis, size in enumerate(shape):
            indices = {index for region in regions for index in region.ranges[axis]}
            if len(shape) > 2 and len(indices) < size:
                return f"only {len(indices)} of the {size} parts of {name!r} were used: pass more tokens"
        return None

    def _unused_sibling(self, reader: Reader, norm: str) -> str | None:
        """A module that may replace a norm's reader in other calls, such as an expert, a task's head or an adapter.

        It is in the same list or dict of modules, but would not replace the norm too, as another encoder does; or it is
        like the reader and the code next to it names it.
        """
        parts = reader.path.split(".")
        for length in range(len(parts)):
            parent = ".".join(parts[:length])
            if is_outside_tree(parent):
                continue
            owner = self.analysis.model.get_submodule(parent)
            is_collection, is_nearest = isinstance(owner, nn.ModuleList | nn.ModuleDict), length == len(parts) - 1
            if is_collection and norm.startswith(".".join(parts[: length + 1]) + "."):
                continue
            for name, child in owner.named_children():
                sibling = f"{parent}.{name}".lstrip(".")
                may_read = is_collection and any(True for _ in child.parameters())
                if is_nearest and not is_collection:
                    may_read = self._is_alike(child, reader) and _is_named_in_code(owner, name)
                if may_read and sibling not in self._used:
                    return sibling
        return None

    def _is_alike(self, module: nn.Module, reader: Reader) -> bool:
        """Whether a module has the class of a reader, and weights with the same number of inputs."""
        name = self.names[reader.region.parameter].rpartition(".")[2]
        own, weight = self.analysis.model.get_submodule(reader.path), getattr(module, name, None)
        width = self.graph.values[reader.region.parameter].shape[reader.feature_axis]
        return (
            type(module) is type(own)
            and isinstance(weight, nn.Parameter)
            and weight.ndim > reader.feature_axis
            and weight.shape[reader.feature_axis] == width
        )


def _is_named_in_code(module: nn.Module, attribute: str) -> bool:
    """Whether a method or property of a module other than its constructor names an attribute."""
    for base in type(module).__mro__:
        if base in (nn.Module, object):
            continue
        for name, member in vars(base).items():
            function = inspect.unwrap(getattr(member, "fget", member))
            if name != "__init__" and isinstance(function, FunctionType) and attribute in _names(function.__code__):
                return True
    return False


def _names(code: CodeType) -> Iterator[str]:
    """The names and strings in code and in the functions within it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names(part)
        elif isinstance(part, str):
            yield part


def _not_linear(node: Node, where: str) -> str:
    match node.name:
        case "add" | "sub":
            return f"{where} adds it to other features"
        case "mul" | "div":
            return f"{where} multiplies it element by element"
        case name if name in ATTENTION:
            return f"attention in {where.rpartition(' in ')[2]} reads it directly"
        case name if name in CONVOLUTIONS:
            return f"{where} is a convolution"
        case name if name in NORMS:
            return f"another norm, {where.rpartition(' in ')[2]}, reads it"
        case "sum":
            return f"{where} adds up its rows or features"
        case "cat" | "stack":
            return f"{where} joins it with other features"
        case "constant_pad_nd" | "masked_fill" | "where":
            return f"{where} pads or masks it"
    return f"{where} is not linear in its features"


def _works_along(args: Sequence[Any], kwargs: Any, name: str, axis: int, rank: int) -> bool:
    """Whether a moving operator works along an axis."""
    if name in ("index", "_unsafe_index"):
        indices = args[1]
        return len(indices) > axis and indices[axis] is not None
    if name in ("roll", "flip"):
        dims = args[2] if name == "roll" and len(args) > 2 else args[1] if name == "flip" else ()
        return not dims or axis in {dim % rank for dim in dims}
    if name == "expand":
        return False
    position = 2 if name.startswith(("split", "unsafe_split")) or name == "chunk" else 1
    dim = args[position] if len(args) > position else kwargs.get("dim", 0)
    return dim % rank == axis
