"""Trial configurations: frozen dataclasses, checked keys, one hash each."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from normplace.errors import UsageError, unknown
from normplace.lab.lines import trial_hash

Config = TypeVar("Config")
_hints = cache(get_type_hints)


def config_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_hash(study: str, part: str, config: Any) -> str:
    """What identifies a trial: its study, part and every field of its configuration, the seed included."""
    return trial_hash(study, part, config_dict(config))


def config_from_dict(config_type: type[Config], data: Mapping[str, Any]) -> Config:
    """The configuration that :func:`config_dict` wrote.

    Raises:
        UsageError: If a key is unknown; the nearest one is suggested.
    """
    hints = _hints(config_type)
    for key in data:
        if key not in hints:
            raise unknown("config key", key, hints)
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return config_type(**values)


def parse_overrides(config_types: Iterable[type], assignments: Iterable[str]) -> dict[str, Any]:
    """``key=value`` words as a mapping, each value of its field's type.

    Args:
        config_types: The configurations whose fields may be set.
        assignments: The words.

    Raises:
        UsageError: If a word has no ``=``, its key is unknown, or its value is of another type.
    """
    hints = {key: kind for config_type in config_types for key, kind in _hints(config_type).items()}
    overrides: dict[str, Any] = {}
    for word in assignments:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"an override is written key=value, got {word!r}.")
        if key not in hints:
            raise unknown("config key", key, hints)
        overrides[key] = _parse(key, text, hints[key])
    return overrides


def _parse(key: str, text: str, kind: Any) -> Any:
    if kind is str:
        return text
    try:
        value = ast.literal_eval(text)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        value = text  # refused below unless the field takes text
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"config key {key!r} takes a finite number, got {text!r}.")
    if not _fits(value, kind):
        expected = _NAMES.get(get_origin(kind) or kind) or getattr(kind, "__name__", str(kind))
        raise UsageError(f"config key {key!r} takes {expected}, got {text!r}.")
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's type; a whole number is also a number."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        kinds = [parts[0]] * len(value) if isinstance(value, tuple) and parts[-1] is ... else parts
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if kind is None or kind is Any:
        return kind is Any or value is None
    return type(value) is kind or (kind is float and type(value) is int)


_NAMES = {int: "a whole number", float: "a number", bool: "True or False", tuple: "a tuple such as (1, 2)"}
