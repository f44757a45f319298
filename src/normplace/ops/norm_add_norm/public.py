"""The public boundary op and the checks of its arguments."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice, unknown
from normplace.ops.backends import BackendChoice
from normplace.ops.checked_calls import CheckedCalls, signature
from normplace.ops.features import describe
from normplace.ops.norm_add_norm.op import BACKENDS, PreparedBoundary, apply, choose_backend, prepare_unobserved
from normplace.ops.norm_add_norm.reference import ROUNDINGS, BoundarySpec, OptionalTensors
from normplace.ops.tracing import all_plain, is_observed, is_traced

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
    y_dtype: torch.dtype | None = None,
    out_rounding: str = "once",
    in_rounding: str = "once",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Add a branch's normalized output to the stream and normalize the result for the next branch.

    ``stream = skip_scale * x + branch_scale * dropout(out_scale * N_out(f))`` and ``y = in_scale * N_in(stream)``.
    The arithmetic is float32, or float64 if an input is. y is computed from the stream as returned, after rounding.
    Rows whose squares overflow (in float32 above 1e19) become zeros, as in PyTorch's RMSNorm. The backend ``composed``
    calls PyTorch's norms: LayerNorm gives nan there, and gradients of RMSNorm are wrong above 1e13.
    Without a next norm (``in_norm=None``) y is the stream itself. Post-norm blocks, whose stream is normalized, use y
    as their stream.

    Args:
        x: The stream, features last.
        f: The branch's output, of the same shape.
        out_norm: The norm of ``f``: ``rms``, ``layer`` or None.
        out_weight: Its gain, one for each feature.
        out_bias: Its bias.
        out_eps: Added to its variance.
        in_norm: The norm of the new stream for the next branch: ``rms``, ``layer`` or None.
        in_weight: Its gain.
        in_bias: Its bias.
        in_eps: Added to its variance.
        unit_offset: Whether gains are stored minus one, as in Gemma.
        skip_scale: Multiplies ``x``.
        branch_scale: Multiplies the branch: a number, or a learnable tensor of one element or one for each feature.
        dropout: Probability that an element of the branch is set to zero.
        seed: Seed of the dropout, a number or an int64 tensor of one element. All backends drop the same elements.
        out_scale: One number for each row, applied after the norm of ``f``.
        in_scale: One number for each row, applied after the norm of the stream.
        stream_dtype: Dtype of the returned stream; that of ``x`` by default.
        y_dtype: Dtype of y; that of ``f`` by default.
        out_rounding: Where the norm of ``f`` rounds to the dtype of ``f``: ``once`` with the sum, ``result`` also
            before the add, ``gain`` also before its gain, as Hugging Face's Llama does, or ``rows`` only before its
            gain, as it does with a float32 gain. Gradients are unaffected.
        in_rounding: The same for the norm of the stream, which rounds to the narrower of the dtypes of stream and y.
            ``once`` and ``result`` are equal, and so are ``gain`` and ``rows``.
        backend: ``auto``, ``composed`` (PyTorch's own norms), ``reference`` or ``triton``.

    Returns:
        The new stream, and the input of the next branch.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> x, f = torch.tensor([[3.0, 0.0]]), torch.tensor([[10.0, 10.0]])
        >>> norm_add_norm(x, f)
        (tensor([[4., 1.]]), tensor([[1.3720, 0.3430]]))
    """
    branch, factor = (branch_scale, 1.0) if isinstance(branch_scale, Tensor) else (None, branch_scale)
    out_eps, in_eps, skip_scale, factor = float(out_eps), float(in_eps), float(skip_scale), float(factor)
    dropout, key = float(dropout), None
    # A seed and scales of rows are created or reshaped in every call.
    if not (dropout or out_scale is not None or in_scale is not None or is_observed()):
        key = (
            out_norm, in_norm, out_eps, in_eps, unit_offset, skip_scale, factor, stream_dtype, y_dtype, out_rounding,
            in_rounding, backend, signature(x, f, out_weight, out_bias, in_weight, in_bias, branch),
        )  # fmt: skip
        boundary = _checked.get(key)
        if boundary is not None:
            stream, y = boundary(x, f, out_weight, out_bias, in_weight, in_bias, branch, None, None, None)
            return stream, stream if in_norm is None else y
    if not (isinstance(x, Tensor) and isinstance(f, Tensor)):
        raise UsageError(f"x and f must be tensors, got {type(x).__name__} and {type(f).__name__}.")
    if x.shape != f.shape or not x.dim():
        raise UsageError(f"x and f must have one shape, features last, got {tuple(x.shape)} and {tuple(f.shape)}.")
    check_tensor("f", f, x)
    make_spec = _make_spec if is_traced() else _cached_spec  # a tracer cannot see through a cache
    spec = make_spec(
        out_norm, in_norm, out_eps, in_eps, unit_offset, skip_scale, factor, dropout, x.dtype, f.dtype,
        stream_dtype, y_dtype, backend, x.device.type, x.shape[-1], out_rounding, in_rounding,
    )  # fmt: skip
    if (out_norm is None and (out_weight is not None or out_bias is not None)) or (
        in_norm is None and (in_weight is not None or in_bias is not None or in_scale is not None)
    ):
        raise UsageError("a weight, a bias and in_scale need a norm: name the norm, or drop them.")
    tensors = OptionalTensors(
        None if out_weight is None else channels("out_weight", out_weight, x),
        None if out_bias is None else channels("out_bias", out_bias, x),
        None if in_weight is None else channels("in_weight", in_weight, x),
        None if in_bias is None else channels("in_bias", in_bias, x),
        None if branch is None else _branch_scale(branch, x),
        None if out_scale is None else _rows("out_scale", out_scale, x),
        None if in_scale is None else _rows("in_scale", in_scale, x),
        _seed(seed, x) if dropout else None,
    )
    arguments = out_weight, out_bias, in_weight, in_bias, branch
    if (
        key is not None
        and all_plain(x, f, *arguments)
        and all(a is b for a, b in zip(tensors, arguments, strict=False))
    ):
        _checked.remember(key, prepare_unobserved(x, f, tensors, spec))
    stream, y = apply(x, f, tensors, spec)
    return stream, stream if in_norm is None else y


