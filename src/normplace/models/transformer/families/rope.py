"""The rule of rotary positions: ``rope_parameters`` of a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normplace._shared.fields import quoted
from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.rules import Rule, Settings


def rotary() -> Rule:
    """Rotary positions with one base for all layers."""

    def read(settings: Settings) -> Mapping[str, Any]:
        rope = settings.get("rope_parameters")
        if not isinstance(rope, Mapping) or not isinstance(rope.get("rope_theta"), int | float):
            raise UsageError(f"the configuration has no rope_theta in rope_parameters, got {quoted(rope)}: set it.")
        if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1:
            kind = rope.get("rope_type", "default")
            raise UsageError(
                f"rotary positions of type {kind!r} or on a part of each head are not supported: only 'default' is."
            )
        return {"positions.theta": float(rope["rope_theta"])}

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": config.positions.theta}}

    return Rule(("rope_parameters", "max_position_embeddings"), read, write)
