"""Turn LayerNorms into RMSNorms exactly: centre everything that is written to the stream they read.

A LayerNorm is an RMSNorm of its input minus the mean over the features. If every weight that writes to the residual
stream has outputs of mean zero, so has the stream. Centring changes nothing else if only LayerNorms read the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.axes import AXIS_MOVES, move_marks
from normplace.analysis.dataflow.graph import Node, constant
from normplace.analysis.dataflow.operators import CASTS, CONVOLUTIONS, PRODUCTS, SPREADS
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.edit.fold.readers import BIASED, ROW_MOVES
from normplace.edit.fuse.forms import NormForm, identify
from normplace.edit.model.attachments import without_hooks
from normplace.edit.model.model_map import is_outside_tree
from normplace.edit.model.parameter_regions import parameter_names, reads_of
from normplace.edit.swap.modules import ShiftedRMSNorm
from normplace.edit.swap.undo import replace_norm
from normplace.norms import RMSNorm

SUMS = SPREADS | {"add", "cat"}


@dataclass(frozen=True)
class CentredNorm:
    """A LayerNorm that becomes an RMSNorm.

    Attributes:
        path: Its name.
        slot: Its slot.
        form: What it computes.
    """

    path: str
    slot: str
    form: NormForm


@dataclass
class _Stream:
    """What is written to the stream that a norm reads."""

    norms: list[CentredNorm]
    values: set[ValueId] = field(default_factory=set)
    nodes: set[NodeId] = field(default_factory=set)
    writers: dict[ValueId, int] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class CenterPlan:
    """Which norms change, and what is centred for that.

    Attributes:
        norms: The norms.
        writers: The names of the parameters that write to their streams, with the axis of the features.
        refused: Why other LayerNorms stay.
    """

    norms: tuple[CentredNorm, ...]
    writers: tuple[tuple[str, int], ...]
    refused: tuple[str, ...]

    @classmethod
    def of(cls, analysis: Analysis) -> CenterPlan:
        """The plan for an analysed model."""
        names = parameter_names(analysis)
        streams = _Finder(analysis, names).streams()
        norms = [norm for stream in streams if not stream.problem for norm in stream.norms]
        writers = {
            names[value]: axis for stream in streams if not stream.problem for value, axis in stream.writers.items()
        }
        refused = [
            f"{norm.path!r} stays a LayerNorm, because {stream.problem}."
            for stream in streams
            if stream.problem
            for norm in stream.norms
        ]
        return cls(tuple(norms), tuple(writers.items()), tuple(refused))


class _Finder:
    def __init__(self, analysis: Analysis, names: Mapping[ValueId, str]) -> None:
        self.analysis, self.graph, self.names = analysis, analysis.graph, names
        self._norm_of_node = {node: norm for norm in analysis.norms for node in norm.nodes}
        self._layer_nodes: set[NodeId] = set()

    def streams(self) -> list[_Stream]:
        """The streams that LayerNorms read; norms of one stream are together."""
        streams: list[_Stream] = []
        for norm, site in zip(self.analysis.norms, self.analysis.sites, strict=True):
            form = self._form(site.name, site.own_module, norm.kind, norm.input, norm.eps)
            if form is None:
                continue
            self._layer_nodes |= norm.nodes
            stream = _Stream([CentredNorm(site.name, site.slot, form)])
            self._walk(stream, norm.input)
            for other in [other for other in streams if _touch(stream, other)]:
                streams.remove(other)
                stream = _merged(other, stream)
            streams.append(stream)
        for stream in streams:
            stream.problem = stream.problem or next(self._other_readers(stream), "")
        return streams

    def _form(self, path: str, is_own: bool, kind: str, value: ValueId, eps: float | None) -> NormForm | None:
        if kind != "layer" or not is_own or is_outside_tree(path):
            return None
        module, read = without_hooks(self.analysis.model.get_submodule(path)), self.graph.values[value]
        form = identify(module, kind, eps, read.shape[-1], read.dtype, with_casts=False)
        return None if isinstance(form, str) else form

    def _walk(self, stream: _Stream, value: ValueId) -> None:
        """Follow the stream back to everything that is written to it."""
        queue = [(value, len(self.graph.values[value].shape) - 1)]
        while queue:
            value, axis = queue.pop()
            if value in stream.values or value in stream.writers:
                continue
            node_id = self.graph.producer.get(value)
            if node_id is None:
                if self.graph.values[value].origin != "parameter":
                    stream.problem = (
                        f"the {self.graph.values[value].origin} of the model is part of the stream it reads"
                    )
                    return
                stream.writers[value] = axis
                continue
            stream.values.add(value)
            sources = self._sources(node_id, value, axis)
            if isinstance(sources, str):
                stream.problem = sources
                return
            stream.nodes.add(node_id)
            for source, source_axis in sources:
                if self.graph.values[source].origin == "parameter":
                    stream.writers[source] = source_axis
                else:
                    queue.append((source, source_axis))

    def _sources(self, node_id: NodeId, value: ValueId, axis: int) -> list[tuple[ValueId, int]] | str:
        """The values and parameters that a value of the stream is made of, or the reason why it cannot be centred."""
        node = self.graph.nodes[node_id]
        where = f"{node.name!r} in {self.graph.path(node) or 'the model'!r}"
        shape = self.graph.values[value].shape
        if node_id in self._norm_of_node:
            return f"a norm in {self.graph.path(node)!r} writes to the stream it reads"
        if node.name in PRODUCTS | CONVOLUTIONS | {"embedding"}:
            writers = self._writers(node, axis, len(shape))
            return writers or f"{where} writes to the stream it reads, and not with stored weights"
        floats = [number for number in node.inputs if self.graph.values[number].dtype.is_floating_point]
        if node.name in SUMS and (node.name == "cat" or constant(node) is None):
            return [(number, len(self.graph.values[number].shape) - len(shape) + axis) for number in floats]
        if node.name in ("mul", "div"):
            is_number = all(self._size(number) == 1 for number in floats if not self.graph.is_data(number))
            data = self.graph.data_inputs(node)
            if len(data) == 1 and is_number and (constant(node) is not None or len(floats) == 2):
                return [(data[0], axis)]
        elif node.op is not None and len(floats) == 1:
            old = self.graph.values[floats[0]].shape
            if node.name in CASTS:
                return [(floats[0], axis)]
            for before in range(len(old)) if node.name in AXIS_MOVES else ():
                marks = move_marks(node.op, floats[0], tuple(int(dim == before) for dim in range(len(old))), old, shape)
                if marks is not None and [dim for dim, mark in enumerate(marks) if mark] == [axis]:
                    return [(floats[0], before)] if old[before] == shape[axis] else f"{where} divides its features"
            before = axis - len(shape) + len(old)
            if node.name in ROW_MOVES and before >= 0 and old[before] == shape[axis]:
                return [(floats[0], before)]
        return f"{where} computes the stream it reads"

    def _size(self, value: ValueId) -> int:
        size = 1
        for length in self.graph.values[value].shape:
            size *= length
        return size

    def _writers(self, node: Node, axis: int, rank: int) -> list[tuple[ValueId, int]] | None:
        """The parameters of a linear map, with the axes of its outputs; None if they are not stored."""
        if node.name in CONVOLUTIONS:
            pairs = [(node.inputs[1], 0), *((bias, 0) for bias in node.inputs[2:3])] if axis == 1 else []
        elif node.name == "embedding":
            pairs = [(node.inputs[0], 1)]
        elif axis != rank - 1:
            pairs = []
        elif node.name == "linear":
            pairs = [(node.inputs[1], 0), *((bias, 0) for bias in node.inputs[2:3])]
        else:
            weight = node.inputs[2 if node.name in BIASED else 1]
            pairs = [(weight, len(self.graph.values[weight].shape) - 1)]
            pairs += [(node.inputs[0], len(self.graph.values[node.inputs[0]].shape) - 1)] if node.name in BIASED else []
        writers = []
        for operand, operand_axis in pairs:
            parameter = self.graph.origin(operand)
            if self.graph.is_data(operand) or self.graph.values[parameter].origin != "parameter":
                return None
            for _, read, region in reads_of(self.graph, parameter):
                if read == operand and region is not None and region.axes[operand_axis] is not None:
                    writers.append((parameter, region.axes[operand_axis]))
                    break
            else:
                return None
        return writers or None

    def _other_readers(self, stream: _Stream) -> Iterator[str]:
        """Why a stream cannot be centred: something other than a LayerNorm reads it, or a writer has another use."""
        graph = self.graph
        for value in sorted(stream.values):
            if value in graph.tape.outputs:
                yield "the stream it reads is an output of the model"
            for node_id in graph.consumers.get(value, ()):
                if node_id not in stream.nodes | self._layer_nodes and set(graph.nodes[node_id].outputs) & graph.used:
                    node = graph.nodes[node_id]
                    yield f"{node.name!r} in {graph.path(node) or 'the model'!r} reads the stream without a LayerNorm"
        for parameter in stream.writers:
            for node_id, _, _ in reads_of(graph, parameter):
                if node_id not in stream.nodes and set(graph.nodes[node_id].outputs) & graph.used:
                    tied = any(reader.name == "embedding" for reader in graph.readers(parameter))
                    remedy = ": pass untie=True" if tied else ""
                    yield f"{self.names[parameter]!r}, which writes to the stream it reads, has another use{remedy}"


def _touch(one: _Stream, two: _Stream) -> bool:
    shared = one.values & two.values or one.writers.keys() & two.writers.keys()
    return bool(shared) or bool({norm.path for norm in one.norms} & {norm.path for norm in two.norms})


def _merged(one: _Stream, two: _Stream) -> _Stream:
    norms = {norm.path: norm for norm in (*one.norms, *two.norms)}
    return _Stream(
        list(norms.values()), one.values | two.values, one.nodes | two.nodes, one.writers | two.writers,
        one.problem or two.problem,
    )  # fmt: skip


@torch.no_grad()
def centre(model: nn.Module, plan: CenterPlan) -> list[dict[str, Any]]:
    """Centre the writers of a model, and replace its LayerNorms, in place.

    Returns:
        The settings of the new norms, for :func:`replace_with_rms`.
    """
    for name, axis in plan.writers:
        parameter = model.get_parameter(name)
        wide = parameter.double()
        parameter.copy_(wide - wide.mean(axis, keepdim=True))
    settings = []
    for norm in plan.norms:
        old = model.get_submodule(norm.path)
        gain, shift = norm.form.parameters(old)
        is_shifted = shift is not None and bool(shift.any())
        options = {"path": norm.path, "width": norm.form.width, "eps": norm.form.eps}
        settings.append({**options, "gain": gain is not None, "shift": is_shifted})
        new = replace_with_rms(model, **settings[-1])
        if gain is not None:
            new.weight.copy_(gain + 1 if norm.form.unit_offset else gain)
        if shift is not None and isinstance(new, ShiftedRMSNorm):
            new.bias.copy_(shift)
    return settings


def replace_with_rms(model: nn.Module, path: str, width: int, eps: float, gain: bool, shift: bool) -> RMSNorm:
    """Replace a norm by an RMSNorm, in place, and return it."""
    old = model.get_submodule(path)
    like = next((p for p in (*old.parameters(), *model.parameters()) if p.is_floating_point()), torch.empty(0))
    factory: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    new = ShiftedRMSNorm(width, eps, **factory) if shift else RMSNorm(width, eps, gain, **factory)
    replace_norm(model, path, old, new)
    return new
