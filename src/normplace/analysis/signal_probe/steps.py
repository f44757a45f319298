"""The depths of a network: where its streams can be looked at, and what each step between two of them is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from normplace.analysis.api import placed
from normplace.analysis.blocks.assemble import Assembly
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.matrices import matrices_before
from normplace.analysis.dataflow.operators import ATTENTION, SOFTMAXES
from normplace.analysis.norms.find import SQUASH, find_norms
from normplace.analysis.recording.tape import Tape
from normplace.analysis.residuals.adds import ResidualAdd


@dataclass(frozen=True)
class Step:
    """One residual add as numbers of values on a tape.

    Attributes:
        name: The module whose output is added, or the one that adds it; several where branches are summed first.
        kind: What the branch is: ``attention``, ``mlp`` and so on.
        stream: Which of the network's streams it steps, counted from 0.
        axis: The dimension of the features.
        before: The stream it steps from.
        after: The stream behind it, as the next step reads it: behind the norm on the sum where there is one.
        skip: The operand of the add that carries the stream.
        branch: The operand that was made from it; None where the add is fused with the branch's last product.
        total: The sum.
        scores: What the softmaxes, or fused attention operators, of its branch return.
        parameters: Parameters of the branch and the norms in it.
        normalized: The matrices among them whose product an output norm reads.
    """

    name: str
    kind: str
    stream: int
    axis: int
    before: int
    after: int
    skip: int
    branch: int | None
    total: int
    scores: tuple[int, ...]
    parameters: tuple[int, ...]
    normalized: tuple[int, ...] = ()


def find_steps(tape: Tape) -> list[Step]:
    """Every step of every stream of real numbers, in the order of the pass."""
    recorded = len(tape.values)
    graph = Graph(tape)
    assembly = placed(graph, find_norms(graph))
    blocks, block_of = assembly.blocks()
    arms = [list(block.branches) for block in blocks]
    befores = [assembly.before(residual) for residual in assembly.residuals]
    steps: list[Step] = []
    for at, residual in enumerate(assembly.residuals):
        block = block_of[at]
        parts = len(assembly.summands(residual))
        own, arms[block] = arms[block][:parts], arms[block][parts:]
        kinds = list(dict.fromkeys(arm.kind for arm in own))
        before = befores[at]
        # A branch that is added to two streams is one branch, wherever the second stream comes from.
        first = next(n for n, other in enumerate(assembly.residuals) if other.branch == residual.branch)
        region = list(_region(assembly, assembly.residuals[first]))
        steps.append(
            Step(
                name=" + ".join(dict.fromkeys(arm.module or arm.add for arm in own)),
                kind=" and ".join(kinds),
                stream=blocks[block].stream,
                axis=1 if kinds == ["convolution"] else -1,
                before=residual.fork if before is None else steps[before].after,
                after=_after(assembly, at, befores),
                skip=residual.skip,
                branch=residual.branch if residual.branch < recorded else None,
                total=residual.output,
                scores=tuple(value for value in region if _is_attention(graph, value)),
                parameters=tuple(value for value in region if graph.values[value].origin == "parameter"),
                normalized=tuple(_normalized(assembly, residual)),
            )
        )
    return [step for step in steps if not any(_is_complex(graph, value) for value in (step.before, step.after))]


def _is_complex(graph: Graph, value: int) -> bool:
    return graph.values[value].dtype.is_complex


def _after(assembly: Assembly, at: int, befores: Sequence[int | None]) -> int:
    """The stream behind an add: what the next one parts from, if that is made of the sum; else the sum, or its norm."""
    values, total = assembly.graph.values, assembly.residuals[at].output
    for later, before in enumerate(befores):
        fork = assembly.residuals[later].fork
        # Where the next part of a network works on complex numbers, its stream is another.
        alike = values[fork].dtype.is_complex == values[total].dtype.is_complex
        if before == at and alike and assembly.reach.comes_from(fork, total):
            return fork
    for norm, place in zip(assembly.norms, assembly.places, strict=True):
        if place.slot == "stream" and place.residual == at:
            return norm.output
    return total


def _region(assembly: Assembly, residual: ResidualAdd) -> Iterator[int]:
    """The values between a fork and the end of its branch, and the weights that are read there."""
    graph, queue, seen = assembly.graph, [residual.branch], {residual.fork}
    while queue:
        value = queue.pop()
        # What else a branch reads, such as the memory of an encoder, was made elsewhere.
        if value in seen or (graph.is_data(value) and not assembly.reach.comes_from(value, residual.fork)):
            continue
        seen.add(value)
        yield value
        node = graph.maker(value)
        queue += () if node is None else node.inputs


def _normalized(assembly: Assembly, residual: ResidualAdd) -> Iterator[int]:
    """The matrices of a branch whose product its output norm reads, with at most a bias or a factor between."""
    for norm, place in zip(assembly.norms, assembly.places, strict=True):
        if place.slot != "output" or place.residual is None or norm.kind == SQUASH:
            continue
        if assembly.residuals[place.residual].branch == residual.branch:
            yield from matrices_before(assembly.graph, norm.input)


def _is_attention(graph: Graph, value: int) -> bool:
    """Whether a value is what a fused attention returns, or the softmax of products of features with each other."""
    node = graph.maker(value)
    if node is None or node.outputs[0] != value:
        return False
    if node.name in ATTENTION:
        return True
    return node.name in SOFTMAXES and any(
        len(graph.factors(made)) > 1 for made in graph.barriers_before(node.inputs[0])
    )
