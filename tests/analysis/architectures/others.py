"""Encoders, sequence-to-sequence models, images and state spaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.analysis.architectures.case import GROUPED, IDS, IMAGE, SEQUENCES, TEXT, VISION, Architecture

BERT = {
    "embeddings.LayerNorm": "embedding",
    "encoder.layer.*.attention.output.LayerNorm": "stream",
    "encoder.layer.*.output.LayerNorm": "stream",
}
VIT = {"layers.*.layernorm_before": "input", "layers.*.layernorm_after": "input", "layernorm": "final"}


def _image(
    name: str, config: Mapping[str, Any], truth: Mapping[str, str], placement: str | None, **more: Any
) -> Architecture:
    return Architecture(name, config, truth, placement, {"pixel_values": IMAGE}, **more)


def _renamed(truth: Mapping[str, str], change: Callable[[str], str]) -> dict[str, str]:
    return {change(name): slot for name, slot in truth.items()}


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
    # Where a stage changes its width, the skip is a projection of the normalized stream.
    _image(
        "Hiera",
        {"image_size": [32, 32], "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8]},
        {
            "encoder.stages.*.layers.*.layernorm_before": "input",
            "encoder.stages.*.layers.*.layernorm_after": "input",
            "pooler.layernorm": "final",
        },
        "pre",
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

OTHERS = [*ENCODERS, *SEQUENCE_TO_SEQUENCE, *IMAGES, *STATE_SPACES]
