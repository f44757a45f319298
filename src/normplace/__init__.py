"""normplace: where should the normalization sit?

Build networks with any norm placement, find, measure and edit the norms of existing networks, and see the evidence.

Public names load on first use, so that the command line prints its help without importing PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normplace import _startup  # noqa: F401 (first: it handles Ctrl-C during the imports that follow)
from normplace._shared.garbage import without_full_collections
from normplace._version import __version__

if TYPE_CHECKING:
    from normplace import edit, models, ntk, ops
    from normplace.analysis import SignalsCallback, audit, signals, survival
    from normplace.edit import FusedCallback, accelerate, changes, fold, fuse, insert, move, swap, unfuse
    from normplace.errors import UsageError
    from normplace.lab.compare import compare
    from normplace.lab.extrapolate import extrapolate
    from normplace.norms import BatchNorm, DyT, GraphNorm, Identity, LayerNorm, MsgNorm, PairNorm, RMSNorm, build_norm
    from normplace.placement import BlockSpec, First, LearnedScale, Placement, Power
    from normplace.placement.scale import Gate, Scale
    from normplace.residual import Branch, Residual
    from normplace.stack import BlockCall, explain_fusion, fusion_mode, run_blocks

__all__ = [
    # Placements
    "Placement",
    "BlockSpec",
    "First",
    "Power",
    "LearnedScale",
    "Scale",
    "Gate",
    # The residual block
    "Residual",
    "Branch",
    # Blocks in sequence
    "run_blocks",
    "BlockCall",
    "explain_fusion",
    "fusion_mode",
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
    # Analysis of an existing network
    "audit",
    "survival",
    "signals",
    "SignalsCallback",
    # Edits of an existing network
    "edit",
    "insert",
    "move",
    "swap",
    "fold",
    "fuse",
    "unfuse",
    "accelerate",
    "FusedCallback",
    "changes",
    # Comparison of edits on a user's own model and data
    "compare",
    # Regression outside the data
    "extrapolate",
    # Numerical kernels
    "ops",
    # Neural tangent kernels
    "ntk",
    # Errors and version
    "UsageError",
    "__version__",
]

_SUBMODULES = {"analysis", "edit", "models", "norms", "ntk", "ops", "placement", "pyg", "residual", "stack"}
_MODULE_OF = {
    name: module
    for module, names in {
        "analysis": "SignalsCallback audit signals survival",
        "edit": "FusedCallback accelerate changes fold fuse insert move swap unfuse",
        "errors": "UsageError",
        "lab.compare": "compare",
        "lab.extrapolate": "extrapolate",
        "norms": "BatchNorm DyT GraphNorm Identity LayerNorm MsgNorm PairNorm RMSNorm build_norm",
        "placement": "BlockSpec First LearnedScale Placement Power",
        "placement.scale": "Gate Scale",
        "residual": "Branch Residual",
        "stack": "BlockCall explain_fusion fusion_mode run_blocks",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name in _SUBMODULES:
        return _import(name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'normplace' has no attribute {name!r}")
    value = getattr(_import(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def _import(module: str) -> Any:
    """Import a part of the package; a full garbage collection would take longer than the import."""
    with without_full_collections():
        return import_module(f"normplace.{module}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
