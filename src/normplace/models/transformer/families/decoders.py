"""The table of decoders. Norms are mapped by their function, not by their name.

``post_attention_layernorm`` is the MLP's input norm in Llama and HyperCLOVA X, and attention's output norm in Gemma 2
and OLMo 2.
"""

from __future__ import annotations

from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.family import Family, Row, rows
from normplace.models.transformer.families.layouts import (
    SAME,
    SHIFTED,
    TRANSPOSED,
    TRANSPOSED_CONCATENATED,
    Layout,
)
from normplace.models.transformer.families.rope import rotary
from normplace.models.transformer.families.rules import (
    Rule,
    activation,
    constant,
    copied,
    inert,
    neutral,
    placed,
    scaled_branches,
    windows,
)
from normplace.placement import Placement

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu"}
UNGATED = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}

SIZES = copied(
    {
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "depth",
        "num_attention_heads": "attention.heads",
        "intermediate_size": "mlp.hidden",
        "tie_word_embeddings": "head.tied",
    }
)
GROUPED = copied({"num_key_value_heads": "attention.key_value_heads"})
HEAD_DIM = copied({"head_dim": "attention.head_dim"})
RMS = copied({"rms_norm_eps": "eps"})
BIAS = copied({"attention_bias": "attention.bias"})
MLP_BIAS = copied({"mlp_bias": "mlp.bias"})
DROPOUT = inert("attention_dropout")
LLAMA = (SIZES, GROUPED, RMS, BIAS, rotary(), DROPOUT)
"""What the descendants of Llama share."""


def tied(config: TransformerConfig) -> bool:
    """Whether the head shares the embedding's weights."""
    return config.head.tied


def llama_rows(norms: dict[str, str], gains: Layout = SAME) -> tuple[Row, ...]:
    """Weights of the descendants of Llama; ``norms`` maps their norms in a layer to ours."""
    layer, ours = "model.layers.{}.", "layers.{}."
    matrices = {f"self_attn.{name[0]}_proj": f"attention.branch.{name}" for name in ("query", "key", "value", "output")}
    matrices |= {f"mlp.{name}_proj": f"mlp.branch.{name}" for name in ("gate", "up", "down")}
    return (
        *rows({"model.embed_tokens": "embed", "lm_head": "head.projection"}),
        *rows({"lm_head": "embed"}, when=tied),
        *rows(matrices, layer, ours),
        *rows(norms, layer, ours, gains),
        *rows({"model.norm": "final_norm"}, layout=gains),
    )


PRE_NORMS = {"input_layernorm": "attention.input_norm", "post_attention_layernorm": "mlp.input_norm"}
PERI_NORMS = {
    "input_layernorm": "attention.input_norm",
    "post_attention_layernorm": "attention.output_norm",
    "pre_feedforward_layernorm": "mlp.input_norm",
    "post_feedforward_layernorm": "mlp.output_norm",
}
OUTPUT_NORMS = {
    "post_attention_layernorm": "attention.output_norm",
    "post_feedforward_layernorm": "mlp.output_norm",
}
QK_NORMS = {"self_attn.q_norm": "attention.branch.norms.q", "self_attn.k_norm": "attention.branch.norms.k"}
QK_FULL_NORMS = {name: f"{site}_full" for name, site in QK_NORMS.items()}

PERI_OR_PRE = placed(
    lambda settings: Placement.named("peri" if settings["use_post_norm"] else "pre"),
    ("use_post_norm",),
    lambda config: {"use_post_norm": config.rule.all_specs[0].output},
)
ROOT_SCALE = Rule(
    ("query_pre_attn_scalar",),
    lambda settings: {"attention.score_scale": settings["query_pre_attn_scalar"] ** -0.5},
    lambda config: {"query_pre_attn_scalar": round((config.attention.score_scale or 1) ** -2)},
)
ROOT_EMBEDDING = Rule((), lambda settings: {"embedding_scale": settings["hidden_size"] ** 0.5}, lambda config: {})
GPT2_SCALE = Rule(
    ("scale_attn_weights",),
    lambda settings: {} if settings["scale_attn_weights"] else {"attention.score_scale": 1.0},
    lambda config: {"scale_attn_weights": config.attention.score_scale != 1},
)

DECODERS = {
    "llama": Family(
        "LlamaForCausalLM",
        (
            *LLAMA, HEAD_DIM, MLP_BIAS, activation("hidden_act", GATED), placed(Placement.named("pre")),
            inert("pretraining_tp"),
        ),
        llama_rows(PRE_NORMS),
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        (
            copied({
                "vocab_size": "vocab_size", "n_embd": "dim", "n_layer": "depth", "n_head": "attention.heads",
                "n_inner": "mlp.hidden", "n_positions": "positions.length", "layer_norm_epsilon": "eps",
                "tie_word_embeddings": "head.tied",
            }),
            constant({"norm": "layer", "attention.bias": True, "mlp.bias": True, "positions.kind": "learned"}),
            GPT2_SCALE, activation("activation_function", UNGATED), placed(Placement.named("pre")),
            neutral(scale_attn_by_inverse_layer_idx=False),
            inert(
                "resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_type",
                "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
            ),
        ),
        (
            *rows({"wte": "embed", "wpe": "positions", "ln_f": "final_norm"}, "transformer."),
            *rows({"ln_1": "attention.input_norm", "ln_2": "mlp.input_norm"}, "transformer.h.{}.", "layers.{}."),
            *rows(
                {
                    "attn.c_proj": "attention.branch.output", "mlp.c_fc": "mlp.branch.up",
                    "mlp.c_proj": "mlp.branch.down",
                },
                "transformer.h.{}.", "layers.{}.", TRANSPOSED,
            ),
            *rows({"attn.c_attn": "query key value"}, "transformer.h.{}.", "layers.{}.attention.branch.",
                  TRANSPOSED_CONCATENATED),
            *rows({"lm_head": "head.projection"}), *rows({"lm_head": "embed"}, when=tied),
        ),
    ),
    "hyperclovax": Family(
        "HyperCLOVAXForCausalLM",
        (
            *LLAMA, HEAD_DIM, MLP_BIAS, activation("hidden_act", GATED),
            scaled_branches("residual_multiplier", PERI_OR_PRE),
            copied({
                "attention_multiplier": "attention.score_scale", "logits_scaling": "head.scale",
                "embedding_multiplier": "embedding_scale",
            }),
        ),
        llama_rows({**PRE_NORMS, "post_norm1": "attention.output_norm", "post_norm2": "mlp.output_norm"}),
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        (
            *LLAMA, HEAD_DIM, activation("hidden_activation", GATED), placed(Placement.named("peri")), windows(),
            ROOT_SCALE, ROOT_EMBEDDING,
            copied({"attn_logit_softcapping": "attention.softcap", "final_logit_softcapping": "head.softcap"}),
            neutral(use_bidirectional_attention=False),
        ),
        llama_rows(PERI_NORMS, SHIFTED),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        (
            *LLAMA, activation("hidden_act", GATED),
            placed(Placement.named("qk", base="output", over="projection")),
        ),
        llama_rows({**OUTPUT_NORMS, **QK_FULL_NORMS}),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        (
            *LLAMA, HEAD_DIM, activation("hidden_act", GATED), placed(Placement.named("qk")),
            windows(with_first=True),
        ),
        llama_rows({**PRE_NORMS, **QK_NORMS}),
    ),
}  # fmt: skip
"""Families of decoders by the ``model_type`` of their configuration, in the order in which an export tries them."""
