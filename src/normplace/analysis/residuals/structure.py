"""The residual structure of a graph: its norms, its residual adds, and the paths between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from normplace._shared.closure import closure
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import AddIndex, NodeId, NormIndex, ValueId
from normplace.analysis.residuals.reachability import Reachability, ResidualAdd
from normplace.analysis.residuals.regions import BranchRegions


@dataclass(frozen=True)
class ResidualStructure:
    """The norms and residual adds of one graph.

    Attributes:
        graph: The graph.
        norms: Its norms.
        adds: Its residual adds.
        reachability: Which landmarks each value was computed from.
    """

    graph: Graph
    norms: Sequence[Norm]
    adds: Sequence[ResidualAdd]
    reachability: Reachability

    @cached_property
    def regions(self) -> BranchRegions:
        """The nodes of each branch."""
        return BranchRegions(self.graph, self.reachability)

    @cached_property
    def add_of_sum(self) -> dict[ValueId, AddIndex]:
        """The residual add that returned each sum."""
        return {add.output: AddIndex(index) for index, add in enumerate(self.adds)}

    @cached_property
    def norm_of_output(self) -> dict[ValueId, NormIndex]:
        """The norm that returned each value."""
        return {norm.output: NormIndex(index) for index, norm in enumerate(self.norms)}

    def previous_add(self, add: ResidualAdd) -> AddIndex | None:
        """The add before this one on the same stream."""
        earlier = self.reachability.stream.get(add.skip, 0) & self.reachability.sums
        return self.add_of_sum[self.reachability.latest(earlier)] if earlier else None

    def nearest_adds(self, value: ValueId) -> set[AddIndex]:
        """The adds whose branches a value reaches with no other add on the way."""
        branches = {(add.node, add.branch): AddIndex(index) for index, add in enumerate(self.adds)}
        add_nodes = {add.node for add in self.adds}

        def following(value: ValueId) -> Iterator[ValueId]:
            for node in self.graph.consumers.get(value, ()):
                yield from () if node in add_nodes else self.graph.nodes[node].outputs

        reads = ((node, value) for value in closure([value], following) for node in self.graph.consumers.get(value, ()))
        return {branches[read] for read in reads if read in branches}

    @cached_property
    def read_by_several(self) -> set[ValueId]:
        """Values that the branches of several adds read with no other add on the way, in one pass over the graph."""
        adds = {add.node: (add.branch, AddIndex(index)) for index, add in enumerate(self.adds)}
        reader: dict[ValueId, AddIndex] = {}
        several: set[ValueId] = set()
        for index in range(len(self.graph.nodes) - 1, -1, -1):
            node = self.graph.nodes[index]
            if NodeId(index) in adds:
                found = [adds[NodeId(index)]]
            else:
                found = [
                    (value, reader[output]) for output in node.outputs if output in reader for value in node.inputs
                ]
                if not several.isdisjoint(node.outputs):
                    several.update(node.inputs)
            several.update(value for value, add in found if reader.setdefault(value, add) != add)
        return several
