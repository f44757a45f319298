"""Where the paths from a value lead."""

from __future__ import annotations

from collections.abc import Callable, Set

from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.recording.ids import NodeId, ValueId


def leads_only_to(graph: Graph, value: ValueId, ends: Set[NodeId], passes: Callable[[Node], bool]) -> bool:
    """Whether no path from a value reaches an output, or a node that does not pass, before one of the ends."""
    queue, seen = [value], set()
    while queue:
        value = queue.pop()
        if value in graph.tape.outputs:
            return False
        for node_id in graph.consumers.get(value, ()):
            if node_id in ends or node_id in seen:
                continue
            seen.add(node_id)
            node = graph.nodes[node_id]
            if not passes(node):
                return False
            queue += node.outputs
    return True
