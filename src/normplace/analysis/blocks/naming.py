"""The published name of the placement that the blocks of a network follow."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence, Set

from normplace.analysis.results import ResidualBlock
from normplace.placement import BlockSpec, LearnedScale, Placement
from normplace.placement.presets import PRESETS

SLOTS = ("input", "output", "stream", "skip_normed")
# Placements that a dataflow can show; "mix" is tried last.
CANDIDATES = (*(name for name in PRESETS if name not in ("plain", "mix")), "keel", "bert-residual")
CLOSE = 1e-3
_preset = functools.cache(Placement.named)
BARE = 1 / 2
"""At most this share of branches may have no norm."""


def placement_name(blocks: Sequence[ResidualBlock], normed: bool, shared_branches: Set[int]) -> str | None:
    """The preset that every block with a norm follows; inner norms and norms at the network's ends are ignored.

    Args:
        blocks: The blocks in the order of the network.
        normed: Whether the network has any norm.
        shared_branches: The blocks whose branch another block adds to another stream.
    """
    if not blocks:
        return "plain" if normed else None
    if len(shared_branches) == len(blocks) and _is_dual(blocks):
        return "residual-dual"
    specs = [
        # A projected skip usually reads the normalized stream.
        dataclasses.replace(branch.spec, skip_normed=False) if block.projected else branch.spec
        for block in blocks
        for branch in block.branches
    ]
    bare = [spec for spec in specs if not spec.slots]
    if 0 < len(bare) < BARE * len(specs) or _only_convolutions_are_bare(blocks):  # positions may be added bare
        specs = [spec for spec in specs if spec.slots]
    if any(spec.inner for spec in specs) and not any(spec.slots != _inner(spec) for spec in specs):
        return None  # no preset has norms inside the branches only
    name = _followed(specs)
    if name is not None:
        return name
    unscaled = [  # a fixed factor does not change the name
        _unscaled(spec, spec.branch_scale if isinstance(spec.branch_scale, LearnedScale) else 1.0) for spec in specs
    ]
    return _followed(unscaled) or ("mix" if _is_mix(unscaled) else None)


def _followed(specs: Sequence[BlockSpec]) -> str | None:
    """The first candidate whose specs these are, or None."""
    return next((name for name in CANDIDATES if any(_follows(specs, name, per_layer) for per_layer in (1, 2, 3))), None)


def _is_dual(blocks: Sequence[ResidualBlock]) -> bool:
    """Whether half of the blocks normalize one stream after every add, and the others have no norm."""
    specs = [branch.spec for block in blocks for branch in block.branches]
    post, bare = _preset("post").at(1, 1), _preset("none").at(1, 1)
    normed = [spec for spec in specs if _alike(spec, post)]
    return 2 * len(normed) == len(specs) and all(_alike(spec, bare) for spec in specs if spec not in normed)


def _only_convolutions_are_bare(blocks: Sequence[ResidualBlock]) -> bool:
    branches = [branch for block in blocks for branch in block.branches]
    bare = [branch for branch in branches if not branch.spec.slots]
    return 0 < len(bare) <= BARE * len(branches) and {branch.kind for branch in bare} == {"convolution"}


def _inner(spec: BlockSpec) -> tuple[str, ...]:
    return tuple(f"inner.{name}" for name in spec.inner)


def _follows(specs: Sequence[BlockSpec], name: str, per_layer: int) -> bool:
    """Whether the specs are a preset's, with ``per_layer`` adds counted as one layer."""
    placement, depth = _preset(name), math.ceil(len(specs) / per_layer)
    return all(_alike(spec, placement.at(index // per_layer + 1, depth)) for index, spec in enumerate(specs))


def _is_mix(specs: Sequence[BlockSpec]) -> bool:
    post, pre = _preset("post").at(1, 1), _preset("pre").at(1, 1)
    switch = next((index for index, spec in enumerate(specs) if not _alike(spec, post)), len(specs))
    return 0 < switch < len(specs) and all(_alike(spec, pre) for spec in specs[switch:])


def _alike(one: BlockSpec, other: BlockSpec) -> bool:
    if any(getattr(one, slot) != getattr(other, slot) for slot in SLOTS):
        return False
    for name in ("skip_scale", "input_scale", "branch_scale"):
        first, second = getattr(one, name), getattr(other, name)
        if isinstance(first, LearnedScale) or isinstance(second, LearnedScale):
            if type(first) is not type(second) or first.per_channel != second.per_channel:
                return False
        elif not math.isclose(first, second, rel_tol=CLOSE):
            return False
    return True


def same_slots(one: BlockSpec, other: BlockSpec) -> bool:
    """Whether two blocks hold norms in the same places, whatever their scales."""
    return _unscaled(one) == _unscaled(other)


def _unscaled(spec: BlockSpec, branch_scale: float | LearnedScale = 1.0) -> BlockSpec:
    return dataclasses.replace(spec, skip_scale=1.0, input_scale=1.0, branch_scale=branch_scale)
