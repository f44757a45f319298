"""How layers, reductions and indexing carry bounds: linear maps, norms, attention, sums, views, gathers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from normplace.ntk.certification.facts import INF, Power, Value, kept
from normplace.ntk.certification.rules import Call, limits, number, product_slope, rule, same_order


@rule("mm", "bmm", "dot", "mv", "addmm", "baddbmm", "addmv", "addbmm", "convolution", "_convolution", "linear")
def _linear_map(call: Call) -> Value:
    values = call.tensors
    plus = call.operator in {"addmm", "baddbmm", "addmv", "addbmm"}
    a, b = values[1:3] if plus else values[:2]
    offset = values[0] if plus else values[2] if len(values) > 2 else None
    bounded = all(value.bounded for value in values)
    plain = call.get("alpha", 1) == call.get("beta", 1) == 1
    positive_terms = plain and all(value.nonnegative for value in values)
    slope = product_slope(a, b) and (offset is None or offset.slope)
    return call.make(lower=0.0 if positive_terms else -INF, below=bounded, above=bounded, slope=slope)


def _normalized(call: Call, size: int, eps: Any, scale: Any, shift: Any) -> Value:
    """Entries of a normalized vector of ``size`` entries are at most its root, and its Jacobian at most 1/√eps."""
    x = call.value(0)
    if not isinstance(eps, int | float) or not eps > 0 or size < 1:
        return call.unknown()
    affine = [value for value in (scale, shift) if isinstance(value, Value)]
    bounded = all(value.bounded for value in affine)
    slope = bounded and x.slope and all(value.slope for value in affine)
    limit = INF if affine else 1.01 * math.sqrt(size)
    return call.make(lower=-limit, upper=limit, below=bounded, above=bounded, slope=slope)


def _statistics(call: Call) -> tuple[Value, ...]:
    """The saved statistics of a norm, which nothing but its backward pass reads."""
    return tuple(call.make(output=index, finite=False) for index in range(1, len(call.shapes)))


@rule("native_layer_norm")
def _layer_norm(call: Call) -> tuple[Value, ...]:
    _, shape, weight, bias, eps = call.args
    return _normalized(call, math.prod(shape), eps, weight, bias), *_statistics(call)


@rule("native_group_norm")
def _group_norm(call: Call) -> tuple[Value, ...]:
    _, weight, bias, _, channels, pixels, groups, eps = call.args
    return _normalized(call, channels * pixels // groups, eps, weight, bias), *_statistics(call)


@rule("_fused_rms_norm")
def _rms_norm(call: Call) -> tuple[Value, ...]:
    eps = call.get("eps")
    eps = torch.finfo(torch.float64).eps if eps is None else eps
    return _normalized(call, math.prod(call.args[1]), eps, call.get("weight"), None), *_statistics(call)


@rule("native_batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(call: Call) -> tuple[Value, ...] | None:
    """With running statistics it is an affine map; with those of the batch there is no rule."""
    legit = call.operator == "_native_batch_norm_legit_no_training"
    x, weight, bias, mean, var = call.args[:5]
    eps = call.args[6] if legit else call.args[7]
    if (not legit and call.args[5]) or not isinstance(mean, Value) or not isinstance(var, Value):
        return None
    affine = [value for value in (weight, bias) if isinstance(value, Value)]
    fixed = not any(value.varies for value in (mean, var, *affine))
    if not fixed or not var.nonnegative or not eps > 0:
        return call.unknown(), *_statistics(call)
    scale_slope = x.bounded or not any(value.trained for value in affine)
    return call.make(below=x.bounded, above=x.bounded, slope=x.slope and scale_slope), *_statistics(call)


@rule("_softmax", "_safe_softmax")
def _softmax(call: Call) -> Value:
    x = call.value(0)
    if x.holes is not None and call.operator == "_softmax" and bool(x.holes.all(dim=call.args[1]).any()):
        return call.unknown()  # a row of nothing but -inf
    return call.make(lower=0.0, upper=1.0, positive=x.bounded)


@rule("_log_softmax")
def _log_softmax(call: Call) -> Value:
    return call.make(upper=0.0, below=call.value(0).bounded)


@rule("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention")
def _attention(call: Call) -> tuple[Value, ...] | None:
    """Each output is a mean of values with weights that add up to one, whatever the scores."""
    query, key, value = (call.value(position) for position in range(3))
    if call.get("dropout_p", 0.0) != 0:
        return None
    mask = call.get("attn_mask")
    if mask is not None and (mask.numbers is None or _masks_a_row(mask)):
        return None
    scores = (query, key)
    slope = all(one.slope and (one.bounded or not one.trained) for one in (*scores, value))
    slope = slope and (all(one.bounded for one in scores) or not any(one.trained for one in scores))
    slope = slope and (value.bounded or not any(one.trained for one in scores))
    out = call.make(slope=slope, **limits(value))
    return (out, *(call.make(output=index, slope=False) for index in range(1, len(call.shapes))))


def _masks_a_row(mask: Value) -> bool:
    """Whether a fixed mask leaves some query without any key."""
    assert mask.numbers is not None
    hidden = ~mask.numbers if mask.numbers.dtype == torch.bool else mask.numbers == -INF
    return bool(hidden.all(dim=-1).any())


def _axes(call: Call) -> tuple[int, ...]:
    """The reduced axes, counted from zero; all of them where none is named."""
    rank = len(call.value(0).shape)
    axes = call.get("dim")
    if axes is None or axes == []:
        return tuple(range(rank))
    return tuple(axis % max(rank, 1) for axis in ([axes] if isinstance(axes, int) else axes))


def _reduced(value: Value, axes: tuple[int, ...]) -> frozenset[Power]:
    """Powers that the sum or maximum of a tensor without negative entries exceeds: those of every entry."""
    if not value.nonnegative:
        return frozenset()
    facts = {*value.over, Power(value.key, value.shape, 1.0)}
    return frozenset(replace(fact, shape=kept(value.shape, axes)) for fact in facts if fact.shape == value.shape)


@rule("sum", "mean")
def _sum(call: Call) -> Value:
    x, axes = call.value(0), _axes(call)
    if call.operator == "mean":
        if math.prod(x.shape) == 0:
            return call.unknown()
        return call.make(**limits(x), over=_reduced(x, axes), mean=(x.key, axes))
    positive = x.positive and math.prod(x.shape) > 0
    lower, upper = (0.0 if x.nonnegative else -INF), (0.0 if x.upper <= 0 else INF)
    facts = {"lower": lower, "upper": upper, "below": x.below, "above": x.above, "positive": positive}
    return call.make(**facts, over=_reduced(x, axes))


@rule("amax", "amin", "max", "min", "median", "mode", "cummax", "cummin")
def _extreme(call: Call) -> Value | tuple[Value, ...]:
    x = call.value(0)
    if len(call.tensors) > 1:
        return call.unknown()
    over: frozenset[Power] = frozenset()
    if call.operator in {"amax", "max"}:
        over = _reduced(x, _axes(call))
    out = call.make(**limits(x), over=over)
    return (out, _index(call, 1)) if len(call.shapes) > 1 else out


def _index(call: Call, output: int = 0) -> Value:
    """Positions along an axis of the first argument."""
    size = max(1, math.prod(call.value(0).shape))
    return call.make(output=output, lower=0.0, upper=float(size), slope=True)


@rule("argmax", "argmin", "argsort", "bucketize", "searchsorted")
def _positions(call: Call) -> Value:
    size = max(1, *(math.prod(value.shape) for value in call.tensors))
    return call.make(lower=0.0, upper=float(size), slope=True)


@rule("topk", "sort", "kthvalue")
def _sorted(call: Call) -> tuple[Value, Value]:
    return call.make(**limits(call.value(0))), _index(call, 1)


@rule("cumsum", "prod", "cumprod")
def _accumulated(call: Call) -> Value:
    x = call.value(0)
    slope = "lipschitz" if call.operator == "cumsum" else "local"
    return call.make(lower=0.0 if x.nonnegative else -INF, below=x.bounded, above=x.bounded, slope=slope)


@rule("logsumexp")
def _logsumexp(call: Call) -> Value:
    x = call.value(0)
    return call.make(below=x.below, above=x.above)


@rule("var", "std", "var_mean")
def _variance(call: Call) -> Value | tuple[Value, ...]:
    """The variance over n entries is at least (entry − mean)²/n, for each of them."""
    x, axes = call.value(0), _axes(call)
    correction = call.get("correction", 1)
    count = math.prod(x.shape[axis] for axis in axes)
    if not isinstance(correction, int | float) or count - correction <= 0:
        return tuple(call.make(output=index, finite=False) for index in range(len(call.shapes))) or call.unknown()
    degree = 1.0 if call.operator == "std" else 2.0
    over = frozenset({Power(("centred", x.key, axes), kept(x.shape, axes), degree)})
    # The derivative of a root is unbounded at zero, so a standard deviation has no bounded gradient.
    slope = "local" if call.operator != "std" else not any(value.trained for value in call.tensors)
    out = call.make(lower=0.0, above=x.bounded, over=over, slope=slope)
    if call.operator != "var_mean":
        return out
    return out, call.make(output=1, **limits(x), mean=(x.key, axes))


@rule("linalg_vector_norm")
def _vector_norm(call: Call) -> Value | None:
    x, order, axes = call.value(0), call.get("ord", 2), _axes(call)
    if not isinstance(order, int | float) or not order >= 1:
        return None
    over = frozenset({Power(x.key, kept(x.shape, axes), 1.0)})
    return call.make(lower=0.0, above=x.bounded, over=over)


_SAME_ORDER = """view reshape _unsafe_view unsqueeze squeeze clone alias detach contiguous lift_fresh lift_fresh_copy
_to_copy to _reshape_alias copy"""


@rule(*_SAME_ORDER.split())
def _same_entries(call: Call) -> Value:
    x = call.value(1 if call.operator == "copy" else 0)
    if not same_order(x, call.shapes[0]) or call.dtype is None:
        return call.make(**limits(x))
    if call.dtype == torch.bool:
        return call.make(lower=0.0, upper=1.0, slope=True)
    if not call.dtype.is_floating_point:
        return call.make(lower=x.lower - 1, upper=x.upper + 1, below=x.below, above=x.above, slope=True)
    key = x.key if x.shape == call.shapes[0] else call.name
    holes = None if x.holes is None else x.holes.reshape(call.shapes[0])
    return call.make(key=key, **limits(x), apart=x.apart, over=x.over, inverse=x.inverse, mean=x.mean, holes=holes)


@rule("expand")
def _expand(call: Call) -> Value:
    x, shape = call.value(0), call.shapes[0]

    def spread(facts: frozenset[Power]) -> frozenset[Power]:
        aligned = len(shape) == len(x.shape)
        return frozenset(replace(fact, shape=shape) for fact in facts if aligned and fact.shape == x.shape)

    key = x.key if x.shape == shape else call.name
    holes = None if x.holes is None else x.holes.expand(shape)
    return call.make(key=key, **limits(x), apart=x.apart, over=spread(x.over), inverse=spread(x.inverse), holes=holes)


_ENTRIES = """t transpose permute slice select diagonal as_strided flip roll repeat unfold split split_with_sizes chunk
unbind index index_select gather take embedding narrow tile movedim rot90 repeat_interleave pixel_shuffle
cat stack where select_scatter slice_scatter diagonal_scatter channel_shuffle max_pool1d max_pool2d_with_indices
max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d"""


@rule(*_ENTRIES.split())
def _some_entries(call: Call) -> Value | tuple[Value, ...] | None:
    """Every entry of the result is one of the arguments', whichever the indices or conditions choose."""
    sources = _sources(call)
    if not sources:
        return None
    if not all(source.finite for source in sources):
        return call.unknown()
    if any(source.holes is not None for source in sources):
        return _holed(call, call.args[0], *sources)
    slope = all(source.slope for source in sources)
    outputs = [call.make(output=index, slope=slope, **_join(sources)) for index in range(len(call.shapes))]
    if "pool" in call.operator and len(outputs) > 1:
        outputs[1] = _index(call, 1)
    return tuple(outputs) if len(outputs) > 1 or _many(call) else outputs[0]


