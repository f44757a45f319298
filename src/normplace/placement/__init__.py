"""Where norms are in a residual network, as a value: blocks, placements, published presets and scales."""

from normplace.placement.placement import NETWORK_SLOTS, STREAMS, First, Placement, known_fields
from normplace.placement.scale import Gate, Scale
from normplace.placement.spec import BLOCK_SLOTS, BlockSpec, LearnedScale, Number, Power, resolved

__all__ = [
    # A rule for every depth
    "Placement",
    "First",
    # One block of it
    "BlockSpec",
    "Power",
    "LearnedScale",
    "Number",
    "resolved",
    # Multipliers that carry information
    "Scale",
    "Gate",
    # Names
    "BLOCK_SLOTS",
    "NETWORK_SLOTS",
    "STREAMS",
    "known_fields",
]
