"""The boundary as PyTorch operators with their gradients, and the choice of what computes them.

The same two passes are reached in two ways: through operators that ``torch.compile`` and dispatch modes see, and
straight through an autograd function otherwise, which spares a small tensor the cost of dispatch.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.calling import on_its_device, plain, traced, transformed
from normplace.ops.norm_add_norm import composed, reference
from normplace.ops.norm_add_norm.reference import Given, Grads, Needs, Rule

BACKENDS = ("auto", "composed", "reference", "triton")
# Wider rows do not fit the registers of one program.
WIDEST = 16384
TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HALVES_AND_SINGLE = (torch.bfloat16, torch.float16, torch.float32)
_GIVEN = ", ".join(f"Tensor? {name}" for name in Given._fields)
_RULE = (
    "str out_norm, str in_norm, float out_eps, float in_eps, bool unit_offset, float skip, float branch_value, "
    "float dropout, ScalarType x_dtype, ScalarType f_dtype, ScalarType stream_dtype, str backend"
)


class Choice(NamedTuple):
    """What computes a boundary, and why."""

    backend: str
    reason: str


def choose(device: str, dtypes: tuple[torch.dtype, ...], width: int, asked: str = "auto") -> Choice:
    """What computes the boundary.

    Args:
        device: Type of the device the rows are on.
        dtypes: Of the stream, the branch and the stream to return.
        width: Of a row.
        asked: One of :data:`BACKENDS`; ``auto`` takes the kernels wherever they run, and what is fastest elsewhere.

    Raises:
        UsageError: If the kernels were asked for and cannot run.
    """
    if asked in ("composed", "reference"):
        return Choice(asked, f"the {asked} form was asked for")
    why_not = None
    if not TRITON:
        why_not = "Triton is not installed (pip install triton)"
    elif device != "cuda" and not (asked == "triton" and INTERPRETED):
        why_not = f"the kernels need a CUDA GPU and the rows are on {device}"
    elif any(dtype not in HALVES_AND_SINGLE for dtype in dtypes):
        why_not = "the kernels compute in float32 and a tensor is float64"
    elif width > WIDEST:
        why_not = f"a row of {width} is wider than the {WIDEST} that fit the registers of one program"
    if why_not is None:
        return Choice("triton", "one pass forward and one backward by Triton")
    if asked == "triton":
        raise UsageError(f"the fused boundary cannot run: {why_not}; leave backend at 'auto'.")
    # In a half the pieces round where the boundary does not.
    one = len(set(dtypes)) == 1 and dtypes[0] in (torch.float32, torch.float64)
    return Choice("composed" if device == "cpu" and one else "reference", why_not)


@functools.cache
def _kernels() -> Any:
    from normplace.ops.norm_add_norm import triton

    return triton


def compute(x: Tensor, f: Tensor, given: Given, rule: Rule, kept: bool = True) -> tuple[Tensor, Tensor, Any]:
    """The stream, what the next branch reads (empty without an inner norm), and the statistics of the rows.

    Statistics that will not be kept for a backward pass may be None.
    """
    if rule.backend == "reference" or not x.numel():
        return reference.forward(x, f, given, rule)
    return on_its_device(x, _kernels().forward, x, f, given, rule, kept)


def compute_backward(
    d_stream: Tensor | None,
    d_y: Tensor | None,
    stream: Tensor | None,
    f: Tensor | None,
    stats: Tensor,
    given: Given,
    rule: Rule,
    needs: Needs,
) -> Grads:
    """The gradients that are needed."""
    like = d_stream if d_stream is not None else d_y
    assert like is not None
    if rule.backend == "reference" or not like.numel():
        return reference.backward(d_stream, d_y, stream, f, stats, given, rule, needs)
    return on_its_device(like, _kernels().backward, d_stream, d_y, stream, f, stats, given, rule, needs)


@torch.library.custom_op(
    "normplace::norm_add_norm",
    mutates_args=(),
    schema=f"(Tensor x, Tensor f, {_GIVEN}, {_RULE}) -> (Tensor, Tensor, Tensor)",
)
def boundary(x, f, *rest):
    """What :func:`compute` returns."""
    return compute(x, f, Given(*rest[:8]), Rule(*rest[8:]))


@boundary.register_fake
def _(x, f, *rest):
    rule = Rule(*rest[8:])
    stats = x.new_empty((x.shape[:-1].numel(), rule.num_statistics), dtype=rule.wide)
    y = f.new_empty(f.shape if rule.in_norm != "none" else 0)
    return x.new_empty(x.shape, dtype=rule.stream_dtype), y, stats


@torch.library.custom_op(
    "normplace::norm_add_norm_backward",
    mutates_args=(),
    schema=f"(Tensor? d_stream, Tensor? d_y, Tensor? stream, Tensor? f, Tensor stats, {_GIVEN}, {_RULE}, "
    f"bool[] needs) -> ({', '.join(['Tensor'] * len(Needs._fields))})",
)
def boundary_backward(d_stream, d_y, stream, f, stats, *rest):
    """The gradients, with an empty tensor for one that is not needed."""
    given, rule, needs = Given(*rest[:8]), Rule(*rest[8:-1]), Needs(*rest[-1])
    found = compute_backward(d_stream, d_y, stream, f, stats, given, rule, needs)
    return tuple(stats.new_empty(0) if value is None else value for value in found)


@boundary_backward.register_fake
def _(d_stream, d_y, stream, f, stats, *rest):
    given, rule, needs = Given(*rest[:8]), Rule(*rest[8:-1]), Needs(*rest[-1])
    rows = d_stream if d_stream is not None else d_y
    found = [rows.new_empty(rows.shape, dtype=dtype) for dtype in (rule.x_dtype, rule.f_dtype)]
    found += [stats.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in given[:7]]
    return tuple(value if need else stats.new_empty(0) for value, need in zip(found, needs, strict=True))


class Division(NamedTuple):
    """How the gradients of a boundary are come by: what would be written unchanged is passed on instead."""

    asked: Needs
    """What is computed."""
    passes: bool
    """Whether the gradient of x is that of the stream."""
    shares: bool
    """Whether the gradient of f is that of x."""


@functools.lru_cache(maxsize=1024)
def _division(rule: Rule, wanted: tuple[bool, ...], bare: bool, through_stream: bool) -> Division:
    """Of the gradients wanted.

    Args:
        rule: Of the boundary.
        wanted: In the order of :class:`Needs`.
        bare: Whether no tensor acts on the branch.
        through_stream: Whether there is no gradient of what the next branch reads.
    """
    needs = Needs(*wanted)
    passes = through_stream and rule.skip == 1
    shares = bare and rule.out_norm == "none" and not rule.dropout and rule.branch == rule.skip
    shares = shares and needs.f and rule.f_dtype == rule.x_dtype
    asked = needs._replace(
        x=(needs.x or shares) and not passes,
        f=needs.f and not shares,
        in_weight=needs.in_weight and not through_stream,
        in_bias=needs.in_bias and not through_stream,
        in_scale=needs.in_scale and not through_stream,
    )
    return Division(asked, passes, shares)


def _save(ctx, f, given, rule, stream, stats):
    ctx.set_materialize_grads(False)
    needs = ctx.needs_input_grad
    reads_f = rule.out_norm != "none" or needs[6] or needs[7]
    reads_stream = rule.in_norm != "none"
    ctx.save_for_backward(stream if reads_stream else None, f if reads_f else None, stats, *given)
    ctx.rule = rule


def _differentiate(ctx, d_stream, d_y, *, as_operator) -> tuple[Tensor | None, ...]:
    """The gradients of tensors, the seed included."""
    stream, f, stats, *rest = ctx.saved_tensors
    given, rule, wanted = Given(*rest), ctx.rule, ctx.needs_input_grad[:9]
    if rule.in_norm == "none":
        d_y = None
    if d_stream is None and d_y is None:
        return (None,) * 10
    if torch.is_grad_enabled():  # the gradients will be differentiated in turn
        return *reference.backward(d_stream, d_y, stream, f, None, given, rule, Needs(*wanted)), None
    bare = given.out_weight is None and given.out_bias is None and given.branch is None and given.out_scale is None
    asked, passes, shares = _division(rule, wanted, bare, d_y is None)
    found = _NOTHING
    if True in asked:
        saved = (d_stream, d_y, stream if d_y is not None else None, f, stats)
        if as_operator or torch._C._len_torch_dispatch_stack():
            values = boundary_backward(*saved, *given, *rule, list(asked))
            found = Grads(*(value if need else None for value, need in zip(values, asked, strict=True)))
        else:
            found = compute_backward(*saved, given, rule, asked)
    if not (passes or shares):
        return *found, None
    dx = d_stream.to(rule.x_dtype) if passes and d_stream is not None else found.x
    return dx if wanted[0] else None, dx if shares else found.f, *found[2:], None


_NOTHING = Grads(*[None] * 9)


def _save_operator(ctx, inputs, output):
    _, f, *rest = inputs
    stream, _, stats = output
    ctx.mark_non_differentiable(stats)
    _save(ctx, f, Given(*rest[:8]), Rule(*rest[8:]), stream, stats)


def _differentiate_operator(ctx, d_stream, d_y, _):
    return *_differentiate(ctx, d_stream, d_y, as_operator=True), *[None] * len(Rule._fields)


boundary.register_autograd(_differentiate_operator, setup_context=_save_operator)


class _Boundary(torch.autograd.Function):
    """The same without the dispatcher; a ``setup_context`` of its own would have the arguments bound by inspection."""

    @staticmethod
    def forward(ctx, x, f, *rest):
        given, rule = Given(*rest[:8]), rest[8]
        stream, y, stats = compute(x, f, given, rule)
        _save(ctx, f, given, rule, stream, stats)
        return stream, y

    @staticmethod
    def backward(ctx, *grads):
        return *_differentiate(ctx, *grads, as_operator=False), None


# Less what ``apply`` of every function looks for: transforms, which have been looked for already.
_straight = cast(Any, super(torch.autograd.Function, _Boundary)).apply


def apply(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor]:
    """The stream and what the next branch reads, by the shortest way that whoever watches permits."""
    if rule.backend == "composed":
        return composed.forward(x, f, given, rule)
    compiling = torch.compiler.is_compiling()
    if (compiling and rule.backend == "reference") or (not compiling and transformed()):
        return reference.forward(x, f, given, rule)[:2]  # whose parts a compiler fuses and a transform knows
    if traced() or not plain(x, f, *given):
        return boundary(x, f, *given, *rule)[:2]
    if torch.is_grad_enabled() and (x.requires_grad or f.requires_grad or _any_learned(given)):
        return _straight(x, f, *given, rule)
    return compute(x, f, given, rule, kept=False)[:2]


def _any_learned(given: Given) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in given)
