"""Relations between the rows of a sequence, summed over those so far (Cui et al. 2024, arXiv 2406.16168).

``relation_scan`` relates rows by an exponential that factorises, in time linear in the length. ``relation_pairwise``
normalizes every pair, which no longer factorises: its time is quadratic in the length, and every row so far is a
memory that the next can address.
"""

from normplace.ops.relation.decode import (
    PairState,
    ScanState,
    relation_pairwise_prefill,
    relation_pairwise_step,
    relation_scan_prefill,
    relation_scan_step,
)
from normplace.ops.relation.public import relation_pairwise, relation_scan

__all__ = [
    "PairState",
    "ScanState",
    "relation_pairwise",
    "relation_pairwise_prefill",
    "relation_pairwise_step",
    "relation_scan",
    "relation_scan_prefill",
    "relation_scan_step",
]
