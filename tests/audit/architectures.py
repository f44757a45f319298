"""Tiny Hugging Face models with random weights, and the slot of each of their norms as their forward code has it.

Names are as the modules are called, with ``*`` for numbers. The comment beside a name that misleads says how.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

IDS = torch.arange(3, 9)[None]
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
TEXT = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
GPT = {
    "vocab_size": 40,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
SEQUENCES = {"input_ids": IDS, "decoder_input_ids": IDS}

PRE = {"layers.*.input_layernorm": "input", "norm": "final"}
# Llama calls the norm before its MLP "post_attention_layernorm", because it comes after attention.
LLAMA = {**PRE, "layers.*.post_attention_layernorm": "input"}
QK = {"layers.*.self_attn.q_norm": "inner.q", "layers.*.self_attn.k_norm": "inner.k"}
BERT = {
    "embeddings.LayerNorm": "embedding",
    "encoder.layer.*.attention.output.LayerNorm": "stream",
    "encoder.layer.*.output.LayerNorm": "stream",
}
GPT2 = {"h.*.ln_1": "input", "h.*.ln_2": "input", "ln_f": "final"}
VIT = {"layers.*.layernorm_before": "input", "layers.*.layernorm_after": "input", "layernorm": "final"}


@dataclass(frozen=True)
class Architecture:
    """A model class, its configuration, what to call it with, and the truth."""

    name: str
    config: Mapping[str, Any]
    truth: Mapping[str, str]
    placement: str | None
    inputs: Mapping[str, Any] = field(default_factory=lambda: {"input_ids": IDS})
    findings: frozenset[str] = frozenset()
    model: str = ""

    def build(self):
        import transformers

        config = getattr(transformers, f"{self.name}Config")(**self.config)
        torch.manual_seed(0)
        return getattr(transformers, self.model or f"{self.name}Model")(config)


def _image(
    name: str, config: Mapping[str, Any], truth: Mapping[str, str], placement: str | None, **more: Any
) -> Architecture:
    return Architecture(name, config, truth, placement, {"pixel_values": IMAGE}, **more)


def _renamed(truth: Mapping[str, str], change: Callable[[str], str]) -> dict[str, str]:
    return {change(name): slot for name, slot in truth.items()}


DECODERS = [
    Architecture("Llama", GROUPED, LLAMA, "pre"),
    Architecture("Qwen2", GROUPED, LLAMA, "pre"),
    Architecture("Olmo", GROUPED, LLAMA, "pre"),
    Architecture("Gemma", HEADS, LLAMA, "pre"),
    Architecture("StableLm", {**TEXT, "num_key_value_heads": 4}, LLAMA, "pre"),
    Architecture("Granite", {**GROUPED, "residual_multiplier": 0.22}, LLAMA, "pre"),
    Architecture("Qwen3", HEADS, {**LLAMA, **QK}, "pre"),
    # Gemma 2 gives the same name to the norm on what attention adds.
    Architecture(
        "Gemma2",
        HEADS,
        {
            **PRE,
            "layers.*.post_attention_layernorm": "output",
            "layers.*.pre_feedforward_layernorm": "input",
            "layers.*.post_feedforward_layernorm": "output",
        },
        "peri",
    ),
    Architecture(
        "Gemma3Text",
        HEADS,
        {
            **PRE,
            **QK,
            "layers.*.post_attention_layernorm": "output",
            "layers.*.pre_feedforward_layernorm": "input",
            "layers.*.post_feedforward_layernorm": "output",
        },
        "peri",
    ),
    # GLM-4 has both meanings side by side.
    Architecture(
        "Glm4",
        HEADS,
        {
            **LLAMA,
            "layers.*.post_self_attn_layernorm": "output",
            "layers.*.post_mlp_layernorm": "output",
        },
        "peri",
    ),
    Architecture(
        "Olmo2",
        GROUPED,
        {
            **QK,
            "layers.*.post_attention_layernorm": "output",
            "layers.*.post_feedforward_layernorm": "output",
            "norm": "final",
        },
        "output",
    ),
    Architecture("GPT2", GPT, GPT2, "pre"),
    Architecture(
        "GPTNeoX",
        TEXT,
        {
            "layers.*.input_layernorm": "input",
            "layers.*.post_attention_layernorm": "input",
            "final_layer_norm": "final",
        },
        "pre",
    ),
    Architecture("GPTJ", {**GPT, "rotary_dim": 4}, {"h.*.ln_1": "input", "ln_f": "final"}, "pre"),
    Architecture("Falcon", TEXT, {"h.*.input_layernorm": "input", "ln_f": "final"}, "pre"),
    Architecture(
        "Falcon",
        {**TEXT, "new_decoder_architecture": True, "num_kv_heads": 2},
        {
            "h.*.ln_attn": "input",
            "h.*.ln_mlp": "input",
            "ln_f": "final",
        },
        "pre",
    ),
    Architecture("Phi", TEXT, {"layers.*.input_layernorm": "input", "final_layernorm": "final"}, "pre"),
    Architecture("Cohere", GROUPED, PRE, "pre"),
    Architecture(
        "OPT",
        {**TEXT, "word_embed_proj_dim": 32, "ffn_dim": 48},
        {
            "decoder.layers.*.self_attn_layer_norm": "input",
            "decoder.layers.*.final_layer_norm": "input",
            "decoder.final_layer_norm": "final",
        },
        "pre",
    ),
    Architecture(
        "OPT",
        {**TEXT, "word_embed_proj_dim": 32, "ffn_dim": 48, "do_layer_norm_before": False},
        {
            "decoder.layers.*.self_attn_layer_norm": "stream",
            "decoder.layers.*.final_layer_norm": "stream",
        },
        "post",
    ),
    Architecture(
        "Bloom",
        {"vocab_size": 40, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        {
            "word_embeddings_layernorm": "embedding",
            "h.*.input_layernorm": "input",
            "h.*.post_attention_layernorm": "input",
            "ln_f": "final",
        },
        "pre",
        findings=frozenset({"consecutive norms"}),
    ),
    Architecture(
        "Bloom",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "apply_residual_connection_post_layernorm": True,
        },
        {
            "word_embeddings_layernorm": "embedding",
            "h.*.input_layernorm": "input",
            "h.*.post_attention_layernorm": "input",
            "ln_f": "final",
        },
        None,
        findings=frozenset({"consecutive norms", "residual after norm"}),
    ),
    Architecture(
        "DeepseekV3",
        {
            **TEXT,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "head_dim": 4,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
        },
        {
            **LLAMA,
            "layers.*.self_attn.q_a_layernorm": "inner.q-latent",
            "layers.*.self_attn.kv_a_layernorm": "inner.kv-latent",
        },
        "pre",
    ),
]

EXPERTS = [
    Architecture("Mixtral", {**GROUPED, "num_local_experts": 3}, LLAMA, "pre"),
    Architecture(
        "Qwen2Moe",
        {
            **GROUPED,
            "num_experts": 4,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "num_experts_per_tok": 2,
        },
        LLAMA,
        "pre",
    ),
    Architecture("Olmoe", {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2}, {**LLAMA, **QK}, "pre"),
]

ENCODERS = [
    Architecture("Bert", TEXT, BERT, "post"),
    Architecture(
        "Bert",
        TEXT,
        {
            **_renamed(BERT, lambda name: f"bert.{name}"),
            "cls.predictions.transform.LayerNorm": "head",
        },
        "post",
        model="BertForMaskedLM",
    ),
    Architecture("Roberta", TEXT, BERT, "post"),
    Architecture(
        "DistilBert",
        {"vocab_size": 40, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        {
            "embeddings.LayerNorm": "embedding",
            "transformer.layer.*.sa_layer_norm": "stream",
            "transformer.layer.*.output_layer_norm": "stream",
        },
        "post",
    ),
    # Shared weights: the same two norms in every layer.
    Architecture(
        "Albert",
        {**TEXT, "embedding_size": 16},
        {
            "embeddings.LayerNorm": "embedding",
            "encoder.albert_layer_groups.*.albert_layers.*.attention.LayerNorm": "stream",
            "encoder.albert_layer_groups.*.albert_layers.*.full_layer_layer_norm": "stream",
        },
        "post",
    ),
    # The first attention has no input norm, because the embedding is already normalized.
    Architecture(
        "ModernBert",
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2},
        {
            "embeddings.norm": "embedding",
            "layers.*.attn_norm": "input",
            "layers.*.mlp_norm": "input",
            "final_norm": "final",
        },
        "pre",
    ),
    Architecture(
        "FNet",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 48,
            "max_position_embeddings": 32,
        },
        {
            "embeddings.LayerNorm": "embedding",
            "encoder.layer.*.fourier.output.LayerNorm": "stream",
            "encoder.layer.*.output.LayerNorm": "stream",
        },
        "post",
    ),
]

SEQUENCE_TO_SEQUENCE = [
    Architecture(
        "T5",
        {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        {
            "encoder.block.*.layer.*.layer_norm": "input",
            "encoder.final_layer_norm": "final",
            "decoder.block.*.layer.*.layer_norm": "input",
            "decoder.final_layer_norm": "final",
        },
        "pre",
        SEQUENCES,
    ),
    # BART's "final_layer_norm" is the norm on the sum behind each MLP; its stacks end without one of their own.
    Architecture(
        "Bart",
        {
            "vocab_size": 40,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "max_position_embeddings": 32,
        },
        {
            "encoder.layernorm_embedding": "embedding",
            "encoder.layers.*.self_attn_layer_norm": "stream",
            "encoder.layers.*.final_layer_norm": "stream",
            "decoder.layernorm_embedding": "embedding",
            "decoder.layers.*.self_attn_layer_norm": "stream",
            "decoder.layers.*.encoder_attn_layer_norm": "stream",
            "decoder.layers.*.final_layer_norm": "stream",
        },
        "post",
        SEQUENCES,
    ),
]

IMAGES = [
    _image("ViT", VISION, VIT, "pre"),
    _image(
        "Dinov2",
        VISION,
        {"encoder.layer.*.norm1": "input", "encoder.layer.*.norm2": "input", "layernorm": "final"},
        "layerscale",
    ),
    _image(
        "Swin",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4},
        {
            "embeddings.norm": "embedding",
            "encoder.layers.*.blocks.*.layernorm_before": "input",
            "encoder.layers.*.blocks.*.layernorm_after": "input",
            "encoder.layers.*.downsample.norm": "transition",
            "layernorm": "final",
        },
        "pre",
        findings=frozenset({"consecutive norms"}),
    ),
    # Swin v2 kept the names of v1 and moved the norms to the other end of the branches.
    _image(
        "Swinv2",
        {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 2], "num_heads": [2, 2], "window_size": 4},
        {
            "embeddings.norm": "embedding",
            "encoder.layers.*.blocks.*.layernorm_before": "output",
            "encoder.layers.*.blocks.*.layernorm_after": "output",
            "encoder.layers.*.downsample.norm": "transition",
            "encoder.layers.*.blocks.*.attention.self:l2": "inner.q",
            "encoder.layers.*.blocks.*.attention.self:l2#2": "inner.k",
            "layernorm": "final",
        },
        "output",
    ),
    _image(
        "ConvNext",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "patch_size": 2},
        {
            "embeddings.layernorm": "embedding",
            "encoder.stages.*.layers.*.layernorm": "inner.mid",
            "encoder.stages.*.downsampling_layer.*": "transition",
            "layernorm": "final",
        },
        None,
    ),
    _image(
        "ResNet",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 2], "layer_type": "bottleneck"},
        {
            "embedder.embedder.normalization": "embedding",
            "encoder.stages.*.layers.*.layer.0.normalization": "inner.mid",
            "encoder.stages.*.layers.*.layer.1.normalization": "inner.mid",
            "encoder.stages.*.layers.*.layer.2.normalization": "output",
            "encoder.stages.*.layers.*.shortcut.normalization": "skip",
        },
        "output",
    ),
]

STATE_SPACES = [
    Architecture("Mamba", {**TEXT, "state_size": 4}, {"layers.*.norm": "input", "norm_f": "final"}, "pre"),
    # The gated norm inside the mixer stands before its output projection.
    Architecture(
        "Mamba2",
        {
            **TEXT,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 4,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 4,
        },
        {"layers.*.norm": "input", "layers.*.mixer.norm": "inner.pre-output", "norm_f": "final"},
        "pre",
    ),
    Architecture(
        "Jamba",
        {
            **GROUPED,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "use_mamba_kernels": False,
            "mamba_d_state": 4,
        },
        {
            "layers.*.input_layernorm": "input",
            "layers.*.pre_ff_layernorm": "input",
            "layers.*.mamba.dt_layernorm": "inner.mid",
            "layers.*.mamba.b_layernorm": "inner.mid",
            "layers.*.mamba.c_layernorm": "inner.mid",
            "final_layernorm": "final",
        },
        "pre",
    ),
    # A shared Transformer without residual adds of its own feeds a Mamba layer.
    Architecture(
        "Zamba",
        {
            **TEXT,
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "hybrid", "mamba", "hybrid"],
            "attention_hidden_size": 64,
            "attention_head_dim": 16,
            "n_mamba_heads": 2,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
            "num_key_value_heads": 4,
        },
        {
            "layers.*.input_layernorm": "input",
            "layers.*.shared_transf.input_layernorm": "input",
            "layers.*.shared_transf.pre_ff_layernorm": "inner.mid",
            "layers.*.mamba_decoder.input_layernorm": "input",
            "final_layernorm": "final",
        },
        "pre",
    ),
    Architecture(
        "Rwkv",
        {
            "vocab_size": 40,
            "context_length": 32,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "intermediate_size": 48,
            "attention_hidden_size": 32,
        },
        {
            "blocks.*.pre_ln": "embedding",
            "blocks.*.ln1": "input",
            "blocks.*.ln2": "input",
            "ln_out": "final",
        },
        "pre",
        {"input_ids": IDS, "use_cache": False},
        frozenset({"consecutive norms"}),
    ),
]

ARCHITECTURES = [*DECODERS, *EXPERTS, *ENCODERS, *SEQUENCE_TO_SEQUENCE, *IMAGES, *STATE_SPACES]
