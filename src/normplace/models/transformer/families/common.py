"""Rules and rows that several families share."""

from __future__ import annotations

from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.family import Row, rows
from normplace.models.transformer.families.layouts import SAME, Layout
from normplace.models.transformer.families.rope import rotary
from normplace.models.transformer.families.rules import Rule, copied, inert

GATED = {"silu": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu", "gelu": "geglu-erf", "relu": "reglu"}
UNGATED = {
    "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "silu": "silu", "relu": "relu",
}  # fmt: skip

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
FREE_HEAD_DIM = Rule(
    ("head_dim",),
    lambda settings: {"attention.head_dim": settings.get("head_dim")},
    lambda config: {} if config.head_dim * config.attention.heads == config.dim else {"head_dim": config.head_dim},
)
"""A width of heads that their configuration has only if it is not that of the stream divided by the heads."""
RMS = copied({"rms_norm_eps": "eps"})
BIAS = copied({"attention_bias": "attention.bias"})
MLP_BIAS = copied({"mlp_bias": "mlp.bias"})
DROPOUT = inert("attention_dropout")
LLAMA = (SIZES, GROUPED, RMS, BIAS, rotary(), DROPOUT)
"""What the descendants of Llama share."""


def tied(config: TransformerConfig) -> bool:
    """Whether the head shares the embedding's weights."""
    return config.head.tied


def head_rows(name: str) -> tuple[Row, ...]:
    """Weight and bias of the head, which may share the embedding's weight."""
    return (*rows({name: "head.projection"}), *rows({name: "head"}), *rows({name: "embed"}, when=tied))


def llama_rows(norms: dict[str, str], gains: Layout = SAME) -> tuple[Row, ...]:
    """Weights of the descendants of Llama; ``norms`` maps Hugging Face's norms of a layer to those here."""
    hf, own = "model.layers.{}.", "layers.{}."
    matrices = {f"self_attn.{name[0]}_proj": f"attention.branch.{name}" for name in ("query", "key", "value", "output")}
    matrices |= {f"mlp.{name}_proj": f"mlp.branch.{name}" for name in ("gate", "up", "down")}
    return (
        *rows({"model.embed_tokens": "embed"}),
        *head_rows("lm_head"),
        *rows(matrices, hf, own),
        *rows(norms, hf, own, gains),
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
