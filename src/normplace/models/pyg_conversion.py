"""Convert ``GENConv`` and its aggregations from PyG and back. Parameters have the same names on both sides."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normplace.errors import UsageError
from normplace.models.aggregation import COMBINE, Aggregation, MultiAggregation

PYG_CONV = "torch_geometric.nn.conv.gen_conv"
SIMPLE = {"MeanAggregation": "mean", "MaxAggregation": "max", "MinAggregation": "min", "SumAggregation": "add"}
MLP_NORMS = {nn.BatchNorm1d: "batch", nn.LayerNorm: "layer", nn.InstanceNorm1d: "instance"}


def is_pyg(module: object, name: str) -> bool:
    """Whether a module is of PyG's class of that name, and not of a subclass; PyG is not imported."""
    kind = type(module)
    return kind.__name__ == name and kind.__module__.startswith("torch_geometric.nn")


def aggregation_arguments(module: nn.Module) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of one of PyG's aggregations that this library has; None for others."""
    if is_pyg(module, "SoftmaxAggregation"):
        return "softmax", {**_learned(module, "t"), "semi_grad": module.semi_grad}
    if is_pyg(module, "PowerMeanAggregation"):
        bounds = {"clamp_min": getattr(module, "min_value", 0.0), "clamp_max": getattr(module, "max_value", 100.0)}
        return "powermean", {**_learned(module, "p"), **bounds}
    name = next((short for long, short in SIMPLE.items() if is_pyg(module, long)), None)
    return None if name is None else (name, {})


def _learned(module: Any, name: str) -> dict[str, Any]:
    """The value of a temperature or power, and whether it is learned; the first of several is the initial value."""
    value = getattr(module, name)
    initial = value.detach().reshape(-1)[0].item() if isinstance(value, Tensor) else value
    return {name: initial, "learn": module.learn, "channels": module.channels}


def _aggr(module: Any) -> dict[str, Any]:
    """``aggr`` and ``aggr_kwargs`` for one of PyG's aggregations; the module itself where this library has no other."""
    named = aggregation_arguments(module)
    if named is not None:
        return {"aggr": named[0], "aggr_kwargs": named[1]}
    if is_pyg(module, "MultiAggregation") and module.mode in ("cat", *COMBINE):
        parts = [aggregation_arguments(part) for part in module.aggrs]
        if all(part is not None for part in parts):
            known = [part for part in parts if part is not None]
            kwargs = {"aggrs_kwargs": [arguments for _, arguments in known], "mode": module.mode}
            return {"aggr": [name for name, _ in known], "aggr_kwargs": kwargs}
    return {"aggr": module}


def _mlp_arguments(mlp: nn.Module, out_channels: int) -> dict[str, Any]:
    """Arguments of the MLP of a convolution.

    Raises:
        UsageError: If it was changed after the convolution was built.
    """
    children = list(mlp.children())
    linears = [child for child in children if type(child).__name__ == "Linear"]
    norms = {MLP_NORMS[type(child)] for child in children if type(child) in MLP_NORMS}
    known = (*MLP_NORMS, nn.ReLU, nn.Dropout)
    dropped = any(isinstance(child, nn.Dropout) and child.p for child in children)
    if not linears or len(norms) > 1 or dropped or any(
        child not in linears and type(child) not in known for child in children
    ):  # fmt: skip
        raise UsageError("the MLP of this GENConv is not the one it was built with: convert the original convolution.")
    first = linears[0].weight
    assert isinstance(first, Tensor)
    expansion = first.shape[0] // out_channels if len(linears) > 1 else 2
    return {
        "norm": next(iter(norms), None),
        "num_layers": len(linears),
        "expansion": expansion,
        "bias": linears[0].bias is not None,
    }


def arguments_from_pyg(conv: Any) -> dict[str, Any]:
    """Arguments of :class:`normplace.models.GENConv` that make it equal to PyG's convolution.

    Raises:
        UsageError: If it is something else, or cannot be converted.
    """
    if not is_pyg(conv, "GENConv") or type(conv).__module__ != PYG_CONV:
        raise UsageError(f"from_pyg takes a GENConv of PyG, not a subclass, got {type(conv).__name__}.")
    if any(is_lazy(parameter) for parameter in conv.parameters()):
        raise UsageError("this GENConv has widths of -1 that it has not read yet: call it once, then convert it.")
    linear, norm = getattr(conv, "lin_edge", None), getattr(conv, "msg_norm", None)
    return {
        "in_channels": _widths(conv),
        "out_channels": conv.out_channels,
        **_aggr(conv.aggr_module),
        "msg_norm": norm is not None,
        "learn_msg_scale": norm is not None and norm.scale.requires_grad,
        **_mlp_arguments(conv.mlp, conv.out_channels),
        "eps": conv.eps,
        "edge_dim": None if linear is None else linear.weight.shape[1],
        "flow": conv.flow,
        "node_dim": conv.node_dim,
    }


