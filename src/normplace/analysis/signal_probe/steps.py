"""The steps of a network's streams: one for each residual add, with the values to measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.axes import Marks, move_marks
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.matrices import matrices_before
from normplace.analysis.dataflow.operators import ATTENTION, CONVOLUTIONS, SOFTMAXES
from normplace.analysis.norms.find import SQUASH
from normplace.analysis.recording.ids import AddIndex, ValueId
from normplace.analysis.residuals.reachability import ResidualAdd


@dataclass(frozen=True)
class Step:
    """One residual add as values of a tape.

    Attributes:
        name: The module whose output is added, or the module that adds; several if branches are summed first.
        kind: The kind of the branch: ``attention``, ``mlp`` and so on.
        stream: The index of the stream.
        axis: The dimension of the features.
        before: The stream before the add.
        after: The stream after the add, as the next step reads it: after the norm on the sum if there is one.
        skip: The operand of the add that carries the stream.
        branch: The operand computed from it; None if the add is fused with the last product of the branch.
        total: The sum.
        equation: The equation of the block.
        scores: The outputs of softmaxes, or fused attention operators, in the branch.
        parameters: Parameters of the branch and of the norms in it.
        normalized: The matrices among them whose product an output norm reads.
    """

    name: str
    kind: str
    stream: int
    axis: int
    before: ValueId
    after: ValueId
    skip: ValueId
    branch: ValueId | None
    total: ValueId
    equation: str
    scores: tuple[ValueId, ...]
    parameters: tuple[ValueId, ...]
    normalized: tuple[ValueId, ...] = ()


def find_steps(analysis: Analysis) -> list[Step]:
    """The steps of all streams of real numbers, in the order of the pass."""
    graph, adds = analysis.graph, analysis.adds
    reports = [list(block.branches) for block in analysis.blocks]
    previous = [analysis.structure.previous_add(add) for add in adds]
    steps: list[Step] = []
    for index, add in enumerate(adds):
        block = analysis.block_of[index]
        count = len(analysis.branches.summands(add))
        own, reports[block] = reports[block][:count], reports[block][count:]
        kinds = list(dict.fromkeys(report.kind for report in own))
        before = previous[index]
        # A branch that is added to two streams is one branch, whichever fork the second add has.
        first = next(other for other in adds if other.branch == add.branch)
        region = list(_branch_values(analysis, first))
        steps.append(
            Step(
                name=" + ".join(dict.fromkeys(report.module or report.add for report in own)),
                kind=" and ".join(kinds),
                stream=analysis.blocks[block].stream,
                axis=_channel_axis(graph, add.fork) if kinds == ["convolution"] else -1,
                before=add.fork if before is None else steps[before].after,
                after=_stream_after(analysis, AddIndex(index), previous),
                skip=add.skip,
                branch=add.branch if add.branch < analysis.recorded_values else None,
                total=add.output,
                equation=analysis.blocks[block].equation,
                scores=tuple(value for value in region if _is_attention(graph, value)),
                parameters=tuple(value for value in region if graph.values[value].origin == "parameter"),
                normalized=tuple(_normalized_matrices(analysis, add)),
            )
        )
    values = graph.values
    return [step for step in steps if not any(values[value].dtype.is_complex for value in (step.before, step.after))]


def _channel_axis(graph: Graph, fork: ValueId) -> int:
    """The axis of a stream that the nearest matrix of a convolutional branch mixes; 1, as of images, if unclear."""
    shape = graph.values[fork].shape
    queue: list[tuple[ValueId, Marks]] = [(fork, tuple(1 << axis for axis in range(len(shape))))]
    seen: set[ValueId] = set()
    for value, marks in queue:
        if value in seen:
            continue
        seen.add(value)
        for node in graph.readers(value):
            if graph.is_barrier(node):
                mark = marks[1] if node.name in CONVOLUTIONS else marks[-1]
                return next((axis - len(shape) * (axis > 1) for axis in range(len(shape)) if mark == 1 << axis), 1)
            if node.op is not None:
                moved = move_marks(
                    node.op, value, marks, graph.values[value].shape, graph.values[node.outputs[0]].shape
                )
                queue += [] if moved is None else [(node.outputs[0], moved)]
    return 1


def _stream_after(analysis: Analysis, index: AddIndex, previous: Sequence[AddIndex | None]) -> ValueId:
    """The stream after an add: the fork of the next add if it comes from the sum, else the sum or its norm."""
    values, total = analysis.graph.values, analysis.adds[index].output
    for add, before in zip(analysis.adds, previous, strict=True):
        # If the next part of a network works on complex numbers, it has another stream.
        alike = values[add.fork].dtype.is_complex == values[total].dtype.is_complex
        if before == index and alike and analysis.reachability.comes_from(add.fork, total):
            return add.fork
    for norm, slot in zip(analysis.norms, analysis.slots, strict=True):
        if slot.name == "stream" and slot.add == index:
            return norm.output
    return total


def _branch_values(analysis: Analysis, add: ResidualAdd) -> Iterator[ValueId]:
    """The values between a fork and the end of its branch, and the weights read there."""
    graph, queue, seen = analysis.graph, [add.branch], {add.fork}
    while queue:
        value = queue.pop()
        # Other inputs of a branch, such as the memory of an encoder, are computed elsewhere. A weight that is repeated
        # for a product with a batch is not one of them.
        is_other = graph.is_data(value) and not analysis.reachability.comes_from(value, add.fork)
        if value in seen or (is_other and not graph.is_weight(value)):
            continue
        seen.add(value)
        yield value
        node = graph.maker(value)
        queue += () if node is None else node.inputs


def _normalized_matrices(analysis: Analysis, add: ResidualAdd) -> Iterator[ValueId]:
    """The matrices of a branch whose product its output norm reads, with at most a bias or a factor between."""
    for norm, slot in zip(analysis.norms, analysis.slots, strict=True):
        if slot.name != "output" or slot.add is None or norm.kind == SQUASH:
            continue
        if analysis.adds[slot.add].branch == add.branch:
            yield from matrices_before(analysis.graph, norm.input)


def _is_attention(graph: Graph, value: ValueId) -> bool:
    """Whether a value is the output of fused attention, or of a softmax over products of features with features."""
    node = graph.maker(value)
    if node is None or node.outputs[0] != value:
        return False
    if node.name in ATTENTION:
        return True
    return node.name in SOFTMAXES and graph.is_after_pairing(node.inputs[0])
