"""Placements and other frozen settings as dictionaries, including those written under earlier field names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from normplace.errors import UsageError, unknown
from normplace.placement.factors import LearnedScale, Power
from normplace.placement.segments import First, Segments
from normplace.placement.spec import BlockSpec

RENAMED_FIELDS = {
    "BlockSpec": {"branch": "branch_scale", "skip": "skip_scale"},
    "TransformerConfig": {"vocabulary": "vocab_size", "start": "init"},
}
"""For each class, its fields by their earlier names. Files under those names stay readable."""


def known_fields(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping with its keys as fields of a dataclass; earlier names become the present ones.

    Raises:
        UsageError: If a key is not a field.
    """
    names = [field.name for field in dataclasses.fields(cls)]
    renamed = RENAMED_FIELDS.get(cls.__name__, {})
    fields = {}
    for key, value in data.items():
        name = renamed.get(key, key)
        if name not in names:
            raise unknown(f"key of {cls.__name__}:", key, names)
        fields[name] = value
    return fields


def read_segments(data: Any) -> Segments:
    """The (end, spec) pairs of a placement from their dictionaries."""
    return tuple(
        (First(**known_fields(First, end)) if isinstance(end, Mapping) else float(end), read_spec(spec))
        for end, spec in data
    )


def read_spec(data: Mapping[str, Any]) -> BlockSpec:
    """The block spec of a dictionary.

    Raises:
        UsageError: If a key is unknown, or a dictionary of earlier versions has a fixed and a learned skip multiplier.
    """
    fields = known_fields(BlockSpec, _with_one_skip_scale(data))
    for name, value in fields.items():
        if isinstance(value, Mapping):
            kind = LearnedScale if "per_channel" in value else Power
            fields[name] = kind(**known_fields(kind, value))
        elif isinstance(value, list | tuple):
            fields[name] = tuple(value)
    return BlockSpec(**fields)


def _with_one_skip_scale(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge the earlier fields ``skip``, a number, and ``skip_scale``, a learned multiplier or None."""
    if "skip" not in data:
        return data
    fields = dict(data)
    learned = fields.pop("skip_scale", None)
    if learned is None:
        return fields
    if fields["skip"] != 1:
        raise UsageError("the saved block has a fixed and a learned multiplier of its skip: keep one of them.")
    return {**fields, "skip": learned}
