"""Conversion of Transformers from and to Hugging Face models, with their weights.

Networks here have no dropout, so a model whose configuration has some is equal in evaluation mode only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_installed, unknown
from normplace.models.transformer.config import AttentionConfig, ExpertsConfig, PositionConfig, TransformerConfig
from normplace.models.transformer.families import FAMILIES, Family
from normplace.models.transformer.model import Transformer
from normplace.norms import build_norm
from normplace.placement import BlockSpec, Placement

TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # not part of a network here


def from_huggingface(model: nn.Module) -> Transformer:
    """The same network as a :class:`Transformer`, with copies of its weights.

    Args:
        model: A language model of a family in :data:`normplace.models.transformer.families.FAMILIES`.

    Raises:
        UsageError: If the family or a setting is not supported, or a weight is not used.
    """
    source: Any = model
    kind = getattr(getattr(source, "config", None), "model_type", None)
    if kind not in FAMILIES:
        raise unknown("Hugging Face model type", kind, FAMILIES)
    family = FAMILIES[kind]
    if type(model).__name__ != family.model:
        raise UsageError(f"of {kind} models, only {family.model} can be converted, got a {type(model).__name__}.")
    config = family.read(source.config)
    converted = Transformer(config, device="meta")
    shapes = converted.state_dict()
    weights, state = model.state_dict(), {}
    for key, names, layout in family.links(config, shapes, weights.keys()):
        if key not in weights:
            raise UsageError(f"the model has no weight {key!r}, which a {family.model} should have.")
        values = layout.unpack(weights.pop(key), [len(shapes[name]) for name in names], config)
        for name, value in zip(names, values, strict=True):
            if name in state and not torch.equal(state[name], value):
                raise UsageError(f"{key!r} should be tied to another weight, but differs: untie it in the config.")
            state.setdefault(name, value.detach().clone(memory_format=torch.contiguous_format))
    if weights:
        raise UsageError(f"the weight {next(iter(weights))!r} has no counterpart here, so the model would change.")
    converted.load_state_dict(state, strict=True, assign=True)
    return converted.train(model.training)


def to_huggingface(model: Transformer, family: str | None = None, **fields: Any) -> Any:
    """The same network as a Hugging Face model, with copies of its weights.

    Args:
        model: A Transformer whose shape and placement exist in a Hugging Face family.
        family: A key of :data:`normplace.models.transformer.families.FAMILIES`, such as ``llama``; None for the first
            that fits.
        **fields: Further fields of the Hugging Face configuration, such as ``eos_token_id``.

    Raises:
        UsageError: If no family, or not this one, has such networks, or transformers is not installed.
    """
    expect_installed("a Hugging Face model", "transformers", "hf")
    if family is not None and family not in FAMILIES:
        raise unknown("Hugging Face model type", family, FAMILIES)
    wanted, fits = spelled_out(model.config), []
    for name in FAMILIES if family is None else (family,):
        fit = _fit(name, wanted, fields)
        if fit.config is not None and not fit.differences:
            return _filled(FAMILIES[name], fit.config, model)
        fits.append(fit)
    if family is not None:
        reason = fits[0].differences[0]
        raise UsageError(f"{family} does not support this network's {reason}: choose another family or shape.")
    nearest = min(fits, key=lambda fit: fit.distance)
    raise UsageError(
        f"no supported Hugging Face family has networks of this shape and placement, "
        f"{model.config.rule.equation()}: the nearest is {nearest.family}, which has {nearest.description}."
    )


@dataclass(frozen=True)
class _FamilyFit:
    """How well a Hugging Face family expresses a network.

    Args:
        family: Name of the family.
        config: The Hugging Face configuration that comes nearest; None if there is none.
        differences: The fields of :class:`TransformerConfig` that differ, or why there is no configuration.
        distance: Number of differing fields, those of the placement and the parts counted one by one.
        description: The differing fields as the family has them.
    """

    family: str
    config: Any
    differences: tuple[str, ...]
    distance: float = math.inf
    description: str = ""


def _fit(name: str, wanted: TransformerConfig, fields: dict[str, Any]) -> _FamilyFit:
    """Write a network, spelled out, as a configuration of a family, read it again, and compare."""
    import transformers

    family = FAMILIES[name]
    if not hasattr(transformers, family.model):
        return _FamilyFit(name, None, (f"family, which transformers {transformers.__version__} lacks",))
    config_class = getattr(transformers, family.model).config_class
    try:
        written = config_class(**{**TOKENS, **family.write(wanted), **fields})
        read = spelled_out(family.read(written))
    except Exception as error:  # configuration classes raise different errors
        return _FamilyFit(name, None, (f"settings ({' '.join(str(error).split())})",))
    differing: dict[str, float] = {}
    for field in dataclasses.fields(TransformerConfig):
        if distance := _field_distance(field.name, read, wanted):
            differing[field.name] = distance
    described = [
        _describe_placement(read.rule, wanted.rule) if name == "placement" else f"{name}={getattr(read, name)!r}"
        for name in differing
    ]
    return _FamilyFit(name, written, tuple(differing), sum(differing.values()), " and ".join(described))


def _field_distance(name: str, read: TransformerConfig, wanted: TransformerConfig) -> float:
    """How much a field differs. Placements are compared block by block, whichever way they are written."""
    if name != "placement":
        return _distance(getattr(read, name), getattr(wanted, name))
    pairs = list(zip(_blocks(read), _blocks(wanted), strict=False))
    ends = [(getattr(read.rule, end), getattr(wanted.rule, end)) for end in ("embedding", "final", "streams")]
    return sum(_distance(*pair) for pair in ends) + sum(_distance(*pair) for pair in pairs) / max(1, wanted.depth)


def _blocks(config: TransformerConfig) -> list[BlockSpec]:
    """The specs of the branches in all layers."""
    rule = config.rule.for_single_block()
    return [spec for kind in ("attention", "mlp") for spec in rule.specs(config.depth, kind)]


def _describe_placement(placement: Placement, wanted: Placement) -> str:
    """A placement in words that differ from those for ``wanted``."""
    if placement.embedding == wanted.embedding:
        return f"the placement {placement.equation()}"
    article = "with a" if placement.embedding else "without the"
    return f"the placement {placement.equation()} {article} norm on the embedding"


def _distance(first: Any, second: Any) -> int:
    """Number of differing values in two configurations."""
    if dataclasses.is_dataclass(first) and type(first) is type(second):
        return sum(
            _distance(getattr(first, field.name), getattr(second, field.name)) for field in dataclasses.fields(first)
        )
    if dataclasses.is_dataclass(first) != dataclasses.is_dataclass(second):  # a part that only one of them has
        return len(dataclasses.fields(first if dataclasses.is_dataclass(first) else second))
    if isinstance(first, tuple) and isinstance(second, tuple):
        return sum(_distance(*pair) for pair in zip_longest(first, second))
    return int(first != second)


def _filled(family: Family, config: Any, model: Transformer) -> Any:
    import transformers

    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are overwritten
        converted = getattr(transformers, family.model)(config)
    weights = model.state_dict()
    state: dict[str, Tensor] = {
        key: layout.pack([weights[name] for name in names], model.config).detach().clone()
        for key, names, layout in family.links(model.config, weights, converted.state_dict().keys())
    }
    like = model.embed.weight
    converted.to(device=like.device, dtype=like.dtype).load_state_dict(state, strict=True)
    return converted.train(model.training)


def spelled_out(config: TransformerConfig) -> TransformerConfig:
    """The configuration with its defaults resolved, and without settings that a network does not keep."""
    with torch.device("meta"):
        model = Transformer(replace(config, depth=1, experts=None, encoder_depth=0))
    layer: Any = model.layers[0]
    branch, hidden = layer.attention.branch, layer.mlp.branch.up.out_features
    windows = _for_each_layer(config, config.attention.window)
    attention = replace(
        config.attention,
        key_value_heads=branch.key_value_heads,
        head_dim=branch.head_dim,
        score_scale=branch.score_scale,
        windows=windows,
        chunks=_for_each_layer(config, config.attention.chunk),
        output_bias=branch.output.bias is not None,
    )
    if not config.attention.temperature or all(map(config.positions.rotates, range(1, config.depth + 1))):
        attention = replace(attention, temperature=0.0, temperature_floor=AttentionConfig.temperature_floor)
    if not any(site[0] in "qk" for spec in config.rule.all_specs for site in spec.inner):
        attention = replace(attention, qk_gain=True, qk_bias=True)
    if config.norm == "rms" or config.norm_parameters != "all":  # without a bias anyway
        attention = replace(attention, qk_bias=True)
    experts = _spelled_experts(config, hidden)
    rule = config.rule.map_specs(lambda spec: replace(spec, init_gain=1.0, input_gain=1.0))  # of initial values
    return replace(
        config,
        placement=replace(rule, name=None),
        eps=getattr(build_norm(config.norm, 1), "eps", None) if config.eps is None else config.eps,
        attention=attention,
        mlp=replace(config.mlp, hidden=hidden if experts is None or experts.layers else experts.hidden),
        experts=experts,
        positions=_spelled_positions(config, windows),
        head=replace(config.head, transform_bias=config.head.transform_bias or not config.head.transform),
        init=None,
        std=0.02,
        norm_parameters="all" if config.norm == "rms" and config.norm_parameters == "gain" else config.norm_parameters,
    )


def _spelled_positions(config: TransformerConfig, windows: tuple[int | None, ...]) -> PositionConfig:
    """The positions with their defaults resolved."""
    positions = config.positions
    rotating = tuple(positions.rotates(number) for number in range(1, config.depth + 1))
    if positions.kind == "relative":
        return PositionConfig("relative", buckets=positions.buckets, distance=positions.distance)
    if positions.kind != "rotary":
        kept = {"length": positions.length, "offset": positions.offset, "padding": positions.padding}
        return PositionConfig(positions.kind, **kept)
    same = positions.window_theta == positions.theta and positions.scaling is None
    return replace(
        positions,
        offset=0,
        rotary_features=positions.rotary_features or config.head_dim,
        window_theta=None if same or not any(windows) else positions.window_theta,
        rotary_layers=() if all(rotating) else rotating,
        buckets=PositionConfig.buckets,
        distance=PositionConfig.distance,
    )


def _spelled_experts(config: TransformerConfig, hidden: int) -> ExpertsConfig | None:
    """The mixtures of experts with their defaults resolved; None if no layer has one."""
    experts = config.experts
    if experts is None or not any(layers := [experts.at(number) for number in range(1, config.depth + 1)]):
        return None
    width = hidden if experts.hidden is None else experts.hidden
    return replace(experts, hidden=width, layers=() if all(layers) else tuple(layers))


def _for_each_layer(config: TransformerConfig, at: Callable[[int], Any]) -> tuple[Any, ...]:
    """A setting of all layers in order; empty if no layer has it."""
    values = tuple(at(number) for number in range(1, config.depth + 1))
    return values if any(value is not None for value in values) else ()
