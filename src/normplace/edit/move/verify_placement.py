"""Verify a move by the analysis of the moved copy: every block has the requested placement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from normplace.analysis.analysis import Analysis
from normplace.analysis.recording.ids import BlockIndex
from normplace.edit.model.model_map import block_label
from normplace.edit.move.plan import SLOTS, MovePlan
from normplace.edit.record.changes import Change
from normplace.errors import UsageError
from normplace.placement import BlockSpec, LearnedScale, resolved


def verify_placement(plan: MovePlan, changes: Sequence[Change], moved: Analysis) -> None:
    """Compare the analysis of the moved copy with the plan.

    Raises:
        UsageError: If a block does not have the requested placement, with the reason.
    """
    used = {name for site in moved.sites for name in (site.name, site.name.rpartition(".")[0])}  # with its wrapper
    for change in changes:
        if change.slot in (*SLOTS, "final") and change.action != "removed" and change.name not in used:
            raise _refusal(plan, f"after the move {change.name!r} does not normalize a value of the pass")
    placed = {
        change.name: change.slot for change in changes if change.slot in SLOTS and change.action in ("moved", "added")
    }
    for site in moved.sites:
        if site.name in placed and site.slot.startswith("inner."):
            raise _refusal(
                plan, f"after the move {site.name!r}, placed in its {placed[site.name]} slot, is also inside a branch"
            )
    before, after = len(plan.blocks), len(moved.blocks)
    if after != before:
        raise _refusal(plan, f"after the move the audit finds {after} residual blocks instead of {before}")
    names: dict[tuple[int | None, str], set[str]] = {}
    for site in moved.sites:
        names.setdefault((site.block, site.slot), set()).add(site.name)
    for block, spec in zip(plan.blocks, plan.specs, strict=True):
        counts = {slot: len(names.get((block, slot), ())) for slot in SLOTS}
        _verify_block(plan, moved, block, spec, counts)


def _verify_block(
    plan: MovePlan, moved: Analysis, block: BlockIndex, spec: BlockSpec | None, counts: Mapping[str, int]
) -> None:
    """Compare one block with the plan; ``counts`` has its number of norms in each slot."""
    described, label = moved.blocks[block], block_label(moved, block)
    attention = [branch.spec.inner for branch in described.branches if branch.kind == "attention"]
    if plan.request.qk and plan.request.qk.kind != "none" and any({"q", "k"} - set(inner) for inner in attention):
        raise UsageError(f"after the move the audit does not find norms on queries and keys of block {label}.")
    if spec is None:
        return
    specs = [branch.spec for branch in described.branches]
    for slot, count in counts.items():
        if count > max(len(specs), len(plan.sites(block, slot))):
            raise _refusal(plan, f"after the move block {label} has {count} norms in its {slot} slot", block)
    if not has_placement(spec, specs):
        equations = f"{described.equation} instead of {spec.equation()}"
        raise _refusal(plan, f"after the move block {label} computes {equations}", block)


def _refusal(plan: MovePlan, observation: str, block: BlockIndex | None = None) -> UsageError:
    """The error of a failed verification, with its cause if that is known."""
    for candidate in plan.blocks:
        start = plan.model_map.shortcut_start(candidate)
        if start is not None and (block is None or start <= block <= candidate):
            return UsageError(
                f"cannot move the norms around block {plan.model_map.label(candidate)}, because its branch reads the "
                f"stream before block {start} and is added after block {candidate - 1} ({observation}): add the branch "
                "where it reads the stream."
            )
    return UsageError(f"{observation}, so the move is refused: the model's code does not allow this placement.")


def has_placement(wanted: BlockSpec, specs: Sequence[BlockSpec]) -> bool:
    """Whether the branches of a block have the requested slots, and the requested scales if there are any."""
    if any(spec.stream for spec in specs) != wanted.stream:
        return False
    skip_scale = resolved(specs[0].skip_scale)  # parallel branches share the skip, which the first of them has
    if wanted.skip_scale != 1 and not math.isclose(skip_scale, resolved(wanted.skip_scale), rel_tol=1e-3):
        return False
    for spec in specs:
        if any(getattr(spec, slot) != getattr(wanted, slot) for slot in ("input", "output", "skip_normed")):
            return False
        if wanted.input_scale != 1 and not math.isclose(
            resolved(spec.input_scale), resolved(wanted.input_scale), rel_tol=1e-3
        ):
            return False
        if isinstance(wanted.branch_scale, LearnedScale) and not has_same_scale(spec, wanted):
            return False
    return True


def has_same_scale(one: BlockSpec, other: BlockSpec) -> bool:
    """Whether two blocks have learned branch scales of the same shape, or both have none."""
    first, second = one.branch_scale, other.branch_scale
    if isinstance(first, LearnedScale) and isinstance(second, LearnedScale):
        return first.per_channel == second.per_channel
    return isinstance(first, LearnedScale) == isinstance(second, LearnedScale)
