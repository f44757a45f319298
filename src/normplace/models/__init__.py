"""Networks built from :class:`normplace.Residual`."""

from normplace.models.mlp import MLP, Dense

__all__ = ["MLP", "Dense"]
