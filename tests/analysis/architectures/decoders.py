"""Decoders, dense and with experts."""

from __future__ import annotations

from tests.analysis.architectures.case import GPT, GROUPED, HEADS, TEXT, Architecture

PRE = {"layers.*.input_layernorm": "input", "norm": "final"}
# Llama calls the norm before its MLP "post_attention_layernorm", because it comes after attention.
LLAMA = {**PRE, "layers.*.post_attention_layernorm": "input"}
QK = {"layers.*.self_attn.q_norm": "inner.q", "layers.*.self_attn.k_norm": "inner.k"}
GPT2 = {"h.*.ln_1": "input", "h.*.ln_2": "input", "ln_f": "final"}

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
        "bert-residual",
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
    # Hyper-connections: four copies of the stream, recombined by a small matrix at every add.
    Architecture(
        "DeepseekV4",
        {
            **HEADS,
            "q_lora_rank": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "qk_rope_head_dim": 8,
        },
        {
            **LLAMA,
            "layers.*.attn_hc.input_norm": "input",
            "layers.*.ffn_hc.input_norm": "input",
            "layers.*.self_attn.q_a_norm": "inner.q-latent",
            "layers.*.self_attn.q_b_norm": "inner.q",
            "layers.*.self_attn.kv_norm": "inner.kv",
            "hc_head.input_norm": "final",
        },
        "pre",
        findings=frozenset({"norm undone"}),  # queries are normalized on both sides of a map without bias
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
