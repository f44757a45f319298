"""Matrices that a norm makes scale-invariant: those whose product it reads."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.recording.tape import Tape

SCALE_KEEPING = MOVES | {"mul", "div", "add", "sub"}
"""Operators of one tensor of features that pass the scale of a matrix on, apart from what a bias adds to it."""


def matrices_before(graph: Graph, value: int) -> Iterator[int]:
    """The matrices that a value is a product with, with nothing but moves, biases and factors between."""
    while (node := graph.maker(value)) is not None:
        if graph.is_barrier(node):
            for factor in node.inputs:
                origin = graph.origin(factor)
                if graph.values[origin].origin == "parameter" and len(graph.values[origin].shape) > 1:
                    yield origin
            return
        before = graph.data_inputs(node)
        if len(before) != 1 or node.name not in SCALE_KEEPING:
            return
        value = before[0]


def parameter_positions(tape: Tape) -> dict[int, int]:
    """The position of each parameter among ``model.parameters()``, by its number on the tape."""
    learned = (number for number, value in enumerate(tape.values) if value.origin == "parameter")
    return {number: position for position, number in enumerate(learned)}
