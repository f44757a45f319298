"""``Analysis``: everything known about one recorded forward pass of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property

from torch import nn

from normplace.analysis.blocks.assemble import BlockAssembler
from normplace.analysis.blocks.attention import AttentionCores
from normplace.analysis.blocks.branches import Branches
from normplace.analysis.blocks.naming import placement_name
from normplace.analysis.blocks.slots import NormSlot, SlotFinder
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.norms.find import find_norms
from normplace.analysis.recording.ids import BlockIndex, CallId, NodeId, NormIndex, ValueId
from normplace.analysis.recording.passes import dtype_name
from normplace.analysis.recording.tape import Tape
from normplace.analysis.residuals.adds import between_branches, bypassed, find_adds, nested
from normplace.analysis.residuals.attention_scores import score_nodes
from normplace.analysis.residuals.edge_messages import message_nodes
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.analysis.residuals.structure import ResidualStructure
from normplace.analysis.results import ResidualBlock, Site, Unknown


class Analysis:
    """The norms, residual adds, attention and blocks of a model, found in one recorded pass.

    Norms, their slots and their sites have the same order, that of the pass.

    Args:
        model: The model.
        tape: A recorded pass of it.

    Attributes:
        model: The model.
        tape: The recorded values, operators and module calls.
        graph: The operators as a graph.
        norms: The norms.
        slots: The slot of each norm.
        structure: The residual adds and norms, for the steps of the analysis.
        adds: The residual adds.
        reachability: Which landmarks each value was computed from.
        regions: The nodes of each branch.
        add_of_sum: The residual add that returned each sum.
        norm_of_output: The norm that returned each value.
        attention: The attention cores.
        branches: The branches of each add.
    """

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.model, self.tape = model, tape
        self.recorded_values = len(tape.values)
        """How many values the pass had; those after it are parts of fused operators."""
        self.graph = Graph(tape)
        self.norms = find_norms(self.graph)
        self.attention = AttentionCores(self.graph)
        self.structure, self.slots = self._find_structure()
        self.adds, self.reachability = self.structure.adds, self.structure.reachability
        self.regions = self.structure.regions
        self.add_of_sum, self.norm_of_output = self.structure.add_of_sum, self.structure.norm_of_output
        self.branches = Branches(self.structure)

    def _find_structure(self) -> tuple[ResidualStructure, list[NormSlot]]:
        """The residual adds and the slots of the norms around them.

        A sum within a branch is not residual if it has no norm and its branch contains no block that has one, if it
        adds features of an earlier branch, or if its sum is an argument of one branch only.
        """
        excluded = score_nodes(self.graph) | message_nodes(self.graph)
        while True:
            adds, reachability = find_adds(self.graph, self.norms, excluded)
            structure = ResidualStructure(self.graph, self.norms, adds, reachability)
            slots = SlotFinder(structure, self.attention).slots()
            normed = {adds[slot.add] for slot in slots if slot.add is not None}
            inner = {add for add, _ in nested(adds, reachability)} - normed
            bare = {add.node for add in inner if not reachability.spans(normed, add)}
            bare |= {add.node for add in between_branches(adds, reachability)}
            bare |= {add.node for add in bypassed(adds, self.norms, reachability) if add not in normed}
            if not bare:
                return structure, slots
            excluded |= bare

    @cached_property
    def _assembler(self) -> BlockAssembler:
        return BlockAssembler(self.structure, self.slots, self.attention, self.branches)

    @cached_property
    def blocks(self) -> list[ResidualBlock]:
        """The residual blocks in the order of the pass."""
        return self._assembler.blocks()

    @property
    def block_of(self) -> list[BlockIndex]:
        """The block of each residual add."""
        return self._assembler.block_of

    @property
    def unknown(self) -> dict[NodeId, Unknown]:
        """Operators and attention that are not understood, by node."""
        return self._assembler.unknown

    @cached_property
    def placement(self) -> str | None:
        """The published placement that the blocks follow; None if it has no name."""
        return placement_name(self.blocks, bool(self.norms), self._blocks_with_shared_branch())

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The norms as an audit reports them."""
        return tuple(
            Site(
                name=name,
                slot=slot.name,
                kind=norm.kind,
                block=None if slot.add is None else self.block_of[slot.add],
                module=self.tape.path(norm.call),
                own_module=own_module,
                eps=norm.eps,
                dtype=dtype_name(self.graph.values[norm.input].dtype),
                precision=dtype_name(norm.precision),
                variance=norm.variance,
            )
            for norm, slot, (name, own_module) in zip(self.norms, self.slots, self._norm_names(), strict=True)
        )

    def _norm_names(self) -> Iterator[tuple[str, bool]]:
        """The name of each norm, and whether it has its own module.

        A module is a norm's own if its call contains that norm and nothing that mixes or adds.
        """
        tape = self.tape
        busy: set[CallId] = set()
        count: Counter[CallId] = Counter()
        for node in self.graph.nodes:
            if self.graph.is_barrier(node) and node.call not in busy:
                busy.update(tape.enclosing_calls(node.call))
        for add in self.adds:
            busy.update(tape.enclosing_calls(add.call))
        for norm in self.norms:
            count.update(tape.enclosing_calls(norm.call))
        uses: Counter[tuple[CallId, str]] = Counter()
        for norm in self.norms:
            path = tape.path(norm.call)
            if path != "" and norm.call not in busy and count[norm.call] == 1:
                yield path, True
                continue
            name = f"{path}:{norm.kind}"
            uses[norm.call, name] += 1
            number = uses[norm.call, name]
            yield name if number == 1 else f"{name}#{number}", False

    @cached_property
    def norms_of_input(self) -> dict[ValueId, list[NormIndex]]:
        """The norms that read each value."""
        norms: dict[ValueId, list[NormIndex]] = {}
        for index, norm in enumerate(self.norms):
            norms.setdefault(norm.input, []).append(NormIndex(index))
        return norms

    @cached_property
    def _adds_of_block(self) -> list[list[ResidualAdd]]:
        adds: list[list[ResidualAdd]] = [[] for _ in self.blocks]
        for add, block in zip(self.adds, self.block_of, strict=True):
            adds[block].append(add)
        return adds

    def adds_of(self, block: BlockIndex) -> list[ResidualAdd]:
        """The adds of a block."""
        return self._adds_of_block[block]

    def branches_of(self, block: BlockIndex) -> list[tuple[ResidualAdd, ValueId]]:
        """For each branch of a block, its add and its value."""
        return [(add, value) for add in self.adds_of(block) for value in self.branches.summands(add)]

    def _blocks_with_shared_branch(self) -> set[BlockIndex]:
        """The blocks whose branch another block adds to another stream."""
        readers: dict[ValueId, set[BlockIndex]] = {}
        for add, block in zip(self.adds, self.block_of, strict=True):
            readers.setdefault(self.graph.origin(add.branch), set()).add(block)
        return {block for blocks in readers.values() if len(blocks) > 1 for block in blocks}
