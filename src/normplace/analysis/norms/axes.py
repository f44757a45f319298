"""Along which axis of an argument a norm takes its statistics, as a channels-first norm that permutes its input."""

from __future__ import annotations

from normplace.analysis.dataflow.axes import Marks, move_marks
from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import ValueId


def normalized_axis(graph: Graph, norm: Norm, argument: ValueId) -> int | None:
    """The axis of an argument that holds the features a norm is over, -1 for the last; None if that is not clear.

    Args:
        graph: The graph.
        norm: A norm over features.
        argument: The value that its input was computed from.
    """
    path: list[tuple[Node, ValueId]] = []
    value = norm.input
    while value != argument:
        node = graph.maker(value)
        if node is None or node.op is None or len(node.inputs) != 1:
            return None
        value = node.inputs[0]
        path.append((node, value))
    rank, wanted = len(graph.values[argument].shape), norm.axis % len(graph.values[norm.input].shape)
    for axis in range(rank):
        marks: Marks | None = tuple(int(dim == axis) for dim in range(rank))
        for node, value in reversed(path):
            if marks is not None and node.op is not None:
                old, new = graph.values[value].shape, graph.values[node.outputs[0]].shape
                marks = move_marks(node.op, value, marks, old, new)
        if marks is not None and [dim for dim, mark in enumerate(marks) if mark] == [wanted]:
            return axis if axis < rank - 1 else -1
    return None
