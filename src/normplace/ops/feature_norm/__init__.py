"""A norm over the features of each row in one pass, for norms that a model writes out in several operators.

It is the boundary of :mod:`normplace.ops.norm_add_norm` without a branch, and runs the same kernels.
"""

from normplace.ops.feature_norm.public import feature_norm

__all__ = ["feature_norm"]
