"""Norm modules known by class, for code that has no inputs to run a model with, or must find norms that did not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from normplace.errors import UsageError, unknown
from normplace.norms import DyT, GraphNorm, MsgNorm, PairNorm

CLASSES = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, GraphNorm, PairNorm, MsgNorm, DyT)
# PyG's norms and their drop-ins are known by name, so that PyG need not be imported.
PYG_MODULES = ("torch_geometric.nn.norm", "normplace.pyg.norms")
PYG_CLASSES = {
    "BatchNorm", "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroBatchNorm", "HeteroLayerNorm", "InstanceNorm",
    "LayerNorm", "MeanSubtractionNorm", "MessageNorm", "PairNorm",
}  # fmt: skip


def known_norm_modules(model: nn.Module) -> Iterator[str]:
    """Names of the outermost modules that are norms of PyTorch, this library or PyG, in the order of the model."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name.startswith(inside):
            is_pyg = type(module).__name__ in PYG_CLASSES and type(module).__module__.startswith(PYG_MODULES)
            if isinstance(module, CLASSES) or is_pyg:
                inside += (f"{name}.",)
                yield name


def module_names(model: nn.Module, modules: Iterable[str | nn.Module]) -> list[str]:
    """The names of modules given by name or as modules.

    Raises:
        UsageError: If one is not part of the model.
    """
    names = {id(module): name for name, module in model.named_modules()}
    chosen = []
    for module in modules:
        name = names.get(id(module)) if isinstance(module, nn.Module) else module
        if name is None:
            raise UsageError(f"this {type(module).__name__} is not part of the model: pass one of its own modules.")
        if name not in names.values():
            raise unknown("module", name, filter(None, names.values()))
        chosen.append(name)
    return chosen


def rows_argument(norm: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str:
    """The position or name of the argument that a norm normalizes.

    Raises:
        UsageError: If there is no such argument.
    """
    # PyG's MessageNorm takes the receiver first and the message it rescales second.
    position, names = (1, ("msg",)) if type(norm).__name__ == "MessageNorm" else (0, ("x", "input"))
    if len(args) > position:
        return position
    for name in names:
        if name in kwargs:
            return name
    raise UsageError(
        f"{type(norm).__name__} is called without an argument to normalize: pass it by position, or as {names[0]}=."
    )


def subtracts_mean(norm: nn.Module) -> bool | None:
    """Whether a norm over features subtracts the mean; None for a norm over anything else."""
    if isinstance(norm, nn.RMSNorm):
        return False
    one_dimension = len(getattr(norm, "normalized_shape", (0,))) == 1
    node_wise = type(norm).__name__ == "LayerNorm" and getattr(norm, "mode", None) == "node"
    return True if (isinstance(norm, nn.LayerNorm) and one_dimension) or node_wise else None
