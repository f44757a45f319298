"""The boundary between two residual blocks in one pass: the norm of a branch's output, the add, the next block's norm.

With norms on both sides of the branch (Peri-LN, Kim et al. 2025, arXiv 2502.02732) every boundary is
``x' = x + N_out(F); y = N_next(x')``. Computed step by step it moves seven tensors forward, here four.
"""

from normplace.ops.norm_add_norm.public import boundary_backend, norm_add_norm

__all__ = ["boundary_backend", "norm_add_norm"]
