"""The table of decoders that do not descend from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.common import BIAS, GROUPED, SIZES, UNGATED, head_rows
from normplace.models.transformer.families.family import Family, rows
from normplace.models.transformer.families.layouts import BY_GROUPS, TRANSPOSED, TRANSPOSED_CONCATENATED
from normplace.models.transformer.families.rope import rotary
from normplace.models.transformer.families.rules import (
    Rule,
    Settings,
    activation,
    constant,
    copied,
    inert,
    neutral,
    placed,
)
from normplace.placement import BlockSpec, Placement

PRE, POST, SHARED = (Placement.named(name) for name in ("pre", "post", "parallel"))
SEPARATE = Placement.named("parallel", norm="separate")
UNFINISHED = Placement.uniform(BlockSpec(input=True))
"""Pre without a final norm."""
LAYER_NORM = constant({"norm": "layer"})
BIASED = constant({"attention.bias": True, "mlp.bias": True})
QKV = "attention.branch.query attention.branch.key attention.branch.value"
MLP = {"mlp.dense_h_to_4h": "mlp.branch.up", "mlp.dense_4h_to_h": "mlp.branch.down"}
SEQUENTIAL_NORMS = {"input_layernorm": "attention.input_norm", "post_attention_layernorm": "mlp.input_norm"}
GPT_SIZES = {
    "vocab_size": "vocab_size", "n_embd": "dim", "n_layer": "depth", "n_head": "attention.heads",
    "n_inner": "mlp.hidden", "layer_norm_epsilon": "eps", "tie_word_embeddings": "head.tied",
}  # fmt: skip

GPT2_SCALE = Rule(
    ("scale_attn_weights",),
    lambda settings: {} if settings["scale_attn_weights"] else {"attention.score_scale": 1.0},
    lambda config: {"scale_attn_weights": config.attention.score_scale != 1},
)
NEOX_NORMS = placed(
    lambda settings: SEPARATE if settings["use_parallel_residual"] else PRE,
    ("use_parallel_residual",),
    lambda config: {"use_parallel_residual": config.rule.streams == "parallel"},
)
BLOOM_NORMS = placed(
    lambda settings: Placement.named(
        "embedding-norm",
        base="bert-residual" if settings["apply_residual_connection_post_layernorm"] else "pre",
    ),
    ("apply_residual_connection_post_layernorm",),
    lambda config: {"apply_residual_connection_post_layernorm": config.rule.all_specs[0].skip_normed},
)
OPT_NORMS = placed(
    lambda settings: (
        (UNFINISHED if settings["_remove_final_layer_norm"] else PRE) if settings["do_layer_norm_before"] else POST
    ),
    ("do_layer_norm_before", "_remove_final_layer_norm"),
    lambda config: {
        "do_layer_norm_before": config.rule.all_specs[0].input,
        "_remove_final_layer_norm": config.rule.all_specs[0].input and not config.rule.final,
    },
)
FOUR_TIMES = Rule((), lambda settings: {"mlp.hidden": 4 * settings["hidden_size"]}, lambda config: {})
NARROW_EMBEDDING = Rule(
    ("word_embed_proj_dim",),
    lambda settings: {
        "embedding_dim": None
        if settings["word_embed_proj_dim"] == settings["hidden_size"]
        else settings["word_embed_proj_dim"]
    },
    lambda config: {"word_embed_proj_dim": config.embedding_dim or config.dim},
)
OPT_PARAMETERS = Rule(
    ("enable_bias", "layer_norm_elementwise_affine"),
    lambda settings: {
        "attention.bias": settings["enable_bias"],
        "mlp.bias": settings["enable_bias"],
        "norm_parameters": "all" if settings["layer_norm_elementwise_affine"] else "none",
    },
    lambda config: {
        "enable_bias": config.attention.bias,
        "layer_norm_elementwise_affine": config.norm_parameters == "all",
    },
)


def _read_rotary_dim(settings: Settings) -> Mapping[str, Any]:
    if not settings.get("rotary_dim"):
        raise UsageError("a GPT-J needs rotary_dim, the number of rotating features of a head: set it.")
    return {"positions.rotary_features": settings["rotary_dim"], "positions.interleaved": True}


def _read_falcon(settings: Settings) -> Mapping[str, Any]:
    """Placement and heads of keys, which depend on the same switches."""
    heads, count = settings["num_attention_heads"], settings["num_ln_in_parallel_attn"]
    if settings["new_decoder_architecture"]:
        if not settings["parallel_attn"]:
            raise UsageError("parallel_attn=False contradicts new_decoder_architecture=True: set one of them.")
        placement = SEPARATE if count in (None, 2) else SHARED
        return {"placement": placement, "attention.key_value_heads": settings["num_kv_heads"]}
    if count == 2:
        raise UsageError("num_ln_in_parallel_attn=2 needs new_decoder_architecture=True.")
    placement = SHARED if settings["parallel_attn"] else PRE
    if not settings["multi_query"] and settings["num_kv_heads"] not in (None, heads):
        raise UsageError("num_kv_heads differs from num_attention_heads: set new_decoder_architecture=True.")
    return {"placement": placement, "attention.key_value_heads": 1 if settings["multi_query"] else heads}


def _write_falcon(config: TransformerConfig) -> Mapping[str, Any]:
    heads, groups = config.attention.heads, config.attention.key_value_heads
    parallel, separate = config.rule.streams.startswith("parallel"), config.rule.streams == "parallel"
    new = separate or (parallel and groups not in (1, heads))
    return {
        "new_decoder_architecture": new,
        "parallel_attn": parallel,
        "multi_query": not new and groups == 1,
        "num_kv_heads": groups if new else heads,
        "num_ln_in_parallel_attn": (2 if separate else 1) if new else None,
    }


FALCON_SWITCHES = Rule(
    ("new_decoder_architecture", "parallel_attn", "multi_query", "num_kv_heads", "num_ln_in_parallel_attn"),
    _read_falcon,
    _write_falcon,
)
FALCON_BIAS = Rule(
    ("bias",),
    lambda settings: {"attention.bias": settings["bias"], "mlp.bias": settings["bias"]},
    lambda config: {"bias": config.attention.bias},
)

OLDER_DECODERS = {
    "gpt2": Family(
        "GPT2LMHeadModel",
        (
            copied({**GPT_SIZES, "n_positions": "positions.length"}), LAYER_NORM, BIASED,
            constant({"positions.kind": "learned"}), GPT2_SCALE, activation("activation_function", UNGATED),
            placed(PRE), neutral(scale_attn_by_inverse_layer_idx=False),
            inert(
                "resid_pdrop", "embd_pdrop", "attn_pdrop", "reorder_and_upcast_attn", "summary_type",
                "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "n_ctx",
            ),
        ),
        (
            *rows({"wte": "embed", "wpe": "positions", "ln_f": "final_norm"}, "transformer."),
            *rows({"ln_1": "attention.input_norm", "ln_2": "mlp.input_norm"}, "transformer.h.{}.", "layers.{}."),
            *rows({
                "attn.c_proj": "attention.branch.output", "mlp.c_fc": "mlp.branch.up", "mlp.c_proj": "mlp.branch.down",
            }, "transformer.h.{}.", "layers.{}.", TRANSPOSED),
            *rows({"attn.c_attn": QKV}, "transformer.h.{}.", "layers.{}.", TRANSPOSED_CONCATENATED),
            *head_rows("lm_head"),
        ),
    ),
    "gptj": Family(
        "GPTJForCausalLM",
        (
            copied(GPT_SIZES), LAYER_NORM, constant({"mlp.bias": True, "head.bias": True}),
            Rule(("rotary_dim",), _read_rotary_dim, lambda config: {"rotary_dim": config.positions.rotary_features}),
            activation("activation_function", UNGATED), placed(SHARED), neutral(rotary=True, scale_attn_weights=True),
            inert(
                "n_positions", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_type", "summary_use_proj",
                "summary_activation", "summary_proj_to_labels", "summary_first_dropout", "n_ctx",
                "gradient_checkpointing",
            ),
        ),
        (
            *rows({"wte": "embed", "ln_f": "final_norm"}, "transformer."),
            *rows({
                "ln_1": "attention.input_norm", "attn.q_proj": "attention.branch.query",
                "attn.k_proj": "attention.branch.key", "attn.v_proj": "attention.branch.value",
                "attn.out_proj": "attention.branch.output", "mlp.fc_in": "mlp.branch.up",
                "mlp.fc_out": "mlp.branch.down",
            }, "transformer.h.{}.", "layers.{}."),
            *head_rows("lm_head"),
        ),
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM",
        (
            SIZES, LAYER_NORM, copied({"layer_norm_eps": "eps"}), BIAS, constant({"mlp.bias": True}),
            rotary(partial=True), activation("hidden_act", UNGATED), NEOX_NORMS,
            inert("attention_dropout", "hidden_dropout", "classifier_dropout", "is_decoder"),
        ),
        (
            *rows({"embed_in": "embed", "final_layer_norm": "final_norm"}, "gpt_neox."),
            *rows({"attention.query_key_value": QKV}, "gpt_neox.layers.{}.", "layers.{}.", BY_GROUPS),
            *rows({"attention.dense": "attention.branch.output", **MLP, **SEQUENTIAL_NORMS},
                  "gpt_neox.layers.{}.", "layers.{}."),
            *head_rows("lm_head|embed_out"),
        ),
    ),
    "phi": Family(
        "PhiForCausalLM",
        (
            SIZES, GROUPED, LAYER_NORM, copied({"layer_norm_eps": "eps"}), BIASED, constant({"head.bias": True}),
            rotary(partial=True), activation("hidden_act", UNGATED), placed(SHARED), neutral(qk_layernorm=False),
            inert("attention_dropout", "resid_pdrop", "embd_pdrop"),
        ),
        (
            *rows({"embed_tokens": "embed", "final_layernorm": "final_norm"}, "model."),
            *rows({
                "input_layernorm": "attention.input_norm", "self_attn.q_proj": "attention.branch.query",
                "self_attn.k_proj": "attention.branch.key", "self_attn.v_proj": "attention.branch.value",
                "self_attn.dense": "attention.branch.output", "mlp.fc1": "mlp.branch.up", "mlp.fc2": "mlp.branch.down",
            }, "model.layers.{}.", "layers.{}."),
            *head_rows("lm_head"),
        ),
    ),
    "falcon": Family(
        "FalconForCausalLM",
        (
            copied({
                "vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "depth",
                "num_attention_heads": "attention.heads", "ffn_hidden_size": "mlp.hidden", "layer_norm_epsilon": "eps",
                "tie_word_embeddings": "head.tied",
            }),
            LAYER_NORM, FALCON_SWITCHES, FALCON_BIAS, rotary(), activation("activation", UNGATED),
            neutral(alibi=False, apply_residual_connection_post_layernorm=False),  # their bias of ALiBi is rounded
            inert("hidden_dropout", "attention_dropout"),
        ),
        (
            *rows({"word_embeddings": "embed", "ln_f": "final_norm"}, "transformer."),
            *rows({"self_attention.query_key_value": QKV}, "transformer.h.{}.", "layers.{}.", BY_GROUPS),
            *rows({"self_attention.dense": "attention.branch.output", **MLP}, "transformer.h.{}.", "layers.{}."),
            *rows(SEQUENTIAL_NORMS, "transformer.h.{}.", "layers.{}.",
                  when=lambda config: config.rule.streams != "parallel"),
            *rows({"ln_attn": "attention.input_norm", "ln_mlp": "mlp.input_norm"}, "transformer.h.{}.", "layers.{}.",
                  when=lambda config: config.rule.streams == "parallel"),
            *head_rows("lm_head"),
        ),
    ),
    "opt": Family(
        "OPTForCausalLM",
        (
            copied({
                "vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "depth",
                "num_attention_heads": "attention.heads", "ffn_dim": "mlp.hidden",
                "max_position_embeddings": "positions.length", "tie_word_embeddings": "head.tied",
            }),
            LAYER_NORM, constant({"eps": 1e-5, "positions.kind": "learned", "positions.offset": 2}),
            OPT_NORMS, OPT_PARAMETERS, NARROW_EMBEDDING, activation("activation_function", UNGATED),
            inert("dropout", "attention_dropout", "layerdrop", "init_std"),
        ),
        (
            *rows({
                "embed_tokens": "embed", "embed_positions": "positions", "project_in": "embed_in",
                "project_out": "head.embed_out", "final_layer_norm": "final_norm",
            }, "model.decoder."),
            *rows({
                "self_attn.q_proj": "attention.branch.query", "self_attn.k_proj": "attention.branch.key",
                "self_attn.v_proj": "attention.branch.value", "self_attn.out_proj": "attention.branch.output",
                "fc1": "mlp.branch.up", "fc2": "mlp.branch.down",
            }, "model.decoder.layers.{}.", "layers.{}."),
            *rows({"self_attn_layer_norm": "attention.input_norm", "final_layer_norm": "mlp.input_norm"},
                  "model.decoder.layers.{}.", "layers.{}."),
            *rows({"self_attn_layer_norm": "attention.stream_norm", "final_layer_norm": "mlp.stream_norm"},
                  "model.decoder.layers.{}.", "layers.{}."),
            *head_rows("lm_head"),
        ),
    ),
    "bloom": Family(
        "BloomForCausalLM",
        (
            copied({
                "vocab_size": "vocab_size", "hidden_size": "dim", "n_layer": "depth", "n_head": "attention.heads",
                "layer_norm_epsilon": "eps", "tie_word_embeddings": "head.tied",
            }),
            LAYER_NORM, BIASED, FOUR_TIMES, constant({"mlp.kind": "gelu-tanh", "positions.kind": "alibi"}), BLOOM_NORMS,
            neutral(slow_but_exact=False),
            inert(
                "attention_dropout", "hidden_dropout", "pretraining_tp", "max_position_embeddings", "seq_length",
                "unk_token_id", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32",
                "bias_dropout_fusion", "masked_softmax_fusion", "n_inner",
            ),
        ),
        (
            *rows({
                "word_embeddings": "embed", "word_embeddings_layernorm": "embedding_norm", "ln_f": "final_norm",
            }, "transformer."),
            *rows({"self_attention.query_key_value": QKV}, "transformer.h.{}.", "layers.{}.", BY_GROUPS),
            *rows({"self_attention.dense": "attention.branch.output", **MLP, **SEQUENTIAL_NORMS},
                  "transformer.h.{}.", "layers.{}."),
            *head_rows("lm_head"),
        ),
    ),
}  # fmt: skip
"""Families by the ``model_type`` of their configuration, in the order in which an export tries them."""
