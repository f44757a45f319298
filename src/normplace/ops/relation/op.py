"""The relations as PyTorch operators, with their gradients and shapes, and the choice of what computes them.

The same two passes are reached in two ways: through operators that ``torch.compile`` and dispatch modes see, and
straight through an autograd function otherwise, which spares a small tensor the cost of dispatch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.calling import differentiated, gradients_with_graph, on_its_device, plain, traced, transformed
from normplace.ops.relation import differentiable, pair_reference, scan_reference
from normplace.ops.relation.plain import Rule, weights, wide

BACKENDS = ("auto", "reference", "triton")
# A program of the scan's kernels holds whole rows, and there are only so many registers.
WIDEST_ROW = 16_384
_RULE = "str norm, str activation, bool post_norm, float eps, bool causal, int heads, bool mean, str backend"


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


@functools.cache
def _kernels(name: str) -> Any:
    return importlib.import_module(f"normplace.ops.relation.{name}")


def compute_scan(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule, backend: str) -> Tensor:
    """The relation of every row, in the dtype of a."""
    if choose(a, backend) == "reference":
        return scan_reference.forward(a, b, _weights(weight, a, rule), rule)
    return on_its_device(a, _kernels("triton_scan").forward, a, b, weight, rule)


def compute_scan_backward(
    grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule, backend: str
) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    if choose(a, backend) == "reference":
        return scan_reference.backward(grad, a, b, _weights(weight, a, rule), rule)
    grad = grad.to(a.dtype).contiguous()
    return on_its_device(a, _kernels("triton_scan").backward, grad, a, b, weight, rule)


def compute_pairs(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule, backend: str) -> Tensor:
    """The relation of every row before its post-norm: in float32 or float64 if there is one, or else as a."""
    if choose(a, backend) == "reference":
        y = pair_reference.forward(a, b, _weights(weight, a, rule), rule)
        return y if rule.post_norm else y.to(a.dtype)
    return on_its_device(a, _kernels("triton_pairs").forward, a, b, weight, rule)


def compute_pairs_backward(
    grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule, backend: str
) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    if choose(a, backend) == "reference":
        da, db = pair_reference.backward(grad, a, b, _weights(weight, a, rule), rule)
        return da.to(a.dtype), db.to(b.dtype)
    grad = grad.to(wide(a.dtype) if rule.post_norm else a.dtype).contiguous()
    return on_its_device(a, _kernels("triton_pairs").backward, grad, a, b, weight, rule)


def _weights(weight: Tensor | None, a: Tensor, rule: Rule) -> Tensor:
    like = a.new_empty(0, dtype=wide(a.dtype))
    return weights(None, a.shape[1], rule, like) if weight is None else weight


@torch.library.custom_op(
    "normplace::relation_scan", mutates_args=(), schema=f"(Tensor a, Tensor b, Tensor? weight, {_RULE}) -> Tensor"
)
def scan(a: Tensor, b: Tensor, weight: Tensor | None, *options) -> Tensor:
    """What :func:`compute_scan` returns."""
    return compute_scan(a, b, weight, Rule(*options[:-1]), options[-1])


@torch.library.custom_op(
    "normplace::relation_scan_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor a, Tensor b, Tensor? weight, {_RULE}) -> (Tensor, Tensor)",
)
def scan_backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, *options) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    return compute_scan_backward(grad, a, b, weight, Rule(*options[:-1]), options[-1])


@torch.library.custom_op(
    "normplace::relation_pairs", mutates_args=(), schema=f"(Tensor a, Tensor b, Tensor? weight, {_RULE}) -> Tensor"
)
def pairs(a: Tensor, b: Tensor, weight: Tensor | None, *options) -> Tensor:
    """What :func:`compute_pairs` returns."""
    return compute_pairs(a, b, weight, Rule(*options[:-1]), options[-1])


@torch.library.custom_op(
    "normplace::relation_pairs_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor a, Tensor b, Tensor? weight, {_RULE}) -> (Tensor, Tensor)",
)
def pairs_backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, *options) -> tuple[Tensor, Tensor]:
    """Gradients of a and b."""
    return compute_pairs_backward(grad, a, b, weight, Rule(*options[:-1]), options[-1])


@scan.register_fake
def _(a, b, weight, *options):
    return torch.empty_like(a)


@pairs.register_fake
def _(a, b, weight, *options):
    return torch.empty_like(a, dtype=wide(a.dtype) if Rule(*options[:-1]).post_norm else a.dtype)


@scan_backward.register_fake
@pairs_backward.register_fake
def _(grad, a, b, weight, *options):
    return torch.empty_like(a), torch.empty_like(b)


def _save(ctx, inputs, output):
    a, b, weight, *ctx.options = inputs
    ctx.save_for_backward(a, b, weight)


def _differentiate(passes, ctx, grad):
    a, b, weight = ctx.saved_tensors
    if differentiated():
        da, db = _gradients_with_graph(ctx, passes, Rule(*ctx.options[:-1]), grad)
    else:
        da, db = passes.operator_backward(grad, a, b, weight, *ctx.options)
    return da, db, None, *[None] * len(ctx.options)


def _gradients_with_graph(ctx, passes, rule, grad):
    a, b, weight = ctx.saved_tensors
    weight = _weights(weight, a, rule)
    return gradients_with_graph(
        lambda a, b: passes.differentiable(a, b, weight, rule), (a, b), ctx.needs_input_grad[:2], grad
    )


class Passes(NamedTuple):
    """A relation and its gradients, called directly, as operators, and differentiable by PyTorch."""

    forward: Callable[..., Tensor]
    backward: Callable[..., tuple[Tensor, Tensor]]
    operator: Callable[..., Tensor]
    operator_backward: Callable[..., tuple[Tensor, Tensor]]
    differentiable: Callable[..., Tensor]


SCAN = Passes(compute_scan, compute_scan_backward, scan, scan_backward, differentiable.scan)
PAIRS = Passes(compute_pairs, compute_pairs_backward, pairs, pairs_backward, differentiable.pairs)
scan.register_autograd(functools.partial(_differentiate, SCAN), setup_context=_save)
pairs.register_autograd(functools.partial(_differentiate, PAIRS), setup_context=_save)


class _Relation(torch.autograd.Function):
    """The same without the dispatcher; a ``setup_context`` of its own would have the arguments bound by inspection."""

    @staticmethod
    def forward(ctx, a, b, weight, passes, rule, backend):
        ctx.save_for_backward(a, b, weight)
        ctx.how = passes, rule, backend
        return passes.forward(a, b, weight, rule, backend)

    @staticmethod
    def backward(ctx, *grads):
        passes, rule, backend = ctx.how
        if differentiated():
            da, db = _gradients_with_graph(ctx, passes, rule, *grads)
        elif traced():
            da, db = passes.operator_backward(*grads, *ctx.saved_tensors, *rule, backend)
        else:
            da, db = passes.backward(*grads, *ctx.saved_tensors, rule, backend)
        return da, db, None, None, None, None


# Less what ``apply`` of every function looks for: transforms, which have been looked for already.
_straight = cast(Any, super(torch.autograd.Function, _Relation)).apply


def apply(passes: Passes, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule, backend: str) -> Tensor:
    """The relation, by the shortest way that whoever watches permits."""
    if transformed():
        return passes.differentiable(a, b, _weights(weight, a, rule), rule)
    if traced() or not plain(a, b, weight):
        return passes.operator(a, b, weight, *rule, backend)
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        return _straight(a, b, weight, passes, rule, backend)
    return passes.forward(a, b, weight, rule, backend)
