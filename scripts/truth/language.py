"""Language models: decoders, experts, state spaces, encoders and sequence-to-sequence models."""

from __future__ import annotations

from truth.case import GROUPED, HEADS, IDS, SEQUENCES, TEXT, noise
from truth.case import hugging_face as hf

LLAMA = {"layers.*.input_layernorm": "input", "layers.*.post_attention_layernorm": "input", "norm": "final"}
QK = {"layers.*.self_attn.q_norm": "inner.q", "layers.*.self_attn.k_norm": "inner.k"}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 4}
BERT = {
    "embeddings.LayerNorm": "embedding",
    "encoder.layer.*.attention.output.LayerNorm": "stream",
    "encoder.layer.*.output.LayerNorm": "stream",
}


def _pair():
    return {"input_ids": IDS, "decoder_input_ids": IDS}


DECODERS = [
    hf(
        "Llama4Text",
        {**HEADS, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1},
        {**LLAMA, "layers.*.self_attn.qk_norm": ("inner.q", "inner.k")},
        "Llama4TextAttention: one L2 norm without parameters on queries, then on keys, after the rotation",
    ),
    hf("Nemotron", HEADS, LLAMA, "NemotronDecoderLayer: pre-norm with LayerNorm1P"),
    hf(
        "CodeGen",
        {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "rotary_dim": 4, "n_ctx": 32},
        {"h.*.ln_1": "input", "ln_f": "final"},
        "CodeGenBlock: attention and MLP read one norm and are added together",
    ),
    hf(
        "MiniCPM3",
        {
            **TEXT,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
        },
        {
            **LLAMA,
            "layers.*.self_attn.q_a_layernorm": "inner.q-latent",
            "layers.*.self_attn.kv_a_layernorm": "inner.kv-latent",
        },
        "MiniCPM3Attention: latent queries, keys and values; branches scaled before the add",
    ),
    hf(
        "DiffLlama",
        HEADS,
        {**LLAMA, "layers.*.self_attn.groupnorm": "inner.pre-output"},
        "DiffLlamaAttention: the norm is on the difference of two attentions, before o_proj",
    ),
    hf("Doge", GROUPED, {**LLAMA, **QK}, "DogeAttention: norms on queries and keys; DogeDecoderLayer: learned skips"),
    hf(
        "NanoChat",
        HEADS,
        {
            "layers.*.input_layernorm": "input",
            "layers.*.post_attention_layernorm": "input",
            **QK,
            "norm": ("embedding", "final"),
        },
        "NanoChatModel: the final norm is used before the first layer too; queries and keys after the rotation",
    ),
]

