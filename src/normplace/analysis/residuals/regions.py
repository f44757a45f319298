"""The nodes between the fork and the end of a branch."""

from __future__ import annotations

from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.analysis.residuals.reachability import Reachability, ResidualAdd


class BranchRegions:
    """The nodes of branches, computed once for each add."""

    def __init__(self, graph: Graph, reachability: Reachability) -> None:
        self.graph, self.reachability = graph, reachability
        self._regions: dict[NodeId, set[NodeId]] = {}

    def of(self, add: ResidualAdd, value: ValueId | None = None) -> set[NodeId]:
        """The nodes between the fork and ``value``, by default the whole branch, that depend on the fork."""
        if value is not None and value != add.branch:
            return self._between(add.fork, value)
        if add.node not in self._regions:
            self._regions[add.node] = self._between(add.fork, add.branch)
        return self._regions[add.node]

    def _between(self, fork: ValueId, end: ValueId) -> set[NodeId]:
        region: set[NodeId] = set()
        queue = [end]
        while queue:
            node_id = self.graph.producer.get(queue.pop())
            if node_id is None or node_id in region:
                continue
            node = self.graph.nodes[node_id]
            depends = any(self.reachability.comes_from(value, fork) for value in node.inputs)
            if depends and fork not in node.outputs:
                region.add(node_id)
                queue += [value for value in node.inputs if value != fork]
        return region
