"""Check that the fields of a dataclass have their annotated types."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from normplace.errors import UsageError, quoted

TYPE_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    tuple: "a tuple such as (1, 2)",
    types.NoneType: "None",
}

_hints = functools.cache(get_type_hints)


def check_types(settings: Any) -> None:
    """Check that the fields of a dataclass have their annotated types.

    An int is also a float; a bool is neither, and NaN is not a float.

    Raises:
        UsageError: If one has another type.
    """
    for field in dataclasses.fields(settings):
        check_type(field.name, getattr(settings, field.name), _hints(type(settings))[field.name])


def check_type(name: str, value: Any, kind: Any) -> None:
    """Check that a value has the type of an annotation.

    Raises:
        UsageError: If it has not.
    """
    if not fits(value, kind):
        raise UsageError(f"{name} takes {describe(kind)}, got {quoted(value)}.")


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value has the type of an annotation; element types are checked for tuples only."""
    if type(value) is kind and kind is not float:  # the usual case
        return True
    origin = get_origin(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in get_args(kind))
    if origin is Literal:
        return value in get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple) and _elements_fit(value, get_args(kind))
    kind = origin or kind
    if kind is None:
        return value is None
    if isinstance(value, bool) and kind in (int, float):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real) and not math.isnan(value)
    return not isinstance(kind, type) or isinstance(value, kind)


def _elements_fit(value: tuple[Any, ...], kinds: tuple[Any, ...]) -> bool:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return all(fits(element, kinds[0]) for element in value)
    return len(value) == len(kinds) and all(fits(element, one) for element, one in zip(value, kinds, strict=True))


def describe(kind: Any) -> str:
    """Return an annotation in words."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(one) for one in get_args(kind))
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    kind = origin or kind
    return TYPE_NAMES.get(kind) or f"a {getattr(kind, '__name__', kind)}"
