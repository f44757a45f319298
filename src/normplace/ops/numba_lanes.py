"""Vectors as values inside numba's compiled loops.

Automatic vectorization checks before every row that no two arrays overlap, and keeps sums in memory. A :class:`Lanes`
is an explicit vector: its arithmetic is one instruction for each register that it fills, and sums over edges stay in
registers. A processor with narrower registers uses more of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

compiled = functools.partial(numba.njit, nogil=True, error_model="numpy", fastmath={"contract"})
inlined = compiled(inline="always")
SOURCES = Path(__file__).parent
"""The folder of all that the loops of ops depend on."""

LINE = 64
"""Bytes of a cache line."""
_BIT, _INDEX = ir.IntType(1), ir.IntType(32)
# A product and a sum may be fused; no other optimization may change the result.
_FUSED = ("contract",)


class Lanes(types.Type):
    """The type of a vector of ``count`` numbers."""

    def __init__(self, element: types.Type, count: int) -> None:
        self.element, self.count = element, count
        super().__init__(name=f"Lanes({element}, {count})")

    def of(self, element: types.Type) -> Lanes:
        """A vector of the same length with another element type."""
        return Lanes(element, self.count)


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        element = manager.lookup(lanes.element).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(element, lanes.count))


def _lowered(define: Callable[..., Any]) -> Callable[..., Any]:
    """An intrinsic for compiled loops, from a function of the argument types."""
    return intrinsic(define)


def _spread(builder: Any, value: Any, count: int) -> Any:
    """A vector with one number in every lane."""
    blank = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(blank, value, _INDEX(0))
    return builder.shuffle_vector(first, blank, ir.Constant(ir.VectorType(_INDEX, count), [0] * count))


def _alike(kinds: Any) -> tuple[Lanes, tuple[types.Type, ...]]:
    """The vector type among some argument types, and those types with numbers promoted to its element type."""
    lanes = next(kind for kind in kinds if isinstance(kind, Lanes))
    return lanes, tuple(kind if isinstance(kind, Lanes) else lanes.element for kind in kinds)


def _spread_all(builder: Any, kinds: Any, arguments: Any) -> list[Any]:
    lanes, _ = _alike(kinds)
    return [
        value if isinstance(kind, Lanes) else _spread(builder, value, lanes.count)
        for kind, value in zip(kinds, arguments, strict=True)
    ]


def _define(operation: Callable[..., Any], emit: Callable[..., Any], compares: bool = False) -> None:
    """Define an operator for two vectors, and for a vector and a number."""

    class Typing(AbstractTemplate):
        key = operation

        def generic(self, args: Any, kws: Any) -> Any:
            if any(isinstance(kind, Lanes) for kind in args):
                lanes, kinds = _alike(args)
                return signature(lanes.of(types.boolean) if compares else lanes, *kinds)
            return None

    register: Any = infer_global(operation)
    register(Typing)

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return emit(builder, *_spread_all(builder, sig.args, arguments))

    for kinds in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(operation, *kinds)(generate)


def _either(of_reals: str, of_integers: str) -> Callable[..., Any]:
    def emit(builder: Any, a: Any, b: Any) -> Any:
        if isinstance(a.type.element, ir.IntType):
            return getattr(builder, of_integers)(a, b)
        return getattr(builder, of_reals)(a, b, flags=_FUSED)

    return emit


_define(operator.add, _either("fadd", "add"))
_define(operator.sub, _either("fsub", "sub"))
_define(operator.mul, _either("fmul", "mul"))
_define(operator.truediv, lambda builder, a, b: builder.fdiv(a, b))
_define(operator.lshift, lambda builder, a, b: builder.shl(a, b))
_define(operator.rshift, lambda builder, a, b: builder.ashr(a, b))
_define(operator.gt, lambda builder, a, b: builder.fcmp_ordered(">", a, b), compares=True)
_define(operator.lt, lambda builder, a, b: builder.fcmp_ordered("<", a, b), compares=True)
_define(operator.le, lambda builder, a, b: builder.fcmp_ordered("<=", a, b), compares=True)
_define(operator.eq, lambda builder, a, b: builder.fcmp_ordered("==", a, b), compares=True)


@_lowered
def larger(context, a, b):
    """The larger of two values per lane; ``b`` if either is nan."""

    def generate(context, builder, sig, arguments):
        a, b = _spread_all(builder, sig.args, arguments)
        return builder.select(builder.fcmp_ordered(">", a, b), a, b)

    lanes, kinds = _alike((a, b))
    return lanes(*kinds), generate


@_lowered
def where(context, test, a, b):
    """``a`` in the lanes where the condition is true, else ``b``."""

    def generate(context, builder, sig, arguments):
        return builder.select(arguments[0], *_spread_all(builder, sig.args[1:], arguments[1:]))

    lanes, kinds = _alike((a, b))
    return lanes(test, *kinds), generate


@_lowered
def recast(context, value):
    """The bits of float32 lanes as int32, and back."""

    def generate(context, builder, sig, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(sig.return_type))

    other = types.int32 if value.element == types.float32 else types.float32
    return value.of(other)(value), generate


@_lowered
def to_float32(context, value):
    """int32 lanes converted to float32."""

    def generate(context, builder, sig, arguments):
        return builder.sitofp(arguments[0], context.get_value_type(sig.return_type))

    return value.of(types.float32)(value), generate


def _by_library(name: str) -> Callable[..., Any]:
    """A function of the C library, called for each float64 lane."""

    def define(context, value):
        def generate(context, builder, sig, arguments):
            vector = arguments[0].type
            shape = ir.FunctionType(vector, [vector])
            known = cgutils.get_or_insert_function(builder.module, shape, f"llvm.{name}.v{vector.count}f64")
            return builder.call(known, arguments)

        return value(value), generate

    return _lowered(define)


exp64, log64 = _by_library("exp"), _by_library("log")


def _place(context: Any, builder: Any, kind: Any, array: Any, row: Any, column: Any) -> tuple[Any, Any]:
    """A view of a matrix, and the address of one of its elements."""
    assert kind.layout == "C", "lanes are neighbouring columns"
    view = context.make_array(kind)(context, builder, array)
    return view, cgutils.get_item_pointer(context, builder, kind, view, [row, column], wraparound=False)


def _hint(builder: Any, address: Any) -> None:
    """Prefetch a cache line for reading, into the nearest cache."""
    shape = ir.FunctionType(ir.VoidType(), [address.type, _INDEX, _INDEX, _INDEX])
    known = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0i8")
    builder.call(known, [address, _INDEX(0), _INDEX(3), _INDEX(1)])


@_lowered
def prefetch(context, array, row):
    """Prefetch the start of a row."""

    def generate(context, builder, sig, arguments):
        first = context.get_constant(types.intp, 0)
        _, place = _place(context, builder, sig.args[0], arguments[0], arguments[1], first)
        _hint(builder, builder.bitcast(place, ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


class Access(NamedTuple):
    """Access to the columns of a matrix by vectors of one type and length."""

    load: Callable[..., Any]
    """``load(array, row, column)``: the lanes from a column; ones past the last column."""
    store: Callable[..., Any]
    """``store(array, row, column, lanes)``: writes the lanes that have a column."""
    fill: Callable[..., Any]
    """``fill(number)``: the same in every lane."""
    add_up: Callable[..., Any]
    """``add_up(array, column, lanes)``: the sum of the lanes that have a column."""
    prefetch: Callable[..., Any]
    """``prefetch(array, row, column)``: prefetches the lanes of a later ``load``."""
    clear: Callable[..., Any]
    """``clear(array, column, lanes)``: the lanes, with zeros in those that have no column."""


@functools.cache
def access(dtype: np.dtype, count: int, whole: bool) -> Access:
    """The functions for ``count`` lanes; ``whole`` if they divide the columns of every matrix."""
    element = numba.from_dtype(dtype)
    kind, size = Lanes(element, count), dtype.itemsize
    name = f"v{count}f{8 * size}"
    mask = ir.VectorType(_BIT, count)

    def inside(builder, view, column):
        """Mask of the lanes that have a column."""
        left = builder.trunc(builder.sub(cgutils.unpack_tuple(builder, view.shape)[1], column), _INDEX)
        order = ir.Constant(ir.VectorType(_INDEX, count), list(range(count)))
        return builder.icmp_signed("<", order, _spread(builder, left, count))

    def masked(builder, verb, returns, *kinds):
        shape = ir.FunctionType(returns, kinds)
        return cgutils.get_or_insert_function(builder.module, shape, f"llvm.masked.{verb}.{name}.p0")

    @_lowered
    def load(context, array, row, column):
        def generate(context, builder, sig, arguments):
            view, place = _place(context, builder, sig.args[0], *arguments)
            vector = context.get_value_type(kind)
            place = builder.bitcast(place, vector.as_pointer())
            if whole:
                return builder.load(place, align=size)
            known = masked(builder, "load", vector, place.type, _INDEX, mask, vector)
            ones = ir.Constant(vector, [1.0] * count)
            return builder.call(known, [place, _INDEX(size), inside(builder, view, arguments[2]), ones])

        return kind(array, types.intp, types.intp), generate

    @_lowered
    def store(context, array, row, column, lanes):
        def generate(context, builder, sig, arguments):
            view, place = _place(context, builder, sig.args[0], *arguments[:3])
            vector = context.get_value_type(kind)
            place = builder.bitcast(place, vector.as_pointer())
            if whole:
                builder.store(arguments[3], place, align=size)
            else:
                known = masked(builder, "store", ir.VoidType(), vector, place.type, _INDEX, mask)
                builder.call(known, [arguments[3], place, _INDEX(size), inside(builder, view, arguments[2])])
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp, kind), generate

    @_lowered
    def fill(context, number):
        def generate(context, builder, sig, arguments):
            return _spread(builder, arguments[0], count)

        return kind(element), generate

    def cleared(context, builder, sig, arguments):
        array, column, value = arguments
        if whole:
            return value
        view = context.make_array(sig.args[0])(context, builder, array)
        return builder.select(inside(builder, view, column), value, ir.Constant(value.type, [0.0] * count))

    @_lowered
    def clear(context, array, column, lanes):
        return kind(array, types.intp, kind), cleared

    @_lowered
    def add_up(context, array, column, lanes):
        def generate(context, builder, sig, arguments):
            value, number = cleared(context, builder, sig, arguments), arguments[2].type.element
            shape = ir.FunctionType(number, [number, value.type])
            known = cgutils.get_or_insert_function(builder.module, shape, f"llvm.vector.reduce.fadd.{name}")
            # Pairwise summation.
            return builder.call(known, [ir.Constant(number, 0.0), value], fastmath=("reassoc",))

        return element(array, types.intp, kind), generate

    @_lowered
    def prefetch_lanes(context, array, row, column):
        def generate(context, builder, sig, arguments):
            _, place = _place(context, builder, sig.args[0], *arguments)
            place = builder.bitcast(place, ir.IntType(8).as_pointer())
            for offset in range(0, count * size, LINE):
                _hint(builder, builder.gep(place, [_INDEX(offset)]))
            return context.get_dummy_value()

        return types.void(array, types.intp, types.intp), generate

    return Access(load, store, fill, add_up, prefetch_lanes, clear)
