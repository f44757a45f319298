"""Networks made of :class:`normplace.Residual` blocks."""

from normplace.models.gen import GENConv
from normplace.models.graph import GraphStack
from normplace.models.graph_parts import Dropout
from normplace.models.mlp import MLP, Dense
from normplace.models.sequence import CausalRN, SequenceModel
from normplace.models.topology import topology
from normplace.models.transformer import Transformer, TransformerConfig

__all__ = [
    "MLP",
    "CausalRN",
    "Dense",
    "Dropout",
    "GENConv",
    "GraphStack",
    "SequenceModel",
    "Transformer",
    "TransformerConfig",
    "topology",
]
