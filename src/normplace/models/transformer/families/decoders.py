"""The table of Llama's descendants. Norms are mapped by their function, not by their name.

``post_attention_layernorm`` is the MLP's input norm in Llama and HyperCLOVA X, and attention's output norm in Gemma 2
and OLMo 2.
"""

from __future__ import annotations

from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.common import (
    BIAS,
    DROPOUT,
    FREE_HEAD_DIM,
    GATED,
    GROUPED,
    HEAD_DIM,
    LLAMA,
    MLP_BIAS,
    OUTPUT_NORMS,
    PERI_NORMS,
    PRE_NORMS,
    QK_FULL_NORMS,
    QK_NORMS,
    RMS,
    SIZES,
    head_rows,
    llama_rows,
)
from normplace.models.transformer.families.family import Family, Row, rows
from normplace.models.transformer.families.layouts import CONCATENATED, ONE_ROW_EACH, SHIFTED
from normplace.models.transformer.families.rope import rotary, rotary_by_window
from normplace.models.transformer.families.rules import (
    Rule,
    activation,
    constant,
    copied,
    inert,
    inverse,
    neutral,
    one_window,
    placed,
    scaled_branches,
    windows,
)
from normplace.placement import Placement

ACTIVATION = activation("hidden_act", GATED)
PRE, QK, PERI_QK = Placement.named("pre"), Placement.named("qk"), Placement.named("qk", base="peri")
OUTPUT_QK = Placement.named("qk", base="output", over="projection")
PARALLEL = Placement.named("parallel")
PARALLEL_QK = Placement.named("qk", base="parallel", over="each")
STABLELM = {
    (False, False): PRE,
    (False, True): Placement.named("qk", over="each"),
    (True, False): PARALLEL,
    (True, True): PARALLEL_QK,
}
"""Placements by whether branches are parallel, and whether heads are normed."""
LAYER_NORM = (copied({"layer_norm_eps": "eps"}), constant({"norm": "layer"}))

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
QKV_BIAS = constant({"attention.bias": True, "attention.output_bias": False})
NOPE_LAYERS = Rule(
    ("no_rope_layers", "no_rope_layer_interval"),
    lambda settings: {"positions.rotary_layers": tuple(map(bool, settings["no_rope_layers"]))},
    lambda config: {"no_rope_layers": [int(config.positions.rotates(layer)) for layer in range(1, config.depth + 1)]},
)
"""Layers without positions; their list has a 1 for a layer that rotates."""
ROTARY_WINDOWS = Rule(
    (),
    lambda settings: {
        "positions.rotary_layers": tuple(kind == "sliding_attention" for kind in settings["layer_types"]),
        "positions.interleaved": True,
    },
    lambda config: {},
)
"""Rotary positions in the layers with a window only."""
COHERE_NORMS = placed(
    lambda settings: PARALLEL_QK if settings["use_qk_norm"] else PARALLEL,
    ("use_qk_norm",),
    lambda config: {"use_qk_norm": bool(config.rule.all_specs[0].inner)},
)
STABLELM_NORMS = placed(
    lambda settings: STABLELM[bool(settings["use_parallel_residual"]), bool(settings["qk_layernorm"])],
    ("use_parallel_residual", "qk_layernorm"),
    lambda config: {
        "use_parallel_residual": config.rule.streams == "parallel-shared",
        "qk_layernorm": bool(config.rule.all_specs[0].inner),
    },
)
MULTIPLIERS = copied({"attention_multiplier": "attention.score_scale", "embedding_multiplier": "embedding_scale"})


def norms_of_each_head(config: TransformerConfig) -> tuple[Row, ...]:
    """Cohere's norms of queries and keys, whose weights hold one row for each head."""
    pairs = {f"{side}_norm": " ".join(f"{side}_each.{head}" for head in heads) for side, heads in _heads(config)}
    return rows(pairs, "model.layers.{}.self_attn.", "layers.{}.attention.branch.norms.", ONE_ROW_EACH)


def modules_of_each_head(config: TransformerConfig) -> tuple[Row, ...]:
    """StableLM's norms of queries and keys, one module for each head."""
    pairs = {
        f"{side}_layernorm.norms.{head}": f"{side}_each.{head}" for side, heads in _heads(config) for head in heads
    }
    return rows(pairs, "model.layers.{}.self_attn.", "layers.{}.attention.branch.norms.")


def _heads(config: TransformerConfig) -> tuple[tuple[str, range], ...]:
    shape = config.attention
    return ("q", range(shape.heads)), ("k", range(shape.key_value_heads or shape.heads))


