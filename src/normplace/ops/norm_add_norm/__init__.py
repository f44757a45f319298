"""The boundary between two residual blocks in one pass: the output norm of one, its add, the input norm of the next.

With norms on both sides of the branch (Peri-LN, Kim et al. 2025, arXiv 2502.02732) every boundary is
``x' = x + N_out(F); y = N_in(x')``. Computed piece by piece it moves seven tensors forward, here four.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.ops.calling import traced
from normplace.ops.norm_add_norm.op import BACKENDS, Choice, apply, choose
from normplace.ops.norm_add_norm.reference import Given, Rule

__all__ = ["boundary_backend", "norm_add_norm"]

NORMS = ("rms", "layer")


def norm_add_norm(
    x: Tensor,
    f: Tensor,
    *,
    out_norm: str | None = "rms",
    out_weight: Tensor | None = None,
    out_bias: Tensor | None = None,
    out_eps: float = 1e-6,
    in_norm: str | None = "rms",
    in_weight: Tensor | None = None,
    in_bias: Tensor | None = None,
    in_eps: float = 1e-6,
    unit_offset: bool = False,
    skip_scale: float = 1.0,
    branch_scale: float | Tensor = 1.0,
    dropout: float = 0.0,
    seed: int | Tensor | None = None,
    out_scale: Tensor | None = None,
    in_scale: Tensor | None = None,
    stream_dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Add a branch's normalized output to the stream and normalize the result for the next branch.

    ``stream = skip_scale * x + branch_scale * dropout(out_scale * N_out(f))`` and ``y = in_scale * N_in(stream)``.
    Arithmetic is in float32, or float64 where an input is; y is a function of the stream as it is returned, rounding
    included. Without an inner norm y is the stream itself. Post-norm blocks, whose stream is normalized, go on with y.

    Args:
        x: The stream, features last.
        f: What the branch returned, of the same shape.
        out_norm: The norm of ``f``: ``rms``, ``layer`` or None.
        out_weight: Its gain, one for each feature.
        out_bias: Its shift.
        out_eps: Added to its variance.
        in_norm: The norm of the new stream: ``rms``, ``layer`` or None.
        in_weight: Its gain.
        in_bias: Its shift.
        in_eps: Added to its variance.
        unit_offset: Whether gains are stored less one, as Gemma's are.
        skip_scale: Multiplies ``x``.
        branch_scale: Multiplies the branch: a number, or a tensor of one or one for each feature, which may be learned.
        dropout: The chance that an element of the branch is dropped.
        seed: Which elements are dropped, as a number or an int64 tensor of one; the same everywhere.
        out_scale: A number for each row, after the norm of ``f``.
        in_scale: A number for each row, after the norm of the stream.
        stream_dtype: Dtype of the returned stream; that of ``x`` unless told. y has that of ``f``.
        backend: What computes it: ``auto``, ``composed`` of PyTorch's norms, ``reference`` or ``triton``.

    Returns:
        The stream, and what the next branch reads.

    Raises:
        UsageError: If the arguments do not fit each other.

    Example:
        >>> x, f = torch.tensor([[3.0, 0.0]]), torch.tensor([[10.0, 10.0]])
        >>> norm_add_norm(x, f)
        (tensor([[4., 1.]]), tensor([[1.3720, 0.3430]]))
    """
    if not (isinstance(x, Tensor) and isinstance(f, Tensor)):
        raise UsageError(f"x and f must be tensors, got {type(x).__name__} and {type(f).__name__}.")
    if x.shape != f.shape or not x.dim():
        raise UsageError(f"x and f must have one shape, features last, got {tuple(x.shape)} and {tuple(f.shape)}.")
    _beside("f", f, x)
    branch, factor = (branch_scale, 1.0) if isinstance(branch_scale, Tensor) else (None, branch_scale)
    rule_of = _rule if traced() else _known_rule  # whoever traces sees through no cache
    rule = rule_of(
        out_norm, in_norm, float(out_eps), float(in_eps), unit_offset, float(skip_scale), float(factor),
        float(dropout), x.dtype, f.dtype, stream_dtype, backend, x.device.type, x.shape[-1],
    )  # fmt: skip
    if (out_norm is None and (out_weight is not None or out_bias is not None)) or (
        in_norm is None and (in_weight is not None or in_bias is not None or in_scale is not None)
    ):
        raise UsageError("a gain, shift or inner scale belongs to a norm: name the norm, or drop what belongs to it.")
    given = Given(
        None if out_weight is None else _channels("out_weight", out_weight, x),
        None if out_bias is None else _channels("out_bias", out_bias, x),
        None if in_weight is None else _channels("in_weight", in_weight, x),
        None if in_bias is None else _channels("in_bias", in_bias, x),
        None if branch is None else _branch(branch, x),
        None if out_scale is None else _rows("out_scale", out_scale, x),
        None if in_scale is None else _rows("in_scale", in_scale, x),
        _seed(seed, x) if dropout else None,
    )
    stream, y = apply(x, f, given, rule)
    return stream, stream if in_norm is None else y


