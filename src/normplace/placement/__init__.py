"""Where norms are in a residual network, as values: block specs, placements, published presets and scales."""

from normplace.placement.factors import LearnedScale, Number, Power, fixed_part, resolved
from normplace.placement.placement import NETWORK_SLOTS, STREAMS, Placement
from normplace.placement.saved import known_fields
from normplace.placement.scale import Gate, Scale
from normplace.placement.segments import First
from normplace.placement.spec import BLOCK_SLOTS, BlockSpec

__all__ = [
    # All blocks of a network
    "Placement",
    "First",
    # One block
    "BlockSpec",
    "Power",
    "LearnedScale",
    "Number",
    "fixed_part",
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
