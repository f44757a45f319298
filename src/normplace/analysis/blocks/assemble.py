"""ResidualAdd blocks put together from adds and placed norms: their scales, their equations, their modules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from normplace.analysis.blocks.attention import AttentionCores
from normplace.analysis.blocks.slots import Place
from normplace.analysis.dataflow.graph import Graph, constant
from normplace.analysis.dataflow.operators import MOVES
from normplace.analysis.norms.find import Norm
from normplace.analysis.residuals.adds import Reachability, ResidualAdd
from normplace.analysis.results import BranchReport, ResidualBlock, Unknown, in_order
from normplace.placement import BlockSpec, LearnedScale
from normplace.placement.equations import Sum, block_term, branch_term, normalized, skip_term

Number = float | LearnedScale
SCALING = MOVES | {"mul", "div"}


@dataclass
class Assembly:
    """All that is known of a graph when its blocks are put together."""

    graph: Graph
    norms: Sequence[Norm]
    places: Sequence[Place]
    residuals: Sequence[ResidualAdd]
    reach: Reachability
    cores: AttentionCores

    def __post_init__(self) -> None:
        self._returned: dict[int, list[int]] = {}
        for at, call in enumerate(self.graph.tape.calls):
            for value in call.outputs:
                self._returned.setdefault(value, []).append(at)
        self._sums = {residual.output: at for at, residual in enumerate(self.residuals)}
        self._norm_of = {norm.output: at for at, norm in enumerate(self.norms)}
        self._placed: dict[int, list[tuple[Norm, Place]]] = {}
        for norm, place in zip(self.norms, self.places, strict=True):
            if place.residual is not None:
                self._placed.setdefault(place.residual, []).append((norm, place))

    def blocks(self) -> tuple[list[ResidualBlock], list[int]]:
        """The blocks, and for each residual add the block it belongs to."""
        groups: list[list[int]] = []
        block_of: list[int] = []
        for at, residual in enumerate(self.residuals):
            beside = self._parallel(residual)
            if beside is not None:
                groups[block_of[beside]].append(at)
                block_of.append(block_of[beside])
            else:
                block_of.append(len(groups))
                groups.append([at])
        streams = self._streams()
        return [self._block(group, streams[group[0]]) for group in groups], block_of

    def _parallel(self, residual: ResidualAdd) -> int | None:
        """The add just before on the same stream, if both branches read the same value."""
        before = self.before(residual)
        return before if before is not None and self.reach.joins(residual, self.residuals[before]) else None

    def before(self, residual: ResidualAdd) -> int | None:
        """The add just before on the same stream."""
        bits = self.reach.stream.get(residual.skip, 0) & self.reach.sums
        return self._sums[self.reach.latest(bits)] if bits else None

    def twins(self, block_of: Sequence[int]) -> set[int]:
        """The blocks whose branch another block adds to another stream.

        Args:
            block_of: For each residual add the block it belongs to.
        """
        readers: dict[int, set[int]] = {}
        for residual, block in zip(self.residuals, block_of, strict=True):
            readers.setdefault(self.graph.origin(residual.branch), set()).add(block)
        return {block for blocks in readers.values() if len(blocks) > 1 for block in blocks}

    def _streams(self) -> list[int]:
        streams: list[int] = []
        count = 0
        for residual in self.residuals:
            before = self.before(residual)
            streams.append(count if before is None else streams[before])
            count += before is None
        return streams

    def _block(self, group: Sequence[int], stream: int) -> ResidualBlock:
        arms = [
            self._arm(at, value, group) for at in group for value in self.summands(self.residuals[at])
        ]  # fmt: skip
        residual, specs = self.residuals[group[0]], [arm.spec for arm in arms]
        equation = _equation(specs, residual.projected, self._shares_norm(group, len(arms)))
        return ResidualBlock(
            equation, tuple(arms), stream, residual.projected, self._custom_backward(group), self._unknown_in(group)
        )  # fmt: skip

    @cached_property
    def unknown(self) -> dict[int, Unknown]:
        """What is not understood, by node: operators of other libraries, and attention whose operands are unclear."""
        graph, found = self.graph, {}
        for at, node in enumerate(graph.nodes):
            if "::" in node.name and graph.data_inputs(node) and any(map(graph.is_features, node.outputs)):
                reason = "it is not known what this operator does, so norms in and around it may be missed"
                found[at] = Unknown(graph.path(node), node.name, reason)
        for norm, place in zip(self.norms, self.places, strict=True):
            if place.slot in ("inner.mid", "inner.pre-output") and self.cores.is_unclear(norm):
                node = graph.nodes[norm.core]
                reason = "features are multiplied with features, but not as queries, keys and values"
                found[norm.core] = Unknown(graph.path(node), "attention", reason)
        return found

    def _unknown_in(self, group: Sequence[int]) -> tuple[Unknown, ...]:
        if not self.unknown:
            return ()
        regions = [self.cores.region(self.residuals[at], self.reach) for at in group]
        return tuple(unknown for at, unknown in self.unknown.items() if any(at in region for region in regions))

    def _custom_backward(self, group: Sequence[int]) -> str | None:
        """The user-defined autograd function that adds, or that calls modules of the branches."""
        calls = self.graph.tape.calls
        for at in group:
            residual = self.residuals[at]
            op = self.graph.nodes[residual.node].op
            if op is not None and op.function is not None:
                return op.function
            region = [residual.node, *sorted(self.cores.region(residual, self.reach))]
            for call in dict.fromkeys(self.graph.nodes[node].call for node in region):
                if call >= 0 and calls[call].function is not None:
                    return calls[call].function
        return None

    def _shares_norm(self, group: Sequence[int], arms: int) -> bool:
        return 0 < len(self._input_norms(group)) < arms

    def _input_norms(self, group: Sequence[int]) -> list[Norm]:
        return [norm for at in group for norm, place in self._placed.get(at, ()) if place.slot == "input"]

    def summands(self, residual: ResidualAdd) -> list[int]:
        """The branches that are summed before the sum is added to the skip; one where there is just one."""
        found: list[int] = []
        queue = [residual.branch]
        while queue:
            value = queue.pop(0)
            node = self.graph.maker(self.graph.origin(value))
            parts = self.graph.data_inputs(node) if node is not None and node.name == "add" else []
            own = [part for part in parts if self.reach.mixed.get(part, 0) & self.reach.bit[residual.fork]]
            if len(own) >= 2 and len(own) == len(parts) and self._are_apart(own, residual):
                queue += own
            else:
                found.append(value)
        return found

    def _are_apart(self, values: Sequence[int], residual: ResidualAdd) -> bool:
        """Whether values come from different modules that share no product, so that a sum inside one is not split."""
        modules = [self._module(value, residual.call) for value in values]
        if None in modules or len(set(modules)) < len(modules):
            return False
        regions = [self._between(residual, value) for value in values]
        common = set.intersection(*regions)
        return not any(self.graph.is_barrier(self.graph.nodes[at]) for at in common)

    def _between(self, residual: ResidualAdd, value: int) -> set[int]:
        """The nodes between the fork and the branch, or one summand of it."""
        if value == residual.branch:
            return self.cores.region(residual, self.reach)
        return self.cores.between(replace(residual, branch=value), self.reach)

    def _arm(self, at: int, value: int, group: Sequence[int]) -> BranchReport:
        residual = self.residuals[at]
        sites = [
            (norm, place)
            for other in group
            for norm, place in self._placed.get(other, ())
            if other == at or place.slot == "stream"
        ]
        spec = self._spec(residual, value, sites, group)
        kind = self.cores.kind_of(self._between(residual, value))
        summed = self.graph.values[residual.output]
        peak = None if summed.extent is None else max(abs(summed.extent[0]), abs(summed.extent[1]))
        path = self.graph.tape.calls[residual.call].path if residual.call >= 0 else ""
        return BranchReport(
            kind, self._module(value, residual.call), path, spec, str(summed.dtype).removeprefix("torch."), peak
        )

    def _spec(
        self, residual: ResidualAdd, value: int, sites: Sequence[tuple[Norm, Place]], group: Sequence[int]
    ) -> BlockSpec:
        reach = self.reach
        mine = [
            (norm, place)
            for norm, place in sites
            if place.slot in ("stream", "skip", "output") or reach.comes_from(value, norm.output)
        ]
        slots = {place.slot for _, place in mine}
        shared_input = any(place.slot == "input" for _, place in mine) or self._reads_normed(value, residual, group)
        inner = in_order(slot.removeprefix("inner.") for slot in slots if slot.startswith("inner."))
        skip = self._scale(residual.skip, residual.fork)
        branch = self._scale(value, None)
        if not isinstance(branch, LearnedScale):
            branch *= self._alpha(residual)
        shared = (norm for norm in self._input_norms(group) if reach.comes_from(value, norm.output))
        scale = next((self._input_scale(norm) for norm in shared), 1.0)
        return BlockSpec(
            input=shared_input,
            inner=inner,
            output="output" in slots,
            stream="stream" in slots,
            skip_scale=skip if isinstance(skip, float) and skip > 0 else 1.0,
            input_scale=scale if shared_input and scale > 0 else 1.0,
            branch_scale=branch,
            skip_normed=any(place.skip_normed for _, place in mine) and shared_input,
        )

    def _reads_normed(self, value: int, residual: ResidualAdd, group: Sequence[int]) -> bool:
        """Whether a branch reads the stream through an input norm that another add owns."""
        reach = self.reach
        since = reach.any.get(value, 0) & reach.sums & ~(2 * reach.bit[residual.fork] - 1)
        return any(
            place.slot == "input"
            and (place.residual in group or (not since and reach.comes_plainly(norm.input, residual.fork)))
            and reach.comes_from(value, norm.output)
            for norm, place in zip(self.norms, self.places, strict=True)
        )

    def _alpha(self, residual: ResidualAdd) -> float:
        """The factor that the add itself has for its second operand, where that is the branch."""
        op = self.graph.nodes[residual.node].op
        if op is None or op.inputs[-1] != residual.branch:
            return 1.0
        return float(op.kwargs.get("alpha", 1))

    def _scale(self, value: int, stop: int | None) -> Number:
        """What a value was multiplied by since it left a norm, a barrier or ``stop``."""
        total, learned = 1.0, None
        while value != stop and value not in self._norm_of:
            node = self.graph.maker(value)
            if node is None or not node.inputs:
                break
            held = self.graph.data_inputs(node)
            if node.name in ("mul", "div") and len(held) == 1:
                number = constant(node)
                beside = [other for other in node.inputs if other != held[0]]
                if number is not None and number != 0:
                    total = total * number if node.name == "mul" else total / number
                elif beside and self.graph.is_weight(beside[0]):
                    learned = LearnedScale(per_channel=math.prod(self.graph.values[beside[0]].shape) > 1)
                value = held[0]
            elif node.name in MOVES and len(held) == 1:
                value = held[0]
            else:
                break
        return learned or total

    def _input_scale(self, norm: Norm) -> float:
        numbers = set()
        for node in self.graph.readers(norm.output):
            number = constant(node) if node.name in ("mul", "div") else None
            numbers.add(None if number is None else number if node.name == "mul" else 1 / number)
        return numbers.pop() or 1.0 if len(numbers) == 1 else 1.0

    def _unscaled(self, value: int) -> Iterator[int]:
        """The value and what it was before moves and factors, nearest first; of a product the larger factor is it."""
        graph = self.graph
        while True:
            yield value
            node = graph.maker(value)
            if node is None or node.name not in SCALING or not node.inputs:
                return
            held = graph.data_inputs(node) or list(node.inputs)
            if node.name == "mul":
                held.sort(key=lambda number: (-math.prod(graph.values[number].shape), graph.is_gate(number)))
            value = held[0]

    def _module(self, value: int, call: int) -> str | None:
        """The outermost module below the adding one that returned a value, seen through a norm on its output."""
        calls = self.graph.tape.calls
        values = list(self._unscaled(value))
        norms = [self._norm_of[number] for number in values if number in self._norm_of]
        if norms:
            before = self._module(self.norms[min(norms)].input, call)
            if before is not None:
                return before
        for at in sorted({at for number in values for at in self._returned.get(number, ())}):
            above = calls[at].parent
            while above >= 0 and above != call:
                above = calls[above].parent
            if above == call:
                return calls[at].path
        return None


def _equation(specs: Sequence[BlockSpec], projected: bool, shared_norm: bool) -> str:
    """The equation of a block; several branches are numbered, and so are their input norms unless they share one."""
    if len(specs) == 1:
        return str(block_term(specs[0], projected=projected))
    branches = [
        branch_term(spec, branch=f"F{number}", input_norm="N" if shared_norm else f"N{number}")
        for number, spec in enumerate(specs, 1)
    ]
    total = Sum((skip_term(specs[0], projected=projected), *branches))
    return str(normalized(total) if any(spec.stream for spec in specs) else total)