def _widths(conv: Any) -> int | tuple[int, int]:
    """The width of the features, read from the weights where it was given as -1."""
    is_pair = isinstance(conv.in_channels, tuple | list)
    widths = conv.in_channels if is_pair else (conv.in_channels,) * 2
    maps = (getattr(conv, "lin_src", None), getattr(conv, "lin_dst", None))
    src, dst = (
        int(width) if width != -1 or linear is None else int(linear.weight.shape[1])
        for width, linear in zip(widths, maps, strict=True)
    )
    return (src, dst) if is_pair or src != dst else src


def share_weights(source: nn.Module, target: nn.Module, linear: Callable[..., nn.Module] = nn.Linear) -> None:
    """Make the parameters and buffers of one module those of another with the same names, and copy its mode.

    Args:
        source: The module with the weights.
        target: The other one, built with equal arguments.
        linear: The class of the linear maps of a convolution.
    """
    for name in ("lin_src", "lin_dst", "lin_edge"):
        own = getattr(source, name, None)
        # A width of -1 has a map, even if the width that it reads needs none.
        if own is not None and getattr(target, name, None) is None:
            rows, columns = own.weight.shape
            setattr(target, name, linear(columns, rows, bias=own.bias is not None))
    weights = source.state_dict(keep_vars=True)
    trained = {name: parameter.requires_grad for name, parameter in source.named_parameters()}
    target.load_state_dict(weights, assign=True)
    for name, parameter in target.named_parameters():
        parameter.requires_grad_(trained[name])
    target.train(source.training)


def to_pyg(conv: Any) -> nn.Module:
    """PyG's convolution with the arguments and weights of a :class:`normplace.models.GENConv`.

    Raises:
        UsageError: If PyG is not installed, or its convolution has no such argument.
    """
    try:
        from torch_geometric.nn import GENConv, Linear
    except ModuleNotFoundError as error:
        raise UsageError("to_pyg needs PyG: pip install 'normplace[graphs]'.") from error
    if conv.edge_table is not None:
        raise UsageError("PyG's GENConv takes no edge types: build the convolution with edge_dim.")
    if any(is_lazy(parameter) for parameter in conv.parameters()):
        raise UsageError("this GENConv has widths of -1 that it has not read yet: call it once, then convert it.")
    maps = (conv.lin_src, conv.lin_dst)
    src, dst = (conv.out_channels if linear is None else linear.in_features for linear in maps)
    converted = GENConv(
        (src, dst) if isinstance(conv.in_channels, tuple | list) or src != dst else src,
        conv.out_channels,
        **_pyg_aggr(conv.aggr_module),
        msg_norm=conv.msg_norm is not None,
        learn_msg_scale=conv.msg_norm is not None and conv.msg_norm.scale.requires_grad,
        **_mlp_arguments(conv.mlp, conv.out_channels),
        eps=conv.eps,
        edge_dim=None if conv.lin_edge is None else conv.lin_edge.in_features,
        flow=conv.flow,
        node_dim=conv.node_dim,
    )
    converted.aggr = conv.aggr if conv.aggr != "softmax_sg" else "softmax"
    share_weights(copy.deepcopy(conv), converted, Linear)
    return converted


def _pyg_aggr(module: nn.Module) -> dict[str, Any]:
    """``aggr`` and ``aggr_kwargs`` of PyG for an aggregation."""
    if isinstance(module, MultiAggregation):
        parts = [_pyg_aggr(part) for part in module.aggrs]
        kwargs = {"aggrs_kwargs": [part.get("aggr_kwargs", {}) for part in parts], "mode": module.mode}
        return {"aggr": [part["aggr"] for part in parts], "aggr_kwargs": kwargs}
    if not isinstance(module, Aggregation):
        return {"aggr": copy.deepcopy(module)}
    if module.scaled:
        raise UsageError(f"PyG has no aggregation {module.kind!r}: use one that the degree does not scale.")
    if module.base in ("softmax", "softmax_sg"):
        learn, value = isinstance(module.t, nn.Parameter), module.initial["t"]
        kwargs = {"t": value, "learn": learn, "channels": module.channels, "semi_grad": module.base == "softmax_sg"}
        return {"aggr": "softmax", "aggr_kwargs": kwargs}
    if module.base == "powermean":
        learn, (low, high) = isinstance(module.p, nn.Parameter), module.clamp
        # Messages are positive, so that a bound of 0 changes nothing; PyG needs at least one bound.
        bounds = {"clamp_min": 0.0 if low is None and high is None else low, "clamp_max": high}
        kwargs = {"p": module.initial["p"], "learn": learn, "channels": module.channels, **bounds}
        return {"aggr": "powermean", "aggr_kwargs": kwargs}
    return {"aggr": module.base, "aggr_kwargs": {}}
