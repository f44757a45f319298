"""The rules of rotary positions: ``rope_parameters`` of a Hugging Face configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from normplace.errors import UsageError, quoted
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.rules import Rule, Settings, setting
from normplace.models.transformer.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RotaryScaling,
    YarnScaling,
)

KEYS = ("rope_parameters", "max_position_embeddings", "original_max_position_embeddings")
SCALING_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "original_max_position_embeddings",
    ),
    "longrope": ("factor", "attention_factor", "short_factor", "long_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""The keys of each type of rotary positions, besides the base and the rotating fraction of a head."""


def rotary(*, partial: bool = False) -> Rule:
    """Rotary positions that are the same in all layers.

    Args:
        partial: Whether ``partial_rotary_factor`` of each head rotates; otherwise it must be 1.
    """

    def read(settings: Settings) -> Mapping[str, Any]:
        rope = settings.get("rope_parameters") or {}
        values = _read(rope, settings)
        fraction = 1.0 if rope.get("partial_rotary_factor") is None else rope["partial_rotary_factor"]
        if partial:
            return {**values, "positions.rotary_features": int(_head_dim(settings) * fraction)}
        if fraction != 1:
            raise UsageError(f"partial_rotary_factor={fraction!r} is not supported: only partial_rotary_factor=1.0 is.")
        return values

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        rope = _written(config, config.positions.scaling)
        if partial:
            rope["partial_rotary_factor"] = _fraction(config.positions.rotary_features, config.head_dim)
        return {"rope_parameters": rope, **_lengths(config)}

    return Rule(KEYS, read, write)


def rotary_by_window() -> Rule:
    """Rotary positions of their own for layers with a window, which are not scaled (Gemma 3, OLMo 3)."""

    def read(settings: Settings) -> Mapping[str, Any]:
        rope = settings.get("rope_parameters")
        if not isinstance(rope, Mapping) or "full_attention" not in rope:
            values = _read(rope, settings)
            return {**values, "positions.window_theta": values["positions.theta"]}
        full, sliding = (_read(rope.get(kind), settings) for kind in ("full_attention", "sliding_attention"))
        if not rope["full_attention"].get("truncate", True):
            raise UsageError("truncate=False is not supported in rope_parameters by layer: only truncate=True is.")
        if full == sliding:
            return full
        if sliding["positions.scaling"] is not None:
            raise UsageError("scaled rotary positions of sliding_attention layers are not supported: scale the others.")
        return {**full, "positions.window_theta": sliding["positions.theta"]}

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        full = _written(config, config.positions.scaling)
        theta = config.positions.window_theta
        sliding = dict(full) if theta is None else {"rope_type": "default", "rope_theta": theta}
        return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}, **_lengths(config)}

    return Rule(KEYS, read, write)


def _read(rope: Any, settings: Settings) -> dict[str, Any]:
    """Base and scaling of ``rope_parameters``.

    Raises:
        UsageError: If a value is missing, or the type or a key is not supported.
    """
    if not isinstance(rope, Mapping) or not isinstance(rope.get("rope_theta"), int | float):
        raise UsageError(f"the configuration has no rope_theta in rope_parameters, got {quoted(rope)}: set it.")
    kind = rope.get("rope_type", "default")
    if kind not in SCALING_KEYS:
        raise UsageError(f"rotary positions of type {kind!r} are not supported: {', '.join(SCALING_KEYS)} are.")
    for key, value in rope.items():
        known = key in SCALING_KEYS[kind] or key in ("rope_type", "type", "rope_theta", "partial_rotary_factor")
        if not known and value is not None:
            raise UsageError(
                f"the setting {key}={quoted(value)} of {kind!r} rotary positions is not supported: leave it out."
            )
    return {"positions.theta": float(rope["rope_theta"]), "positions.scaling": _scaling(kind, rope, settings)}


def _scaling(kind: str, rope: Mapping[str, Any], settings: Settings) -> RotaryScaling | None:
    if kind == "default":
        return None
    longest = setting(settings, "max_position_embeddings")
    length: int = rope.get("original_max_position_embeddings") or longest
    factor = float(longest / length if rope.get("factor") is None else rope["factor"])
    if kind == "linear":
        return LinearScaling(factor=factor)
    if kind == "dynamic":
        return DynamicScaling(factor=factor, original_length=longest)
    if kind == "llama3":
        low, high = (float(setting(rope, f"{name}_freq_factor")) for name in ("low", "high"))
        return Llama3Scaling(factor=factor, original_length=length, low=low, high=high)
    if kind == "yarn":
        return YarnScaling(
            factor=factor,
            original_length=length,
            amplitude=_yarn_amplitude(factor, rope),
            fast=float(rope.get("beta_fast") or 32),
            slow=float(rope.get("beta_slow") or 1),
            whole=bool(rope.get("truncate", True)),
        )
    amplitude = rope.get("attention_factor")
    if amplitude is None:
        amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length))
    short, long = (tuple(map(float, setting(rope, f"{name}_factor"))) for name in ("short", "long"))
    return LongScaling(short=short, long=long, original_length=length, amplitude=float(amplitude))


def _yarn_amplitude(factor: float, rope: Mapping[str, Any]) -> float:
    """The factor of the paper's equation 22, or the quotient of two with other slopes, as DeepSeek has it."""

    def growth(slope: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * slope * math.log(factor) + 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return growth(rope["mscale"]) / growth(rope["mscale_all_dim"])
    return growth(1.0)


def _written(config: TransformerConfig, scaling: RotaryScaling | None) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.positions.theta}
    if scaling is None:
        return rope
    rope["rope_type"] = scaling.kind
    if isinstance(scaling, LinearScaling | DynamicScaling):
        return {**rope, "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        frequencies = {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        return {
            **rope, "factor": scaling.factor, **frequencies,
            "original_max_position_embeddings": scaling.original_length,
        }  # fmt: skip
    if isinstance(scaling, YarnScaling):
        return {
            **rope, "factor": scaling.factor, "attention_factor": scaling.amplitude, "beta_fast": scaling.fast,
            "beta_slow": scaling.slow, "truncate": scaling.whole,
            "original_max_position_embeddings": scaling.original_length,
        }  # fmt: skip
    assert isinstance(scaling, LongScaling)
    return {
        **rope, "short_factor": list(scaling.short), "long_factor": list(scaling.long),
        "attention_factor": scaling.amplitude, "original_max_position_embeddings": scaling.original_length,
    }  # fmt: skip


def _lengths(config: TransformerConfig) -> dict[str, Any]:
    """The lengths outside ``rope_parameters`` on which a scaling depends."""
    scaling = config.positions.scaling
    if isinstance(scaling, DynamicScaling):
        return {"max_position_embeddings": scaling.original_length}
    if isinstance(scaling, LongScaling):
        return {"original_max_position_embeddings": scaling.original_length}
    return {}


def _head_dim(settings: Settings) -> int:
    return settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]


def _fraction(features: int | None, head_dim: int) -> float:
    """The fraction of a head that rotates; multiplied by its width and rounded down, it gives the features again."""
    fraction = 1.0 if features is None else features / head_dim
    return fraction if features is None or int(head_dim * fraction) == features else math.nextafter(fraction, 2)
