"""The public relations of whole sequences and the checks of their arguments."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice, expect_whole
from normplace.ops.features import FLOATS, compute_dtype, describe
from normplace.ops.relation.common import RelationSpec, centre, inverse_root, normalise, row_weights
from normplace.ops.relation.op import BACKENDS, PAIRS, SCAN
from normplace.ops.relation.pair_reference import ACTIVATIONS

SCAN_NORMS = ("separate", "none")
PAIR_NORMS = ("joint", "separate", "none")


def relation_scan(
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "separate",
    post_norm: bool = False,
    eps: float = 1e-5,
    causal: bool = True,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Exponential relation of each row with the rows so far, in linear time.

    ``y_i = 1/count_i · sum_{j <= i} exp(norm(a_i) + norm(b_j))``, a product of ``exp(norm(a_i))`` and a running sum.
    The norm has no gain or bias and runs over the channels of each head. Without ``post_norm`` a value too large for
    the dtype of the inputs becomes infinity, as with ``exp``; with it, no intermediate result overflows. With an eps,
    rows whose squares overflow (in float32 above 1e19) give nan.

    Args:
        a: Queries, B × T × D.
        b: Keys, B × T × D.
        norm: ``separate`` (of a and of b) or ``none``.
        post_norm: Normalize y over all D channels, across heads, with the same eps.
        eps: Added to variances. At 0, values that are exactly equal are normalized to 0; by the Triton kernels also
            values below 1e-19, whose squares underflow.
        causal: Sum over the rows so far instead of all rows.
        heads: Groups of channels that are normalized separately.
        mask: B × T, true for valid rows. The others are not summed, and get zeros and no gradient.
        mean: Divide by the number of summed rows.
        backend: ``auto``, ``reference``, ``numba`` (on a CPU) or ``triton``.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> a, b = torch.zeros(1, 3, 2), torch.tensor([[[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> relation_scan(a, b, eps=0.0)
        tensor([[[0.3679, 2.7183],
                 [0.3679, 2.7183],
                 [1.1513, 1.9348]]])
    """
    spec = scan_spec(norm, post_norm, eps, causal, heads, mean, backend)
    weight = check_inputs(a, b, mask, spec)
    return SCAN((a.contiguous(), b.contiguous(), weight), spec)[0]


