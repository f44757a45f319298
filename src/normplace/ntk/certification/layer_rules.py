"""Rules of layers: linear maps, norms, softmax and attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from normplace.ntk.certification.facts import INF, Value
from normplace.ntk.certification.rules import OperatorCall, limits, product_has_bounded_gradient, rule


@rule("mm", "bmm", "dot", "mv", "addmm", "baddbmm", "addmv", "addbmm", "convolution", "_convolution", "linear")
def _linear_map(call: OperatorCall) -> Value:
    values = call.tensors
    plus = call.operator in {"addmm", "baddbmm", "addmv", "addbmm"}
    a, b = values[1:3] if plus else values[:2]
    offset = values[0] if plus else values[2] if len(values) > 2 else None
    bounded = all(value.bounded for value in values)
    plain = call.get("alpha", 1) == call.get("beta", 1) == 1
    positive_terms = plain and all(value.nonnegative for value in values)
    bounded_gradient = product_has_bounded_gradient(a, b) and (offset is None or offset.bounded_gradient)
    return call.result(
        lower=0.0 if positive_terms else -INF,
        bounded_below=bounded,
        bounded_above=bounded,
        bounded_gradient=bounded_gradient,
    )


def _normalized(call: OperatorCall, size: int, eps: Any, scale: Any, shift: Any) -> Value:
    """A normalized vector of ``size`` entries: each is at most √size, and the Jacobian is at most 1/√eps."""
    x = call.value(0)
    if not isinstance(eps, int | float) or not eps > 0 or size < 1:
        return call.unknown()
    affine = [value for value in (scale, shift) if isinstance(value, Value)]
    bounded = all(value.bounded for value in affine)
    bounded_gradient = bounded and x.bounded_gradient and all(value.bounded_gradient for value in affine)
    limit = INF if affine else 1.01 * math.sqrt(size)
    return call.result(
        lower=-limit, upper=limit, bounded_below=bounded, bounded_above=bounded, bounded_gradient=bounded_gradient
    )


def _statistics(call: OperatorCall) -> tuple[Value, ...]:
    """The saved statistics of a norm, which only its backward pass reads."""
    return tuple(call.result(output=index, finite=False) for index in range(1, len(call.shapes)))


@rule("native_layer_norm")
def _layer_norm(call: OperatorCall) -> tuple[Value, ...]:
    _, shape, weight, bias, eps = call.args
    return _normalized(call, math.prod(shape), eps, weight, bias), *_statistics(call)


@rule("native_group_norm")
def _group_norm(call: OperatorCall) -> tuple[Value, ...]:
    _, weight, bias, _, channels, pixels, groups, eps = call.args
    return _normalized(call, channels * pixels // groups, eps, weight, bias), *_statistics(call)


@rule("_fused_rms_norm")
def _rms_norm(call: OperatorCall) -> tuple[Value, ...]:
    eps = call.get("eps")
    eps = torch.finfo(torch.float64).eps if eps is None else eps
    return _normalized(call, math.prod(call.args[1]), eps, call.get("weight"), None), *_statistics(call)


@rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: OperatorCall) -> tuple[Value, ...] | None:
    """With running statistics the norm is affine; with those of the sample it is an instance norm."""
    legit = call.operator == "_native_batch_norm_legit_no_training"
    x, weight, bias, mean, var = call.args[:5]
    eps = call.args[6] if legit else call.args[7]
    if not legit and call.args[5]:
        size = math.prod(x.shape) // max(1, x.shape[1])
        return _normalized(call, size, eps, weight, bias), *_statistics(call)
    if not isinstance(mean, Value) or not isinstance(var, Value):
        return None
    affine = [value for value in (weight, bias) if isinstance(value, Value)]
    fixed = not any(value.depends_on_input for value in (mean, var, *affine))
    if not fixed or not var.nonnegative or not eps > 0:
        return call.unknown(), *_statistics(call)
    scale_slope = x.bounded or not any(value.depends_on_parameters for value in affine)
    return call.result(
        bounded_below=x.bounded, bounded_above=x.bounded, bounded_gradient=x.bounded_gradient and scale_slope
    ), *_statistics(call)


@rule("_softmax", "_safe_softmax")
def _softmax(call: OperatorCall) -> Value:
    x = call.value(0)
    if x.minus_inf is not None and call.operator == "_softmax" and bool(x.minus_inf.all(dim=call.args[1]).any()):
        return call.unknown()  # a row with only -inf
    return call.result(lower=0.0, upper=1.0, positive=x.bounded)


@rule("_log_softmax")
def _log_softmax(call: OperatorCall) -> Value:
    return call.result(upper=0.0, bounded_below=call.value(0).bounded)


@rule("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
def _attention(call: OperatorCall) -> tuple[Value, ...] | None:
    """Each output is a convex combination of the values, for all scores."""
    query, key, value = (call.value(position) for position in range(3))
    if call.get("dropout_p", 0.0) != 0:
        return None
    mask = call.get("attn_mask")
    if mask is not None and (mask.fixed_tensor is None or _hides_all_keys(mask)):
        return None
    scores = (query, key)
    bounded_gradient = all(
        facts.bounded_gradient and (facts.bounded or not facts.depends_on_parameters) for facts in (*scores, value)
    )
    bounded_gradient = bounded_gradient and (
        all(facts.bounded for facts in scores) or not any(facts.depends_on_parameters for facts in scores)
    )
    bounded_gradient = bounded_gradient and (value.bounded or not any(facts.depends_on_parameters for facts in scores))
    out = call.result(bounded_gradient=bounded_gradient, **limits(value))
    return (out, *(call.result(output=index, bounded_gradient=False) for index in range(1, len(call.shapes))))


def _hides_all_keys(mask: Value) -> bool:
    """Whether a fixed mask hides all keys from some query."""
    assert mask.fixed_tensor is not None
    hidden = ~mask.fixed_tensor if mask.fixed_tensor.dtype == torch.bool else mask.fixed_tensor == -INF
    return bool(hidden.all(dim=-1).any())
