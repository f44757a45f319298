"""Verify norms on queries and keys: attention reads both through them alone, and gets heads of equal size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.operators import ATTENTION, MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import NodeId, NormIndex, ValueId
from normplace.edit.record.changes import Change
from normplace.edit.verify.capture import Arguments, capture_values
from normplace.edit.verify.numbers import NORMALIZING, TOLERANCE
from normplace.errors import UsageError

SLOTS = {"inner.q": "q", "inner.k": "k"}


def verify_head_norms(analysis: Analysis, arguments: Arguments, changes: Sequence[Change], over: str) -> None:
    """Compare the operands of attention with the definition of norms on queries and keys.

    Raises:
        UsageError: If attention reads features that passed no norm, or heads that are not normalized.
    """
    placed = {change.name: SLOTS[change.slot] for change in changes if change.slot in SLOTS}
    norms = {
        NormIndex(index): placed[name]
        for index, site in enumerate(analysis.sites)
        for name in placed
        if site.name == name or site.name.startswith(f"{name}.")
    }
    outputs = {analysis.norms[norm].output: norm for norm in norms}
    moved: list[tuple[NodeId, ValueId, str, NormIndex]] = []
    for (node, operand), letter in analysis.attention.letters.items():
        norm, is_moved = _norm_before(analysis, operand, outputs)
        if norm is None:
            continue
        if norms[norm] != letter:
            raise UsageError(
                f"after the move attention reads {analysis.sites[norm].name!r} as {letter}, so the move is refused: "
                "compute queries and keys separately."
            )
        if is_moved and over == "head" and analysis.norms[norm].kind in NORMALIZING:
            moved.append((node, operand, letter, norm))
    if any(parameter.is_meta for parameter in analysis.model.parameters()):
        return
    chosen = {value for _, operand, _, norm in moved for value in (operand, analysis.norms[norm].input)}
    tensors = capture_values(analysis, arguments, chosen)
    for node, operand, letter, index in moved:
        norm = analysis.norms[index]
        if operand in tensors and norm.input in tensors:
            is_transposed = letter == "k" and analysis.graph.nodes[node].name not in ATTENTION
            slack = _eps_share(tensors[norm.input], norm)
            _check_sizes(tensors[operand], -2 if is_transposed else -1, slack, analysis.sites[index].name)


def _norm_before(
    analysis: Analysis, operand: ValueId, outputs: dict[ValueId, NormIndex]
) -> tuple[NormIndex | None, bool]:
    """The placed norm that an operand of attention is computed from, and whether only moves are between.

    Raises:
        UsageError: If the operand is also computed from features that passed no norm.
    """
    graph = analysis.graph
    queue, seen, norms, bare, is_moved = [operand], set(), set(), [], True
    while queue:
        value = queue.pop()
        if value in outputs:
            norms.add(outputs[value])
            continue
        node = graph.maker(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        if graph.is_barrier(node):
            bare += [node] if any(graph.is_weight(weight) for weight in node.inputs) else []
        else:
            is_moved &= node.name in MOVES
            queue += graph.data_inputs(node)
    if norms and (bare or len(norms) > 1):
        name = analysis.sites[min(norms)].name
        raise UsageError(
            f"after the move attention also reads features that do not pass through {name!r}, so the move is refused: "
            "compute queries and keys separately."
        )
    return (min(norms), is_moved) if norms else (None, False)


def _eps_share(x: torch.Tensor, norm: Norm) -> float:
    """How much eps shrinks the smallest row of a norm's input, relative to a large one."""
    rows = x.double().var(-1, correction=0) if norm.kind == "layer" else x.double().square().mean(-1)
    eps = norm.eps or 0.0
    return float((eps / (rows + eps)).nan_to_num().max()) if eps else 0.0


def _check_sizes(heads: torch.Tensor, axis: int, slack: float, name: str) -> None:
    """Check that all heads have the same root mean square: a new norm has one gain for all features."""
    squares = heads.double().square().mean(axis)
    squares = squares[squares > 0]  # padding
    if not squares.numel():
        return
    spread = (squares.max() - squares.min()) / squares.max()
    if spread > SPREAD.get(heads.dtype, 1e-2) + slack:
        raise UsageError(
            f"{name!r} does not normalize the heads that attention reads (their mean squares differ by {spread:.2g}), "
            "so the move is refused: write queries and keys with the features of a head in the last dimension."
        )


SPREAD = {dtype: 4 * tolerance for dtype, tolerance in TOLERANCE.items()}
"""Two mean squares differ by four times the rounding error of their entries."""