def _many(call: Call) -> bool:
    return call.operator in {"split", "split_with_sizes", "chunk", "unbind"}


def _sources(call: Call) -> list[Value]:
    match call.operator:
        case "cat" | "stack":
            return [value for value in call.args[0] if isinstance(value, Value)]
        case "where":
            return [_side(side) for side in call.args[1:]] if len(call.args) == 3 else []
        case "select_scatter" | "slice_scatter" | "diagonal_scatter":
            return [call.value(0), call.value(1)]
        case _:
            return [call.value(0)]


def _join(values: list[Value]) -> dict[str, Any]:
    """Limits that hold for entries of any of several tensors."""
    return {
        "lower": min(value.lower for value in values),
        "upper": max(value.upper for value in values),
        "below": all(value.below for value in values),
        "above": all(value.above for value in values),
        "positive": all(value.positive for value in values),
        "apart": all(value.apart for value in values),
    }


def _holed(call: Call, condition: Any, chosen: Value, other: Value) -> Value:
    """A choice between finite numbers and -inf: known where the condition is fixed, else possibly all -inf."""
    if not isinstance(condition, Value) or condition.varies or condition.numbers is None:
        return call.unknown()
    shape = call.shapes[0]
    mask = condition.numbers.bool().expand(shape)
    none = torch.zeros((), dtype=torch.bool, device=mask.device)
    holes = [(none if side.holes is None else side.holes.to(mask.device)).expand(shape) for side in (chosen, other)]
    return call.make(holes=torch.where(mask, *holes), **_join([chosen, other]))


