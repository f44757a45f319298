"""The table of decoders with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.common import (
    BIAS,
    DROPOUT,
    FREE_HEAD_DIM,
    GATED,
    GROUPED,
    HEAD_DIM,
    LLAMA,
    PRE_NORMS,
    QK_NORMS,
    RMS,
    SIZES,
    llama_rows,
)
from normplace.models.transformer.families.family import Family, Row, rows
from normplace.models.transformer.families.layouts import STACKED, TRANSPOSED_MATRICES, TRANSPOSED_STACKED
from normplace.models.transformer.families.rope import rotary
from normplace.models.transformer.families.rules import (
    Rule,
    Settings,
    activation,
    constant,
    copied,
    inert,
    one_window,
    placed,
    setting,
)
from normplace.placement import BlockSpec, Placement, by_layer

ROUTING = inert("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")  # of training


def experts(pairs: Mapping[str, str]) -> Rule:
    """Settings of the mixtures with the same value under another name; ``pairs`` maps keys to fields."""
    return Rule(
        tuple(pairs),
        lambda settings: {f"experts.{name}": setting(settings, key) for key, name in pairs.items()},
        lambda config: {key: getattr(config.experts, name) for key, name in pairs.items() if config.experts},
    )


def _mixed(config: TransformerConfig) -> list[bool]:
    """Which layers have a mixture."""
    return [config.experts is not None and config.experts.at(number) for number in range(1, config.depth + 1)]


def _qwen_layers(settings: Settings) -> Mapping[str, Any]:
    step, dense = settings["decoder_sparse_step"], settings["mlp_only_layers"] or ()
    layers = range(settings["num_hidden_layers"])
    return {"experts.layers": tuple(layer not in dense and (layer + 1) % step == 0 for layer in layers)}


QWEN_LAYERS = Rule(
    ("decoder_sparse_step", "mlp_only_layers"),
    _qwen_layers,
    lambda config: {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, mixed in enumerate(_mixed(config)) if not mixed],
    },
)
QWEN_WINDOW = Rule(
    ("sliding_window", "use_sliding_window"),
    one_window().read,
    lambda config: {"sliding_window": (size := config.attention.window(1)), "use_sliding_window": size is not None},
)

LLAMA4_LAYERS = Rule(
    ("moe_layers", "interleave_moe_layer_step"),
    lambda settings: {
        "experts.layers": tuple(layer in settings["moe_layers"] for layer in range(settings["num_hidden_layers"]))
    },
    lambda config: {"moe_layers": [layer for layer, mixed in enumerate(_mixed(config)) if mixed]},
)


def _rotating(config: TransformerConfig) -> list[bool]:
    return [config.positions.rotates(number) for number in range(1, config.depth + 1)]


NO_ROPE = Rule(
    ("no_rope_layers", "no_rope_layer_interval"),
    lambda settings: {
        "positions.rotary_layers": tuple(map(bool, settings["no_rope_layers"][: settings["num_hidden_layers"]]))
    },
    lambda config: {"no_rope_layers": [int(rotates) for rotates in _rotating(config)]},
)


def _llama4_placement(settings: Settings) -> Placement:
    """Pre with norms on queries and keys in the layers that rotate."""
    rotating = settings["no_rope_layers"][: settings["num_hidden_layers"]]
    if not settings["use_qk_norm"] or not any(rotating):
        return Placement.named("pre")
    if all(rotating):
        return Placement.named("qk")
    normed, plain = BlockSpec(input=True, inner=("q", "k")), BlockSpec(input=True)
    attention = by_layer([normed if rotates else plain for rotates in rotating])
    return Placement.by_kind({"attention": attention, "mlp": plain}, final=True)


def _read_chunks(settings: Settings) -> Mapping[str, Any]:
    size = settings["attention_chunk_size"]
    kinds = settings["layer_types"][: settings["num_hidden_layers"]]
    for kind in kinds:
        if kind not in ("full_attention", "chunked_attention"):
            raise UsageError(f"layers of type {kind!r} are not supported: full_attention and chunked_attention are.")
    if "chunked_attention" in kinds and size is None:
        raise UsageError("the configuration has layers with chunked_attention, but no attention_chunk_size: set it.")
    return {"attention.chunks": tuple(size if kind == "chunked_attention" else None for kind in kinds)}


def _write_chunks(config: TransformerConfig) -> Mapping[str, Any]:
    sizes = [config.attention.chunk(number) for number in range(1, config.depth + 1)]
    return {
        "layer_types": ["full_attention" if size is None else "chunked_attention" for size in sizes],
        "attention_chunk_size": next((size for size in sizes if size is not None), None),
    }


CHUNKS = Rule(("layer_types", "attention_chunk_size"), _read_chunks, _write_chunks)
TEMPERATURE = Rule(
    ("attn_temperature_tuning", "attn_scale", "floor_scale"),
    lambda settings: {
        "attention.temperature": float(settings["attn_scale"]) if settings["attn_temperature_tuning"] else 0.0,
        "attention.temperature_floor": int(settings["floor_scale"]),
    },
    lambda config: {
        "attn_temperature_tuning": config.attention.temperature > 0,
        "attn_scale": config.attention.temperature,
        "floor_scale": config.attention.temperature_floor,
    },
)


MIXED_SIZE = Rule(  # no layer has another MLP
    ("intermediate_size",),
    lambda settings: {"mlp.hidden": settings["intermediate_size"], "experts.hidden": settings["intermediate_size"]},
    lambda config: {"intermediate_size": config.mlp.hidden if config.experts is None else config.experts.hidden},
)
ROUTED = "layers.{}.mlp.branch."
SHARED = {f"shared_expert.{name}_proj": f"shared.{name}" for name in ("gate", "up", "down")}
DENSE = {f"{name}_proj": name for name in ("gate", "up", "down")}


def mixture_rows(hf: str) -> tuple[Row, ...]:
    """Weights of mixtures that hold the gates and the other input matrices of all experts in one parameter."""
    return (
        *rows({"gate": "router"}, hf, ROUTED),
        *rows({"experts.gate_up_proj": "experts.gate experts.up"}, hf, ROUTED, STACKED, parameter=True),
        *rows({"experts.down_proj": "experts.down"}, hf, ROUTED, parameter=True),
    )


MIXTURES = {
    "mixtral": Family(
        "MixtralForCausalLM",
        (
            SIZES, GROUPED, HEAD_DIM, RMS, DROPOUT, MIXED_SIZE, rotary(), one_window(),
            activation("hidden_act", GATED), placed(Placement.named("pre")), ROUTING,
            experts({"num_local_experts": "count", "num_experts_per_tok": "active"}),
        ),
        (*llama_rows(PRE_NORMS), *mixture_rows("model.layers.{}.mlp.")),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        (
            *LLAMA, FREE_HEAD_DIM, activation("hidden_act", GATED),
            placed(Placement.named("qk")), QWEN_WINDOW, QWEN_LAYERS, ROUTING,
            experts({
                "num_local_experts": "count", "num_experts_per_tok": "active", "moe_intermediate_size": "hidden",
                "norm_topk_prob": "normalized",
            }),
        ),
        (*llama_rows({**PRE_NORMS, **QK_NORMS}), *mixture_rows("model.layers.{}.mlp.")),
    ),
    "llama4_text": Family(
        "Llama4ForCausalLM",
        (
            SIZES, GROUPED, HEAD_DIM, RMS, BIAS, DROPOUT, rotary(), activation("hidden_act", GATED), ROUTING,
            experts({"intermediate_size": "hidden", "num_local_experts": "count", "num_experts_per_tok": "active"}),
            copied({"intermediate_size_mlp": "mlp.hidden"}),
            constant({
                "positions.interleaved": True, "attention.qk_gain": False, "experts.shared": 1,
                "experts.scores": "sigmoid", "experts.normalized": False, "experts.weighed": "input",
            }),
            placed(
                _llama4_placement, ("use_qk_norm",),
                lambda config: {"use_qk_norm": any("q" in spec.inner for spec in config.rule.all_specs)},
            ),
            NO_ROPE, CHUNKS, TEMPERATURE, LLAMA4_LAYERS,
        ),
        (
            *(row for row in llama_rows(PRE_NORMS) if ".mlp." not in row.hf),
            *rows({"router": "router", **SHARED, **DENSE}, "model.layers.{}.feed_forward.", ROUTED),
            *rows({"experts.gate_up_proj": "experts.gate experts.up"}, "model.layers.{}.feed_forward.", ROUTED,
                  TRANSPOSED_STACKED, parameter=True),
            *rows({"experts.down_proj": "experts.down"}, "model.layers.{}.feed_forward.", ROUTED,
                  TRANSPOSED_MATRICES, parameter=True),
        ),
    ),
}  # fmt: skip
"""Families with mixtures of experts by the ``model_type`` of their configuration."""
