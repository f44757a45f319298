"""Trial configurations: frozen dataclasses, checked keys, one hash each."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_type_hints

from normplace.errors import UsageError, unknown

Config = TypeVar("Config")


def config_dict(config: Any) -> dict[str, Any]:
    """A configuration as plain JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_hash(study: str, part: str, config: Any) -> str:
    """What identifies a trial: its study, part and every field of its configuration, the seed included."""
    text = json.dumps([study, part, config_dict(config)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_from_dict(config_type: type[Config], data: Mapping[str, Any]) -> Config:
    """The configuration that :func:`config_dict` wrote.

    Raises:
        UsageError: If a key is unknown; the nearest one is suggested.
    """
    hints = get_type_hints(config_type)
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
    hints = {key: kind for config_type in config_types for key, kind in get_type_hints(config_type).items()}
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
    except (ValueError, SyntaxError):
        value = text
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise UsageError(f"config key {key!r} takes {_NAMES.get(kind, kind.__name__)}, got {text!r}.")
    return value


_NAMES = {int: "a whole number", float: "a number", bool: "True or False", tuple: "a tuple such as (1, 2)"}
