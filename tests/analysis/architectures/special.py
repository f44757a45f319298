"""Attention without a softmax, memories with norms of their own, reversible blocks, detectors and their backbones."""

from __future__ import annotations

from typing import Any

import torch
from tests.analysis.architectures.case import GROUPED, IMAGE, TEXT, Architecture

STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
DETECTOR = {
    "backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False, "d_model": 32, "num_queries": 5,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "decoder_layers": 2,
}  # fmt: skip
PIXELS = {"pixel_values": IMAGE.repeat(1, 1, 2, 2)}
POST_LAYER = {"self_attn_layer_norm": "stream", "final_layer_norm": "stream"}


def _layers(prefix: str, norms: dict[str, str]) -> dict[str, str]:
    return {f"{prefix}.layers.*.{name}": slot for name, slot in norms.items()}


def _config(name: str, **values: Any) -> Any:
    """A backbone's configuration, built when the model is: transformers may be missing."""

    def build() -> Any:
        import transformers

        return getattr(transformers, f"{name}Config")(**values)

    return build


PRE = {"input_layernorm": "input", "post_attention_layernorm": "input"}
LINEAR = [
    Architecture(
        "KimiLinear",
        {
            **TEXT, "num_hidden_layers": 4, "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_experts": 4,
            "num_experts_per_tok": 2, "kv_lora_rank": 8, "q_lora_rank": None, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8, "v_head_dim": 8, "head_dim": 8,
            "linear_attn_config": {
                "num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3],
                "full_attn_layers": [4],
            },
        },
        {
            **{f"layers.*.{name}": slot for name, slot in PRE.items()},
            "layers.*.self_attn:l2": "inner.q", "layers.*.self_attn:l2#2": "inner.k",
            "layers.*.self_attn.o_norm": "inner.pre-output", "layers.*.self_attn.kv_a_layernorm": "inner.kv-latent",
            "norm": "final",
        },
        "pre",
    ),
    Architecture(
        "Qwen3Next",
        {
            **GROUPED, "num_hidden_layers": 4, "head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
            "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        },
        {
            **{f"layers.*.{name}": slot for name, slot in PRE.items()},
            "layers.*.linear_attn:l2": "inner.q", "layers.*.linear_attn:l2#2": "inner.k",
            "layers.*.linear_attn.norm": "inner.pre-output", "layers.*.self_attn.q_norm": "inner.q",
            "layers.*.self_attn.k_norm": "inner.k", "norm": "final",
        },
        "pre",
    ),
    # The expectation over hashes: powers of the angles between queries and keys.
    Architecture(
        "Yoso",
        {**TEXT, "use_expectation": True},
        {
            "embeddings.LayerNorm": "embedding", "encoder.layer.*.attention.self:l2": "inner.q",
            "encoder.layer.*.attention.self:l2#2": "inner.k", "encoder.layer.*.attention.self:l2#3": "inner.pre-output",
            "encoder.layer.*.attention.output.LayerNorm": "stream", "encoder.layer.*.output.LayerNorm": "stream",
        },
        "post",
    ),
    # Two streams, each a branch of the other; the keys of hashed attention are normalized queries.
    Architecture(
        "Reformer",
        {
            "attention_head_size": 8, "attn_layers": ["local", "lsh", "local", "lsh"], "axial_pos_embds": False,
            "hidden_size": 32, "feed_forward_size": 48, "num_attention_heads": 4, "num_buckets": 4, "vocab_size": 40,
            "max_position_embeddings": 64, "lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8,
        },
        {
            "encoder.layers.*.attention.layer_norm": "input", "encoder.layers.*.feed_forward.layer_norm": "input",
            "encoder.layers.*.attention.self_attention:rms": "inner.k", "encoder.layer_norm": "final",
        },
        "pre",
        {"input_ids": torch.arange(32)[None]},
    ),
]  # fmt: skip

OTHERS = [
    # The router divides its weights by their sum, which is no norm.
    Architecture(
        "Dbrx",
        {
            "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32, "vocab_size": 40,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
            "ffn_config": {
                "ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2, "moe_normalize_expert_weights": 1.0,
                "hidden_size": 32,
            },
        },
        {
            "blocks.*.norm_attn_norm.norm_1": "input", "blocks.*.norm_attn_norm.norm_2": "input", "norm_f": "final",
        },
        "pre",
    ),
    Architecture(
        "MllamaText",
        {
            **GROUPED, "num_hidden_layers": 3, "cross_attention_layers": [1],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        {
            **{f"layers.*.{name}": slot for name, slot in PRE.items()},
            "layers.*.cross_attn.q_norm": "inner.q", "layers.*.cross_attn.k_norm": "inner.k", "norm": "final",
        },
        "pre",
        {"input_ids": torch.arange(3, 9)[None], "cross_attention_states": torch.ones(1, 5, 32).cumsum(1)},
        frozenset({"norm undone"}),  # queries are normalized on both sides of a map without bias
    ),
    Architecture(
        "Canine",
        {
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
            "max_position_embeddings": 64, "num_hash_buckets": 64, "local_transformer_stride": 8,
        },
        {
            "char_embeddings.LayerNorm": "embedding",
            "chars_to_molecules.LayerNorm": "transition", "projection.LayerNorm": "transition",
            **{
                f"{stack}.layer.*.{part}output.LayerNorm": "stream"
                for stack in ("initial_char_encoder", "encoder", "final_char_encoder") for part in ("", "attention.")
            },
        },
        "post",
        {
            "input_ids": torch.arange(16)[None], "attention_mask": torch.ones(1, 16, dtype=torch.long),
            "token_type_ids": torch.zeros(1, 16, dtype=torch.long),
        },
    ),
    # A convolution of the embedding is added to what the first layer returned, and normalized again.
    Architecture(
        "DebertaV2",
        {
            **TEXT, "conv_kernel_size": 3, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        },
        {
            "embeddings.LayerNorm": "embedding", "encoder.conv.LayerNorm": "stream",
            "encoder.layer.*.attention.output.LayerNorm": "stream", "encoder.layer.*.output.LayerNorm": "stream",
        },
        "post",
    ),
]  # fmt: skip

# The stream of a decoder of queries begins with zeros, or with what an encoder selected.
DETECTORS = [
    Architecture(
        "Detr",
        {**DETECTOR, "encoder_layers": 2, "backbone_config": _config("ResNet", **STAGES, out_features=["stage4"])},
        {
            "backbone.model.embedder.embedder.normalization": "embedding",
            "backbone.model.encoder.stages.*.layers.*.layer.0.normalization": "inner.mid",
            "backbone.model.encoder.stages.*.layers.*.layer.1.normalization": "inner.mid",
            "backbone.model.encoder.stages.*.layers.*.layer.2.normalization": "output",
            "backbone.model.encoder.stages.*.layers.*.shortcut.normalization": "skip",
            **_layers("encoder", POST_LAYER), **_layers("decoder", POST_LAYER),
            "decoder.layers.*.encoder_attn_layer_norm": "stream", "decoder.layernorm": "final",
        },
        None,
        PIXELS,
        frozenset({"consecutive norms"}),
    ),
    Architecture(
        "RTDetr",
        {
            **DETECTOR, "encoder_layers": 1, "num_denoising": 0, "disable_custom_kernels": True,
            "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "decoder_in_channels": [32, 32, 32],
            "decoder_n_points": 2,
            "backbone_config": _config("RTDetrResNet", **STAGES, out_features=["stage2", "stage3", "stage4"]),
        },
        {
            "backbone.model.embedder.embedder.*.normalization": "embedding",
            "backbone.model.encoder.stages.*.layers.*.layer.0.normalization": "inner.mid",
            "backbone.model.encoder.stages.*.layers.*.layer.1.normalization": "inner.mid",
            "backbone.model.encoder.stages.*.layers.*.layer.2.normalization": "output",
            "backbone.model.encoder.stages.*.layers.*.shortcut.*.normalization": "skip",
            "encoder_input_proj.*.*": "transition", "decoder_input_proj.*.*": "transition",
            "enc_output.*": "transition", **_layers("encoder.aifi.*", POST_LAYER),
            "encoder.lateral_convs.*.norm": "transition", "encoder.downsample_convs.*.norm": "transition",
            **{
                f"encoder.{part}_blocks.*.{conv}.norm": "transition"
                for part in ("fpn", "pan")
                for conv in ("conv1", "conv2", "bottlenecks.*.conv1", "bottlenecks.*.conv2")
            },
            **_layers("decoder", POST_LAYER), "decoder.layers.*.encoder_attn_layer_norm": "stream",
        },
        None,
        PIXELS,
    ),
    Architecture(
        "Mask2Former",
        {
            "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 48,
            "encoder_layers": 2, "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 48, "num_queries": 5,
            "backbone_config": _config(
                "Swin", image_size=64, patch_size=4, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2],
                window_size=2, out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
        },
        {
            "pixel_level_module.encoder.swin.embeddings.norm": "embedding",
            "pixel_level_module.encoder.swin.encoder.layers.*.blocks.*.layernorm_before": "input",
            "pixel_level_module.encoder.swin.encoder.layers.*.blocks.*.layernorm_after": "input",
            "pixel_level_module.encoder.swin.encoder.layers.*.downsample.norm": "transition",
            "pixel_level_module.encoder.swin.layernorm": "final",  # unused
            "pixel_level_module.encoder.hidden_states_norms.stage*": "transition",
            "pixel_level_module.decoder.input_projections.*.*": "transition",
            **_layers("pixel_level_module.decoder.encoder", POST_LAYER),
            "pixel_level_module.decoder.adapter_*.*": "head", "pixel_level_module.decoder.layer_*.*": "head",
            **_layers("transformer_module.decoder", POST_LAYER),
            "transformer_module.decoder.layers.*.cross_attn_layer_norm": "stream",
            # The masks of the next attention are made of what it returns; the last masks are the output.
            "transformer_module.decoder.layernorm": ("input", "final"),
        },
        None,
        PIXELS,
        frozenset({"consecutive norms", "norm without effect"}),
    ),
]  # fmt: skip

SPECIAL = [*LINEAR, *OTHERS, *DETECTORS]
