"""Where the paths from a value lead."""

from __future__ import annotations

from collections.abc import Callable, Set

from normplace._shared.closure import closure
from normplace.analysis.dataflow.graph import Graph, Node
from normplace.analysis.recording.ids import NodeId, ValueId


def leads_only_to(graph: Graph, value: ValueId, ends: Set[NodeId], passes: Callable[[Node], bool]) -> bool:
    """Whether no path from a value reaches an output, or a node that does not pass, before one of the ends."""

    def after(value: ValueId) -> list[Node]:
        return [graph.nodes[node_id] for node_id in graph.consumers.get(value, ()) if node_id not in ends]

    reached = closure([value], lambda value: [output for node in after(value) for output in node.outputs])
    return not any(value in graph.tape.outputs or not all(map(passes, after(value))) for value in reached)
