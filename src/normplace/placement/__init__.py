"""Where norms are in a residual network, as values: block specs, placements, published presets and scales.

Scales load on first use, so that the command line lists placements without importing PyTorch.
"""

from typing import TYPE_CHECKING, Any

from normplace.placement.factors import LearnedScale, Number, Power, fixed_part, resolved
from normplace.placement.placement import NETWORK_SLOTS, STREAMS, Placement
from normplace.placement.saved import known_fields
from normplace.placement.segments import First, by_layer
from normplace.placement.spec import BLOCK_SLOTS, BlockSpec

if TYPE_CHECKING:
    from normplace.placement.scale import Gate, Scale

__all__ = [
    # All blocks of a network
    "Placement",
    "First",
    "by_layer",
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


def __getattr__(name: str) -> Any:
    """Import a scale on first use (PEP 562)."""
    if name not in ("Gate", "Scale"):
        raise AttributeError(f"module 'normplace.placement' has no attribute {name!r}")
    from normplace.placement import scale

    return getattr(scale, name)
