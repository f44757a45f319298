"""Neural tangent kernels: what the position of a norm does to what training can reach."""

from normplace.ntk.infinite import FullyConnected, Kernels, infinite

__all__ = ["FullyConnected", "Kernels", "infinite"]
