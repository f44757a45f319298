"""The public op and the checks of its arguments."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice, unknown
from normplace.ops.gate_add_norm.op import BACKENDS, apply, choose_backend
from normplace.ops.gate_add_norm.reference import GateSpec, GateTensors
from normplace.ops.norm_add_norm.public import NORMS, channels, check_tensor, check_width
from normplace.ops.tracing import is_traced

ROUNDINGS = ("once", "result", "gain")


def gate_add_norm(
    x: Tensor,
    f: Tensor | None = None,
    *,
    gate: Tensor | None = None,
    norm: str | None = "layer",
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-6,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    stream_dtype: torch.dtype | None = None,
    y_dtype: torch.dtype | None = None,
    rounding: str = "once",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Add a gated branch to the stream, normalize the result, and scale and shift it, as diffusion Transformers do.

    ``stream = x + gate * f`` and ``y = N(stream) * (1 + scale) + shift``. The arithmetic is float32, or float64 if an
    input is. y is computed from the stream as returned, after rounding. Without ``f`` the stream is x. Without a norm
    y is the stream.

    A factor has one row of features for each sample, which applies to all tokens of the sample: its shape is
    ``[batch, width]`` or ``[batch, 1, width]`` for x of shape ``[batch, tokens, width]``. In general its leading
    dimensions are those of x, and it may omit the last of them. Its rows may be slices of a wider tensor.

    Args:
        x: The stream, features last.
        f: The branch's output, of the same shape.
        gate: Multiplies the branch.
        norm: ``layer``, ``rms`` or None.
        weight: The gain of the norm, one for each feature.
        bias: The bias of the norm.
        eps: Added to the variance.
        scale: Multiplies the norm, after one is added.
        shift: Added to the norm.
        stream_dtype: Dtype of the returned stream; that of ``x`` by default.
        y_dtype: Dtype of y; that of ``f`` by default, or of ``x`` without a branch.
        rounding: ``once`` to round results only; ``result`` to round after every operator, as PyTorch's separate
            operators do; ``gain`` also before the gain of the norm. Gradients are unaffected.
        backend: ``auto``, ``reference`` or ``triton``.

    Returns:
        The new stream, and the input of the next branch.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> x, f = torch.tensor([[[3.0, 0.0]]]), torch.tensor([[[1.0, 1.0]]])
        >>> gate_add_norm(x, f, gate=torch.tensor([[2.0, 1.0]]), scale=torch.tensor([[1.0, 0.0]]))
        (tensor([[[5., 1.]]]), tensor([[[ 2.0000, -1.0000]]]))
    """
    if not isinstance(x, Tensor) or not x.dim():
        raise UsageError(f"x must be a tensor with features in its last dimension, got {type(x).__name__}.")
    if f is not None:
        check_tensor("f", f, x)
        if f.shape != x.shape:
            raise UsageError(f"x and f must have one shape, got {tuple(x.shape)} and {tuple(f.shape)}.")
    if f is None and (gate is not None or norm is None):
        raise UsageError("without f there is nothing to gate or add: pass f, or a norm and no gate.")
    if norm is None and any(tensor is not None for tensor in (weight, bias, scale, shift)):
        raise UsageError("a weight, a bias, a scale and a shift need a norm: name the norm, or drop them.")
    make_spec = _make_spec if is_traced() else _cached_spec  # a tracer cannot see through a cache
    spec = make_spec(
        norm, float(eps), x.dtype, None if f is None else f.dtype, stream_dtype, y_dtype, rounding, backend,
        x.device.type, x.shape[-1],
    )  # fmt: skip
    gate, scale, shift = _factors(x, gate=gate, scale=scale, shift=shift)
    tensors = GateTensors(
        gate,
        scale,
        shift,
        None if weight is None else channels("weight", weight, x),
        None if bias is None else channels("bias", bias, x),
    )
    stream, y = apply(x, f, tensors, spec)
    stream = x if f is None else stream
    return stream, stream if norm is None else y


def _make_spec(
    norm: str | None,
    eps: float,
    x_dtype: torch.dtype,
    f_dtype: torch.dtype | None,
    stream_dtype: torch.dtype | None,
    y_dtype: torch.dtype | None,
    rounding: str,
    backend: str,
    device: str,
    width: int,
) -> GateSpec:
    """Check every argument that is not a tensor, and choose the backend."""
    expect_choice("backend", backend, BACKENDS)
    if norm is not None and norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    expect_choice("rounding", rounding, ROUNDINGS)
    check_width(width)
    if not 0 <= eps < math.inf:
        raise UsageError(f"eps must be finite and at least 0, got {eps}.")
    if f_dtype is None and stream_dtype not in (None, x_dtype):
        raise UsageError("without f the stream is x, which keeps its dtype: drop stream_dtype.")
    has_branch = f_dtype is not None
    f_dtype = x_dtype if f_dtype is None else f_dtype
    if not (x_dtype.is_floating_point and f_dtype.is_floating_point):
        raise UsageError(f"x and f must be floating point, got {x_dtype} and {f_dtype}: convert them with .float().")
    stream_dtype, y_dtype = stream_dtype or x_dtype, y_dtype or f_dtype
    for name, dtype in (("stream_dtype", stream_dtype), ("y_dtype", y_dtype)):
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UsageError(f"{name} must be a floating-point dtype such as torch.float32, got {dtype}.")
    chosen = choose_backend(device, (x_dtype, f_dtype, stream_dtype, y_dtype), width, backend).backend
    return GateSpec(norm or "none", eps, x_dtype, f_dtype, stream_dtype, y_dtype, has_branch, rounding, chosen)


_cached_spec = functools.lru_cache(maxsize=1024)(_make_spec)


def _factors(x: Tensor, **factors: Tensor | None) -> list[Tensor | None]:
    """The factors as samples × features, with as many samples as the factor that distinguishes most."""
    leading = {name: _leading(name, factor, x) for name, factor in factors.items() if factor is not None}
    deepest = max([0, *leading.values()])
    return [
        None if factor is None else _by_sample(factor, x, leading[name], deepest) for name, factor in factors.items()
    ]


def _leading(name: str, factor: Tensor, x: Tensor) -> int:
    """The number of leading dimensions of x that a factor distinguishes.

    Raises:
        UsageError: If its shape does not start with dimensions of x, or it is on another device.
    """
    check_tensor(name, factor, x)
    leading = factor.shape[:-1]
    if factor.dim() == x.dim():  # [batch, 1, width]
        while leading and leading[-1] == 1:
            leading = leading[:-1]
    if not factor.dim() or factor.shape[-1] != x.shape[-1] or leading != x.shape[: len(leading)]:
        raise UsageError(
            f"{name} must have one row of {x.shape[-1]} features for each sample of x of shape {tuple(x.shape)}, such "
            f"as {(*x.shape[:1], x.shape[-1])}, got {tuple(factor.shape)}."
        )
    return len(leading)


def _by_sample(factor: Tensor, x: Tensor, leading: int, deepest: int) -> Tensor:
    """A factor as samples × features; consecutive rows of x belong to one sample."""
    samples, width = x.shape[:deepest], x.shape[-1]
    if leading < deepest:
        factor = factor.reshape(*x.shape[:leading], *[1] * (deepest - leading), width).expand(*samples, width)
    rows = factor.reshape(samples.numel(), width)
    return rows if rows.stride(1) == 1 or width == 1 else rows.contiguous()