def _side(side: Any) -> Value:
    """A tensor or number that may be -inf."""
    if isinstance(side, Value):
        return side
    if side == -INF:
        return Value((), ("number", "-inf"), below=True, above=True, varies=False, holes=torch.tensor(True))
    return number(side)


@rule("masked_fill")
def _masked_fill(call: Call) -> Value:
    x, mask, fill = call.args
    side = _side(fill)
    if not side.finite:
        return call.unknown()
    if x.holes is not None or side.holes is not None:
        return _holed(call, mask, side, x)
    return call.make(**_join([x, side]), slope=x.slope and side.slope)


@rule("fill")
def _fill(call: Call) -> Value:
    x = call.value(1)
    return call.make(**limits(x), slope=x.slope)


@rule("zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full")
def _filled_like(call: Call) -> Value:
    if "full" in call.operator:
        content = call.value(1 if call.operator == "full_like" else 2)
    else:
        content = number(1.0 if "ones" in call.operator else 0.0)
    if not content.finite:
        return call.unknown()
    return call.make(**limits(content), slope=True)


@rule("tril", "triu", "constant_pad_nd", "im2col", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def _padded(call: Call) -> Value:
    fill = number(call.get("value", 0)) if call.operator == "constant_pad_nd" else number(0)
    return call.make(**_join([call.value(0), fill])) if fill.finite else call.unknown()


_WRITES = "scatter scatter_add scatter_reduce index_put _index_put_impl masked_scatter index_add index_copy"


@rule(*_WRITES.split())
def _written(call: Call) -> Value | None:
    """Entries of one tensor replaced by, or increased by, at most all entries of another."""
    reduction = call.get("reduce") if call.operator in {"scatter_reduce", "scatter"} else None
    if reduction not in {None, "sum", "amax", "amin", "mean"}:
        return None
    third = call.operator in {"index_put", "_index_put_impl", "masked_scatter"}
    values = [call.value(0), call.value(2 if third else 3)]
    if not all(value.finite for value in values):
        return call.unknown()
    bounded = all(value.bounded for value in values)
    nonnegative = all(value.nonnegative for value in values) and call.get("alpha", 1) == 1
    slope = all(value.slope for value in values)
    return call.make(lower=0.0 if nonnegative else -INF, below=bounded, above=bounded, slope=slope)


_AVERAGES = """avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
upsample_nearest1d upsample_nearest2d upsample_linear1d upsample_bilinear2d"""


@rule(*_AVERAGES.split())
def _averaged(call: Call) -> Value:
    """Multiples of sums of entries, the same multiple for every input."""
    x = call.value(0)
    return call.make(below=x.bounded, above=x.bounded)
