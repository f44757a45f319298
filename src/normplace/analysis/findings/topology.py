"""Slots of a graph network where a topology scalar, such as a power of the degree, reaches the output.

A norm over features divides out a positive factor of each node (PostDeg, arXiv 2606.14022), so a scalar belongs after a
norm, and only where no later norm divides it out again.
"""

from __future__ import annotations

from collections.abc import Iterator

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.graph import Graph
from normplace.analysis.dataflow.operators import SPREADS
from normplace.analysis.findings.order import PASSING, norms_that_undo
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.results import Finding, Site, listed, pattern

HOMOGENEOUS = PASSING | {"relu", "leaky_relu", "native_dropout", "dropout"}
"""Operators that pass a positive factor of a row on to their result."""
GATHERS = frozenset({"index_select", "index", "gather"})
SPARSE = frozenset({"sparse_compressed_tensor", "sparse_csr_tensor", "sparse_coo_tensor", "_sparse_coo_tensor_unsafe"})
MOST = 8
"""Slots that a finding lists by name."""


def scale_slots(analysis: Analysis) -> tuple[Site, ...]:
    """The norm modules after which a scalar per node reaches the output; none if the model is not a graph network.

    The model is a graph network if it gathers and adds up features by the two rows of an integer input of shape 2 × E.
    """
    graph = analysis.graph
    num_nodes = _node_counts(graph)
    starts = {norm.input: (norm, site) for norm, site in zip(analysis.norms, analysis.sites, strict=True)}
    slots: dict[str, Site] = {}
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        shape = graph.values[norm.input].shape
        if not site.own_module or len(shape) < 2 or shape[0] not in num_nodes or norm.output not in graph.used:
            continue
        if not norms_that_undo(graph, norm, starts, HOMOGENEOUS, needs_product=False):
            slots.setdefault(site.name, site)
    return tuple(slots.values())


def topology_scale(analysis: Analysis) -> Iterator[Finding]:
    """Norms of a graph network after which a scalar per node reaches the output."""
    slots = scale_slots(analysis)
    erasing = {pattern(site.name) for site in slots if site.kind in ("layer", "rms", "l2")}
    if not erasing:
        return
    slot_patterns = list(dict.fromkeys(pattern(site.name) for site in slots))
    before = "these norms" if erasing == set(slot_patterns) else listed(sorted(erasing), MOST)
    yield Finding(
        "topology scale",
        "note",
        tuple(site.name for site in slots),
        f"a positive scalar per node reaches the output if it is multiplied in after {listed(slot_patterns, MOST)}; "
        f"before {before} it is divided out.",
        "The length of a node's features does not carry its degree past such a norm.",
        'Try npl.insert(model, npl.Scale("degree", power=-1)) if the network does not see degrees otherwise; '
        "'normplace compare file.py:make --edits scales' tests several scalars on your data.",
    )


def _node_counts(graph: Graph) -> set[int]:
    """The sizes of node sets between which features are passed along edges."""
    edges = _descendants_of_edges(graph)
    gathered, added = set(), set()
    for node in graph.nodes:
        if not edges.intersection(node.inputs) or not node.outputs:
            continue
        rows = graph.values[node.outputs[0]].shape[:1]
        features = graph.data_inputs(node)
        if node.name in SPARSE or (features and "::" in node.name):  # gathers and adds up at once
            gathered.update(rows)
            added.update(rows)
        elif features and node.name in GATHERS:
            gathered.update(graph.values[features[0]].shape[:1])
        elif features and node.name in SPREADS:
            added.update(rows)
    return gathered & added


def _descendants_of_edges(graph: Graph) -> set[ValueId]:
    """The integer values that are computed from an integer input of shape 2 × E."""
    values = graph.values
    edges = {
        ValueId(index)
        for index, value in enumerate(values)
        if value.origin == "input" and len(value.shape) == 2 and value.shape[0] == 2 and _is_integer(graph, index)
    }
    for node in graph.nodes:
        if edges.intersection(node.inputs):
            edges.update(value for value in node.outputs if _is_integer(graph, value))
    return edges


def _is_integer(graph: Graph, value: int) -> bool:
    dtype = graph.values[value].dtype
    return not (dtype.is_floating_point or dtype.is_complex)


RULES = (topology_scale,)