DECODERS = {
    "llama": Family(
        "LlamaForCausalLM",
        (*LLAMA, HEAD_DIM, MLP_BIAS, ACTIVATION, placed(PRE), inert("pretraining_tp")),
        llama_rows(PRE_NORMS),
    ),
    "mistral": Family(
        "MistralForCausalLM",
        (SIZES, GROUPED, HEAD_DIM, RMS, rotary(), DROPOUT, ACTIVATION, placed(PRE), one_window()),
        llama_rows(PRE_NORMS),
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        (
            SIZES, GROUPED, FREE_HEAD_DIM, RMS, QKV_BIAS, rotary(), DROPOUT, ACTIVATION, placed(PRE),
            windows(with_first=True),
        ),
        llama_rows(PRE_NORMS),
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        (*LLAMA, HEAD_DIM, ACTIVATION, placed(QK), windows(with_first=True)),
        llama_rows({**PRE_NORMS, **QK_NORMS}),
    ),
    "hyperclovax": Family(
        "HyperCLOVAXForCausalLM",
        (
            *LLAMA, HEAD_DIM, MLP_BIAS, ACTIVATION, scaled_branches("residual_multiplier", PERI_OR_PRE), MULTIPLIERS,
            copied({"logits_scaling": "head.scale"}),
        ),
        llama_rows({**PRE_NORMS, "post_norm1": "attention.output_norm", "post_norm2": "mlp.output_norm"}),
    ),
    "granite": Family(
        "GraniteForCausalLM",
        (
            *LLAMA, FREE_HEAD_DIM, MLP_BIAS, ACTIVATION, scaled_branches("residual_multiplier", placed(PRE)),
            MULTIPLIERS, inverse("logits_scaling", "head.scale"),
        ),
        llama_rows(PRE_NORMS),
    ),
    "gemma": Family(
        "GemmaForCausalLM",
        (
            *LLAMA, HEAD_DIM, ACTIVATION, placed(PRE), ROOT_EMBEDDING, neutral(use_bidirectional_attention=False),
            inert("hidden_activation"),
        ),
        llama_rows(PRE_NORMS, SHIFTED),
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
    "gemma3_text": Family(
        "Gemma3ForCausalLM",
        (
            SIZES, GROUPED, HEAD_DIM, RMS, BIAS, DROPOUT, rotary_by_window(), activation("hidden_activation", GATED),
            placed(PERI_QK), windows(), ROOT_SCALE, ROOT_EMBEDDING, copied({"final_logit_softcapping": "head.softcap"}),
            neutral(use_bidirectional_attention=False, attn_logit_softcapping=None),
        ),
        llama_rows({**PERI_NORMS, **QK_NORMS}, SHIFTED),
    ),
    "olmo": Family(
        "OlmoForCausalLM",
        (
            SIZES, GROUPED, FREE_HEAD_DIM, BIAS, rotary(), DROPOUT, ACTIVATION, placed(PRE),
            constant({"norm": "layer", "norm_parameters": "none", "eps": 1e-5}), copied({"clip_qkv": "attention.clip"}),
        ),
        llama_rows({}),
    ),
    "olmo2": Family(
        "Olmo2ForCausalLM",
        (*LLAMA, FREE_HEAD_DIM, ACTIVATION, placed(OUTPUT_QK)),
        llama_rows({**OUTPUT_NORMS, **QK_FULL_NORMS}),
    ),
    "olmo3": Family(
        "Olmo3ForCausalLM",
        (
            SIZES, GROUPED, FREE_HEAD_DIM, RMS, BIAS, DROPOUT, rotary_by_window(), ACTIVATION, placed(OUTPUT_QK),
            windows(),
        ),
        llama_rows({**OUTPUT_NORMS, **QK_FULL_NORMS}),
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        (
            SIZES, GROUPED, FREE_HEAD_DIM, RMS, rotary(partial=True), DROPOUT, ACTIVATION, placed(PRE), one_window(),
            neutral(attention_bias=False, lm_head_bias=False),
            inert("resid_pdrop", "embd_pdrop", "partial_rotary_factor"),  # the factor is also in rope_parameters
        ),
        (
            *rows(
                {"self_attn.qkv_proj": "attention.branch.query attention.branch.key attention.branch.value",
                 "mlp.gate_up_proj": "mlp.branch.gate mlp.branch.up"},
                "model.layers.{}.", "layers.{}.", CONCATENATED,
            ),
            *rows(
                {"self_attn.o_proj": "attention.branch.output", "mlp.down_proj": "mlp.branch.down", **PRE_NORMS},
                "model.layers.{}.", "layers.{}.",
            ),
            *rows({"model.embed_tokens": "embed", "model.norm": "final_norm"}), *head_rows("lm_head"),
        ),
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        (*LLAMA, FREE_HEAD_DIM, MLP_BIAS, ACTIVATION, placed(PRE), windows(with_switch=True), NOPE_LAYERS),
        llama_rows(PRE_NORMS),
    ),
    "stablelm": Family(
        "StableLmForCausalLM",
        (
            SIZES, GROUPED, *LAYER_NORM, copied({"use_qkv_bias": "attention.bias"}),
            constant({"attention.output_bias": False}), rotary(partial=True), ACTIVATION, STABLELM_NORMS,
            constant({"attention.qk_bias": False}), inert("attention_dropout", "hidden_dropout"),
        ),
        (*llama_rows(PRE_NORMS), modules_of_each_head),
    ),
    "cohere": Family(
        "CohereForCausalLM",
        (
            SIZES, GROUPED, FREE_HEAD_DIM, *LAYER_NORM, BIAS, rotary(), DROPOUT, ACTIVATION, COHERE_NORMS,
            constant({"norm_parameters": "gain", "positions.interleaved": True}), copied({"logit_scale": "head.scale"}),
        ),
        (
            *llama_rows({"input_layernorm": "attention.input_norm"}), norms_of_each_head,
        ),
    ),
    "cohere2": Family(
        "Cohere2ForCausalLM",
        (
            SIZES, GROUPED, *LAYER_NORM, BIAS, rotary(), DROPOUT, ACTIVATION, placed(PARALLEL), windows(),
            ROTARY_WINDOWS, constant({"norm_parameters": "gain"}), copied({"logit_scale": "head.scale"}),
            inert("head_dim"),  # always that of the stream divided by the heads
        ),
        llama_rows({"input_layernorm": "attention.input_norm"}),
    ),
}  # fmt: skip
"""Families by the ``model_type`` of their configuration, in the order in which an export tries them."""
