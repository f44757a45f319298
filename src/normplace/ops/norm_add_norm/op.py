"""The boundary as PyTorch operators with their gradients, and the choice of what computes them.

The same two passes are reached in two ways: through operators that ``torch.compile`` and dispatch modes see, and
straight through an autograd function otherwise, which spares a small tensor the cost of dispatch.
"""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normplace.errors import UsageError
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


def compute(x: Tensor, f: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor]:
    """The stream, what the next branch reads (empty without an inner norm), and the statistics of the rows."""
    given, rule = Given(*rest[:8]), Rule(*rest[8:])
    if rule.backend == "reference" or not x.numel():
        return reference.forward(x, f, given, rule)
    from normplace.ops.norm_add_norm import triton

    if x.device.type == "cuda" and x.device.index != torch.cuda.current_device():
        with torch.cuda.device_of(x):
            return triton.forward(x, f, given, rule)
    return triton.forward(x, f, given, rule)


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
    from normplace.ops.norm_add_norm import triton

    if like.device.type == "cuda" and like.device.index != torch.cuda.current_device():
        with torch.cuda.device_of(like):
            return triton.backward(d_stream, d_y, stream, f, stats, given, rule, needs)
    return triton.backward(d_stream, d_y, stream, f, stats, given, rule, needs)


boundary = torch.library.custom_op(
    "normplace::norm_add_norm",
    compute,
    mutates_args=(),
    schema=f"(Tensor x, Tensor f, {_GIVEN}, {_RULE}) -> (Tensor, Tensor, Tensor)",
)


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


def _save(ctx, inputs, output):
    _, f, *rest = inputs
    given, rule = Given(*rest[:8]), Rule(*rest[8:])
    stream, _, stats = output
    ctx.mark_non_differentiable(stats)
    ctx.set_materialize_grads(False)
    needs = ctx.needs_input_grad
    reads_f = rule.out_norm != "none" or needs[6] or needs[7]
    reads_stream = rule.in_norm != "none"
    ctx.save_for_backward(stream if reads_stream else None, f if reads_f else None, stats, *given)
    ctx.rule = rule


def _differentiate(ctx, d_stream, d_y, _, *, as_operator=True):
    stream, f, stats, *rest = ctx.saved_tensors
    given, rule = Given(*rest), ctx.rule
    if rule.in_norm == "none":
        d_y = None
    if d_stream is None and d_y is None:
        return (None,) * (2 + len(given) + len(rule))
    needs = Needs(*ctx.needs_input_grad[:9])
    if torch.is_grad_enabled():  # the gradients will be differentiated in turn
        found = reference.backward(d_stream, d_y, stream, f, None, given, rule, needs)
        return *found, None, *[None] * len(rule)
    # What would be written unchanged is passed on instead.
    passes = d_y is None and rule.skip == 1
    plain_branch = rule.out_norm == "none" and given.branch is None and given.out_scale is None and not rule.dropout
    shares = plain_branch and given.out_weight is None and given.out_bias is None and rule.branch == rule.skip
    shares = shares and needs.f and rule.f_dtype == rule.x_dtype
    asked = needs._replace(
        x=(needs.x or shares) and not passes,
        f=needs.f and not shares,
        in_weight=needs.in_weight and d_y is not None,
        in_bias=needs.in_bias and d_y is not None,
        in_scale=needs.in_scale and d_y is not None,
    )
    found = Grads(*[None] * 9)
    if any(asked):
        saved = (d_stream, d_y, stream if d_y is not None else None, f, stats)
        if as_operator or torch._C._len_torch_dispatch_stack():
            values = boundary_backward(*saved, *given, *rule, list(asked))
            found = Grads(*(value if need else None for value, need in zip(values, asked, strict=True)))
        else:
            found = compute_backward(*saved, given, rule, asked)
    dx = d_stream.to(rule.x_dtype) if passes and d_stream is not None else found.x
    df = dx if shares else found.f
    return dx if needs.x else None, df, *found[2:], None, *[None] * len(rule)


boundary.register_autograd(_differentiate, setup_context=_save)


class _Boundary(torch.autograd.Function):
    """The same without the dispatcher; a ``setup_context`` of its own would have the arguments bound by inspection."""

    @staticmethod
    def forward(ctx, x, f, *rest):
        *given, rule = rest
        inputs = (x, f, *given, *rule)
        output = compute(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *grads):
        return _differentiate(ctx, *grads, as_operator=False)[: 3 + len(Given._fields)]


def transformed() -> bool:
    """Whether a ``torch.func`` transform or forward-mode differentiation is under way: plain PyTorch serves those."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def apply(x: Tensor, f: Tensor, given: Given, rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """The boundary by the shortest way that whoever watches permits; the statistics are empty where none are kept."""
    if rule.backend == "composed":
        return *composed.forward(x, f, given, rule), x.new_empty(0)
    compiling = torch.compiler.is_compiling()
    if (compiling and rule.backend == "reference") or (not compiling and transformed()):
        return reference.forward(x, f, given, rule)  # whose parts a compiler fuses and a transform knows
    if compiling or torch._C._len_torch_dispatch_stack():
        return boundary(x, f, *given, *rule)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, f, *given))
    return _Boundary.apply(x, f, *given, rule) if learns else compute(x, f, *given, *rule)
