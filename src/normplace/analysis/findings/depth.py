"""What is wrong with a stack as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from normplace.analysis.blocks.naming import placement_name, same_slots
from normplace.analysis.findings.evidence import Evidence, listed
from normplace.analysis.results import Finding, ResidualBlock, pattern


def missing_final(evidence: Evidence) -> Iterator[Finding]:
    """A stream that no norm reads after its last add, though its blocks never normalize it."""
    assembly = evidence.assembly
    reach, residuals = assembly.reach, assembly.residuals
    for stream in sorted({block.stream for block in evidence.blocks}):
        blocks = [block for block in evidence.blocks if block.stream == stream]
        if len(blocks) < 2 or not all(arm.spec.input or arm.spec.output for arm in blocks[-1].branches):
            continue
        steps = zip(residuals, evidence.block_of, strict=True)
        last = [residual for residual, at in steps if evidence.blocks[at].stream == stream][-1]
        read = any(reach.stream.get(norm.input, 0) & reach.bit[last.output] for norm in assembly.norms)
        goes_on = any(reach.comes_from(residual.branch, last.output) for residual in residuals)
        goes_on |= any(reach.comes_from(residual.skip, last.output) for residual in residuals)
        if (
            read
            or goes_on
            or last.output not in assembly.graph.used
            or any(arm.spec.stream for arm in blocks[-1].branches)
        ):
            continue
        members = {at for at, block in enumerate(evidence.blocks) if block.stream == stream}
        if not any(site.block in members and site.kind in ("layer", "rms") for site in evidence.sites):
            continue  # convolutional stacks with norms over the batch end without one by custom
        yield Finding(
            "missing final norm",
            "warning",
            (blocks[-1].module,),
            f"no norm reads the stream after the last add, in {blocks[-1].module or 'the model'}; the {len(blocks)} "
            "blocks of the stack normalize their branches only.",
            "The sum grows with depth, so the scale of what the head reads depends on how many blocks there are.",
            "Put one norm between the last block and the head, unless this model is only a part of one.",
        )


def mixed(evidence: Evidence) -> Iterator[Finding]:
    """Blocks of one kind that hold their norms in different slots."""
    twins = evidence.assembly.twins(evidence.block_of)
    if placement_name(evidence.blocks, normed=True, twins=twins) is not None:
        return
    groups: dict[tuple[int, str, str], list[ResidualBlock]] = {}
    for block in evidence.blocks:
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
            "Make the blocks alike, unless the difference is meant.",
        )


def _same(one: ResidualBlock, other: ResidualBlock) -> bool:
    return len(one.branches) == len(other.branches) and all(
        same_slots(first.spec, second.spec) for first, second in zip(one.branches, other.branches, strict=True)
    )
