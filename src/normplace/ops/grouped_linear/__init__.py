"""A linear map of each row by the matrix of its group, as in a mixture of experts."""

from normplace.ops.grouped_linear.public import grouped_linear

__all__ = ["grouped_linear"]
