"""Small Hugging Face models with experts, encoders and encoder-decoders, as a part of the cases of all families."""

from __future__ import annotations

from typing import Any

SMALL = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
MIXTRAL = {**GROUPED, "num_local_experts": 5, "num_experts_per_tok": 2}
QWEN = {**GROUPED, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True}
LLAMA4 = {**GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 40}
LLAMA3_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MODERN = {**SMALL, "local_attention": 6, "cls_token_id": None, "sep_token_id": None}
T5 = {
    "vocab_size": 61, "d_model": 32, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10, "decoder_start_token_id": 0,
}  # fmt: skip
# Windows and chunks are shorter than the sequence, and the temperature grows within it.
EXPERT_AND_ENCODER_CASES: dict[str, dict[str, dict[str, Any]]] = {
    "mixtral": {
        "": MIXTRAL,
        "window, head of 6": {**MIXTRAL, "sliding_window": 4, "head_dim": 6, "tie_word_embeddings": True},
    },
    "qwen3_moe": {
        "": {**QWEN, "mlp_only_layers": [1], "decoder_sparse_step": 2},
        "window, head of 10": {
            **QWEN, "norm_topk_prob": False, "head_dim": 10, "attention_bias": True, "use_sliding_window": True,
            "sliding_window": 5,
        },
    },
    "llama4_text": {
        "": {
            **LLAMA4, "attention_chunk_size": 4, "floor_scale": 3, "attn_scale": 0.5, "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 2, "rope_parameters": LLAMA3_ROPE,
        },
        "plain": {
            **LLAMA4, "num_experts_per_tok": 2, "attention_chunk_size": 5, "use_qk_norm": False,
            "attn_temperature_tuning": False, "attention_bias": True,
        },
    },
    "roberta": {
        "": {**SMALL, "pad_token_id": 1},
        "other padding": {**SMALL, "pad_token_id": 5, "hidden_act": "relu", "type_vocab_size": 1},
    },
    "modernbert": {
        "": MODERN,
        "biased": {
            **MODERN, "local_attention": 5, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
            "classifier_bias": True, "decoder_bias": False, "hidden_activation": "silu", "tie_word_embeddings": False,
        },
    },
    "t5": {
        "": T5,
        "1.1": {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_layers": 3},
    },
}  # fmt: skip
