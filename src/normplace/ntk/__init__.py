"""Neural tangent kernels."""

from normplace.ntk.empirical import empirical, empirical_blocks

__all__ = ["empirical", "empirical_blocks"]
