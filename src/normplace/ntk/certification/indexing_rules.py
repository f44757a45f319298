"""Rules of reshaping, indexing, selection, masking, padding and scattering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from normplace.ntk.certification.facts import INF, PowerBound, Value
from normplace.ntk.certification.rules import OperatorCall, index_value, limits, number, rule, same_size

_RESHAPING = """view reshape _unsafe_view unsqueeze squeeze clone alias detach contiguous lift_fresh lift_fresh_copy
_to_copy to _reshape_alias copy"""


@rule(*_RESHAPING.split())
def _same_entries(call: OperatorCall) -> Value | None:
    x = call.value(1 if call.operator == "copy" else 0)
    if call.operator == "view" and "dtype" in call.arguments:
        return None  # the same bits as other numbers
    if not same_size(x, call.shapes[0]) or call.dtype is None:
        return call.result(**limits(x))
    if not call.dtype.is_floating_point:
        masked = x.minus_inf is not None and call.dtype != torch.bool
        return call.unknown() if masked else call.result(**limits(x), bounded_gradient=True)
    key = x.key if x.shape == call.shapes[0] else call.name
    minus_inf = None if x.minus_inf is None else x.minus_inf.reshape(call.shapes[0])
    return call.result(
        key=key,
        **limits(x),
        away_from_zero=x.away_from_zero,
        dominates=x.dominates,
        decays_like=x.decays_like,
        multiple_of=x.multiple_of if x.shape == call.shapes[0] else None,
        mean=x.mean,
        largest=x.largest,
        minus_inf=minus_inf,
    )


@rule("expand")
def _expand(call: OperatorCall) -> Value:
    x, shape = call.value(0), call.shapes[0]

    def spread(facts: frozenset[PowerBound]) -> frozenset[PowerBound]:
        aligned = len(shape) == len(x.shape)
        return frozenset(replace(fact, shape=shape) for fact in facts if aligned and fact.shape == x.shape)

    key = x.key if x.shape == shape else call.name
    minus_inf = None if x.minus_inf is None else x.minus_inf.expand(shape)
    return call.result(
        key=key,
        **limits(x),
        away_from_zero=x.away_from_zero,
        dominates=spread(x.dominates),
        decays_like=spread(x.decays_like),
        minus_inf=minus_inf,
    )


_SELECTING = """t transpose permute slice select diagonal as_strided flip roll repeat unfold split split_with_sizes
unsafe_split chunk unbind index index_select gather take embedding narrow tile movedim rot90
pixel_shuffle cat stack where select_scatter slice_scatter diagonal_scatter channel_shuffle max_pool1d
max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d"""


@rule(*_SELECTING.split())
def _selected_entries(call: OperatorCall) -> Value | tuple[Value, ...] | None:
    """Every entry of the result is an entry of an argument, for all indices and conditions."""
    sources = _sources(call)
    # With gaps between its entries, a window of a max pool may lie in the padding only, and its maximum is -inf.
    gaps = "max_pool" in call.operator and {*call.get("dilation", [1])} != {1} and {*call.get("padding", [0])} != {0}
    if not sources or gaps:
        return None
    if not all(source.finite for source in sources):
        return call.unknown()
    if any(source.minus_inf is not None for source in sources):
        return _masked_choice(call, call.args[0], *sources)
    bounded_gradient = all(source.bounded_gradient for source in sources)
    outputs = [
        call.result(output=index, bounded_gradient=bounded_gradient, **_join(sources))
        for index in range(len(call.shapes))
    ]
    if "pool" in call.operator and len(outputs) > 1:
        outputs[1] = index_value(call)
    return tuple(outputs) if len(outputs) > 1 or _returns_tuple(call) else outputs[0]


def _returns_tuple(call: OperatorCall) -> bool:
    return call.operator in {"split", "split_with_sizes", "unsafe_split", "chunk", "unbind"}


def _sources(call: OperatorCall) -> list[Value]:
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
    """Limits that hold for the entries of all the tensors."""
    return {
        "lower": min(value.lower for value in values),
        "upper": max(value.upper for value in values),
        "bounded_below": all(value.bounded_below for value in values),
        "bounded_above": all(value.bounded_above for value in values),
        "positive": all(value.positive for value in values),
        "away_from_zero": all(value.away_from_zero for value in values),
    }


def _masked_choice(call: OperatorCall, condition: Any, chosen: Value, other: Value) -> Value:
    """A choice between finite entries and -inf; unknown if the condition is not fixed."""
    if not isinstance(condition, Value) or condition.depends_on_input or condition.fixed_tensor is None:
        return call.unknown()
    shape = call.shapes[0]
    mask = condition.fixed_tensor.bool().expand(shape)
    none = torch.zeros((), dtype=torch.bool, device=mask.device)
    minus_inf = [
        (none if side.minus_inf is None else side.minus_inf.to(mask.device)).expand(shape) for side in (chosen, other)
    ]
    return call.result(minus_inf=torch.where(mask, *minus_inf), **_join([chosen, other]))


def _side(side: Any) -> Value:
    """The value of a tensor or number that may be -inf."""
    if isinstance(side, Value):
        return side
    if side == -INF:
        return Value(
            (),
            ("number", "-inf"),
            bounded_below=True,
            bounded_above=True,
            depends_on_input=False,
            minus_inf=torch.tensor(True),
        )
    return number(side)


@rule("masked_fill")
def _masked_fill(call: OperatorCall) -> Value:
    x, mask, fill = call.args
    side = _side(fill)
    if not side.finite:
        return call.unknown()
    if x.minus_inf is not None or side.minus_inf is not None:
        return _masked_choice(call, mask, side, x)
    return call.result(**_join([x, side]), bounded_gradient=x.bounded_gradient and side.bounded_gradient)


@rule("fill")
def _fill(call: OperatorCall) -> Value:
    x = call.value(1)
    return call.result(**limits(x), bounded_gradient=x.bounded_gradient)


@rule("zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full")
def _filled_like(call: OperatorCall) -> Value:
    if "full" in call.operator:
        content = call.value(1 if call.operator == "full_like" else 2)
    else:
        content = number(1.0 if "ones" in call.operator else 0.0)
    if not content.finite:
        return call.unknown()
    return call.result(**limits(content), bounded_gradient=True)


@rule("tril", "triu", "constant_pad_nd", "im2col", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def _padded(call: OperatorCall) -> Value:
    fill = number(call.get("value", 0)) if call.operator == "constant_pad_nd" else number(0)
    return call.result(**_join([call.value(0), fill])) if fill.finite else call.unknown()


_WRITING = "scatter scatter_add scatter_reduce index_put _index_put_impl masked_scatter index_add index_copy"


@rule(*_WRITING.split())
def _written(call: OperatorCall) -> Value | None:
    """Entries of one tensor, replaced or increased by entries of another."""
    reduction = call.get("reduce") if call.operator in {"scatter_reduce", "scatter"} else None
    if reduction not in {None, "sum", "amax", "amin", "mean"}:
        return None
    third = call.operator in {"index_put", "_index_put_impl", "masked_scatter"}
    values = [call.value(0), call.value(2 if third else 3)]
    if not all(value.finite for value in values):
        return call.unknown()
    bounded = all(value.bounded for value in values)
    nonnegative = all(value.nonnegative for value in values) and call.get("alpha", 1) == 1
    bounded_gradient = all(value.bounded_gradient for value in values)
    return call.result(
        lower=0.0 if nonnegative else -INF,
        bounded_below=bounded,
        bounded_above=bounded,
        bounded_gradient=bounded_gradient,
    )
