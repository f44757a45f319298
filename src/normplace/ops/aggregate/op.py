"""The aggregation as PyTorch operators, with their gradients and shapes, and the choice of what computes them."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.aggregate import differentiable, factorised, reference
from normplace.ops.aggregate.neighbours import Half
from normplace.ops.aggregate.reference import Grads, Needs, Rule
from normplace.ops.calling import differentiated, gradients_with_graph, mapped, transformed
from normplace.ops.indices import check_range

BACKENDS = ("auto", "reference", "factorised", "numba", "triton")
# Messages, channel by channel, that plain PyTorch has aggregated long before numba would have compiled anything.
SMALL = 1 << 14
TYPES_START = "types start at 0 and index the rows of the table"
_RULE = "Tensor[] graph, int piece, str kind, str edge_kind, bool relu, float eps, bool semi, str backend"


@functools.cache
def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def choose(device: str, exponent: Tensor, rule: Rule, size: tuple[int, int], asked: str) -> str:
    """What computes the aggregation.

    Args:
        device: Type of the device the rows are on.
        exponent: Temperature or power.
        rule: What is aggregated.
        size: Edges and channels.
        asked: One of :data:`BACKENDS`; ``auto`` takes the fastest there is.

    Raises:
        UsageError: If what was asked for cannot do it.
    """
    if device == "cpu" and bool(exponent.isnan()):
        raise UsageError(
            "the temperature or power is nan: a learned one has diverged, so lower its learning rate or clip it."
        )
    if asked == "auto":
        if device != "cpu":
            return "triton" if device == "cuda" and _installed("triton") else "reference"
        edges, channels = size
        walks = "numba" if edges * channels > SMALL and _installed("numba") else "reference"
        return "factorised" if walks == "reference" and factorised.applies(float(exponent), rule) else walks
    if asked == "factorised" and not (device == "cpu" and factorised.applies(float(exponent), rule)):
        raise UsageError(
            "the factorised form needs a CPU, no edge terms, and a finite temperature or a power over 1/2."
        )
    if asked == "triton" and device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UsageError("the Triton kernels need a CUDA GPU, or TRITON_INTERPRET=1 set before Python starts.")
    if asked == "numba" and device != "cpu":
        raise UsageError("the numba kernels need tensors on a CPU.")
    if asked in ("numba", "triton") and not _installed(asked):
        extra = "pip install 'normplace[graphs]'" if asked == "numba" else "pip install triton"
        raise UsageError(f"{asked} is not installed: {extra}, or leave backend at 'auto'.")
    return asked


def _check_types(edge: Tensor | None, weight: Tensor | None, edge_kind: str) -> None:
    """Refuse edge types that are not rows of the table.

    Inside the operators, so that compiled functions check what they are run with.
    """
    if edge_kind == "table" and edge is not None and weight is not None:
        check_range("edge types", edge, len(weight), TYPES_START)


@torch.library.custom_op(
    "normplace::aggregate",
    mutates_args=(),
    schema=f"(Tensor x, Tensor exponent, Tensor? edge, Tensor? weight, {_RULE}) -> (Tensor, Tensor)",
)
def aggregate(
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    graph: list[Tensor],
    piece: int,
    kind: str,
    edge_kind: str,
    relu: bool,
    eps: float,
    semi: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """The aggregate, and what its gradient needs, in float32 or float64."""
    rule = Rule(kind, edge_kind, relu, eps, semi)
    arriving = Half(*graph[:5])
    chosen = choose(x.device.type, exponent, rule, (len(arriving.indices), x.shape[1]), backend)
    _check_types(edge, weight, edge_kind)
    if not len(arriving.indices) or not x.shape[1]:
        y = x.new_zeros(len(arriving.indptr) - 1, x.shape[1], dtype=_wide(x.dtype))
        return y, torch.zeros_like(y)
    if chosen == "reference":
        return reference.forward(x, exponent, edge, weight, arriving, rule)
    if chosen == "triton":
        from normplace.ops.aggregate import triton

        with torch.cuda.device_of(x):
            return triton.forward(x, exponent, edge, weight, arriving, rule, piece)
    x, edge, weight = _widened(x), _widened(edge), _widened(weight)
    if chosen == "factorised":
        return factorised.forward(x, exponent, arriving, rule)
    from normplace.ops.aggregate import compiled

    return compiled.forward(x, exponent, edge, weight, arriving, rule)


@torch.library.custom_op(
    "normplace::aggregate_backward",
    mutates_args=(),
    schema=f"(Tensor grad, Tensor x, Tensor exponent, Tensor? edge, Tensor? weight, Tensor y, Tensor k, {_RULE}, "
    "bool need_exponent, bool need_edge, bool need_weight) -> (Tensor, Tensor, Tensor, Tensor)",
)
def aggregate_backward(
    grad: Tensor,
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    y: Tensor,
    k: Tensor,
    graph: list[Tensor],
    piece: int,
    kind: str,
    edge_kind: str,
    relu: bool,
    eps: float,
    semi: bool,
    backend: str,
    need_exponent: bool,
    need_edge: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, exponent, dense edge terms and weights; an empty tensor for one that is not needed."""
    rule, needs = Rule(kind, edge_kind, relu, eps, semi), Needs(need_exponent, need_edge, need_weight)
    arriving, leaving = Half(*graph[:5]), Half(*graph[5:])
    chosen = choose(x.device.type, exponent, rule, (len(arriving.indices), x.shape[1]), backend)
    grad = grad.contiguous()
    _check_types(edge, weight, edge_kind)
    if not len(arriving.indices) or not x.shape[1]:
        zeros = (torch.zeros_like(t) if t is not None else None for t in (exponent, edge, weight))
        found = Grads(torch.zeros_like(x), *zeros)
    elif chosen == "reference":
        found = reference.backward(grad, x, exponent, edge, weight, arriving, y, k, rule, needs)
    elif chosen == "triton":
        from normplace.ops.aggregate import triton

        with torch.cuda.device_of(x):
            found = triton.backward(grad, x, exponent, edge, weight, arriving, leaving, y, k, rule, needs, piece)
    else:
        found = _on_cpu(grad, x, exponent, edge, weight, arriving, leaving, y, k, rule, needs, chosen)

    def result(value: Tensor | None, like: Tensor | None, needed: bool) -> Tensor:
        return value.to(like.dtype) if needed and value is not None and like is not None else x.new_empty(0)

    return (
        found.x.to(x.dtype),
        result(found.exponent, exponent, need_exponent),
        result(found.edge, edge, need_edge),
        result(found.weight, weight, need_weight),
    )


