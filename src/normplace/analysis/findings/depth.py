"""Problems of a stack as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from normplace.analysis.analysis import Analysis
from normplace.analysis.blocks.naming import same_slots
from normplace.analysis.dataflow.operators import CONVOLUTIONS, MOVES, PRODUCTS
from normplace.analysis.findings.paths import leads_only_to
from normplace.analysis.recording.ids import NodeId, ValueId
from normplace.analysis.results import Finding, ResidualBlock, listed, pattern

LINEAR = PRODUCTS | CONVOLUTIONS


def missing_final(analysis: Analysis) -> Iterator[Finding]:
    """A stream that its blocks do not normalize, and no norm after its last add, or after linear maps of the sum."""
    reachability, adds = analysis.reachability, analysis.adds
    for stream in sorted({block.stream for block in analysis.blocks}):
        members = {index for index, block in enumerate(analysis.blocks) if block.stream == stream}
        blocks = [block for block in analysis.blocks if block.stream == stream]
        last_branches = [branch.spec for branch in blocks[-1].branches]
        if len(blocks) < 2 or not all(spec.input or spec.output for spec in last_branches):
            continue
        last = [add for add, block in zip(adds, analysis.block_of, strict=True) if block in members][-1].output
        is_normalized = any(
            reachability.stream.get(norm.input, 0) & reachability.bit[last] for norm in analysis.norms
        ) or any(spec.stream for spec in last_branches)
        is_continued = any(reachability.comes_from(value, last) for add in adds for value in (add.branch, add.skip))
        if is_normalized or is_continued or last not in analysis.graph.used or _is_normalized_mapped(analysis, last):
            continue
        if not any(site.block in members and site.kind in ("layer", "rms") for site in analysis.sites):
            continue  # convolutional stacks with norms over the batch usually end without one
        yield Finding(
            "missing final norm",
            "warning",
            (blocks[-1].module,),
            f"no norm reads the stream after the last add, in {blocks[-1].module or 'the model'}; the {len(blocks)} "
            "blocks of the stack normalize their branches only.",
            "The sum grows with depth, so the scale of the head's input depends on the number of blocks.",
            "Add a norm between the last block and the head, unless this model is a part of another.",
        )


def _is_normalized_mapped(analysis: Analysis, value: ValueId) -> bool:
    """Whether every reader of a value is a linear map whose result is normalized, as in the neck of a backbone."""
    graph = analysis.graph
    in_norms = frozenset[NodeId]().union(*(norm.nodes for norm in analysis.norms))
    return leads_only_to(
        graph, value, in_norms, lambda node: node.name in MOVES | LINEAR and len(graph.factors(node)) == 1
    )


def mixed(analysis: Analysis) -> Iterator[Finding]:
    """Blocks of one kind that have norms in different slots."""
    if analysis.placement is not None:
        return
    groups: dict[tuple[int, str, str], list[ResidualBlock]] = {}
    for block in analysis.blocks:
        module = pattern(block.branches[0].module or block.module)
        groups.setdefault((block.stream, block.kind, module), []).append(block)
    for (_, kind, _), blocks in groups.items():
        if len(blocks) < 2 or all(_same(block, blocks[0]) for block in blocks):
            continue
        counts = Counter(block.equation for block in blocks)
        common = counts.most_common(1)[0][0]
        odd = [block for block in blocks if block.equation != common]
        yield Finding(
            "mixed placements",
            "note",
            tuple(block.module for block in odd),
            f"of the {len(blocks)} {kind} blocks {counts[common]} are {common}, and "
            f"{listed([f'{block.module}: {block.equation}' for block in odd])}.",
            "Signal and gradients scale differently at these depths.",
            "Use the same placement in all blocks, unless the difference is intended.",
        )


def _same(one: ResidualBlock, other: ResidualBlock) -> bool:
    return len(one.branches) == len(other.branches) and all(
        same_slots(first.spec, second.spec) for first, second in zip(one.branches, other.branches, strict=True)
    )


RULES = (missing_final, mixed)