def relation_pairwise(
    a: Tensor,
    b: Tensor,
    *,
    norm: str = "joint",
    activation: str = "exp",
    post_norm: bool = False,
    eps: float = 1e-5,
    causal: bool = True,
    heads: int = 1,
    mask: Tensor | None = None,
    mean: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Relation of each row with every row so far, each pair normalized, in quadratic time.

    ``y_i = 1/count_i · sum_{j <= i} act(norm(a_i + b_j))`` for the norm ``joint``, ``act(norm(a_i) + norm(b_j))`` for
    ``separate`` and ``act(a_i + b_j)`` for ``none``. With the exponential the last two factorise and are computed by
    :func:`relation_scan`. A normalized pair of width D is at most sqrt(D - 1), so nothing overflows in float32 below
    7,800 channels per head. With an eps, rows whose squares overflow (in float32 above 1e19) give nan.

    Args:
        a: Queries, B × T × D.
        b: Keys, B × T × D.
        norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` (with the error function) or ``elu``.
        post_norm: Normalize y over all D channels, across heads, with the same eps.
        eps: Added to variances. At 0, a pair whose channels are exactly equal is normalized to 0.
        causal: Sum over the rows so far instead of all rows.
        heads: Groups of channels that are normalized separately.
        mask: B × T, true for valid rows. The others are not summed, and get zeros and no gradient.
        mean: Divide by the number of summed rows.
        backend: ``auto``, ``reference``, ``numba`` (on a CPU) or ``triton``.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> a, b = torch.zeros(1, 3, 2), torch.tensor([[[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> relation_pairwise(a, b, activation="relu", eps=0.0)
        tensor([[[0.0000, 1.0000],
                 [0.0000, 1.0000],
                 [0.3333, 0.6667]]])
    """
    spec = pair_spec(norm, activation, post_norm, eps, causal, heads, mean, backend)
    weight = check_inputs(a, b, mask, spec)
    if activation == "exp" and norm != "joint":
        return SCAN((a.contiguous(), b.contiguous(), weight), spec)[0]
    rows = (norm_heads(a, spec), norm_heads(b, spec)) if norm == "separate" else (a.contiguous(), b.contiguous())
    (y,) = PAIRS((*rows, weight), spec)
    return (apply_post_norm(y, eps) if post_norm else y).to(a.dtype)


def scan_spec(
    norm: str, post_norm: bool, eps: float, causal: bool, heads: int, mean: bool, backend: str = "auto"
) -> RelationSpec:
    """The spec of a scan, after a check of the names."""
    expect_choice("norm of a scan", norm, SCAN_NORMS)
    return RelationSpec(norm, "exp", post_norm, eps, causal, heads, mean, backend)


def pair_spec(
    norm: str,
    activation: str,
    post_norm: bool,
    eps: float,
    causal: bool,
    heads: int,
    mean: bool,
    backend: str = "auto",
) -> RelationSpec:
    """The spec of a pairwise relation, after a check of the names."""
    expect_choice("norm of pairs", norm, PAIR_NORMS)
    expect_choice("activation", activation, ACTIVATIONS)
    return RelationSpec(norm, activation, post_norm, eps, causal, heads, mean, backend)


def norm_heads(x: Tensor, spec: RelationSpec) -> Tensor:
    """The norm over the channels of each head, in float32 or float64."""
    return normalise(x.to(compute_dtype(x.dtype)).unflatten(-1, (spec.heads, -1)), spec.eps)[0].flatten(-2)


def apply_post_norm(y: Tensor, eps: float) -> Tensor:
    """The norm of y over all channels; y is divided by its largest entry first so that no square overflows."""
    largest = y.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    z = centre(y / largest)
    return z * inverse_root(z.square().mean(-1, keepdim=True) + (math.sqrt(eps) / largest).square())


def check_inputs(a: Tensor, b: Tensor, mask: Tensor | None, spec: RelationSpec) -> Tensor | None:
    """Check the arguments of a relation and return the weights of the rows if there is a mask.

    Args:
        a: B × T × D.
        b: B × T × D.
        mask: B × T, or None.
        spec: Every other argument.

    Raises:
        UsageError: If an argument is invalid.
    """
    expect_choice("backend", spec.backend, BACKENDS)
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            raise UsageError(f"{name} must be batch × time × channels, got {describe(tensor)}.")
        if tensor.dtype not in FLOATS:
            raise UsageError(f"{name} must be floating point, got {tensor.dtype}: convert it with .float().")
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        raise UsageError(
            f"a and b must have the same shape, dtype and device, got {describe(a)} on {a.device} and {describe(b)} on "
            f"{b.device}: convert with .to()."
        )
    if not a.numel():
        raise UsageError(f"a must have at least one sequence, one row and one channel, got {tuple(a.shape)}.")
    if not torch.compiler.is_compiling():
        expect_whole(1, heads=spec.heads)
    if spec.heads < 1 or a.shape[2] % spec.heads:
        raise UsageError(f"{spec.heads} heads do not divide {a.shape[2]} channels: choose a divisor.")
    if not 0 <= spec.eps < math.inf:
        raise UsageError(f"eps must be finite and at least 0, got {spec.eps}.")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != a.shape[:2] or mask.dtype != torch.bool or mask.device != a.device:
        place = f" on {mask.device}" if isinstance(mask, Tensor) else ""
        raise UsageError(f"mask must be {tuple(a.shape[:2])} of torch.bool on {a.device}, got {describe(mask)}{place}.")
    like = a.new_empty(0, dtype=compute_dtype(a.dtype))
    return row_weights(mask, a.shape[1], spec, like).contiguous()  # otherwise in the layout of the mask