def _on_cpu(
    grad: Tensor,
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    arriving: Half,
    leaving: Half,
    y: Tensor,
    k: Tensor,
    rule: Rule,
    needs: Needs,
    chosen: str,
) -> Grads:
    x, edge, weight = _widened(x), _widened(edge), _widened(weight)
    if chosen == "factorised":
        return factorised.backward(grad, x, exponent, arriving, leaving, y, k, rule, needs)
    from normplace.ops.aggregate import compiled

    return compiled.backward(grad, x, exponent, edge, weight, arriving, leaving, y, k, rule, needs)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _widened(tensor):
    return tensor.float() if tensor is not None and tensor.dtype in (torch.bfloat16, torch.float16) else tensor


@aggregate.register_fake
def _(x, exponent, edge, weight, graph, piece, kind, edge_kind, relu, eps, semi, backend):
    y = x.new_empty(graph[0].shape[0] - 1, x.shape[1], dtype=_wide(x.dtype))
    return y, torch.empty_like(y)


@aggregate_backward.register_fake
def _(grad, x, exponent, edge, weight, y, k, graph, piece, kind, edge_kind, relu, eps, semi, backend, *needs):
    found = [torch.empty_like(x)]
    for value, needed in zip((exponent, edge, weight), needs, strict=True):
        found.append(torch.empty_like(value) if needed and value is not None else x.new_empty(0))
    return tuple(found)


def _save(ctx, inputs, output):
    x, exponent, edge, weight, graph, *rule = inputs
    y, k = output
    ctx.mark_non_differentiable(k)
    ctx.set_materialize_grads(False)  # k has no gradient: no zeros of its size for it
    ctx.save_for_backward(x, exponent, edge, weight, y, k, *graph)
    ctx.rule = rule


def _differentiate(ctx, grad, _):
    x, exponent, edge, weight, y, k, *graph = ctx.saved_tensors
    rest = ([None] * len(graph), *[None] * len(ctx.rule))
    if grad is None:
        return None, None, None, None, *rest
    _, kind, edge_kind, relu, eps, semi, _ = ctx.rule
    if differentiated():
        arriving, rule_of = Half(*graph[:5]), Rule(kind, edge_kind, relu, eps, semi)
        found = gradients_with_graph(
            lambda x, t, edge, weight: differentiable.forward(x, t, edge, weight, arriving, rule_of),
            (x, exponent, edge, weight),
            ctx.needs_input_grad[:4],
            grad,
        )
        return *found, *rest
    needs = (
        ctx.needs_input_grad[1],
        ctx.needs_input_grad[2] and edge_kind == "dense",
        ctx.needs_input_grad[3],
    )
    found = aggregate_backward(grad, x, exponent, edge, weight, y, k, graph, *ctx.rule, *needs)
    d_exponent, d_edge, d_weight = (f if need else None for f, need in zip(found[1:], needs, strict=True))
    return found[0], d_exponent, d_edge, d_weight, *rest


aggregate.register_autograd(_differentiate, setup_context=_save)


def apply(
    x: Tensor,
    exponent: Tensor,
    edge: Tensor | None,
    weight: Tensor | None,
    graph: list[Tensor],
    piece: int,
    rule: Rule,
    backend: str,
) -> Tensor:
    """The aggregate, in float32 or float64, by a path that the active transforms can differentiate."""
    if transformed():
        if rule.edge == "table" and edge is not None and mapped(edge):
            raise UsageError("vmap cannot map over edge types: map over the features, or pass the terms themselves.")
        _check_types(edge, weight, rule.edge)
        return differentiable.forward(x, exponent, edge, weight, Half(*graph[:5]), rule)
    return aggregate(
        x, exponent, edge, weight, graph, piece, rule.kind, rule.edge, rule.relu, rule.eps, rule.semi, backend
    )[0]
