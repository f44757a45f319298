"""Configurations of trials: frozen dataclasses with checked keys and a hash."""

from __future__ import annotations

import ast
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, get_type_hints

from normplace._shared.fields import check_type, describe, fits
from normplace.errors import UsageError, expect_choice, quoted
from normplace.lab.trials.record import trial_hash

Config = TypeVar("Config")
ADDED_LATER = {"added_later": True}
"""Metadata of a field that was added after trials were recorded; its default must be what those trials did."""
_hints = cache(get_type_hints)
_fields = cache(dataclasses.fields)


def config_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration to JSON values.

    A field with the metadata :data:`ADDED_LATER` is left out while it has its default, so that the hashes of trials
    recorded without it stay valid.
    """
    return {
        field.name: _json_value(value)
        for field in _fields(type(config))
        if (value := getattr(config, field.name)) != field.default or not field.metadata.get("added_later")
    }


def _json_value(value: Any) -> Any:
    """Convert a value to what JSON reads back; plain values, the usual case, skip the encoder."""
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if type(value) in {tuple, list}:
        return [_json_value(item) for item in value]
    return json.loads(json.dumps(dataclasses.asdict(value) if dataclasses.is_dataclass(type(value)) else value))


def config_hash(study: str, part: str, config: Any) -> str:
    """Hash that identifies a trial: its study, part and every field of its configuration, including the seed."""
    return trial_hash(study, part, config_dict(config))


def config_from_dict(config_type: type[Config], data: Mapping[str, Any]) -> Config:
    """Build a configuration from the output of :func:`config_dict`.

    Raises:
        UsageError: If a key is unknown, a value has the wrong type, or a key without a default is missing.
    """
    hints = _hints(config_type)
    for key in data:
        expect_choice("config key", key, hints)
    values = {key: _as_tuple(value) for key, value in data.items()}
    for key, value in values.items():
        check_type(f"config key {key!r}", value, hints[key])
    for field in _fields(config_type):  # pyright: ignore[reportArgumentType]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise UsageError(f"config key {field.name!r} is missing: give it a value.")
    return config_type(**values)


def _as_tuple(value: Any) -> Any:
    """Convert JSON lists to tuples."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def parse_overrides(config_types: Iterable[type], assignments: Iterable[str]) -> dict[str, Any]:
    """Parse ``key=value`` arguments.

    Raises:
        UsageError: If an argument has no ``=``, its key is unknown, or its value has the wrong type.
    """
    hints = {key: kind for config_type in config_types for key, kind in _hints(config_type).items()}
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"an override is written key=value, got {assignment!r}.")
        expect_choice("config key", key, hints)
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
        value = text  # rejected below unless the field takes text
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"config key {key!r} takes a finite number, got {text!r}.")
    if not fits(value, kind):
        raise UsageError(f"config key {key!r} takes {describe(kind)}, got {quoted(text)}.")
    return value
