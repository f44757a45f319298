"""How each elementwise operator carries bounds from its arguments to its result.

A rule states only what holds for every input. An operator without a rule ends the proof, so leaving one out is safe
and adding one needs an argument; the argument is given where it is not a line of school calculus.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from normplace.ntk.certification.facts import INF, Power, Value, add_down, add_up, kept, powers
from normplace.ntk.certification.rules import Call, number, product_slope, rule, same_order

_RANGES = {
    "tanh": (-1.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "erf": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "atan": (-1.6, 1.6),
}


@rule(*_RANGES)
def _saturating(call: Call) -> Value:
    lower, upper = _RANGES[call.operator]
    # A sigmoid is positive but has no positive lower limit unless its argument has a lower limit.
    positive = call.operator == "sigmoid" and call.value(0).below
    return call.make(lower=lower, upper=upper, positive=positive)


# Activations whose derivative is bounded and that never fall below a number.
_FLOORS = {"relu": 0.0, "softplus": 0.0, "gelu": -0.18, "silu": -0.28, "mish": -0.31, "hardswish": -0.38}


@rule(*_FLOORS)
def _half_bounded(call: Call) -> Value | None:
    x = call.value(0)
    if call.operator == "softplus" and not float(call.get("beta", 1)) > 0:
        return None
    positive = x.positive if call.operator == "relu" else call.operator == "softplus" and x.below
    # These map a bounded range to a bounded range; only ReLU is monotone, so only it keeps the numbers.
    upper = max(x.upper, 0.0) if call.operator == "relu" else INF
    return call.make(lower=_FLOORS[call.operator], above=x.above, upper=upper, positive=positive)


@rule("elu")
def _elu(call: Call) -> Value | None:
    x, alpha, scale = call.value(0), call.get("alpha", 1), call.get("scale", 1)
    if min(alpha, scale, call.get("input_scale", 1)) <= 0:
        return None
    return call.make(lower=-1.01 * float(alpha * scale), above=x.above)


@rule("leaky_relu")
def _leaky_relu(call: Call) -> Value | None:
    x = call.value(0)
    if float(call.get("negative_slope", 0.01)) < 0:
        return None
    return call.make(below=x.below, above=x.above, positive=x.positive)


@rule("_prelu_kernel", "prelu")
def _prelu(call: Call) -> Value:
    x, weight = call.value(0), call.value(1)
    bounded = x.bounded and weight.bounded
    return call.make(below=bounded, above=bounded, slope=x.slope and product_slope(x, weight))


@rule("log_sigmoid_forward")
def _log_sigmoid(call: Call) -> tuple[Value, Value]:
    return call.make(upper=0.0, below=call.value(0).below), call.make(output=1, finite=False)


@rule("hardtanh", "clamp", "clamp_min", "clamp_max")
def _clamp(call: Call) -> Value:
    x, low, high = call.value(0), None, None
    if call.operator == "hardtanh":
        low, high = call.get("min_val", -1.0), call.get("max_val", 1.0)
    elif call.operator == "clamp_max":
        high = call.get("max")
    else:
        low = call.get("min")
        high = call.get("max") if call.operator == "clamp" else None
    if len(call.tensors) > 1:  # limits that are tensors
        bounded = all(value.bounded for value in call.tensors)
        return call.make(below=bounded, above=bounded)
    low = None if low is None or low == -INF else number(low)
    high = None if high is None or high == INF else number(high)
    if not all(end is None or end.finite for end in (low, high)):
        return call.unknown()
    over, lower, upper, below, above = x.over, x.lower, x.upper, x.below, x.above
    positive = x.positive
    if low is not None:
        lower, below, positive = max(lower, low.lower), True, positive or low.positive
        upper = max(upper, low.lower)
    if high is not None:
        upper, above, over = min(upper, high.upper), True, frozenset()
        lower = min(lower, high.upper)
        positive = positive and high.positive
    return call.make(lower=lower, upper=upper, below=below, above=above, positive=positive, over=over)


@rule("maximum", "minimum")
def _maximum(call: Call) -> Value:
    a, b = call.value(0), call.value(1)
    if call.operator == "maximum":
        below, above, over = a.below or b.below, a.above and b.above, _joint(call, a, b)
        positive = a.positive or b.positive
        return call.make(lower=max(a.lower, b.lower), below=below, above=above, positive=positive, over=over)
    below, above, positive = a.below and b.below, a.above or b.above, a.positive and b.positive
    return call.make(
        upper=min(a.upper, b.upper), lower=min(a.lower, b.lower), below=below, above=above, positive=positive
    )


def _joint(call: Call, a: Value, b: Value) -> frozenset[Power]:
    """Powers that a sum or maximum of two tensors exceeds because one of them does."""
    return frozenset(fact for value in (a, b) if same_order(value, call.shapes[0]) for fact in value.over)


@rule("exp", "expm1")
def _exp(call: Call) -> Value:
    x = call.value(0)
    shift = 1.0 if call.operator == "expm1" else 0.0
    slope = x.slope and x.above
    return call.make(lower=-shift, above=x.above, positive=x.below and not shift, slope=slope)


@rule("log")
def _log(call: Call) -> Value:
    x = call.value(0)
    return call.make(above=x.above, below=True) if x.positive else call.unknown()


@rule("log1p")
def _log1p(call: Call) -> Value:
    x = call.value(0)
    if not x.lower > -1:
        return call.unknown()
    return call.make(above=x.above, below=True, lower=0.0 if x.nonnegative else -INF, positive=x.positive)


@rule("abs")
def _abs(call: Call) -> Value:
    x = call.value(0)
    over = frozenset({Power(x.key, call.shapes[0], 1.0)})
    return call.make(lower=0.0, upper=max(x.upper, -x.lower), above=x.bounded, positive=x.apart, over=over)


@rule("neg")
def _neg(call: Call) -> Value:
    x = call.value(0)
    return call.make(lower=-x.upper, upper=-x.lower, below=x.above, above=x.below, inverse=x.inverse)


@rule("sqrt", "rsqrt", "reciprocal", "square", "pow")
def _power(call: Call) -> Value | None:
    fixed = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0, "square": 2.0}
    exponent = fixed.get(call.operator, call.get("exponent"))
    if not isinstance(exponent, int | float):
        return None  # the exponent is a tensor
    return _raised(call, call.value(0), float(exponent))


def _raised(call: Call, x: Value, p: float) -> Value:
    """The power p of a tensor."""
    if p < 0:
        if not x.positive:
            return call.unknown()
        # x stays away from zero, so a negative power and its derivative are bounded.
        return call.make(lower=0.0, above=True, positive=x.above, inverse=powers(x.over, -p))
    if p == 0:
        return call.make(lower=1.0, upper=1.0)
    whole = p == int(p)
    if not whole and not x.nonnegative:
        return call.unknown()
    even = whole and int(p) % 2 == 0
    over: frozenset[Power] = frozenset()
    if even:
        over = frozenset({Power(x.key, call.shapes[0], p)})
    if x.nonnegative:
        over |= powers(x.over, p)
    bounded = x.bounded
    # The derivative of a power below one is unbounded at zero.
    slope = x.slope and (bounded or p == 1) and (p >= 1 or x.positive)
    return call.make(
        lower=0.0 if even or x.nonnegative else -INF,
        below=bounded or (x.below and not even),
        above=bounded or (x.above and not even),
        positive=x.positive or (even and x.apart),
        over=over,
        slope=slope,
    )


@rule("add", "sub", "rsub")
def _add(call: Call) -> Value | None:
    if call.get("alpha", 1) != 1:
        return _combination(call)
    a, b = call.value(0), call.value(1)
    if call.operator == "rsub":
        a, b = b, a
    if call.operator != "add":
        if b.holes is not None:
            return call.unknown()
        centred = b.mean is not None and b.mean[0] == a.key and kept(a.shape, b.mean[1]) == b.shape
        b = replace(b, lower=-b.upper, upper=-b.lower, below=b.above, above=b.below, positive=False, over=frozenset())
        if centred and b.mean is not None:
            key = ("centred", a.key, b.mean[1])
            return call.make(key=key, below=a.bounded, above=a.bounded)
    nonnegative = a.nonnegative and b.nonnegative
    holes = None
    if a.holes is not None or b.holes is not None:
        masks = [value.holes.expand(call.shapes[0]) for value in (a, b) if value.holes is not None]
        holes = masks[0] | masks[-1]
    return call.make(
        lower=add_down(a.lower, b.lower),
        upper=add_up(a.upper, b.upper),
        below=a.below and b.below,
        above=a.above and b.above,
        positive=(a.positive and b.nonnegative) or (b.positive and a.nonnegative),
        over=_joint(call, a, b) if nonnegative else frozenset(),
        holes=holes,
    )


def _combination(call: Call) -> Value:
    bounded = call.value(0).bounded and call.value(1).bounded
    return call.make(below=bounded, above=bounded)


@rule("mul")
def _mul(call: Call) -> Value:
    a, b = call.value(0), call.value(1)
    if a.key == b.key and a.shape == b.shape:
        return _raised(call, a, 2.0)
    # Where one factor is large the other is as small as its reciprocal; where it is small, both are bounded.
    cancels = (b.bounded and b.cancels(a)) or (a.bounded and a.cancels(b))
    bounded = cancels or (a.bounded and b.bounded)
    nonnegative = (a.nonnegative and b.nonnegative) or (a.upper <= 0 and b.upper <= 0)
    over, inverse = set[Power](), set[Power]()
    for x, factor in ((a, b), (b, a)):
        if same_order(x, call.shapes[0]):
            over |= x.over if factor.positive else set()
            inverse |= x.inverse if factor.bounded else set()
    return call.make(
        lower=0.0 if nonnegative else -INF,
        below=bounded,
        above=bounded,
        positive=a.positive and b.positive,
        over=frozenset(over),
        inverse=frozenset(inverse),
        slope=product_slope(a, b),
    )


@rule("div", "true_divide")
def _div(call: Call) -> Value | None:
    a, b = call.value(0), call.value(1)
    if call.get("rounding_mode") is not None:
        return None
    if not b.apart:
        return call.unknown()
    bounded = a.bounded or b.exceeds(a)
    keeps = b.positive and b.above and same_order(a, call.shapes[0])
    slope = (not a.trained or a.slope) and (not b.trained or (b.slope and a.bounded))
    return call.make(
        lower=0.0 if a.nonnegative and b.positive else -INF,
        below=bounded or (a.below and b.positive),
        above=bounded or (a.above and b.positive),
        positive=a.positive and b.positive and b.above,
        over=a.over if keeps else frozenset(),
        inverse=b.over if a.bounded and same_order(b, call.shapes[0]) else frozenset(),
        slope=slope,
    )


@rule("floor", "ceil", "round", "trunc")
def _rounding(call: Call) -> Value:
    x = call.value(0)
    return call.make(lower=x.lower - 1, upper=x.upper + 1, below=x.below, above=x.above)


_LOGICAL = "eq ne lt le gt ge logical_and logical_or logical_not logical_xor isnan isinf isfinite any all signbit"


@rule(*_LOGICAL.split())
def _logical(call: Call) -> Value:
    return call.make(lower=0.0, upper=1.0, slope=True)


@rule("sign", "sgn")
def _sign(call: Call) -> Value:
    return call.make(lower=-1.0, upper=1.0, slope=True)


@rule("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor")
def _bitwise(call: Call) -> Value | None:
    return call.make(lower=0.0, upper=1.0) if call.dtype == torch.bool else None
