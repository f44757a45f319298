"""The relations as PyTorch operators, with their gradients and shapes, and the choice of what computes them."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.relation import pair_reference, scan_reference
from normplace.ops.relation.plain import Rule, weights, wide

BACKENDS = ("auto", "reference", "triton")
# A program of the scan's kernels holds whole rows, and there are only so many registers.
WIDEST_ROW = 16_384
_SCAN = "str norm, bool post_norm, float eps, bool causal, int heads, bool mean, str backend"
_PAIR = "str norm, str activation, float eps, bool causal, int heads, bool mean, str backend"


@functools.cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def choose(a: Tensor, asked: str) -> str:
    """What computes a relation.

    Args:
        a: One of the inputs.
        asked: One of :data:`BACKENDS`; ``auto`` takes the fastest there is.

    Raises:
        UsageError: If what was asked for cannot do it.
    """
    fits = a.dtype != torch.float64 and a.shape[2] <= WIDEST_ROW
    if asked == "auto":
        return "triton" if a.device.type == "cuda" and fits and _triton_installed() else "reference"
    if asked == "triton":
        if a.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise UsageError("the Triton kernels need a CUDA GPU, or TRITON_INTERPRET=1 set before Python starts.")
        if not _triton_installed():
            raise UsageError("triton is not installed: pip install triton, or leave backend at 'auto'.")
        if not fits:
            raise UsageError(
                f"the Triton kernels take float32, bfloat16 or float16 of up to {WIDEST_ROW} channels, got {a.dtype} "
                f"of {a.shape[2]}: leave backend at 'auto'."
            )
    return asked


@torch.library.custom_op(
    "normplace::relation_scan", mutates_args=(), schema=f"(Tensor a, Tensor b, Tensor? weight, {_SCAN}) -> Tensor"
)
def scan(a: Tensor, b: Tensor, weight: Tensor | None, *options) -> Tensor:
    """The relation of every row, in the dtype of a."""
    rule, backend = _scan_rule(*options)
    if choose(a, backend) == "triton":
        from normplace.ops.relation import triton_scan

        with torch.cuda.device_of(a):
            return triton_scan.forward(a, b, weight, rule)
    return scan_reference.forward(a, b, _weights(weight, a, rule), rule)


@torch.library.custom_op(
    "normplace::relation_scan_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor a, Tensor b, Tensor? weight, {_SCAN}) -> (Tensor, Tensor)",
)
def scan_backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, *options) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    rule, backend = _scan_rule(*options)
    if choose(a, backend) == "triton":
        from normplace.ops.relation import triton_scan

        with torch.cuda.device_of(a):
            return triton_scan.backward(grad.contiguous(), a, b, weight, rule)
    return scan_reference.backward(grad, a, b, _weights(weight, a, rule), rule)


@torch.library.custom_op(
    "normplace::relation_pairs", mutates_args=(), schema=f"(Tensor a, Tensor b, Tensor? weight, {_PAIR}) -> Tensor"
)
def pairs(a: Tensor, b: Tensor, weight: Tensor | None, *options) -> Tensor:
    """The relation of every row, in float32 or float64."""
    rule, backend = _pair_rule(*options)
    if choose(a, backend) == "triton":
        from normplace.ops.relation import triton_pairs

        with torch.cuda.device_of(a):
            return triton_pairs.forward(a, b, weight, rule)
    return pair_reference.forward(a, b, _weights(weight, a, rule), rule)


@torch.library.custom_op(
    "normplace::relation_pairs_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor a, Tensor b, Tensor? weight, {_PAIR}) -> (Tensor, Tensor)",
)
def pairs_backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, *options) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    rule, backend = _pair_rule(*options)
    if choose(a, backend) == "triton":
        from normplace.ops.relation import triton_pairs

        with torch.cuda.device_of(a):
            da, db = triton_pairs.backward(grad.contiguous(), a, b, weight, rule)
    else:
        da, db = pair_reference.backward(grad, a, b, _weights(weight, a, rule), rule)
    return da.to(a.dtype), db.to(b.dtype)


def _scan_rule(norm, post_norm, eps, causal, heads, mean, backend) -> tuple[Rule, str]:
    return Rule(norm, "exp", post_norm, eps, causal, heads, mean), backend


def _pair_rule(norm, activation, eps, causal, heads, mean, backend) -> tuple[Rule, str]:
    return Rule(norm, activation, False, eps, causal, heads, mean), backend


def _weights(weight: Tensor | None, a: Tensor, rule: Rule) -> Tensor:
    like = a.new_empty(0, dtype=wide(a.dtype))
    return weights(None, a.shape[1], rule, like) if weight is None else weight


@scan.register_fake
def _(a, b, weight, *options):
    return torch.empty_like(a)


@pairs.register_fake
def _(a, b, weight, *options):
    return torch.empty_like(a, dtype=wide(a.dtype))


@scan_backward.register_fake
@pairs_backward.register_fake
def _(grad, a, b, weight, *options):
    return torch.empty_like(a), torch.empty_like(b)


def _save(ctx, inputs, output):
    a, b, weight, *ctx.options = inputs
    ctx.save_for_backward(a, b, weight)


def _differentiate(backward, ctx, grad):
    a, b, weight = ctx.saved_tensors
    da, db = backward(grad, a, b, weight, *ctx.options)
    return da, db, None, *[None] * len(ctx.options)


def _refuse(ctx, *grads):
    raise UsageError("the relations have no second derivative: write the pairs out in plain PyTorch to take one.")


scan.register_autograd(functools.partial(_differentiate, scan_backward), setup_context=_save)
pairs.register_autograd(functools.partial(_differentiate, pairs_backward), setup_context=_save)
scan_backward.register_autograd(_refuse)
pairs_backward.register_autograd(_refuse)
