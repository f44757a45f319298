"""Matrices that a norm makes scale-invariant: those whose product it reads."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.tape import Tape

SCALE_KEEPING = MOVES | {"mul", "div", "add", "sub"}
"""Operators on one set of features after which the scale of a matrix still scales the result, apart from a bias."""


def matrices_before(graph: Graph, value: ValueId) -> Iterator[ValueId]:
    """The matrices of the product that computes a value, with only moves, biases and factors after it."""
    while (node := graph.maker(value)) is not None:
        if graph.is_barrier(node):
            for factor in node.inputs:
                origin = graph.origin(factor)
                if graph.values[origin].origin == "parameter" and len(graph.values[origin].shape) > 1:
                    yield origin
            return
        features = graph.data_inputs(node)
        if len(features) != 1 or node.name not in SCALE_KEEPING:
            return
        value = features[0]


def parameter_positions(tape: Tape) -> dict[ValueId, int]:
    """The position in ``model.parameters()`` of each parameter on the tape."""
    parameters = (ValueId(index) for index, value in enumerate(tape.values) if value.origin == "parameter")
    return {value: position for position, value in enumerate(parameters)}
