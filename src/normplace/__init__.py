"""normplace: where should the normalization sit?

Build networks with any placement, find and measure the norms of existing ones, and see the evidence.
"""

from normplace import _startup, edit, models, ntk, ops  # noqa: F401 (_startup first: the others take long)
from normplace._version import __version__
from normplace.analysis import SignalsCallback, signals, survival
from normplace.edit import changes, insert, move
from normplace.errors import UsageError
from normplace.norms import (
    BatchNorm,
    DyT,
    GraphNorm,
    Identity,
    LayerNorm,
    MsgNorm,
    PairNorm,
    RMSNorm,
    build_norm,
)
from normplace.placement import BlockSpec, First, LearnedScale, Placement, Power
from normplace.placement.scale import Gate, Scale
from normplace.residual import Branch, Residual
from normplace.stack import BlockCall, fusing, fusion, run_blocks

# Last, because the function shares its name with its package, and an import inside that package would hide it again.
from normplace.analysis import audit  # isort: skip

__all__ = [
    # Where norms stand
    "Placement",
    "BlockSpec",
    "First",
    "Power",
    "LearnedScale",
    "Scale",
    "Gate",
    # The block they stand in
    "Residual",
    "Branch",
    # Blocks one after another
    "run_blocks",
    "BlockCall",
    "fusion",
    "fusing",
    # Norms
    "LayerNorm",
    "RMSNorm",
    "BatchNorm",
    "GraphNorm",
    "PairNorm",
    "MsgNorm",
    "DyT",
    "Identity",
    "build_norm",
    # Networks
    "models",
    # Where the norms of an existing network stand, what survives them, and what they do at every depth
    "audit",
    "survival",
    "signals",
    "SignalsCallback",
    # Numerical kernels
    "ops",
    # An existing network, changed
    "insert",
    "move",
    "changes",
    "edit",
    # Neural tangent kernels
    "ntk",
    # The rest
    "UsageError",
    "__version__",
]
