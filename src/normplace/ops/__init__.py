"""Numerical kernels: each has a reference in plain PyTorch, which its fast paths must equal."""

from normplace.ops.aggregate import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate
from normplace.ops.feature_norm import feature_norm
from normplace.ops.gate_add_norm import gate_add_norm
from normplace.ops.grouped_linear import grouped_linear
from normplace.ops.norm_add_norm import boundary_backend, norm_add_norm
from normplace.ops.relation import (
    PairState,
    ScanState,
    relation_pairwise,
    relation_pairwise_prefill,
    relation_pairwise_step,
    relation_scan,
    relation_scan_prefill,
    relation_scan_step,
)

__all__ = [
    # Aggregation over the neighbours of a node
    "softmax_aggregate",
    "powermean_aggregate",
    "Neighbours",
    "LinearEdge",
    "TableEdge",
    # The boundary between two residual blocks
    "norm_add_norm",
    "boundary_backend",
    # The same with factors for each sample, as in diffusion Transformers
    "gate_add_norm",
    # A norm in one pass
    "feature_norm",
    # A linear map for each group of rows, as in a mixture of experts
    "grouped_linear",
    # Relations between the rows of a sequence
    "relation_scan",
    "relation_pairwise",
    "relation_scan_prefill",
    "relation_scan_step",
    "ScanState",
    "relation_pairwise_prefill",
    "relation_pairwise_step",
    "PairState",
]
