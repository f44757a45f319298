"""Which axis of each value holds its features."""

from __future__ import annotations

from collections.abc import Sequence

from normplace.analysis.dataflow.axes import move_marks
from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import CONVOLUTIONS, REDUCTIONS
from normplace.analysis.recording.ids import ValueId


def feature_axes(graph: Graph) -> dict[ValueId, int]:
    """The axis of the features of each value: that of the convolution or product that made them, through every view.

    Values whose axis is not clear are left out.
    """
    axes: dict[ValueId, int] = {}
    for node in graph.nodes:
        for output in node.outputs:
            shape = graph.values[output].shape
            if graph.is_barrier(node):
                axes[output] = 1 if node.name in CONVOLUTIONS else len(shape) - 1
            elif node.name not in REDUCTIONS:
                moved = {
                    _moved_axis(node, value, axes[value], graph.values[value].shape, shape)
                    for value in graph.data_inputs(node)
                    if value in axes
                }
                axis = moved.pop() if len(moved) == 1 else None
                if axis is not None:
                    axes[output] = axis
    return axes


def _moved_axis(node: Node, value: ValueId, axis: int, old: Sequence[int], new: Sequence[int]) -> int | None:
    """Where an operator leaves an axis of an operand; None if it is not an axis of the result."""
    marks: Sequence[int] | None = tuple(int(dim == axis) for dim in range(len(old)))
    if node.op is not None:
        marks = move_marks(node.op, value, tuple(marks), old, new)
    axes = [dim for dim, mark in enumerate(marks or ()) if mark]
    return axes[0] if len(axes) == 1 and axes[0] < len(new) and new[axes[0]] == old[axis] else None
