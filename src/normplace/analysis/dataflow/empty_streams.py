"""Streams that start as zeros, to which the first branch is added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from normplace.analysis.dataflow.operators import KEEPS, ZEROS
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.tape import Tape


def empty_streams(tape: Tape) -> Iterator[ValueId]:
    """Zeros that start a stream: a branch reads them, and its result is added to them."""
    zeros: dict[ValueId, ValueId] = {}
    added: set[ValueId] = set()
    reads: Counter[ValueId] = Counter()
    for op in tape.ops:
        if op.name in ZEROS and tape.values[op.outputs[0]].dtype.is_floating_point:
            zeros[op.outputs[0]] = op.outputs[0]
        elif op.name in KEEPS and op.inputs and op.inputs[0] in zeros:
            zeros[op.outputs[0]] = zeros[op.inputs[0]]
        elif zeros:
            sources = {zeros[value] for value in op.inputs if value in zeros}
            reads.update(sources)
            if op.name == "add" and len(op.inputs) == 2 and op.outputs[0] not in op.inputs:
                shapes = {tape.values[value].shape for value in (*op.inputs, *op.outputs)}
                added |= sources if len(shapes) == 1 else set()
    for value, source in zeros.items():
        if source in added and reads[source] > 1:
            yield value
