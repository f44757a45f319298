"""Norms in an order that makes one of them useless, or loses information."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set

from torch import nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.graph import Graph, Node, constant
from normplace.analysis.dataflow.operators import BIASED_PRODUCTS, KEEPS, MOVES, PRODUCTS, SPLITS
from normplace.analysis.findings.paths import leads_only_to
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import ValueId
from normplace.analysis.results import Finding, Site, listed

PASSING = KEEPS | SPLITS
PLAIN_PRODUCTS = PRODUCTS - BIASED_PRODUCTS
KNOWN_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm, nn.GroupNorm)


def consecutive(analysis: Analysis) -> Iterator[Finding]:
    """Two norms with no operator between them except moves and constant factors."""
    graph = analysis.graph
    by_output = {norm.output: (norm, site) for norm, site in zip(analysis.norms, analysis.sites, strict=True)}
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        previous = next((by_output[value] for value in _before_scaling(graph, norm.input) if value in by_output), None)
        if previous is None or previous[0] is norm:
            continue
        first, before = previous
        alone = _only_read_by(graph, first.output, norm)
        yield Finding(
            "consecutive norms",
            "warning" if alone else "note",
            (before.name, site.name),
            f"{site.name} ({site.slot}) normalizes the output of {before.name} ({before.slot})"
            + ("." if alone else ", which is also read elsewhere."),
            "Normalizing twice changes little except the gain, but costs a pass over memory and parameters."
            if alone
            else "The second norm reads an input that is already normalized.",
            f"Remove {site.name}." if alone else f"Remove {site.name}, or keep it if its gain is needed.",
        )


def undone(analysis: Analysis) -> Iterator[Finding]:
    """A norm that is read only by products without bias that are normalized again."""
    graph = analysis.graph
    starts = {norm.input: (norm, site) for norm, site in zip(analysis.norms, analysis.sites, strict=True)}
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        if norm.kind not in ("rms", "l2"):
            continue
        after = norms_that_undo(graph, norm, starts)
        if after:
            yield Finding(
                "norm undone",
                "warning",
                (site.name, *(later.name for later in after)),
                f"every reader of {site.name} multiplies by weights without bias and normalizes the result: "
                f"{listed([later.name for later in after])}.",
                "The second norm divides out the scale of each row, so this norm acts only through its gain.",
                f"Remove {site.name} and fold its gain into the weights that read it.",
            )


def unused(analysis: Analysis) -> Iterator[Finding]:
    """A norm whose result is not used, and norm modules that are never called."""
    graph = analysis.graph
    calls = graph.tape.calls
    # A gradient computed inside the model reads the statistics of a norm instead of its result.
    effective = [
        bool(graph.used.intersection((norm.output, *graph.nodes[norm.core].outputs))) for norm in analysis.norms
    ]
    used_modules = {site.name for site, is_used in zip(analysis.sites, effective, strict=True) if is_used}
    for norm, site, is_used in zip(analysis.norms, analysis.sites, effective, strict=True):
        if is_used:
            continue
        is_needed = site.name in used_modules  # a module may be called more often than its results are read
        # A result that the calling module returns may be used with other inputs.
        returned = any(norm.output in call.outputs for index, call in enumerate(calls) if index != norm.call)
        dropped = not graph.consumers.get(norm.output) and not returned
        yield Finding(
            "norm without effect",
            "error" if dropped and not is_needed else "note",
            (site.name,),
            f"the result of {'a call of ' * is_needed}{site.name} does not reach any output of the model"
            + (": nothing reads it." if dropped else ", though it is read or returned."),
            "This call costs time only."
            if is_needed
            else "The network behaves as if the norm did not exist, and the norm's parameters get no gradient.",
            f"Use the return value of {site.name} (a norm does not change its input), or remove the call.",
        )
    called = {call.path for call in calls}
    unused_modules = [
        name
        for name, module in analysis.model.named_modules()
        if isinstance(module, KNOWN_NORMS) and name not in called
    ]
    if unused_modules:
        yield Finding(
            "norm never called",
            "note",
            tuple(unused_modules),
            f"the forward pass on these inputs does not call {listed(unused_modules)}.",
            "These norms have no effect on the output.",
            "Check that the inputs take the intended path, or remove the modules.",
        )


def erased_scale(analysis: Analysis) -> Iterator[Finding]:
    """A factor per row, or for all rows, that the next norm divides out."""
    graph = analysis.graph
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        product = graph.origin(norm.input, KEEPS)
        node = graph.maker(product)
        if not norm.erases_scale or node is None or node.name not in ("mul", "div"):
            continue
        factor = _factor(graph, node)
        if factor is None or not _only_read_by(graph, product, norm, KEEPS):
            continue
        yield Finding(
            "erased scale",
            "note" if factor == "a constant" else "warning",
            (site.name,),
            f"{factor} multiplies what {site.name} normalizes, and nothing else reads the product.",
            "The norm divides out a positive factor of a row, up to its eps, so the information in the factor is lost.",
            "Multiply after the norm instead, or remove the factor.",
        )


def skip_after_norm(analysis: Analysis) -> Iterator[Finding]:
    """Skips that start after the input norm of their branch."""
    names = [
        site.name
        for site, slot in zip(analysis.sites, analysis.slots, strict=True)
        # A projected skip usually reads the normalized stream.
        if slot.skip_normed and not (slot.add is not None and analysis.adds[slot.add].projected)
    ]
    if names:
        yield Finding(
            "residual after norm",
            "note",
            tuple(names),
            f"the skip starts after {listed(names)}, like the branch.",
            "The stream passes a norm in every block, as in post-norm: there is no path of identities from the output "
            "to the input, and deep stacks need warm-up.",
            "Start the skip at the input of the norm, unless post-norm is intended.",
        )


def _is_scaling(node: Node) -> bool:
    """Whether a node moves its input or multiplies it by a constant."""
    return node.name in MOVES or (node.name in ("mul", "div") and constant(node) is not None)


def _before_scaling(graph: Graph, value: ValueId) -> Iterator[ValueId]:
    """A value and what it was before moves and constant factors."""
    while True:
        yield value
        node = graph.maker(value)
        if node is None or not _is_scaling(node) or len(features := graph.data_inputs(node)) != 1:
            return
        value = features[0]


def _only_read_by(graph: Graph, value: ValueId, norm: Norm, through: Set[str] | None = None) -> bool:
    """Whether only a norm reads a value, through operators in ``through``, by default through scalings."""
    passes = _is_scaling if through is None else lambda node: node.name in through
    return leads_only_to(graph, value, norm.nodes, passes)


def norms_that_undo(
    graph: Graph,
    norm: Norm,
    starts: Mapping[ValueId, tuple[Norm, Site]],
    through: Set[str] = PASSING,
    needs_product: bool = True,
) -> list[Site]:
    """The norms that divide out a row's scale on every path from a norm; empty if one path keeps it.

    Args:
        graph: The graph.
        norm: Where the paths start.
        starts: The norm that reads each value, and its site.
        through: Operators, besides products without bias, that pass a positive factor of a row on.
        needs_product: Whether a path must cross a product.
    """
    ends: dict[str, Site] = {}
    queue, seen = [(norm.output, not needs_product)], set()
    while queue:
        state = value, crossed = queue.pop()
        if state in seen:
            continue
        seen.add(state)
        if crossed and value in starts and starts[value][0].erases_scale:
            ends[starts[value][1].name] = starts[value][1]
            continue
        readers = graph.readers(value)
        if not readers or value in graph.tape.outputs:
            return []
        for node in readers:
            if node.name in PLAIN_PRODUCTS and len(graph.factors(node)) == 1:
                queue += [(number, True) for number in node.outputs]
            elif node.name in through:
                queue += [(number, crossed) for number in node.outputs if number in graph.consumers]
            else:
                return []
    return list(ends.values())


def _factor(graph: Graph, node: Node) -> str | None:
    """The kind of factor that a product applies to features; None if there is none."""
    number = constant(node)
    if number is not None:
        return "a constant" if number > 0 else None
    if len(node.inputs) != 2:
        return None
    width = graph.values[node.outputs[0]].shape[-1:]
    for rows, factor in (node.inputs, node.inputs[::-1])[: 1 if node.name == "div" else 2]:
        shape = graph.values[factor].shape
        if not graph.is_features(rows) or graph.values[rows].shape[-1:] != width or width == (1,):
            continue
        if graph.is_weight(factor) and math.prod(shape) == 1:
            return "one learned factor"
        # A mask of zeros and ones is not a positive factor.
        floating = all(graph.values[value].dtype.is_floating_point for value in graph.unchanged(factor))
        if graph.is_features(factor) and (not shape or shape[-1] == 1) and floating:
            return "a factor per row"
    return None


RULES = (consecutive, undone, unused, erased_scale, skip_after_norm)
