"""Find norms by what they do: divide a value by a statistic of itself.

PyTorch's norm operators are known by name; :mod:`normplace.analysis.norms.statistics` recognizes other norms by their
arithmetic. Class names play no role.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from normplace.analysis.dataflow.graph import Graph, Node, constant, node_argument
from normplace.analysis.dataflow.operators import KEEPS, NORMS, SQUASHERS
from normplace.analysis.norms.statistics import Division, find_division, is_root
from normplace.analysis.recording.ids import CallId, NodeId, ValueId

SQUASH = "squash"


@dataclass(frozen=True)
class Norm:
    """One norm of the graph.

    Attributes:
        kind: ``layer``, ``rms``, ``l2``, ``batch``, ``group``, ``instance``, ``graph``, or ``squash`` for an
            elementwise replacement of a norm.
        input: The value it normalizes.
        output: Its result, gain and shift included.
        nodes: The nodes it consists of.
        core: The node that divides.
        call: The module call that divides.
        eps: The number it adds under, or to, its root; None if it has no eps.
        eps_dtype: The dtype in which eps is added.
        eps_under_root: Whether eps is added under its root.
        precision: The dtype of its statistics.
        variance: The smallest and largest squared statistic in the pass, without eps.
        affine: Whether it has a gain.
        axis: The axis of its input that holds the features: -1, or 1 if it is written out for feature maps.
    """

    kind: str
    input: ValueId
    output: ValueId
    nodes: frozenset[NodeId]
    core: NodeId
    call: CallId
    eps: float | None = None
    eps_dtype: torch.dtype | None = None
    precision: torch.dtype = torch.float32
    variance: tuple[float, float] | None = None
    affine: bool = False
    axis: int = -1
    eps_under_root: bool = True

    @property
    def erases_scale(self) -> bool:
        """Whether it divides out a positive factor of each row, which norms over rows keep."""
        return self.kind in ("layer", "rms", "l2")


def find_norms(graph: Graph) -> list[Norm]:
    """Every norm of the graph in the order of the pass."""
    norms: dict[NodeId, Norm] = {}
    for index, node in enumerate(graph.nodes):
        norm = None
        if node.name in NORMS:
            norm = _operator(graph, NodeId(index), node)
        elif is_root(node):
            division = find_division(graph, NodeId(index))
            norm = None if division is None else _written_out(graph, division)
        elif node.name in SQUASHERS:
            norm = _squasher(graph, NodeId(index), node)
        if norm is not None and norm.core not in norms:
            norms[norm.core] = _with_gain(graph, norm)
    return [norms[core] for core in sorted(norms)]


def _operator(graph: Graph, node_id: NodeId, node: Node) -> Norm | None:
    """The norm that one of PyTorch's operators computes; None if it normalizes a weight."""
    kind, eps_index = NORMS[node.name]
    first, result = node.inputs[0], node.outputs[0]
    value = graph.values[first]
    if graph.is_weight(first) and not graph.is_data(first):
        return None
    eps = node_argument(node, eps_index, key="eps")
    eps = float(eps) if isinstance(eps, int | float) and not isinstance(eps, bool) else None
    precision = torch.promote_types(value.dtype, torch.float32)  # fused kernels keep statistics in float32 at least
    if kind == "rms" and eps is None:
        eps = torch.finfo(precision).eps
    # instance_norm is batch_norm of an input reshaped to a batch of one, or group_norm with a group per channel.
    if kind == "batch" and len(value.shape) > 2 and value.shape[0] == 1 and len(node.inputs) == 1:
        kind = "instance"
    if kind == "group" and node_argument(node, 6) == node_argument(node, 4):
        kind = "instance"
    variance = None
    if kind in ("layer", "rms") and len(node.outputs) > 1:
        extent = graph.values[node.outputs[-1]].extent  # of the reciprocal root
        if extent is not None and extent[0] > 0:
            variance = (_without(eps, extent[1] ** -2), _without(eps, extent[0] ** -2))
    affine = len(node.inputs) > 1
    return Norm(
        kind, first, result, frozenset({node_id}), node_id, node.call, eps, precision, precision, variance, affine
    )


def _without(eps: float | None, statistic: float) -> float:
    return max(statistic - (eps or 0.0), 0.0)


def _written_out(graph: Graph, division: Division) -> Norm:
    """The norm that is a division by a statistic."""
    node, start = graph.nodes[division.node], graph.producer.get(division.value, -1)
    nodes = frozenset(index for index in division.nodes if index > start)  # the search may have gone past the input
    variance = None
    if division.extent is not None:
        low, high = division.extent
        variance = (_without(division.eps_inside, low), _without(division.eps_inside, high))
    return Norm(
        division.kind, division.value, node.outputs[0], nodes, division.node, node.call, division.eps,
        division.eps_dtype, division.precision, variance, axis=division.axis,
        eps_under_root=division.eps == division.eps_inside,
    )  # fmt: skip


def _with_gain(graph: Graph, norm: Norm) -> Norm:
    """The norm with the casts, gain and shift that follow it in the same module call."""
    output, nodes, gain, shift = norm.output, set(norm.nodes), norm.affine, False
    while True:
        readers = graph.consumers.get(output, [])
        if len(readers) != 1 or output in graph.tape.outputs:
            break
        node = graph.nodes[readers[0]]
        if node.call != norm.call or len(graph.data_inputs(node)) > 1:
            break
        if node.name == "mul" and norm.kind == "l2" and _is_width(graph, norm, constant(node)):
            norm = _averaged(graph, norm)
        elif node.name in ("mul", "add"):
            learned = any(not graph.is_data(number) for number in node.inputs)
            if not learned or constant(node) is not None or (gain and shift):
                break
            gain, shift = gain or node.name == "mul", shift or node.name == "add"
        elif node.name not in KEEPS:
            break
        nodes.add(readers[0])
        output = node.outputs[0]
    return replace(norm, output=output, nodes=frozenset(nodes), affine=gain)


def _is_width(graph: Graph, norm: Norm, number: float | None) -> bool:
    """Whether a number is the root of the number of features, by which a length exceeds their root mean square."""
    return number is not None and math.isclose(number, graph.values[norm.input].shape[norm.axis] ** 0.5, rel_tol=1e-3)


def _averaged(graph: Graph, norm: Norm) -> Norm:
    """A division by the length of each row as one by its root mean square."""
    size = graph.values[norm.input].shape[norm.axis]
    variance = None if norm.variance is None else (norm.variance[0] / size, norm.variance[1] / size)
    eps = None if norm.eps is None else norm.eps / (size if norm.eps_under_root else size**0.5)
    return replace(norm, kind="rms", variance=variance, eps=eps)


def _squasher(graph: Graph, node_id: NodeId, node: Node) -> Norm | None:
    """``gain * squash(alpha * x + shift)`` with a learned alpha and gain, which replaces a norm."""
    inside, value = {node_id}, node.inputs[0]
    for name in ("add", "mul"):
        index = graph.producer.get(value)
        before = None if index is None else graph.nodes[index]
        if index is None or before is None or before.name != name or len(before.inputs) != 2:
            if name == "mul":
                return None
            continue
        data = graph.data_inputs(before)
        if len(data) != 1 or not any(graph.is_weight(number) for number in before.inputs if number not in data):
            return None
        inside.add(index)
        value = data[0]
    for after in graph.readers(node.outputs[0]):
        if after.name == "mul" and any(graph.is_weight(number) for number in after.inputs):
            return Norm(SQUASH, value, node.outputs[0], frozenset(inside), node_id, node.call)
    return None
