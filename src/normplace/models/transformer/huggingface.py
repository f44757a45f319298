"""Conversion of Transformers from and to Hugging Face models, with their weights.

Networks here have no dropout, so a model whose configuration has some is equal in evaluation mode only.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families import FAMILIES, Family
from normplace.models.transformer.model import Transformer
from normplace.norms import build_norm

TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # not part of a network here


def from_huggingface(model: nn.Module) -> Transformer:
    """The same network as a :class:`Transformer`, with copies of its weights.

    Args:
        model: A language model of a known family: Llama, GPT-2, HyperCLOVA X, Gemma 2, OLMo 2, or BERT's masked one.

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
    weights, state = model.state_dict(), {}
    for key, names, layout in family.links(config):
        if key not in weights:
            raise UsageError(f"the model has no weight {key!r}, which a {family.model} should have.")
        for name, value in zip(names, layout.unpack(weights.pop(key)), strict=True):
            if name in state and not torch.equal(state[name], value):
                raise UsageError(f"{key!r} should be tied to another weight, but differs: untie it in the config.")
            state.setdefault(name, value.detach().clone(memory_format=torch.contiguous_format))
    if weights:
        raise UsageError(f"the weight {next(iter(weights))!r} has no counterpart here, so the model would change.")
    converted = Transformer(config, device="meta")
    converted.load_state_dict(state, strict=True, assign=True)
    return converted.train(model.training)


def to_huggingface(model: Transformer, family: str | None = None, **fields: Any) -> Any:
    """The same network as a Hugging Face model, with copies of its weights.

    Args:
        model: A Transformer whose shape and placement exist in a Hugging Face family.
        family: ``llama``, ``gpt2``, ``hyperclovax``, ``gemma2``, ``olmo2`` or ``bert``; None for the first that fits.
        **fields: Further fields of the Hugging Face configuration, such as ``eos_token_id``.

    Raises:
        UsageError: If no family, or not this one, has such networks, or transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise UsageError("Hugging Face models need transformers: pip install 'normplace[hf]'.")
    if family is not None and family not in FAMILIES:
        raise unknown("Hugging Face model type", family, FAMILIES)
    reasons = {}
    for name in FAMILIES if family is None else (family,):
        config, reasons[name] = _huggingface_config(FAMILIES[name], model.config, fields)
        if config is not None:
            return _filled(FAMILIES[name], config, model)
    if family is not None:
        raise UsageError(f"{family} does not support this network's {reasons[family]}: choose another family or shape.")
    raise UsageError(
        f"no supported Hugging Face family ({', '.join(FAMILIES)}) has networks of this shape and placement, "
        f"{model.config.rule.equation()}."
    )


def _huggingface_config(family: Family, config: TransformerConfig, fields: dict[str, Any]) -> tuple[Any, str]:
    """The Hugging Face configuration of the same network, or None and the first field that it cannot express."""
    import transformers

    wanted = spelled_out(config)
    if not hasattr(transformers, family.model):
        return None, f"family, which transformers {transformers.__version__} lacks"
    config_class = getattr(transformers, family.model).config_class
    try:
        written = config_class(**{**TOKENS, **family.write(wanted), **fields})
        read = spelled_out(family.read(written))
    except Exception as error:  # configuration classes raise different errors
        return None, f"settings ({' '.join(str(error).split())})"
    for field in dataclasses.fields(TransformerConfig):
        if getattr(read, field.name) != getattr(wanted, field.name):
            return None, field.name
    return written, ""


def _filled(family: Family, config: Any, model: Transformer) -> Any:
    import transformers

    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are overwritten
        converted = getattr(transformers, family.model)(config)
    weights = model.state_dict()
    state: dict[str, Tensor] = {
        key: layout.pack([weights[name] for name in names]).detach().clone()
        for key, names, layout in family.links(model.config)
    }
    like = model.embed.weight
    converted.to(device=like.device, dtype=like.dtype).load_state_dict(state, strict=True)
    return converted.train(model.training)


def spelled_out(config: TransformerConfig) -> TransformerConfig:
    """The configuration with its defaults resolved, and without settings that a network does not keep."""
    with torch.device("meta"):
        model = Transformer(replace(config, depth=1))
    layer: Any = model.layers[0]
    branch = layer.attention.branch
    windows = tuple(config.attention.window(number) for number in range(1, config.depth + 1))
    attention = replace(
        config.attention,
        key_value_heads=branch.key_value_heads,
        head_dim=branch.head_dim,
        score_scale=branch.score_scale,
        windows=windows if any(windows) else (),
    )
    return replace(
        config,
        placement=replace(config.rule, name=None),
        eps=getattr(build_norm(config.norm, 1), "eps", None) if config.eps is None else config.eps,
        attention=attention,
        mlp=replace(config.mlp, hidden=layer.mlp.branch.up.out_features),
        positions=config.positions if model.rotary else replace(config.positions, theta=10000.0),
        init=None,
        std=0.02,
    )