def boundary_backend(x: Tensor, f: Tensor | None = None, backend: str = "auto") -> BackendChoice:
    """The backend of :func:`norm_add_norm` for these tensors, and why.

    Args:
        x: The stream.
        f: The branch's output; assumed to be like ``x`` when None.
        backend: The ``backend`` argument of :func:`norm_add_norm`.

    Examples:
        >>> boundary_backend(torch.ones(2, 8, dtype=torch.float64), backend="reference")
        BackendChoice(backend='reference', reason='requested')
    """
    dtypes = (x.dtype, x.dtype if f is None else f.dtype)
    return choose_backend(x.device.type, dtypes, x.shape[-1], backend)


def _make_spec(
    out_norm: str | None,
    next_norm: str | None,
    out_eps: float,
    next_eps: float,
    unit_offset: bool,
    skip_factor: float,
    branch_factor: float,
    dropout: float,
    x_dtype: torch.dtype,
    f_dtype: torch.dtype,
    stream_dtype: torch.dtype | None,
    y_dtype: torch.dtype | None,
    backend: str,
    device: str,
    width: int,
    out_rounding: str,
    next_rounding: str,
) -> BoundarySpec:
    """Check every argument that is not a tensor, and choose the backend."""
    expect_choice("backend", backend, BACKENDS)
    for norm in (out_norm, next_norm):
        if norm is not None and norm not in NORMS:
            raise unknown("norm", norm, NORMS)
    for rounding in (out_rounding, next_rounding):
        expect_choice("rounding", rounding, ROUNDINGS)
    check_width(width)
    if not (x_dtype.is_floating_point and f_dtype.is_floating_point):
        raise UsageError(f"x and f must be floating point, got {x_dtype} and {f_dtype}: convert them with .float().")
    if not 0 <= dropout < 1:
        raise UsageError(f"dropout must be at least 0 and less than 1, got {dropout}.")
    for name, eps in (("out_eps", out_eps), ("in_eps", next_eps)):
        if not 0 <= eps < math.inf:
            raise UsageError(f"{name} must be finite and at least 0, got {eps}.")
    for name, factor in (("skip_scale", skip_factor), ("branch_scale", branch_factor)):
        if not math.isfinite(factor):
            raise UsageError(f"{name} must be finite, got {factor}.")
    stream_dtype = x_dtype if stream_dtype is None else stream_dtype
    y_dtype = f_dtype if y_dtype is None else y_dtype
    for name, dtype in (("stream_dtype", stream_dtype), ("y_dtype", y_dtype)):
        if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UsageError(f"{name} must be a floating-point dtype such as torch.float32, got {dtype}.")
    chosen = choose_backend(device, (x_dtype, f_dtype, stream_dtype, y_dtype), width, backend).backend
    return BoundarySpec(
        out_norm or "none", next_norm or "none", out_eps, next_eps, unit_offset,
        skip_factor, branch_factor, dropout, x_dtype, f_dtype, stream_dtype, y_dtype, chosen,
        out_rounding, next_rounding,
    )  # fmt: skip


_cached_spec = functools.lru_cache(maxsize=1024)(_make_spec)
_checked: CheckedCalls[PreparedBoundary] = CheckedCalls()


def check_width(width: int) -> None:
    """Raise an error for rows without features.

    Raises:
        UsageError: If the width is zero.
    """
    if width < 1:
        raise UsageError("x must have at least one feature in its last dimension, got none.")


def check_tensor(name: str, tensor: Tensor, x: Tensor) -> None:
    """Raise an error for anything but real numbers on the device of x.

    Raises:
        UsageError: If it is something else.
    """
    # A kernel receives addresses alone, so a tensor on another device would be read as garbage.
    if not isinstance(tensor, Tensor) or tensor.is_complex():
        raise UsageError(f"{name} must be a tensor of real numbers, got {describe(tensor)}.")
    if tensor.device != x.device:
        raise UsageError(f"{name} must be on {x.device}, like x, got {tensor.device}: move it with .to().")


def channels(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    """A tensor with one number for each feature of x, contiguous.

    Raises:
        UsageError: If it has another shape or is on another device.
    """
    check_tensor(name, tensor, x)
    if tensor.shape != x.shape[-1:]:
        raise UsageError(f"{name} must have one number for each of {x.shape[-1]} features, got {tuple(tensor.shape)}.")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _branch_scale(tensor: Tensor, x: Tensor) -> Tensor:
    if tensor.numel() != 1:
        return channels("branch_scale", tensor, x)
    tensor = tensor.to(x.device)
    check_tensor("branch_scale", tensor, x)
    return tensor if tensor.dim() <= x.dim() else tensor.reshape(())  # or the result would have its axes


def _rows(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    check_tensor(name, tensor, x)
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
        raise UsageError(f"seed must be an integer or an int64 tensor of one element, got {describe(seed)}.")
    return seed.reshape(()).to(x.device)