EXPERTS = [
    hf(
        "GptOss",
        {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
        LLAMA,
        "GptOssDecoderLayer: pre-norm; attention with sinks; a router without norm",
    ),
    hf(
        "Afmoe",
        {
            **HEADS,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "num_dense_layers": 1,
            "num_shared_experts": 1,
        },
        {
            **QK,
            "layers.*.input_layernorm": "input",
            "layers.*.post_attention_layernorm": "output",
            "layers.*.pre_mlp_layernorm": "input",
            "layers.*.post_mlp_layernorm": "output",
            "norm": "final",
        },
        "AfmoeDecoderLayer: norms on both ends of both branches",
    ),
    hf(
        "NllbMoe",
        {**SEQUENCES, "num_experts": 2, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 8},
        {
            "encoder.layers.*.self_attn_layer_norm": "input",
            "encoder.layers.*.ff_layer_norm": "input",
            "encoder.layer_norm": "final",
            "decoder.layers.*.self_attn_layer_norm": "input",
            "decoder.layers.*.cross_attention_layer_norm": "input",
            "decoder.layers.*.ff_layer_norm": "input",
            "decoder.layer_norm": "final",
        },
        "NllbMoeEncoderLayer, NllbMoeDecoderLayer: pre-norm, every second MLP routed",
        _pair,
    ),
]

STATE_SPACES = [
    hf(
        "RecurrentGemma",
        {**TEXT, "num_key_value_heads": 1, "lru_width": 32, "num_hidden_layers": 3, "attention_window_size": 8},
        {"layers.*.temporal_pre_norm": "input", "layers.*.channel_pre_norm": "input", "final_norm": "final"},
        "RecurrentGemmaDecoderLayer: pre-norm before a recurrence or attention, and before the MLP",
    ),
    hf(
        "FalconH1",
        {
            **HEADS,
            **MAMBA,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_n_groups": 1,
            "mamba_rms_norm": True,
        },
        {
            "layers.*.input_layernorm": "input",
            "layers.*.pre_ff_layernorm": "input",
            "layers.*.mamba.norm": "inner.pre-output",
            "final_layernorm": "final",
        },
        "FalconH1DecoderLayer: Mamba and attention read one norm; the gated norm is before out_proj",
    ),
    hf(
        "FalconMamba",
        {**TEXT, "state_size": 4},
        {
            "layers.*.norm": "input",
            "layers.*.mixer.dt_layernorm": "inner.mid",
            "layers.*.mixer.b_layernorm": "inner.mid",
            "layers.*.mixer.c_layernorm": "inner.mid",
            "norm_f": "final",
        },
        "FalconMambaMixer: the three outputs of x_proj are normalized before the scan",
    ),
    hf(
        "Lfm2",
        {**GROUPED, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
        {
            "layers.*.operator_norm": "input",
            "layers.*.ffn_norm": "input",
            "layers.*.self_attn.q_layernorm": "inner.q",
            "layers.*.self_attn.k_layernorm": "inner.k",
            "embedding_norm": "final",
        },
        "Lfm2Model: embedding_norm runs after the last layer",
    ),
    hf(
        "MiniMax",
        {
            **HEADS,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "block_size": 4,
            "layer_types": ["linear_attention", "full_attention"],
        },
        {**LLAMA, "layers.*.self_attn.norm": "inner.pre-output"},
        "MiniMaxDecoderLayer: both skips start behind the layer's own norms; linear attention is normalized",
    ),
    hf(
        "NemotronH",
        {
            **HEADS,
            "layers_block_type": ["mamba", "attention", "moe"],
            "num_hidden_layers": 3,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 4,
            "n_groups": 1,
            "chunk_size": 4,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        },
        {"layers.*.norm": "input", "layers.*.mixer.norm": "inner.pre-output", "norm_f": "final"},
        "NemotronHBlock: pre-norm with one mixer a block; the gated norm is before out_proj",
    ),
]

ENCODERS = [
    hf(
        "XLNet",
        {"vocab_size": 40, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        {"layer.*.rel_attn.layer_norm": "stream", "layer.*.ff.layer_norm": "stream"},
        "XLNetRelativeAttention.post_attention, XLNetFeedForward: the sum is normalized",
    ),
    hf(
        "Funnel",
        {
            "vocab_size": 40,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 48,
            "num_decoder_layers": 1,
        },
        {
            "embeddings.layer_norm": "embedding",
            "encoder.blocks.*.*.attention.layer_norm": "stream",
            "encoder.blocks.*.*.ffn.layer_norm": "stream",
            "decoder.layers.*.attention.layer_norm": "stream",
            "decoder.layers.*.ffn.layer_norm": "stream",
        },
        "FunnelRelMultiheadAttention: the skip is the pooled query, attention reads what was not pooled",
        lambda: {"input_ids": noise(1, 8).argsort() + 3},
    ),
    hf(
        "Esm",
        {**TEXT, "mask_token_id": 3, "emb_layer_norm_before": True, "position_embedding_type": "rotary"},
        {
            "embeddings.layer_norm": "embedding",
            "encoder.layer.*.attention.LayerNorm": "input",
            "encoder.layer.*.LayerNorm": "input",
            "encoder.emb_layer_norm_after": "final",
        },
        "EsmLayer: pre-norm; emb_layer_norm_after runs behind the last layer",
    ),
    hf(
        "RobertaPreLayerNorm",
        TEXT,
        {
            "embeddings.LayerNorm": "embedding",
            "encoder.layer.*.attention.LayerNorm": "input",
            "encoder.layer.*.intermediate.LayerNorm": "input",
            "LayerNorm": "final",
        },
        "RobertaPreLayerNormAttention and Intermediate normalize, the Output modules add",
    ),
    hf(
        "XLM",
        {
            "vocab_size": 40,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 32,
            "n_words": 40,
            "pad_index": 0,
        },
        {"layer_norm_emb": "embedding", "layer_norm1.*": "stream", "layer_norm2.*": "stream"},
        "XLMModel: the whole post-norm stack is one forward method",
    ),
    hf(
        "Deberta",
        {
            **TEXT,
            "pos_att_type": ["c2p", "p2c"],
            "relative_attention": True,
            "max_relative_positions": 16,
            "type_vocab_size": 0,
        },
        BERT,
        "DebertaSelfOutput, DebertaOutput: the sum is normalized, by a LayerNorm written out",
    ),
    hf(
        "Nystromformer",
        {**TEXT, "num_landmarks": 3, "segment_means_seq_len": 6, "conv_kernel_size": 3},
        BERT,
        "NystromformerSelfOutput, NystromformerOutput: the sum is normalized; the pseudo-inverse is not a norm",
    ),
]

SEQUENCE_TO_SEQUENCE = [
    hf(
        "ProphetNet",
        {
            "vocab_size": 40,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 32,
            "ngram": 2,
            "num_buckets": 8,
            "relative_max_distance": 16,
        },
        {
            "encoder.embeddings_layer_norm": "embedding",
            "decoder.embeddings_layer_norm": "embedding",
            "encoder.layers.*.*_layer_norm": "stream",
            "decoder.layers.*.*_layer_norm": "stream",
        },
        "ProphetNetEncoderLayer, ProphetNetDecoderLayer: every sum is normalized",
        _pair,
    ),
    hf(
        "LongT5",
        {
            "vocab_size": 40,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "encoder_attention_type": "transient-global",
            "global_block_size": 4,
            "local_radius": 3,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
        {
            "encoder.block.*.layer.*.TransientGlobalSelfAttention.global_input_layer_norm": "inner.kv-latent",
            "encoder.block.*.layer.*.layer_norm": "input",
            "encoder.final_layer_norm": "final",
            "decoder.block.*.layer.*.layer_norm": "input",
            "decoder.final_layer_norm": "final",
        },
        "LongT5TransientGlobalAttention: sums of blocks are normalized, then mapped to further keys and values",
        _pair,
    ),
    hf(
        "T5Gemma",
        {"encoder": HEADS, "decoder": HEADS, "vocab_size": 40},
        {
            "*.layers.*.pre_*_layernorm": "input",
            "*.layers.*.post_*_layernorm": "output",
            "encoder.norm": "final",
            "decoder.norm": "final",
        },
        "T5GemmaEncoderLayer, T5GemmaDecoderLayer: norms on both ends of each branch",
        _pair,
    ),
]

CASES = [*DECODERS, *EXPERTS, *STATE_SPACES, *ENCODERS, *SEQUENCE_TO_SEQUENCE]
