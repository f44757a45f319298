"""Whether the branches of a block are as a target wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from normplace.placement import BlockSpec, LearnedScale, resolved


def is_as(wanted: BlockSpec, layouts: Sequence[BlockSpec]) -> bool:
    """Whether the branches of a block are as wanted; factors are compared where the target has some."""
    if any(layout.stream for layout in layouts) != wanted.stream:
        return False
    for layout in layouts:
        if any(getattr(layout, slot) != getattr(wanted, slot) for slot in ("input", "output", "skip_normed")):
            return False
        if wanted.input_scale != 1 and not math.isclose(
            resolved(layout.input_scale), resolved(wanted.input_scale), rel_tol=1e-3
        ):
            return False
        if isinstance(wanted.branch_scale, LearnedScale) and not is_learned_alike(layout, wanted):
            return False
    return True


def is_learned_alike(one: BlockSpec, other: BlockSpec) -> bool:
    """Whether two blocks have learned scales of the same form, or neither has one."""
    first, second = one.branch_scale, other.branch_scale
    if isinstance(first, LearnedScale) and isinstance(second, LearnedScale):
        return first.per_channel == second.per_channel
    return isinstance(first, LearnedScale) == isinstance(second, LearnedScale)
