"""The residual structure of a graph: its norms, its residual adds, and the paths between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import AddIndex, NormIndex, ValueId
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
