"""Residual blocks in sequence, with the boundary between two of them computed in one fused pass where possible.

A boundary is the output norm of one block, its add, and the norm after the add: the block's own stream norm, the next
block's input norm, or the network's final norm. :func:`normplace.ops.norm_add_norm` computes it in one pass. What that
op cannot express runs as the stages of :class:`~normplace.Residual`. The results agree up to rounding.
:func:`explain_fusion` reports what is fused, and why the rest is not.
"""

from normplace.stack.hooks import has_global_hooks, has_hooks
from normplace.stack.mode import fusion_choice, fusion_mode
from normplace.stack.plan import BlockCall, explain_fusion
from normplace.stack.run import run_blocks

__all__ = [
    "BlockCall",
    "explain_fusion",
    "fusion_choice",
    "fusion_mode",
    "has_global_hooks",
    "has_hooks",
    "run_blocks",
]
