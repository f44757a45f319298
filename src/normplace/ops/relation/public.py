"""The relations of whole sequences, and the checks of what they are given."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_whole, unknown
from normplace.ops.relation import op
from normplace.ops.relation.pair_reference import ACTIVATIONS
from normplace.ops.relation.plain import Rule, centre, inverse_root, normalise, weights, wide

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
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
    """The exponential relation of each row with those so far, in time linear in the length.

    ``y_i = 1/count_i · sum_{j <= i} exp(norm(a_i) + norm(b_j))``, a product of ``exp(norm(a_i))`` and a running sum.
    The norm is plain, without gain or bias, over the channels of each head. Without post-norm a number too large for
    the dtype of the inputs is returned as infinity, as ``exp`` would; with it, no intermediate result overflows.

    Args:
        a: B × T × D, of the rows that ask.
        b: B × T × D, of the rows that are summed.
        norm: ``separate`` of each of the two, or ``none``.
        post_norm: Normalize y, over all D channels whatever the heads, with the same eps.
        eps: Added to variances; at 0, numbers that are exactly equal are normalized to 0.
        causal: Sum over the rows so far, or over all.
        heads: Groups of channels that are normalized apart.
        mask: B × T, true for a row that is there: the others add nothing, and get zeros and no gradient.
        mean: Divide by the number of rows summed.
        backend: What computes it: ``auto``, ``reference`` or ``triton``.

    Raises:
        UsageError: If the arguments do not fit each other.

    Example:
        >>> a, b = torch.zeros(1, 3, 2), torch.tensor([[[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> relation_scan(a, b, eps=0.0)
        tensor([[[0.3679, 2.7183],
                 [0.3679, 2.7183],
                 [1.1513, 1.9348]]])
    """
    rule = scan_rule(norm, post_norm, eps, causal, heads, mean)
    weight = checked(a, b, mask, rule, backend)
    return op.apply(op.SCAN, a.contiguous(), b.contiguous(), weight, rule, backend)


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
    """The relation of each row with every row so far, each pair normalized, in time quadratic in the length.

    ``y_i = 1/count_i · sum_{j <= i} act(norm(a_i + b_j))`` for the norm ``joint``, ``act(norm(a_i) + norm(b_j))`` for
    ``separate`` and ``act(a_i + b_j)`` for ``none``. With the exponential the last two factorise, and are computed as
    :func:`relation_scan`. A normalized pair of width D is at most sqrt(D - 1), so nothing overflows in single
    precision below 7,800 channels a head.

    Args:
        a: B × T × D, of the rows that ask.
        b: B × T × D, of the rows that are summed.
        norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` (with the error function) or ``elu``.
        post_norm: Normalize y, over all D channels whatever the heads, with the same eps.
        eps: Added to variances; at 0, a pair whose channels are exactly equal is normalized to 0.
        causal: Sum over the rows so far, or over all.
        heads: Groups of channels that are normalized apart.
        mask: B × T, true for a row that is there: the others add nothing, and get zeros and no gradient.
        mean: Divide by the number of rows summed.
        backend: What computes it: ``auto``, ``reference`` or ``triton``.

    Raises:
        UsageError: If the arguments do not fit each other.

    Example:
        >>> a, b = torch.zeros(1, 3, 2), torch.tensor([[[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]]])
        >>> relation_pairwise(a, b, activation="relu", eps=0.0)
        tensor([[[0.0000, 1.0000],
                 [0.0000, 1.0000],
                 [0.3333, 0.6667]]])
    """
    rule = pair_rule(norm, activation, post_norm, eps, causal, heads, mean)
    weight = checked(a, b, mask, rule, backend)
    if activation == "exp" and norm != "joint":
        return op.apply(op.SCAN, a.contiguous(), b.contiguous(), weight, rule, backend)
    rows = (separated(a, rule), separated(b, rule)) if norm == "separate" else (a.contiguous(), b.contiguous())
    y = op.apply(op.PAIRS, *rows, weight, rule, backend)
    return (normalised_sum(y, eps) if post_norm else y).to(a.dtype)


def scan_rule(norm: str, post_norm: bool, eps: float, causal: bool, heads: int, mean: bool) -> Rule:
    """Which scan; an unknown name is refused."""
    if norm not in SCAN_NORMS:
        raise unknown("norm of a scan", norm, SCAN_NORMS)
    return Rule(norm, "exp", post_norm, eps, causal, heads, mean)


def pair_rule(norm: str, activation: str, post_norm: bool, eps: float, causal: bool, heads: int, mean: bool) -> Rule:
    """Which relation of pairs; an unknown name is refused."""
    if norm not in PAIR_NORMS:
        raise unknown("norm of pairs", norm, PAIR_NORMS)
    if activation not in ACTIVATIONS:
        raise unknown("activation", activation, ACTIVATIONS)
    return Rule(norm, activation, post_norm, eps, causal, heads, mean)


def separated(x: Tensor, rule: Rule) -> Tensor:
    """The norm of each head of a row, in float32 or float64."""
    return normalise(x.to(wide(x.dtype)).unflatten(-1, (rule.heads, -1)), rule.eps)[0].flatten(-2)


def normalised_sum(y: Tensor, eps: float) -> Tensor:
    """The plain norm of y over all channels, divided by its largest entry first so that no square overflows."""
    largest = y.detach().abs().amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    z = centre(y / largest)
    return z * inverse_root(z.square().mean(-1, keepdim=True) + (math.sqrt(eps) / largest).square())


def checked(a: Tensor, b: Tensor, mask: Tensor | None, rule: Rule, backend: str = "auto") -> Tensor | None:
    """The weights of the rows where there is a mask.

    Args:
        a: B × T × D.
        b: B × T × D.
        mask: B × T, or None.
        rule: Which relation.
        backend: What is to compute it.

    Raises:
        UsageError: If they do not fit each other.
    """
    if backend not in op.BACKENDS:
        raise unknown("backend", backend, op.BACKENDS)
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(f"{name} must be batch × time × channels, got {found}.")
        if tensor.dtype not in FLOATS:
            raise UsageError(f"{name} must be floating point, got {tensor.dtype}: convert it with .float().")
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        raise UsageError(
            f"a and b must be alike, got {tuple(a.shape)} of {a.dtype} on {a.device} and {tuple(b.shape)} of {b.dtype} "
            f"on {b.device}: convert with .to()."
        )
    if not a.numel():
        raise UsageError(f"a relation needs at least one sequence of one row and one channel, got {tuple(a.shape)}.")
    if not torch.compiler.is_compiling():
        expect_whole(1, heads=rule.heads)
    if rule.heads < 1 or a.shape[2] % rule.heads:
        raise UsageError(f"{rule.heads} heads do not divide {a.shape[2]} channels: choose a divisor.")
    if not 0 <= rule.eps < math.inf:
        raise UsageError(f"eps must be zero or positive, got {rule.eps}.")
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != a.shape[:2] or mask.dtype != torch.bool or mask.device != a.device:
        found = f"{tuple(mask.shape)} of {mask.dtype} on {mask.device}" if isinstance(mask, Tensor) else repr(mask)
        raise UsageError(f"mask must be {tuple(a.shape[:2])} of torch.bool on {a.device}, got {found}.")
    return weights(mask, a.shape[1], rule, a.new_empty(0, dtype=wide(a.dtype)))
