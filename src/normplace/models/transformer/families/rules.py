"""Rules that translate the settings of a Hugging Face configuration, in both directions.

A family is a tuple of rules. Every key of its configuration belongs to one of them: a key is translated, has to be at
its neutral value, or is inert. Keys name the settings of Hugging Face; dotted paths such as ``attention.heads`` name
those of a :class:`TransformerConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from normplace.errors import UsageError, quoted
from normplace.models.transformer.config import TransformerConfig
from normplace.placement import Placement

Settings = Mapping[str, Any]
"""A configuration of Hugging Face as a dictionary."""


@dataclass(frozen=True)
class Rule:
    """The translation of some keys.

    Args:
        keys: The keys that the rule accounts for.
        read: From the settings of Hugging Face to those of a Transformer, by dotted path.
        write: From a Transformer to the settings of Hugging Face, by key, as far as they can express it.
    """

    keys: tuple[str, ...]
    read: Callable[[Settings], Mapping[str, Any]]
    write: Callable[[TransformerConfig], Mapping[str, Any]]


def setting(settings: Settings, key: str) -> Any:
    """A setting of Hugging Face.

    Raises:
        UsageError: If there is none.
    """
    if key not in settings:
        raise UsageError(f"the configuration has no {key}: set it.")
    return settings[key]


def own_setting(config: TransformerConfig, path: str) -> Any:
    """A setting of a Transformer, by its dotted path."""
    return reduce(getattr, path.split("."), config)


def copied(pairs: Mapping[str, str]) -> Rule:
    """Settings with the same value under another name; ``pairs`` maps keys to paths."""
    return Rule(
        tuple(pairs),
        lambda settings: {path: setting(settings, key) for key, path in pairs.items()},
        lambda config: {key: own_setting(config, path) for key, path in pairs.items()},
    )


def inverse(key: str, path: str) -> Rule:
    """A divisor in Hugging Face that is a multiplier here."""
    return Rule(
        (key,), lambda settings: {path: 1 / setting(settings, key)}, lambda config: {key: 1 / own_setting(config, path)}
    )


def constant(values: Mapping[str, Any]) -> Rule:
    """Settings of the Transformer that are the same in every network of the family."""
    return Rule((), lambda settings: values, lambda config: {})


def neutral(**allowed: Any) -> Rule:
    """Settings of Hugging Face that would change the function, and are supported at one value only."""

    def read(settings: Settings) -> Mapping[str, Any]:
        for key, value in allowed.items():
            if settings.get(key, value) not in (value, None):
                raise UsageError(f"{key}={quoted(settings[key])} is not supported: only {key}={value!r} is.")
        return {}

    return Rule(tuple(allowed), read, lambda config: {})


def inert(*keys: str) -> Rule:
    """Settings of Hugging Face that do not change the function in evaluation mode."""
    return Rule(keys, lambda settings: {}, lambda config: {})


def activation(key: str, kinds: Mapping[str, str]) -> Rule:
    """The activation of the MLP; ``kinds`` maps the names of Hugging Face to kinds of MLP."""

    def read(settings: Settings) -> Mapping[str, Any]:
        name = setting(settings, key)
        if not isinstance(name, str) or name not in kinds:
            verb = "is" if len(kinds) == 1 else "are"
            raise UsageError(f"the activation {name!r} is not supported: only {', '.join(map(repr, kinds))} {verb}.")
        return {"mlp.kind": kinds[name]}

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        return {key: next((name for name, kind in kinds.items() if kind == config.mlp.kind), config.mlp.kind)}

    return Rule((key,), read, write)


def placed(
    placement: Placement | Callable[[Settings], Placement],
    keys: tuple[str, ...] = (),
    write: Callable[[TransformerConfig], Mapping[str, Any]] = lambda config: {},
) -> Rule:
    """The placement of the norms, which may depend on some keys."""
    read = (lambda settings: placement) if isinstance(placement, Placement) else placement
    return Rule(keys, lambda settings: {"placement": read(settings)}, write)


def scaled_branches(key: str, rule: Rule) -> Rule:
    """The placement of ``rule`` with a fixed multiplier of every branch."""

    def read(settings: Settings) -> Mapping[str, Any]:
        factor = float(setting(settings, key))
        placement = rule.read(settings)["placement"]
        if factor == 1:
            return {"placement": placement}
        return {"placement": placement.map_specs(lambda spec: replace(spec, branch_scale=factor))}

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        factor = config.rule.all_specs[0].branch_scale
        return {**rule.write(config), key: float(factor) if isinstance(factor, int | float) else 1.0}

    return Rule((*rule.keys, key), read, write)


def windows(with_switch: bool = False, with_first: bool = False) -> Rule:
    """Sliding windows by ``layer_types``.

    Args:
        with_switch: Whether ``use_sliding_window`` turns them on.
        with_first: Whether ``max_window_layers`` and ``use_sliding_window`` exist, as in Qwen.
    """
    switch = ("use_sliding_window",) if with_switch or with_first else ()
    keys = ("layer_types", "sliding_window", *switch, *(("max_window_layers",) if with_first else ()))

    def read(settings: Settings) -> Mapping[str, Any]:
        window = settings.get("sliding_window")
        kinds = settings.get("layer_types") or []
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise UsageError(
                    f"layers of type {kind!r} are not supported: full_attention and sliding_attention are."
                )
        if "sliding_attention" in kinds and (window is None or not all(settings.get(key) for key in switch)):
            needed = " and ".join(("sliding_window", *switch))
            raise UsageError(f"the configuration has layers with sliding_attention: set {needed}.")
        sizes = tuple(window if kind == "sliding_attention" else None for kind in kinds)
        return {"attention.windows": sizes if any(sizes) else ()}

    def write(config: TransformerConfig) -> Mapping[str, Any]:
        sizes = [config.attention.window(layer) for layer in range(1, config.depth + 1)]
        window = next((size for size in sizes if size is not None), None)
        kinds = ["full_attention" if size is None else "sliding_attention" for size in sizes]
        return {
            "layer_types": kinds,
            **({} if window is None else {"sliding_window": window}),
            **dict.fromkeys(switch, window is not None),
        }

    return Rule(keys, read, write)


def one_window() -> Rule:
    """One sliding window for all layers, or none."""

    def read(settings: Settings) -> Mapping[str, Any]:
        window = settings.get("sliding_window")
        return {"attention.windows": () if window is None else (window,)}

    return Rule(("sliding_window",), read, lambda config: {"sliding_window": config.attention.window(1)})
