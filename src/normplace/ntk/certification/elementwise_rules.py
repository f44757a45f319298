"""Rules of the elementwise operators.

A rule states only facts that hold for every input. An operator without a rule ends the proof, so a missing rule is safe
and a wrong one is not. Comments justify the rules that are not obvious.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from normplace.ntk.certification.facts import (
    INF,
    PowerBound,
    Statistic,
    Value,
    add_down,
    add_up,
    keepdim_shape,
    scaled_degrees,
)
from normplace.ntk.certification.rules import OperatorCall, number, product_has_bounded_gradient, rule, same_size

_RANGES = {
    "tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "erf": (-1.0, 1.0),
    "erfc": (0.0, 2.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "atan": (-1.6, 1.6),
}


@rule(*_RANGES)
def _saturating(call: OperatorCall) -> Value:
    lower, upper = _RANGES[call.operator]
    # A sigmoid is bounded away from zero only if its argument is bounded below.
    positive = call.operator == "sigmoid" and call.value(0).bounded_below
    return call.result(lower=lower, upper=upper, positive=positive)


# Lower limits of activations whose derivative is bounded.
_FLOORS = {"relu": 0.0, "softplus": 0.0, "gelu": -0.18, "silu": -0.28, "mish": -0.31, "hardswish": -0.38}


@rule(*_FLOORS)
def _bounded_below_activation(call: OperatorCall) -> Value | None:
    x = call.value(0)
    # Above its threshold softplus is the identity, so it is positive only if the threshold is.
    if call.operator == "softplus" and not (float(call.get("beta", 1)) > 0 and float(call.get("threshold", 20)) > 0):
        return None
    positive = x.positive if call.operator == "relu" else call.operator == "softplus" and x.bounded_below
    # All of these map bounded tensors to bounded ones. Only ReLU is monotone, so only its upper limit is known.
    upper = max(x.upper, 0.0) if call.operator == "relu" else INF
    return call.result(lower=_FLOORS[call.operator], bounded_above=x.bounded_above, upper=upper, positive=positive)


_CONTINUOUS = "glu celu hardshrink softshrink threshold logaddexp nan_to_num _trilinear"


@rule(*_CONTINUOUS.split())
def _bounded_on_bounded_sets(call: OperatorCall) -> Value:
    """Functions of finite tensors that are bounded on bounded sets, like their derivatives."""
    bounded = all(value.bounded for value in call.tensors)
    return call.result(bounded_below=bounded, bounded_above=bounded, bounded_gradient="local")


@rule("elu")
def _elu(call: OperatorCall) -> Value | None:
    x, alpha, scale = call.value(0), call.get("alpha", 1), call.get("scale", 1)
    if min(alpha, scale, call.get("input_scale", 1)) <= 0:
        return None
    return call.result(lower=-1.01 * float(alpha * scale), bounded_above=x.bounded_above)


@rule("leaky_relu")
def _leaky_relu(call: OperatorCall) -> Value | None:
    x = call.value(0)
    if float(call.get("negative_slope", 0.01)) < 0:
        return None
    return call.result(bounded_below=x.bounded_below, bounded_above=x.bounded_above, positive=x.positive)


@rule("_prelu_kernel", "prelu")
def _prelu(call: OperatorCall) -> Value:
    x, weight = call.value(0), call.value(1)
    bounded = x.bounded and weight.bounded
    return call.result(
        bounded_below=bounded,
        bounded_above=bounded,
        bounded_gradient=x.bounded_gradient and product_has_bounded_gradient(x, weight),
    )


@rule("log_sigmoid_forward")
def _log_sigmoid(call: OperatorCall) -> tuple[Value, Value]:
    return call.result(upper=0.0, bounded_below=call.value(0).bounded_below), call.result(output=1, finite=False)


@rule("hardtanh", "clamp", "clamp_min", "clamp_max")
def _clamp(call: OperatorCall) -> Value:
    x, low, high = call.value(0), None, None
    if call.operator == "hardtanh":
        low, high = call.get("min_val", -1.0), call.get("max_val", 1.0)
    elif call.operator == "clamp_max":
        high = call.get("max")
    else:
        low = call.get("min")
        high = call.get("max") if call.operator == "clamp" else None
    low = None if low is None or low == -INF else low if isinstance(low, Value) else number(low)
    high = None if high is None or high == INF else high if isinstance(high, Value) else number(high)
    if not all(end is None or end.finite for end in (low, high)):
        return call.unknown()
    lower, upper, positive = x.lower, x.upper, x.positive
    bounded_below, bounded_above = x.bounded_below, x.bounded_above
    if low is not None:
        lower, upper, positive = max(lower, low.lower), max(upper, low.upper), positive or low.positive
        bounded_below, bounded_above = bounded_below or low.bounded_below, bounded_above and low.bounded_above
    if high is not None:
        lower, upper, positive = min(lower, high.lower), min(upper, high.upper), positive and high.positive
        bounded_below, bounded_above = bounded_below and high.bounded_below, bounded_above or high.bounded_above
    return call.result(
        lower=lower,
        upper=upper,
        bounded_below=bounded_below,
        bounded_above=bounded_above,
        positive=positive,
        dominates=x.dominates if high is None and same_size(x, call.shapes[0]) else frozenset(),
    )


@rule("maximum", "minimum")
def _maximum(call: OperatorCall) -> Value:
    a, b = call.value(0), call.value(1)
    if call.operator == "maximum":
        return call.result(
            lower=max(a.lower, b.lower),
            bounded_below=a.bounded_below or b.bounded_below,
            bounded_above=a.bounded_above and b.bounded_above,
            positive=a.positive or b.positive,
            dominates=_joint(call, a, b),
        )
    return call.result(
        lower=min(a.lower, b.lower),
        upper=min(a.upper, b.upper),
        bounded_below=a.bounded_below and b.bounded_below,
        bounded_above=a.bounded_above or b.bounded_above,
        positive=a.positive and b.positive,
    )


def _joint(call: OperatorCall, a: Value, b: Value) -> frozenset[PowerBound]:
    """Powers that a sum of nonnegative tensors, or a maximum, dominates because one of the two does."""
    return frozenset(
        fact
        for value in (a, b)
        if same_size(value, call.shapes[0])
        for fact in (*value.dominates, *([PowerBound(value.key, value.shape, 1.0)] if value.nonnegative else []))
    )


@rule("exp", "exp2", "expm1")
def _exp(call: OperatorCall) -> Value:
    x = call.value(0)
    shift = 1.0 if call.operator == "expm1" else 0.0
    key = call.name
    if call.operator == "exp" and isinstance(x.key, tuple) and x.key[0] == "below largest":
        key = ("largest is one", *x.key[1:])
    return call.result(
        key=key,
        lower=-shift,
        upper=1.0 - shift if x.upper <= 0 else INF,
        bounded_above=x.bounded_above,
        positive=x.bounded_below and not shift,
        bounded_gradient=x.bounded_gradient and x.bounded_above,
    )


@rule("log")
def _log(call: OperatorCall) -> Value:
    x = call.value(0)
    return call.result(bounded_above=x.bounded_above, bounded_below=True) if x.positive else call.unknown()


@rule("log1p")
def _log1p(call: OperatorCall) -> Value:
    x = call.value(0)
    if not x.lower > -1:
        return call.unknown()
    return call.result(
        bounded_above=x.bounded_above, bounded_below=True, lower=0.0 if x.nonnegative else -INF, positive=x.positive
    )


@rule("abs")
def _abs(call: OperatorCall) -> Value:
    x = call.value(0)
    dominates = frozenset({PowerBound(x.key, call.shapes[0], 1.0)})
    return call.result(
        lower=0.0, upper=max(x.upper, -x.lower), bounded_above=x.bounded, positive=x.never_zero, dominates=dominates
    )


@rule("neg")
def _neg(call: OperatorCall) -> Value:
    x = call.value(0)
    return call.result(
        lower=-x.upper,
        upper=-x.lower,
        bounded_below=x.bounded_above,
        bounded_above=x.bounded_below,
        decays_like=x.decays_like,
    )


@rule("sqrt", "rsqrt", "reciprocal", "square", "pow")
def _power(call: OperatorCall) -> Value | None:
    fixed = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}
    exponent = fixed.get(call.operator, call.get("exponent"))
    if not isinstance(exponent, int | float):
        return None  # the exponent is a tensor
    return _raised(call, call.value(0), float(exponent))


def _raised(call: OperatorCall, x: Value, p: float) -> Value:
    """X to the power p."""
    if p < 0:
        if not x.positive:
            return call.unknown()
        # x is bounded away from zero, so a negative power and its derivative are bounded.
        return call.result(
            lower=0.0, bounded_above=True, positive=x.bounded_above, decays_like=scaled_degrees(x.dominates, -p)
        )
    if p == 0:
        return call.result(lower=1.0, upper=1.0)
    whole = p == int(p)
    if not whole and not x.nonnegative:
        return call.unknown()
    even = whole and int(p) % 2 == 0
    dominates: frozenset[PowerBound] = frozenset()
    if even:
        dominates = frozenset({PowerBound(x.key, call.shapes[0], p)})
    if x.nonnegative:
        dominates |= scaled_degrees(x.dominates, p)
    bounded = x.bounded
    # The derivative of a power below one is unbounded at zero.
    bounded_gradient = x.bounded_gradient and (bounded or p == 1) and (p >= 1 or x.positive)
    return call.result(
        lower=0.0 if even or x.nonnegative else -INF,
        bounded_below=bounded or (x.bounded_below and not even),
        bounded_above=bounded or (x.bounded_above and not even),
        positive=x.positive or (even and x.never_zero),
        dominates=dominates,
        bounded_gradient=bounded_gradient,
    )


@rule("add", "sub", "rsub")
def _add(call: OperatorCall) -> Value | None:
    a, b = call.value(0), call.value(1)
    if call.get("alpha", 1) != 1:
        bounded = a.bounded and b.bounded
        masked = a.minus_inf is not None or b.minus_inf is not None
        return call.unknown() if masked else call.result(bounded_below=bounded, bounded_above=bounded)
    if call.operator == "rsub":
        a, b = b, a
    if call.operator != "add":
        if b.minus_inf is not None:
            return call.unknown()
        centred = _is_statistic(b.mean, a, b)
        if _is_statistic(b.largest, a, b) and b.largest is not None:
            key = ("below largest", a.key, b.largest[1])
            return call.result(key=key, upper=0.0, bounded_below=a.bounded)
        b = replace(
            b,
            lower=-b.upper,
            upper=-b.lower,
            bounded_below=b.bounded_above,
            bounded_above=b.bounded_below,
            positive=False,
            dominates=frozenset(),
        )
        if centred and b.mean is not None:
            key = ("centred", a.key, b.mean[1])
            return call.result(key=key, bounded_below=a.bounded, bounded_above=a.bounded)
    nonnegative = a.nonnegative and b.nonnegative
    minus_inf = None
    if a.minus_inf is not None or b.minus_inf is not None:
        masks = [value.minus_inf.expand(call.shapes[0]) for value in (a, b) if value.minus_inf is not None]
        minus_inf = masks[0] | masks[-1]
    return call.result(
        lower=add_down(a.lower, b.lower),
        upper=add_up(a.upper, b.upper),
        bounded_below=a.bounded_below and b.bounded_below,
        bounded_above=a.bounded_above and b.bounded_above,
        positive=(a.positive and b.nonnegative) or (b.positive and a.nonnegative),
        dominates=_joint(call, a, b) if nonnegative else frozenset(),
        minus_inf=minus_inf,
    )


def _is_statistic(statistic: Statistic | None, a: Value, b: Value) -> bool:
    """Whether ``b`` is the named mean or largest entry of ``a``, aligned with it."""
    return statistic is not None and statistic[0] == a.key and keepdim_shape(a.shape, statistic[1]) == b.shape


@rule("mul")
def _mul(call: OperatorCall) -> Value:
    a, b = call.value(0), call.value(1)
    if a.key == b.key and a.shape == b.shape:
        return _raised(call, a, 2.0)
    # Where one factor is large, the other is at most its reciprocal; elsewhere both are bounded.
    cancels = (b.bounded and b.cancels(a)) or (a.bounded and a.cancels(b))
    bounded = cancels or (a.bounded and b.bounded)
    nonnegative = (a.nonnegative and b.nonnegative) or (a.upper <= 0 and b.upper <= 0)
    dominates, decays_like, multiple_of = set[PowerBound](), set[PowerBound](), None
    for x, factor in ((a, b), (b, a)):
        if factor.bounded and x.shape == call.shapes[0] and x.depends_on_input:
            multiple_of = x.multiple_of or x.key
        if same_size(x, call.shapes[0]):
            dominates |= x.dominates if factor.positive else set()
            decays_like |= x.decays_like if factor.bounded else set()
    return call.result(
        lower=0.0 if nonnegative else -INF,
        bounded_below=bounded,
        bounded_above=bounded,
        positive=a.positive and b.positive,
        dominates=frozenset(dominates),
        decays_like=frozenset(decays_like),
        multiple_of=multiple_of,
        bounded_gradient=product_has_bounded_gradient(a, b),
    )


@rule("div", "true_divide")
def _div(call: OperatorCall) -> Value | None:
    a, b = call.value(0), call.value(1)
    if call.get("rounding_mode") is not None:
        return None
    if not b.away_from_zero:
        return call.unknown()
    bounded = a.bounded or b.exceeds(a)
    keeps = b.positive and b.bounded_above and same_size(a, call.shapes[0])
    bounded_gradient = (not a.depends_on_parameters or a.bounded_gradient) and (
        not b.depends_on_parameters or (b.bounded_gradient and a.bounded)
    )
    return call.result(
        lower=0.0 if a.nonnegative and b.positive else -INF,
        bounded_below=bounded or (a.bounded_below and b.positive),
        bounded_above=bounded or (a.bounded_above and b.positive),
        positive=a.positive and b.positive and b.bounded_above,
        dominates=a.dominates if keeps else frozenset(),
        decays_like=b.dominates if a.bounded and same_size(b, call.shapes[0]) else frozenset(),
        bounded_gradient=bounded_gradient,
    )


@rule("floor", "ceil", "round", "trunc")
def _rounding(call: OperatorCall) -> Value | None:
    x = call.value(0)
    if call.get("decimals", 0) < 0:
        return None  # it rounds by more than one
    return call.result(
        lower=x.lower - 1, upper=x.upper + 1, bounded_below=x.bounded_below, bounded_above=x.bounded_above
    )


_LOGICAL = "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite any all signbit"


@rule(*_LOGICAL.split())
def _logical(call: OperatorCall) -> Value:
    return call.result(lower=0.0, upper=1.0, bounded_gradient=True)


@rule("sign", "sgn")
def _sign(call: OperatorCall) -> Value:
    return call.result(lower=-1.0, upper=1.0, bounded_gradient=True)


@rule("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor")
def _bitwise(call: OperatorCall) -> Value | None:
    return call.result(lower=0.0, upper=1.0) if call.dtype == torch.bool else None
