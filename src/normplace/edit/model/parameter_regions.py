"""Which part of a parameter an operator reads, through any views of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.matrices import parameter_positions
from normplace.analysis.dataflow.operators import CASTS, RESHAPES, SPLITS
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.analysis.recording.tape import ValueRef

REPEATABLE = (RESHAPES | SPLITS) - {"as_strided", "unfold", "view_as_real", "view_as_complex"}


@dataclass(frozen=True)
class Region:
    """A rectangular part of a parameter.

    Attributes:
        parameter: The parameter, as a value of the pass.
        ranges: The indices along each of its axes.
        axes: For each axis of the operand, the axis of the parameter that it runs along; None for axes of size 1.
    """

    parameter: ValueId
    ranges: tuple[range, ...]
    axes: tuple[int | None, ...]

    def overlaps(self, other: Region) -> bool:
        """Whether two regions of one parameter have an element in common."""
        pairs = zip(self.ranges, other.ranges, strict=True)
        return all(max(one.start, two.start) < min(one.stop, two.stop) for one, two in pairs)

    def of(self, tensor: Tensor) -> Tensor:
        """The region of a tensor, as a view."""
        for axis, indices in enumerate(self.ranges):
            tensor = tensor.narrow(axis, indices.start, len(indices))
        return tensor


def parameter_names(analysis: Analysis) -> dict[ValueId, str]:
    """The name of each parameter of an analysed model."""
    names = [name for name, _ in analysis.model.named_parameters()]
    return {value: names[position] for value, position in parameter_positions(analysis.tape).items()}


def reads_of(graph: Graph, parameter: ValueId) -> Iterator[tuple[NodeId, ValueId, Region | None]]:
    """Every operator that reads a parameter, directly or through views.

    Yields:
        The node, its operand, and the part of the parameter that the operand is; None if that is not known.
    """
    shape = graph.values[parameter].shape
    # For every axis a tensor that holds, at each element, its index along that axis; expanded, so it takes no memory.
    indices = [
        torch.arange(size).view(-1, *[1] * (len(shape) - axis - 1)).expand(shape) for axis, size in enumerate(shape)
    ]
    queue: list[tuple[ValueId, list[Tensor] | None]] = [(parameter, indices)]
    while queue:
        value, views = queue.pop()
        for node_id in graph.consumers.get(value, ()):
            node = graph.nodes[node_id]
            if node.name in CASTS or node.name in REPEATABLE:
                for position, output in enumerate(node.outputs):
                    queue.append((output, None if views is None else repeat_view(node, value, position, views)))
            else:
                yield node_id, value, None if views is None else _region(parameter, views)


def repeat_view(node: Node, value: ValueId, position: int, views: list[Tensor]) -> list[Tensor] | None:
    """Repeat a view on other tensors.

    Returns:
        The views; None if the operator cannot be repeated.
    """
    if node.name in CASTS or node.op is None:
        return views
    if any(isinstance(argument, ValueRef) and argument != value for argument in node.op.args):
        return None
    results = []
    for view in views:
        args: list[Any] = [view if isinstance(argument, ValueRef) else argument for argument in node.op.args]
        name = "reshape" if node.name in ("view", "_unsafe_view", "_reshape_alias") else node.name
        result = getattr(torch.ops.aten, name)(*(args[:2] if name == "reshape" else args), **node.op.kwargs)
        results.append(result if isinstance(result, Tensor) else result[position])
    return results


def _region(parameter: ValueId, views: list[Tensor]) -> Region | None:
    """The part of a parameter that a view of it is; None if it is not rectangular."""
    ranges: list[range] = []
    axes: list[int | None] = [None] * views[0].ndim
    for axis, view in enumerate(views):
        moving = [dim for dim in range(view.ndim) if view.shape[dim] > 1 and _varies(view, dim)]
        line = view[tuple(slice(None) if dim in moving else 0 for dim in range(view.ndim))]
        if len(moving) > 1 or (moving and axes[moving[0]] is not None):
            return None  # an axis was split, or two were merged
        start = int(line.reshape(-1)[0])
        if line.reshape(-1).tolist() != list(range(start, start + line.numel())):
            return None
        ranges.append(range(start, start + line.numel()))
        for dim in moving:
            axes[dim] = axis
    return Region(parameter, tuple(ranges), tuple(axes))


def _varies(view: Tensor, dim: int) -> bool:
    first = view[tuple(slice(0, 2) if other == dim else 0 for other in range(view.ndim))]
    return bool(first[0] != first[1])
