"""The public norm op and the checks of its arguments."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice
from normplace.ops.checked_calls import CheckedCalls, signature
from normplace.ops.feature_norm.op import FEATURE_NORM, FeatureNormSpec, as_boundary
from normplace.ops.norm_add_norm import composed, reference
from normplace.ops.norm_add_norm.op import BACKENDS, choose_backend
from normplace.ops.norm_add_norm.public import NORMS, channels, check_width
from normplace.ops.norm_add_norm.reference import ROUNDINGS, OptionalTensors
from normplace.ops.tracing import all_plain, is_observed, is_traced


def feature_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    norm: str = "rms",
    eps: float = 1e-6,
    unit_offset: bool = False,
    rounding: str = "once",
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    """Normalize the last dimension in one pass.

    The arithmetic is float32, or float64 if the input is.
    Rows whose squares overflow (in float32 above 1e19) become zeros, as in PyTorch's RMSNorm. The backend ``composed``
    calls PyTorch's norms: LayerNorm gives nan there, and gradients of RMSNorm are wrong above 1e13.

    Args:
        x: Rows, features last.
        weight: The gain, one for each feature.
        bias: The bias, one for each feature.
        norm: ``rms`` or ``layer``.
        eps: Added to the variance.
        unit_offset: Whether the gain is stored minus one, as in Gemma.
        rounding: ``once``, or ``gain`` to round the standardised rows before the gain, as Hugging Face's Llama does,
            to the narrower of the dtypes of x and of the result.
        dtype: Dtype of the result; that of ``x`` by default.
        backend: ``auto``, ``composed`` (PyTorch's own norms), ``reference`` or ``triton``.

    Returns:
        The normalized rows.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Example:
        >>> feature_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]))
        tensor([[0.8485, 2.2627]])
    """
    eps, key = float(eps), None
    if not is_observed():
        key = (norm, eps, unit_offset, rounding, dtype, backend, signature(x, weight, bias))
        spec = _checked.get(key)
        if spec is not None:
            if spec.backend == "composed":
                return composed.normalize(x, weight, bias, as_boundary(spec))
            return FEATURE_NORM.call_unobserved((x, weight, bias), spec)[0]
    if not isinstance(x, Tensor) or not x.dim() or not x.is_floating_point():
        raise UsageError("x must be a floating-point tensor with features in its last dimension.")
    make_spec = _make_spec if is_traced() else _cached_spec  # a tracer cannot see through a cache
    result_dtype = x.dtype if dtype is None else dtype
    spec = make_spec(norm, eps, unit_offset, rounding, x.dtype, result_dtype, backend, x.device.type, x.shape[-1])
    arguments = weight, bias
    weight = None if weight is None else channels("weight", weight, x)
    bias = None if bias is None else channels("bias", bias, x)
    if key is not None and weight is arguments[0] and bias is arguments[1] and all_plain(x, weight, bias):
        _checked.remember(key, spec)
    if spec.backend == "composed":
        return composed.normalize(x, weight, bias, as_boundary(spec))
    if spec.backend == "reference" and torch.compiler.is_compiling():
        tensors = OptionalTensors(None, None, weight, bias, None, None, None, None)
        return reference.normalize(x, tensors, as_boundary(spec))[0]  # the compiler fuses its operations
    return FEATURE_NORM((x, weight, bias), spec)[0]


def _make_spec(
    norm: str,
    eps: float,
    unit_offset: bool,
    rounding: str,
    dtype: torch.dtype,
    result_dtype: torch.dtype,
    backend: str,
    device: str,
    width: int,
) -> FeatureNormSpec:
    expect_choice("backend", backend, BACKENDS)
    expect_choice("norm", norm, NORMS)
    expect_choice("rounding", rounding, ROUNDINGS)
    check_width(width)
    if not 0 <= eps < math.inf:
        raise UsageError(f"eps must be finite and at least 0, got {eps}.")
    if not (isinstance(result_dtype, torch.dtype) and result_dtype.is_floating_point):
        raise UsageError(f"dtype must be a floating-point dtype such as torch.float32, got {result_dtype}.")
    chosen = choose_backend(device, (dtype, result_dtype), width, backend).backend
    return FeatureNormSpec(norm, eps, unit_offset, rounding, dtype, result_dtype, chosen)


_cached_spec = functools.lru_cache(maxsize=1024)(_make_spec)
_checked: CheckedCalls[FeatureNormSpec] = CheckedCalls()
