"""Hugging Face model families: their configurations and weights in terms of this package's Transformer.

Every norm is mapped by its function, not by its name: ``post_attention_layernorm`` is the MLP's input norm in Llama and
HyperCLOVA X, and attention's output norm in Gemma 2 and OLMo 2. In this file, "ours" is this package and "theirs" is
Hugging Face.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normplace._shared.fields import quoted
from normplace.errors import UsageError
from normplace.models.transformer.config import (
    AttentionConfig,
    HeadConfig,
    MLPConfig,
    PositionConfig,
    TransformerConfig,
)
from normplace.placement import Placement

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu"}
UNGATED = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}


@dataclass(frozen=True)
class WeightLayout:
    """How one of their weights holds one or several of ours.

    Args:
        unpack: Converts theirs to ours.
        pack: Converts ours to theirs.
    """

    unpack: Callable[[Tensor], Sequence[Tensor]]
    pack: Callable[[Sequence[Tensor]], Tensor]


SAME = WeightLayout(lambda weight: [weight], lambda ours: ours[0])
# They add 1 + w in float32, which half precision would round; our norms accept a gain wider than the stream.
SHIFTED = WeightLayout(
    lambda weight: [weight.to(torch.promote_types(weight.dtype, torch.float32)) + 1], lambda ours: ours[0] - 1
)
TRANSPOSED = WeightLayout(lambda weight: [weight.T], lambda ours: ours[0].T)
THIRDS = WeightLayout(lambda bias: bias.chunk(3), lambda ours: torch.cat(list(ours)))
TRANSPOSED_THIRDS = WeightLayout(lambda weight: weight.T.chunk(3), lambda ours: torch.cat(list(ours)).T)

Link = tuple[str, tuple[str, ...], WeightLayout]
"""Their key, our keys, and the layout."""


@dataclass(frozen=True)
class Family:
    """A Hugging Face model family.

    Args:
        model: Name of its language model class.
        read: Converts their configuration to ours.
        write: Converts our configuration to fields of theirs, as far as they can express it.
        links: Which weights correspond.
    """

    model: str
    read: Callable[[Any], TransformerConfig]
    write: Callable[[TransformerConfig], dict[str, Any]]
    links: Callable[[TransformerConfig], Iterator[Link]]


def _choice(kinds: dict[str, str], name: str) -> str:
    if name not in kinds:
        raise UsageError(f"the activation {name!r} is not supported: {', '.join(kinds)} are.")
    return kinds[name]


def _named_by(kinds: dict[str, str], kind: str) -> str:
    return next((name for name, known in kinds.items() if known == kind), kind)


def _require(config: Any, **allowed: Any) -> None:
    """Raise an error for a setting that would change the result and is not supported."""
    for name, value in allowed.items():
        if (setting := getattr(config, name, value)) not in (value, None):
            raise UsageError(f"{name}={setting!r} is not supported: only {name}={value!r} is.")


def _theta(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, Mapping) or not isinstance(rope.get("rope_theta"), int | float):
        raise UsageError(f"the configuration has no rope_theta in rope_parameters, got {quoted(rope)}: set it.")
    if rope.get("rope_type", "default") != "default" or rope.get("partial_rotary_factor", 1.0) != 1:
        kind = rope.get("rope_type", "default")
        raise UsageError(
            f"rotary positions of type {kind!r} or on a part of each head are not supported: only 'default' is."
        )
    return float(rope["rope_theta"])


def _read_rotary(config: Any, placement: Placement, kind: str, **parts: Any) -> TransformerConfig:
    """The common part of decoders with rotary positions."""
    attention = AttentionConfig(
        config.num_attention_heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None),
        bias=bool(config.attention_bias),
    )
    return TransformerConfig(
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        placement,
        eps=config.rms_norm_eps,
        attention=replace(attention, **parts.pop("attention", {})),
        mlp=MLPConfig(config.intermediate_size, kind, bool(getattr(config, "mlp_bias", False))),
        positions=PositionConfig(theta=_theta(config)),
        head=HeadConfig(tied=config.tie_word_embeddings, **parts.pop("head", {})),
        **parts,
    )


def _write_rotary(config: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.attention.heads,
        "num_key_value_heads": config.attention.key_value_heads,
        "head_dim": config.attention.head_dim,
        "intermediate_size": config.mlp.hidden,
        "attention_bias": config.attention.bias,
        "mlp_bias": config.mlp.bias,
        "hidden_act": _named_by(GATED, config.mlp.kind),
        "rms_norm_eps": config.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.positions.theta},
        "tie_word_embeddings": config.head.tied,
    }


def _rotary_links(config: TransformerConfig, norms: dict[str, str], gains: WeightLayout = SAME) -> Iterator[Link]:
    """Links of the decoders with rotary positions; ``norms`` maps our norms in a layer to theirs."""
    matrices = {f"attention.branch.{ours}": f"self_attn.{ours[0]}_proj" for ours in ("query", "key", "value", "output")}
    matrices |= {f"mlp.branch.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    yield "model.embed_tokens.weight", ("embed.weight",), SAME
    for layer in range(config.depth):
        for ours, theirs in matrices.items():
            biased = config.attention.bias if ours.startswith("attention") else config.mlp.bias
            for part in ("weight", "bias") if biased else ("weight",):
                yield f"model.layers.{layer}.{theirs}.{part}", (f"layers.{layer}.{ours}.{part}",), SAME
        for ours, theirs in norms.items():
            yield f"model.layers.{layer}.{theirs}.weight", (f"layers.{layer}.{ours}.weight",), gains
    yield "model.norm.weight", ("final_norm.weight",), gains
    yield "lm_head.weight", ("embed.weight",) if config.head.tied else ("head.projection.weight",), SAME


PRE_NORMS = {"attention.input_norm": "input_layernorm", "mlp.input_norm": "post_attention_layernorm"}


def _read_llama(config: Any) -> TransformerConfig:
    return _read_rotary(config, Placement.named("pre"), _choice(GATED, config.hidden_act))


def _read_hyperclovax(config: Any) -> TransformerConfig:
    rule, factor = Placement.named("peri" if config.use_post_norm else "pre"), config.residual_multiplier
    return _read_rotary(
        config,
        rule if factor == 1 else rule.map_specs(lambda spec: replace(spec, branch_scale=float(factor))),
        _choice(GATED, config.hidden_act),
        attention={"score_scale": config.attention_multiplier},
        head={"scale": config.logits_scaling},
        embedding_scale=config.embedding_multiplier,
    )


def _write_hyperclovax(config: TransformerConfig) -> dict[str, Any]:
    spec = config.rule.all_specs[0]
    return _write_rotary(config) | {
        "use_post_norm": spec.output,
        "residual_multiplier": spec.branch_scale if isinstance(spec.branch_scale, float) else 1.0,
        "attention_multiplier": config.attention.score_scale,
        "logits_scaling": config.head.scale,
        "embedding_multiplier": config.embedding_scale,
    }


def _hyperclovax_links(config: TransformerConfig) -> Iterator[Link]:
    outputs = {"attention.output_norm": "post_norm1", "mlp.output_norm": "post_norm2"}
    return _rotary_links(config, PRE_NORMS | (outputs if config.rule.all_specs[0].output else {}))


def _read_gemma2(config: Any) -> TransformerConfig:
    _require(config, use_bidirectional_attention=False)
    windows = [config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types]
    return _read_rotary(
        config,
        Placement.named("peri"),
        _choice(GATED, config.hidden_activation),
        attention={
            "windows": tuple(windows),
            "score_scale": config.query_pre_attn_scalar**-0.5,
            "softcap": config.attn_logit_softcapping,
        },
        head={"softcap": config.final_logit_softcapping},
        embedding_scale=config.hidden_size**0.5,
    )


def _write_gemma2(config: TransformerConfig) -> dict[str, Any]:
    windows = [config.attention.window(layer) for layer in range(1, config.depth + 1)]
    scale = config.attention.score_scale
    assert scale is not None  # a resolved configuration
    fields = _write_rotary(config)
    return fields | {
        "hidden_activation": fields.pop("hidden_act"),
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next((window for window in windows if window is not None), None),
        "query_pre_attn_scalar": round(scale**-2),
        "attn_logit_softcapping": config.attention.softcap,
        "final_logit_softcapping": config.head.softcap,
    }


def _gemma2_links(config: TransformerConfig) -> Iterator[Link]:
    norms = {
        "attention.input_norm": "input_layernorm",
        "attention.output_norm": "post_attention_layernorm",
        "mlp.input_norm": "pre_feedforward_layernorm",
        "mlp.output_norm": "post_feedforward_layernorm",
    }
    return _rotary_links(config, norms, SHIFTED)


def _read_olmo2(config: Any) -> TransformerConfig:
    rule = Placement.named("qk", base="output", over="projection")
    return _read_rotary(config, rule, _choice(GATED, config.hidden_act))


def _olmo2_links(config: TransformerConfig) -> Iterator[Link]:
    norms = {
        "attention.output_norm": "post_attention_layernorm",
        "mlp.output_norm": "post_feedforward_layernorm",
        "attention.branch.norms.q_full": "self_attn.q_norm",
        "attention.branch.norms.k_full": "self_attn.k_norm",
    }
    return _rotary_links(config, norms)


def _read_qwen3(config: Any) -> TransformerConfig:
    _require(config, use_sliding_window=False)
    return _read_rotary(config, Placement.named("qk"), _choice(GATED, config.hidden_act))


def _qwen3_links(config: TransformerConfig) -> Iterator[Link]:
    inner = {"attention.branch.norms.q": "self_attn.q_norm", "attention.branch.norms.k": "self_attn.k_norm"}
    return _rotary_links(config, PRE_NORMS | inner)


def _read_gpt2(config: Any) -> TransformerConfig:
    _require(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return TransformerConfig(
        config.vocab_size,
        config.n_embd,
        config.n_layer,
        "pre",
        norm="layer",
        eps=config.layer_norm_epsilon,
        attention=AttentionConfig(config.n_head, bias=True, score_scale=None if config.scale_attn_weights else 1.0),
        mlp=MLPConfig(config.n_inner, _choice(UNGATED, config.activation_function), bias=True),
        positions=PositionConfig("learned", length=config.n_positions),
        head=HeadConfig(tied=config.tie_word_embeddings),
    )


def _write_gpt2(config: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "n_embd": config.dim,
        "n_layer": config.depth,
        "n_head": config.attention.heads,
        "n_inner": config.mlp.hidden,
        "n_positions": config.positions.length or 1024,
        "activation_function": _named_by(UNGATED, config.mlp.kind),
        "layer_norm_epsilon": config.eps,
        "scale_attn_weights": config.attention.score_scale != 1,
        "tie_word_embeddings": config.head.tied,
    }


def _gpt2_links(config: TransformerConfig) -> Iterator[Link]:
    singles = {"attention.branch.output": "attn.c_proj", "mlp.branch.up": "mlp.c_fc", "mlp.branch.down": "mlp.c_proj"}
    norms = {"attention.input_norm": "ln_1", "mlp.input_norm": "ln_2"}
    yield "transformer.wte.weight", ("embed.weight",), SAME
    yield "transformer.wpe.weight", ("positions.weight",), SAME
    for layer in range(config.depth):
        ours, theirs = f"layers.{layer}", f"transformer.h.{layer}"
        thirds = [f"{ours}.attention.branch.{name}" for name in ("query", "key", "value")]
        yield f"{theirs}.attn.c_attn.weight", tuple(f"{name}.weight" for name in thirds), TRANSPOSED_THIRDS
        yield f"{theirs}.attn.c_attn.bias", tuple(f"{name}.bias" for name in thirds), THIRDS
        for name, other in singles.items():
            yield f"{theirs}.{other}.weight", (f"{ours}.{name}.weight",), TRANSPOSED
            yield f"{theirs}.{other}.bias", (f"{ours}.{name}.bias",), SAME
        for name, other in norms.items():
            yield from _both(f"{theirs}.{other}", f"{ours}.{name}")
    yield from _both("transformer.ln_f", "final_norm")
    yield "lm_head.weight", ("embed.weight",) if config.head.tied else ("head.projection.weight",), SAME


def _both(theirs: str, ours: str) -> Iterator[Link]:
    for part in ("weight", "bias"):
        yield f"{theirs}.{part}", (f"{ours}.{part}",), SAME


def _read_bert(config: Any) -> TransformerConfig:
    _require(config, is_decoder=False, add_cross_attention=False)
    if config.hidden_act != "gelu":  # the head's transform supports no other
        raise UsageError(f"a BERT with the activation {config.hidden_act!r} is not supported: only 'gelu' is.")
    return TransformerConfig(
        config.vocab_size,
        config.hidden_size,
        config.num_hidden_layers,
        Placement.named("embedding-norm", base="post"),
        norm="layer",
        eps=config.layer_norm_eps,
        causal=False,
        attention=AttentionConfig(config.num_attention_heads, bias=True),
        mlp=MLPConfig(config.intermediate_size, "gelu", bias=True),
        positions=PositionConfig("learned", length=config.max_position_embeddings),
        head=HeadConfig(tied=config.tie_word_embeddings, bias=True, transform=True),
        token_types=config.type_vocab_size,
    )


def _write_bert(config: TransformerConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.attention.heads,
        "intermediate_size": config.mlp.hidden,
        "hidden_act": config.mlp.kind,
        "max_position_embeddings": config.positions.length or 512,
        "type_vocab_size": config.token_types,
        "layer_norm_eps": config.eps,
        "tie_word_embeddings": config.head.tied,
    }


def _bert_links(config: TransformerConfig) -> Iterator[Link]:
    tables = {"embed": "word_embeddings", "positions": "position_embeddings", "types": "token_type_embeddings"}
    for ours, theirs in tables.items():
        yield f"bert.embeddings.{theirs}.weight", (f"{ours}.weight",), SAME
    yield from _both("bert.embeddings.LayerNorm", "embedding_norm")
    inside = {
        "attention.branch.query": "attention.self.query", "attention.branch.key": "attention.self.key",
        "attention.branch.value": "attention.self.value", "attention.branch.output": "attention.output.dense",
        "attention.stream_norm": "attention.output.LayerNorm", "mlp.branch.up": "intermediate.dense",
        "mlp.branch.down": "output.dense", "mlp.stream_norm": "output.LayerNorm",
    }  # fmt: skip
    for layer in range(config.depth):
        for ours, theirs in inside.items():
            yield from _both(f"bert.encoder.layer.{layer}.{theirs}", f"layers.{layer}.{ours}")
    yield from _both("cls.predictions.transform.dense", "head.transform")
    yield from _both("cls.predictions.transform.LayerNorm", "head.transform_norm")
    yield "cls.predictions.bias", ("head.bias",), SAME
    yield "cls.predictions.decoder.bias", ("head.bias",), SAME
    tied = config.head.tied
    yield "cls.predictions.decoder.weight", ("embed.weight",) if tied else ("head.projection.weight",), SAME


FAMILIES = {
    "llama": Family("LlamaForCausalLM", _read_llama, _write_rotary, lambda config: _rotary_links(config, PRE_NORMS)),
    "gpt2": Family("GPT2LMHeadModel", _read_gpt2, _write_gpt2, _gpt2_links),
    "hyperclovax": Family("HyperCLOVAXForCausalLM", _read_hyperclovax, _write_hyperclovax, _hyperclovax_links),
    "gemma2": Family("Gemma2ForCausalLM", _read_gemma2, _write_gemma2, _gemma2_links),
    "olmo2": Family("Olmo2ForCausalLM", _read_olmo2, _write_rotary, _olmo2_links),
    "qwen3": Family("Qwen3ForCausalLM", _read_qwen3, _write_rotary, _qwen3_links),
    "bert": Family("BertForMaskedLM", _read_bert, _write_bert, _bert_links),
}
