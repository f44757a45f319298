"""Checks of settings: each field of a dataclass has the type it is annotated with, and lies in its range."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from normplace.errors import UsageError

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    tuple: "a tuple such as (1, 2)",
    types.NoneType: "None",
}
SHOWN = 60
"""Characters of a value that an error quotes."""

_hints = functools.cache(get_type_hints)


def check_types(settings: Any) -> None:
    """Refuse a dataclass whose fields do not have the types they are annotated with.

    A whole number is a number too; True is neither, and NaN is not a number.

    Raises:
        UsageError: If one does not.
    """
    for field in dataclasses.fields(settings):
        check_type(field.name, getattr(settings, field.name), _hints(type(settings))[field.name])


def check_type(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that does not have the type of an annotation.

    Raises:
        UsageError: If so.
    """
    if not fits(value, kind):
        raise UsageError(f"{name} takes {describe(kind)}, got {quoted(value)}.")


def check_range(
    settings: Any,
    *names: str,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Refuse settings that have a field outside a range.

    Args:
        settings: A dataclass, of checked types.
        *names: Its fields to check.
        least: The smallest value allowed.
        most: The largest value allowed.
        above: A bound that must be exceeded.
        below: A bound that must not be reached.

    Raises:
        UsageError: If one is outside.
    """
    for name in names:
        value = getattr(settings, name)
        if least <= value <= most and above < value < below:
            continue
        bounds = {"at least": least, "above": above, "at most": most, "below": below}
        words = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))
        raise UsageError(f"{name} must be {words or 'finite'}, got {quoted(value)}.")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value has the type of an annotation; types of elements of other containers than tuples are not read."""
    origin = get_origin(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(kind))
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
    """An annotation in words."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(one) for one in get_args(kind))
    if origin is Literal:
        return " or ".join(map(repr, get_args(kind)))
    kind = origin or kind
    return WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def quoted(value: Any) -> str:
    """A value for an error, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
