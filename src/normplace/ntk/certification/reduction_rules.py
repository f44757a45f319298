"""Rules of reductions: sums, extremes, order statistics, variances and pooling averages."""

from __future__ import annotations

import math
from dataclasses import replace

from normplace.ntk.certification.facts import INF, PowerBound, Value, keepdim_shape
from normplace.ntk.certification.rules import OperatorCall, index_value, limits, rule


def _axes(call: OperatorCall) -> tuple[int, ...]:
    """The reduced axes as nonnegative numbers; all axes if none is named."""
    rank = len(call.value(0).shape)
    axes = call.get("dim")
    if axes is None or axes == [] or rank == 0:
        return tuple(range(rank))
    return tuple(axis % rank for axis in ([axes] if isinstance(axes, int) else axes))


def _reduced(value: Value, axes: tuple[int, ...]) -> frozenset[PowerBound]:
    """Powers that the sum or maximum of a nonnegative tensor dominates: those that each entry dominates."""
    if not value.nonnegative:
        return frozenset()
    facts = {*value.dominates, PowerBound(value.key, value.shape, 1.0)}
    return frozenset(
        replace(fact, shape=keepdim_shape(value.shape, axes)) for fact in facts if fact.shape == value.shape
    )


def _multiple(limit: float, count: int, outward: float) -> float:
    """A limit of the sum of ``count`` entries that have the given limit, rounded outward."""
    return limit if limit in {0.0, -INF, INF} or count == 0 else math.nextafter(limit * count, outward)


def _includes_one(x: Value, axes: tuple[int, ...]) -> bool:
    """Whether every sum over the axes includes an entry of one: the exponential of the largest entry less itself."""
    return isinstance(x.key, tuple) and x.key[0] == "largest is one" and {*x.key[2]} <= {*axes}


@rule("sum", "mean")
def _sum(call: OperatorCall) -> Value:
    x, axes = call.value(0), _axes(call)
    if call.operator == "mean":
        if math.prod(x.shape) == 0:
            return call.unknown()
        return call.result(**limits(x), dominates=_reduced(x, axes), mean=(x.key, axes))
    count = math.prod(x.shape[axis] for axis in axes)
    facts = {
        "lower": _multiple(x.lower, count, -INF),
        "upper": _multiple(x.upper, count, INF),
        "bounded_below": x.bounded_below,
        "bounded_above": x.bounded_above,
        "positive": (x.positive and count > 0) or _includes_one(x, axes),
    }
    return call.result(**facts, dominates=_reduced(x, axes))


@rule("amax", "amin", "max", "min", "median", "mode", "cummax", "cummin")
def _extreme(call: OperatorCall) -> Value | tuple[Value, ...]:
    x = call.value(0)
    if len(call.tensors) > 1:
        return call.unknown()
    if call.operator in {"amax", "max"}:
        out = call.result(**limits(x), dominates=_reduced(x, _axes(call)), largest=(x.key, _axes(call)))
    else:
        out = call.result(**limits(x))
    return (out, index_value(call)) if len(call.shapes) > 1 else out


@rule("argmax", "argmin", "argsort", "bucketize", "searchsorted")
def _searched_indices(call: OperatorCall) -> Value:
    size = max(1, *(math.prod(value.shape) for value in call.tensors))
    return call.result(lower=0.0, upper=float(size), bounded_gradient=True)


@rule("topk", "sort", "kthvalue")
def _sorted(call: OperatorCall) -> tuple[Value, Value]:
    return call.result(**limits(call.value(0))), index_value(call)


@rule("cumsum", "prod", "cumprod")
def _accumulated(call: OperatorCall) -> Value:
    x = call.value(0)
    bounded_gradient = "lipschitz" if call.operator == "cumsum" else "local"
    return call.result(
        lower=0.0 if x.nonnegative else -INF,
        bounded_below=x.bounded,
        bounded_above=x.bounded,
        bounded_gradient=bounded_gradient,
    )


@rule("logsumexp")
def _logsumexp(call: OperatorCall) -> Value:
    x = call.value(0)
    return call.result(bounded_below=x.bounded_below, bounded_above=x.bounded_above)


@rule("var", "std", "var_mean")
def _variance(call: OperatorCall) -> Value | tuple[Value, ...]:
    """The variance over n entries is at least (entry − mean)²/n, for every entry."""
    x, axes = call.value(0), _axes(call)
    correction = call.get("correction", 1)
    count = math.prod(x.shape[axis] for axis in axes)
    if not isinstance(correction, int | float) or count - correction <= 0:
        unknown = tuple(call.result(output=index, finite=False) for index in range(len(call.shapes)))
        return unknown if call.operator == "var_mean" else unknown[0]
    degree = 1.0 if call.operator == "std" else 2.0
    dominates = frozenset({PowerBound(("centred", x.key, axes), keepdim_shape(x.shape, axes), degree)})
    # The derivative of a square root is unbounded at zero, so the gradient of a standard deviation is too.
    bounded_gradient = (
        "local" if call.operator != "std" else not any(value.depends_on_parameters for value in call.tensors)
    )
    out = call.result(lower=0.0, bounded_above=x.bounded, dominates=dominates, bounded_gradient=bounded_gradient)
    if call.operator != "var_mean":
        return out
    return out, call.result(output=1, **limits(x), mean=(x.key, axes))


@rule("linalg_vector_norm")
def _vector_norm(call: OperatorCall) -> Value | None:
    x, order, axes = call.value(0), call.get("ord", 2), _axes(call)
    if not isinstance(order, int | float) or not order >= 1:
        return None
    dominates = frozenset({PowerBound(x.key, keepdim_shape(x.shape, axes), 1.0)})
    return call.result(lower=0.0, bounded_above=x.bounded, dominates=dominates)


@rule("_cdist_forward", "_euclidean_dist")
def _distances(call: OperatorCall) -> Value:
    """Distances between vectors; those of an order below one have no bounded derivative."""
    bounded = all(value.bounded for value in call.tensors)
    order = call.get("p", 2.0)
    return call.result(lower=0.0, bounded_above=bounded, bounded_gradient="lipschitz" if order >= 1 else False)


_AVERAGING = """avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
upsample_nearest1d upsample_nearest2d upsample_linear1d upsample_bilinear2d"""


@rule(*_AVERAGING.split())
def _averaged(call: OperatorCall) -> Value:
    """Weighted sums of entries with weights that do not depend on the input."""
    x = call.value(0)
    return call.result(bounded_below=x.bounded, bounded_above=x.bounded)
