"""Find gated branches and modulated norms in an analysed model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.graph import Node, constant
from normplace.analysis.recording.ids import NodeId, NormIndex, ValueId
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.edit.code.recompile import definition_of
from normplace.edit.fuse.modulation import ModulationEdit, identify_call
from normplace.edit.model.model_map import ModelMap, is_outside_tree
from normplace.errors import UsageError


@dataclass(frozen=True)
class PlannedModulation:
    """A norm whose result is scaled and shifted by factors of each sample.

    Attributes:
        norm: The name of the norm.
        module: The name of the module whose method modulates it.
        method: That method.
        edit: The modulation in its code.
        styles: How its factors apply to rows.
        nodes: Its operators, without those of the norm.
    """

    norm: str
    module: str
    method: str
    edit: ModulationEdit
    styles: tuple[str, ...]
    nodes: frozenset[NodeId]


def find_modulations(
    analysis: Analysis, model_map: ModelMap, usable: Callable[[NormIndex], tuple[str, str | None]]
) -> dict[str, PlannedModulation]:
    """The modulated norms of a model that can be computed with their modulation, by name."""
    planned: dict[str, PlannedModulation] = {}
    names = [site.name for site in analysis.sites]
    for index in range(len(analysis.norms)):
        nodes = _modulation_nodes(analysis, NormIndex(index))
        if nodes is None or names.count(names[index]) > 1:
            continue
        name, reason = usable(NormIndex(index))
        modulation = None if reason is not None else _in_code(analysis, model_map, name, nodes)
        if modulation is not None:
            planned[name] = modulation
    return planned


def _modulation_nodes(analysis: Analysis, index: NormIndex) -> tuple[NodeId, NodeId, NodeId] | None:
    """The operators of ``1 + scale``, the product and the sum with the shift, which only read each other's results."""
    graph, norm = analysis.graph, analysis.norms[index]
    product = _only_reader(analysis, norm.output, "mul")
    if product is None:
        return None
    node = graph.nodes[product]
    others = [value for value in node.inputs if value != norm.output]
    factor = graph.producer.get(others[0]) if len(others) == 1 else None
    total = _only_reader(analysis, node.outputs[0], "add")
    if factor is None or total is None or not _is_plus_one(graph.nodes[factor]):
        return None
    nodes = [graph.nodes[each] for each in (product, total)]
    shape = graph.values[norm.output].shape
    is_kept = all(graph.values[each.outputs[0]].shape == shape and len(each.inputs) == 2 for each in nodes)
    call = analysis.tape.calls[norm.call].parent
    return (factor, product, total) if is_kept and call == graph.nodes[total].call else None


def _only_reader(analysis: Analysis, value: ValueId, name: str) -> NodeId | None:
    readers = analysis.graph.consumers.get(value, [])
    return readers[0] if len(readers) == 1 and analysis.graph.nodes[readers[0]].name == name else None


def _is_plus_one(node: Node) -> bool:
    return node.name == "add" and len(node.inputs) == 1 and constant(node) == 1


def _in_code(
    analysis: Analysis, model_map: ModelMap, name: str, nodes: tuple[NodeId, NodeId, NodeId]
) -> PlannedModulation | None:
    """The modulation in the code of the module that calls the norm; None if it is written in another way."""
    path = analysis.graph.path(analysis.graph.nodes[nodes[2]])
    if is_outside_tree(path) or not name.startswith(f"{path}." if path else ""):
        return None
    ref = model_map.expression_of(nodes[2], path)
    owner = analysis.model.get_submodule(path)
    if isinstance(ref, str) or ref.evaluations > 1 or ref.method in vars(owner):
        return None
    function = getattr(type(owner), ref.method)
    edit = ModulationEdit(ref.position, 0, name.removeprefix(f"{path}.") if path else name)
    try:
        edit, styles = identify_call(definition_of(function), function, edit)
    except UsageError:  # left to the model's own operators; the norm is still fused with its sum
        return None
    return PlannedModulation(name, path, ref.method, edit, styles, frozenset(nodes))


def find_gate(analysis: Analysis, add: ResidualAdd) -> bool | None:
    """Whether the gate of a branch is its first factor; None if the branch is not gated by the module that adds."""
    graph = analysis.graph
    node, shape = graph.maker(add.branch), graph.values[add.output].shape
    if node is None or node.name != "mul" or len(node.inputs) != 2 or node.call != add.call:
        return None
    if graph.consumers.get(add.branch) != [add.node] or len(shape) < 2:
        return None
    shapes = [graph.values[value].shape for value in node.inputs]
    gates = [index for index, each in enumerate(shapes) if each != shape and each[-1:] == shape[-1:]]
    if len(gates) != 1 or shapes[1 - gates[0]] != shape:
        return None
    return gates[0] == 0
