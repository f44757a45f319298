"""Assemble residual blocks from adds and norms: their scales, equations and modules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from normplace.analysis.blocks.attention import AttentionCores
from normplace.analysis.blocks.branches import Branches
from normplace.analysis.blocks.slots import NormSlot
from normplace.analysis.dataflow.graph import constant
from normplace.analysis.dataflow.operators import AGGREGATIONS, MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import AddIndex, BlockIndex, NodeId, ValueId
from normplace.analysis.recording.passes import dtype_name
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.analysis.residuals.structure import ResidualStructure
from normplace.analysis.results import BranchReport, ResidualBlock, Unknown, in_order
from normplace.placement import BlockSpec, LearnedScale
from normplace.placement.equations import Sum, block_term, branch_term, normalized, skip_term

PlacedNorm = tuple[Norm, NormSlot]


class BlockAssembler:
    """Assembles the blocks of one graph.

    Attributes:
        block_of: The block of each add.
    """

    def __init__(
        self, structure: ResidualStructure, slots: Sequence[NormSlot], attention: AttentionCores, branches: Branches
    ) -> None:
        self.graph, self.adds, self.reachability = structure.graph, structure.adds, structure.reachability
        self.structure, self.attention, self.branches = structure, attention, branches
        self._placed = list(zip(structure.norms, slots, strict=True))
        self._placed_at: dict[AddIndex, list[PlacedNorm]] = {}
        for norm, slot in self._placed:
            if slot.add is not None:
                self._placed_at.setdefault(slot.add, []).append((norm, slot))
        self._input_norm_of = {norm.output: norm for norm, slot in self._placed if slot.name == "input"}
        self._groups, self.block_of = self._group()

    def _group(self) -> tuple[list[list[AddIndex]], list[BlockIndex]]:
        """The adds of each block, and the block of each add; parallel branches belong to one block."""
        groups: list[list[AddIndex]] = []
        block_of: list[BlockIndex] = []
        for index, add in enumerate(self.adds):
            previous = self.structure.previous_add(add)
            if previous is not None and self.reachability.joins(add, self.adds[previous]):
                block = block_of[previous]
                groups[block].append(AddIndex(index))
            else:
                block = BlockIndex(len(groups))
                groups.append([AddIndex(index)])
            block_of.append(block)
        return groups, block_of

    def blocks(self) -> list[ResidualBlock]:
        """The blocks in the order of the pass."""
        streams = self._streams()
        return [self._block(group, streams[group[0]]) for group in self._groups]

    def _streams(self) -> list[int]:
        """The stream of each add, counted from 0."""
        streams: list[int] = []
        count = 0
        for add in self.adds:
            previous = self.structure.previous_add(add)
            streams.append(count if previous is None else streams[previous])
            count += previous is None
        return streams

    def _block(self, group: Sequence[AddIndex], stream: int) -> ResidualBlock:
        branches = [
            self._report(add, value, group) for add in group for value in self.branches.summands(self.adds[add])
        ]
        projected = self.adds[group[0]].projected
        shares_norm = 0 < len(self._input_norms(group)) < len(branches)
        return ResidualBlock(
            equation=_equation([branch.spec for branch in branches], projected, shares_norm, self._norms_skip(group)),
            branches=tuple(branches),
            stream=stream,
            projected=projected,
            custom_backward=self._custom_backward(group),
            unknown=self._unknown_in(group),
        )

    @cached_property
    def unknown(self) -> dict[NodeId, Unknown]:
        """What is not understood, by node: operators of other libraries, and attention with unclear operands."""
        graph = self.graph
        unknown: dict[NodeId, Unknown] = {}
        for index, node in enumerate(graph.nodes):
            is_known = "::" not in node.name or node.name in AGGREGATIONS
            if not is_known and graph.data_inputs(node) and any(map(graph.is_features, node.outputs)):
                reason = "this operator is unknown, so norms in and around it may be missed"
                unknown[NodeId(index)] = Unknown(graph.path(node), node.name, reason)
        for norm, slot in self._placed:
            if slot.name in ("inner.mid", "inner.pre-output") and self.attention.is_unclear(norm):
                reason = "features are multiplied with features, but not as queries, keys and values"
                unknown[norm.core] = Unknown(graph.path(graph.nodes[norm.core]), "attention", reason)
        return unknown

    def _unknown_in(self, group: Sequence[AddIndex]) -> tuple[Unknown, ...]:
        if not self.unknown:
            return ()
        regions = [self.structure.regions.of(self.adds[add]) for add in group]
        return tuple(unknown for node, unknown in self.unknown.items() if any(node in region for region in regions))

    def _custom_backward(self, group: Sequence[AddIndex]) -> str | None:
        """The user-defined autograd function that adds, or that calls modules of the branches."""
        calls = self.graph.tape.calls
        for add in map(self.adds.__getitem__, group):
            op = self.graph.nodes[add.node].op
            if op is not None and op.function is not None:
                return op.function
            nodes = [add.node, *sorted(self.structure.regions.of(add))]
            for call in dict.fromkeys(self.graph.nodes[node].call for node in nodes):
                if call >= 0 and calls[call].function is not None:
                    return calls[call].function
        return None

    def _input_norms(self, group: Sequence[AddIndex]) -> list[Norm]:
        return [norm for add in group for norm, slot in self._placed_at.get(add, ()) if slot.name == "input"]

    def _norms_skip(self, group: Sequence[AddIndex]) -> bool:
        """Whether a norm is on the skip of a block, and nothing else; a projection may have one that is not shown."""
        placed = (slot for add in group if not self.adds[add].projected for _, slot in self._placed_at.get(add, ()))
        return any(slot.name == "skip" for slot in placed)

    def _norms_before(self, value: ValueId, group: Sequence[AddIndex]) -> list[Norm]:
        """The norms of a block that a branch reads."""
        norms = (norm for add in group for norm, _ in self._placed_at.get(add, ()))
        return [norm for norm in norms if self.reachability.comes_from(value, norm.output)]

    def _report(self, index: AddIndex, value: ValueId, group: Sequence[AddIndex]) -> BranchReport:
        add = self.adds[index]
        placed = [
            (norm, slot)
            for other in group
            for norm, slot in self._placed_at.get(other, ())
            if other == index or slot.name == "stream"
        ]
        total = self.graph.values[add.output]
        return BranchReport(
            kind=self.attention.kind_of(self.structure.regions.of(add, value), self._norms_before(value, group)),
            module=self.branches.module(value, add.call),
            add=self.graph.tape.path(add.call),
            spec=self._spec(add, value, placed, group),
            dtype=dtype_name(total.dtype),
            peak=None if total.extent is None else max(abs(total.extent[0]), abs(total.extent[1])),
        )

    def _spec(
        self, add: ResidualAdd, value: ValueId, placed: Sequence[PlacedNorm], group: Sequence[AddIndex]
    ) -> BlockSpec:
        """The norms and scales around one branch."""
        reachability = self.reachability
        own = [
            slot
            for norm, slot in placed
            if slot.name in ("stream", "skip", "output") or reachability.comes_from(value, norm.output)
        ]
        names = {slot.name for slot in own}
        has_input = "input" in names or self._reads_shared_norm(value, add, group)
        skip = self._scale(add.skip, add.fork)
        branch = self._scale(value, None)
        if not isinstance(branch, LearnedScale):
            branch *= self._alpha(add)
        input_norms = (norm for norm in self._input_norms(group) if reachability.comes_from(value, norm.output))
        input_scale = next((self._input_scale(norm) for norm in input_norms), 1.0)
        return BlockSpec(
            input=has_input,
            inner=in_order(name.removeprefix("inner.") for name in names if name.startswith("inner.")),
            output="output" in names,
            stream="stream" in names,
            skip_scale=skip if isinstance(skip, float) and skip > 0 else 1.0,
            input_scale=input_scale if has_input and input_scale > 0 else 1.0,
            branch_scale=branch,
            skip_normed=any(slot.skip_normed for slot in own) and has_input,
        )

    def _reads_shared_norm(self, value: ValueId, add: ResidualAdd, group: Sequence[AddIndex]) -> bool:
        """Whether a branch reads the stream through an input norm that belongs to another add."""
        reachability = self.reachability
        after_fork = ~(2 * reachability.bit[add.fork] - 1)
        if any(reachability.comes_from(value, norm.output) for norm in self._input_norms(group)):
            return True
        if reachability.any.get(value, 0) & reachability.sums & after_fork:
            return False
        # A norm that reads the fork comes after it, so the norms before the fork need no check.
        since_fork = reachability.any.get(value, 0) & ~reachability.any.get(add.fork, 0)
        return any(
            reachability.comes_plainly(self._input_norm_of[output].input, add.fork)
            for output in reachability.members(since_fork)
            if output in self._input_norm_of
        )

    def _alpha(self, add: ResidualAdd) -> float:
        """The ``alpha`` of the add operator, if it applies to the branch."""
        op = self.graph.nodes[add.node].op
        if op is None or op.inputs[-1] != add.branch:
            return 1.0
        return float(op.kwargs.get("alpha", 1))

    def _scale(self, value: ValueId, stop: ValueId | None) -> float | LearnedScale:
        """The factor of a value since the last norm, barrier or ``stop``."""
        total, learned = 1.0, None
        while value != stop and value not in self.structure.norm_of_output:
            node = self.graph.maker(value)
            if node is None or not node.inputs:
                break
            features = self.graph.data_inputs(node)
            if node.name in ("mul", "div") and len(features) == 1:
                number = constant(node)
                others = [other for other in node.inputs if other != features[0]]
                if number is not None and number != 0:
                    total = total * number if node.name == "mul" else total / number
                elif others and self.graph.is_weight(others[0]):
                    learned = LearnedScale(per_channel=math.prod(self.graph.values[others[0]].shape) > 1)
                value = features[0]
            elif node.name in MOVES and len(features) == 1:
                value = features[0]
            else:
                break
        return learned or total

    def _input_scale(self, norm: Norm) -> float:
        """The constant by which everything that reads a norm multiplies it; 1 if readers differ."""
        numbers = set()
        for node in self.graph.readers(norm.output):
            number = constant(node) if node.name in ("mul", "div") else None
            numbers.add(None if number is None else number if node.name == "mul" else 1 / number)
        return numbers.pop() or 1.0 if len(numbers) == 1 else 1.0


def _equation(specs: Sequence[BlockSpec], projected: bool, shared_norm: bool, skip_norm: bool) -> str:
    """The equation of a block; several branches are numbered, and so are their input norms unless they share one."""
    if len(specs) == 1 and not skip_norm:
        return str(block_term(specs[0], projected=projected))
    branches = [
        branch_term(spec, branch=f"F{number}", input_norm="N" if shared_norm else f"N{number}")
        for number, spec in enumerate(specs, 1)
    ]
    skip = skip_term(specs[0], projected=projected)
    branches = branches if len(specs) > 1 else [branch_term(specs[0])]
    total = Sum((normalized(skip) if skip_norm else skip, *branches))
    return str(normalized(total) if any(spec.stream for spec in specs) else total)
