"""Networks built from :class:`normplace.Residual`."""

from normplace.models.gen import GENConv
from normplace.models.graph import GraphStack
from normplace.models.graph_parts import Dropout
from normplace.models.mlp import MLP, Dense
from normplace.models.topology import topology

__all__ = ["MLP", "Dense", "Dropout", "GENConv", "GraphStack", "topology"]