def boundary_backend(x: Tensor, f: Tensor | None = None, backend: str = "auto") -> Choice:
    """What :func:`norm_add_norm` computes with for these tensors, and why.

    Args:
        x: The stream.
        f: What the branch returned; taken to be like ``x`` when None.
        backend: As it would be passed.

    Example:
        >>> boundary_backend(torch.ones(2, 8, dtype=torch.float64), backend="reference")
        Choice(backend='reference', reason='the reference form was asked for')
    """
    dtypes = (x.dtype, x.dtype if f is None else f.dtype)
    return choose(x.device.type, dtypes, x.shape[-1], backend)


def _rule(
    out_norm: str | None,
    in_norm: str | None,
    out_eps: float,
    in_eps: float,
    unit_offset: bool,
    skip: float,
    branch: float,
    dropout: float,
    x_dtype: torch.dtype,
    f_dtype: torch.dtype,
    stream_dtype: torch.dtype | None,
    backend: str,
    device: str,
    width: int,
) -> Rule:
    """Everything that is not a tensor, checked."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    for norm in (out_norm, in_norm):
        if norm is not None and norm not in NORMS:
            raise unknown("norm", norm, NORMS)
    if not (x_dtype.is_floating_point and f_dtype.is_floating_point):
        raise UsageError(f"x and f must be floating point, got {x_dtype} and {f_dtype}: convert them with .float().")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must be at least 0 and less than 1, got {dropout}.")
    for name, eps in (("out_eps", out_eps), ("in_eps", in_eps)):
        if not 0 <= eps < math.inf:
            raise UsageError(f"{name} is added to a variance, so it must be zero or positive, got {eps}.")
    for name, factor in (("skip_scale", skip), ("branch_scale", branch)):
        if not math.isfinite(factor):
            raise UsageError(f"{name} must be finite, got {factor}.")
    stream_dtype = x_dtype if stream_dtype is None else stream_dtype
    if not (isinstance(stream_dtype, torch.dtype) and stream_dtype.is_floating_point):
        raise UsageError(f"stream_dtype must be a floating-point dtype such as torch.float32, got {stream_dtype}.")
    chosen = choose(device, (x_dtype, f_dtype, stream_dtype), width, backend).backend
    return Rule(
        out_norm or "none", in_norm or "none", out_eps, in_eps, unit_offset,
        skip, branch, dropout, x_dtype, f_dtype, stream_dtype, chosen,
    )  # fmt: skip


_known_rule = functools.lru_cache(maxsize=1024)(_rule)


def _beside(name: str, tensor: Tensor, x: Tensor) -> None:
    # A kernel is given addresses alone, and reads what it finds there.
    if not isinstance(tensor, Tensor) or tensor.is_complex():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise UsageError(f"{name} must be a tensor of real numbers, got {found}.")
    if tensor.device != x.device:
        raise UsageError(f"{name} must be on {x.device}, where x is, got one on {tensor.device}: move it with .to().")


def _channels(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    _beside(name, tensor, x)
    if tensor.shape != x.shape[-1:]:
        raise UsageError(f"{name} must have one number for each of {x.shape[-1]} features, got {tuple(tensor.shape)}.")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _branch(tensor: Tensor, x: Tensor) -> Tensor:
    if tensor.numel() != 1:
        return _channels("branch_scale", tensor, x)
    tensor = tensor.to(x.device)
    _beside("branch_scale", tensor, x)
    return tensor


def _rows(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    _beside(name, tensor, x)
    if tensor.shape not in (x.shape[:-1], (*x.shape[:-1], 1)):
        raise UsageError(f"{name} must have one number for each row of {tuple(x.shape)}, got {tuple(tensor.shape)}.")
    return tensor.reshape(-1).contiguous()


def _seed(seed: int | Tensor | None, x: Tensor) -> Tensor:
    if seed is None:
        raise UsageError(
            "dropout needs a seed: pass seed=torch.randint(2**62, (), generator=...), a new one each step."
        )
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**63:
            raise UsageError(f"seed must fit into 64 bits, got {seed}.")
        return torch.full((), seed, dtype=torch.int64, device=x.device)
    if not isinstance(seed, Tensor) or seed.numel() != 1 or seed.dtype != torch.int64:
        found = f"{tuple(seed.shape)} of {seed.dtype}" if isinstance(seed, Tensor) else repr(seed)
        raise UsageError(f"seed must be one int64, got {found}.")
    return seed.reshape(()).to(x.device)
