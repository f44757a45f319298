"""A sum that is fused, and the bytes that operators move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.dataflow.operators import RESHAPES, SPLITS
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.edit.fuse.gate_plan import PlannedModulation
from normplace.edit.fuse.helpers import HelperSum
from normplace.edit.model.model_map import SumRef
from normplace.edit.record.changes import Fusion


@dataclass(frozen=True)
class PlannedSum:
    """A sum in a module's code, and the norms that are computed with it.

    Attributes:
        ref: The sum.
        skip_first: Whether its first operand is the skip.
        out: The name of the output norm; None if it is not computed with the sum.
        after: The name of the norm that reads the sum; None if it is not computed with it.
        reason: Why not more is computed with it.
        bytes_saved: Bytes that a forward pass no longer moves.
        gate_first: Whether the gate of the branch is its first factor; None if the branch has no gate.
        modulation: The modulation of the norm that reads the sum; None if it is not computed with the sum.
        helper: The function that computes the sum, if the method calls one.
        is_viewed: Whether the norm that reads the sum reads its rows in another shape.
    """

    ref: SumRef
    skip_first: bool
    out: str | None = None
    after: str | None = None
    reason: str = ""
    bytes_saved: int = 0
    gate_first: bool | None = None
    modulation: PlannedModulation | None = None
    helper: HelperSum | None = None
    is_viewed: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether a norm or a gate is computed with the sum."""
        return self.out is not None or self.after is not None or self.gate_first is not None

    def as_fusion(self) -> Fusion:
        """The record of this sum."""
        before = ["norm"] if self.out else ["gate"] if self.gate_first is not None else []
        after = (["norm"] if self.after else []) + (["modulate"] if self.modulation else [])
        parts = [*before, "add", *after]
        norms = tuple(name for name in (self.out, self.after) if name is not None)
        name = self.ref.module or "the model"
        return Fusion(", ".join(parts), name, self.is_fused, norms, self.reason, self.bytes_saved)


def merge_plans(plans: list[PlannedSum]) -> PlannedSum:
    """One plan for all evaluations of a sum, with the norms that are the same in all of them."""
    first = plans[0]
    out = first.out if all(plan.out == first.out for plan in plans) else None
    after = first.after if all(plan.after == first.after for plan in plans) else None
    gate, modulation, is_viewed = first.gate_first, first.modulation, any(plan.is_viewed for plan in plans)
    if any((plan.skip_first, plan.gate_first) != (first.skip_first, gate) for plan in plans):
        out = after = gate = None
    if after is None or any(plan.modulation != modulation for plan in plans):
        after, modulation = after if modulation is None else None, None
    reason = first.reason if (out, after) == (first.out, first.after) else "one line of code adds for different norms"
    result = replace(
        first, out=out, after=after, reason=reason, gate_first=gate, modulation=modulation, is_viewed=is_viewed
    )
    return replace(result, bytes_saved=sum(plan.bytes_saved for plan in plans) if result.is_fused else 0)


def traffic(graph: Graph, nodes: Iterable[NodeId]) -> int:
    """Bytes of features that operators read and write, views left out."""
    return sum(_moved(graph, graph.nodes[node]) for node in nodes)


def _moved(graph: Graph, node: Node) -> int:
    if node.name in RESHAPES | SPLITS | {"detach", "alias"}:
        return 0
    return sum(size_of(graph, value) for value in (*graph.data_inputs(node), *node.outputs))


def size_of(graph: Graph, value: ValueId) -> int:
    """Bytes of a value."""
    described = graph.values[value]
    count = described.dtype.itemsize
    for size in described.shape:
        count *= size
    return count
