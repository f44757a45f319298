"""Per-sample gradients of the known functionals, as factors or as dense rows.

A weight used by ``y_t = W a_t`` at positions t has the gradient ``J = Σ_t g_t a_tᵀ`` with ``g = ∂f/∂y``. Several uses
of one weight are more positions: concatenating them sums the gradients before any product, including cross terms.

Axes: n samples, O outputs, T positions, I inputs and F features of one position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ntk.empirical_kernel.parameter_uses import ParameterUse
from normplace.ntk.empirical_kernel.plan import LayerSite
from normplace.ntk.empirical_kernel.sample_rows import SampleLayout

FACTORED_KINDS = {"linear", "conv", "embedding"}


def factorable(site: LayerSite) -> bool:
    """Whether the weight's gradient can be kept as factors."""
    return site.kind in FACTORED_KINDS and site.settings.get("groups", 1) == 1


def sizes(site: LayerSite) -> tuple[int, int, int]:
    """Positions, inputs and features (T, I, F) of a factorable use for one sample."""
    if site.kind == "linear":
        return math.prod(site.input_shape[:-1]), site.input_shape[-1], site.output_shape[-1]
    if site.kind == "conv":
        inputs = site.input_shape[1] * math.prod(site.settings["kernel"])
        return math.prod(site.output_shape[2:]), inputs, site.output_shape[1]
    return math.prod(site.input_shape), 1, site.output_shape[-1]


def factors(use: ParameterUse, layout: SampleLayout, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A weight's gradient as inputs (n, T, I), or row numbers (n, T), and gradients (n, O, T, F)."""
    n = gradient.shape[0]
    a = use.unmodified_input()
    if use.kind == "conv":
        patches, g = _patches(a, use.settings), gradient.flatten(3)
        return patches.flatten(1, 2).transpose(1, 2), g.transpose(2, 3)
    g = gradient.flatten(2, -2) if gradient.ndim > 3 else gradient.unsqueeze(2)
    if use.kind == "linear":
        a = layout.split(a, n)
        return a.reshape(n, -1, a.shape[-1]), g
    rows = layout.split(a, n).reshape(n, -1)
    return rows, _without_padding(g, rows, use.settings)


def single_position(use: ParameterUse, layout: SampleLayout, gradient: Tensor) -> tuple[Tensor, Tensor] | None:
    """The factors (n, I) and (n, O, F) of a linear map that a sample uses at one position, otherwise None."""
    if use.kind != "linear" or gradient.ndim != 3:
        return None
    return layout.split(use.unmodified_input(), gradient.shape[0]), gradient


def weight_gradient(use: ParameterUse, layout: SampleLayout, gradient: Tensor) -> Tensor:
    """The dense gradient of the weight, (n, O, size of the weight)."""
    n, o = gradient.shape[:2]
    if use.kind == "conv":
        a = _patches(use.unmodified_input(), use.settings)  # n, groups, I, T
        g = gradient.flatten(3).unflatten(2, (a.shape[1], -1))  # n, O, groups, F, T
        return (g @ a.transpose(2, 3).unsqueeze(1)).flatten(2)
    if use.kind == "linear":
        single = single_position(use, layout, gradient)
        if single is not None:  # products without a sum
            a, g = single
            return (g.unsqueeze(3) * a.to(g.dtype)[:, None, None]).flatten(2)
        a, g = factors(use, layout, gradient)
        return (g.transpose(2, 3) @ a.unsqueeze(1).to(g.dtype)).flatten(2)
    if use.kind == "embedding":
        rows, g = factors(use, layout, gradient)
        full = g.new_zeros(n, o, use.settings["rows"], g.shape[-1])
        return full.scatter_add_(2, rows[:, None, :, None].expand_as(g), g).flatten(2)
    standard = layout.split(_normalized_input(use), n).unsqueeze(1)
    return _over_positions(use, gradient * standard.to(gradient.dtype))


def bias_gradient(use: ParameterUse, gradient: Tensor) -> Tensor:
    """The dense gradient of the bias, (n, O, size of the bias)."""
    return _over_positions(use, gradient)


def _over_positions(use: ParameterUse, product: Tensor) -> Tensor:
    """Sum (n, O, ...) over every axis along which the parameter is shared."""
    if use.kind in {"conv", "group_norm", "batch_norm"}:  # features are the first axis
        return product.flatten(3).sum(3) if product.ndim > 3 else product
    trailing = len(use.settings["shape"]) if "shape" in use.settings else 1
    product = product.flatten(-trailing)
    return product.flatten(2, -2).sum(2) if product.ndim > 3 else product


def _normalized_input(use: ParameterUse) -> Tensor:
    """The normalized input, recomputed by the norm without weight and bias."""
    x, s = use.unmodified_input(), use.settings
    match use.kind:
        case "layer_norm":
            return F.layer_norm(x, s["shape"], None, None, s["eps"])
        case "rms_norm":
            return F.rms_norm(x, s["shape"], None, s["eps"])
        case "group_norm":
            return F.group_norm(x, s["groups"], None, None, s["eps"])
        case _:
            assert use.kind == "batch_norm"
            return F.batch_norm(x, s["mean"], s["var"], None, None, False, 0.0, s["eps"])


def _without_padding(g: Tensor, rows: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Zero the gradient of an embedding's padding row, as autograd does."""
    if settings["padding"] is None:
        return g
    return g.masked_fill((rows == settings["padding"])[:, None, :, None], 0.0)


def _patches(x: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Input patches under a convolution's kernel, (n, groups, I, T)."""
    kernel, stride, dilation = (_pair(settings[k], len(settings["kernel"])) for k in ("kernel", "stride", "dilation"))
    padding = settings["padding"]
    if padding == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        x = F.pad(x, [side for total in reversed(totals) for side in (total // 2, total - total // 2)])
        padding = 0
    padding = _pair(0 if padding == "valid" else padding, len(kernel))
    if len(kernel) == 1:  # unfold supports images only: a sequence is an image of height one
        x = x.unsqueeze(2)
        kernel, stride, dilation, padding = (1, *kernel), (1, *stride), (1, *dilation), (0, *padding)
    columns = F.unfold(x, kernel, dilation=dilation, padding=padding, stride=stride)
    return columns.unflatten(1, (settings["groups"], -1))


def _pair(value: Any, length: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * length if len(values) == 1 else values


def stack_outputs(
    gradients: list[Tensor | None], use: ParameterUse, layout: SampleLayout, n: int, dtype: torch.dtype
) -> Tensor:
    """One use's gradients for all outputs, (n, O, ...); zero if an output does not depend on it."""
    rows = [
        use.input.new_zeros(use.shape, dtype=dtype) if g is None else g if g.dtype == dtype else g.to(dtype)
        for g in gradients
    ]
    return join([layout.split(g, n).unsqueeze(1) for g in rows], dim=1)


def join(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenate; a single tensor is returned without a copy."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
