"""The table of encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.common import GATED, SIZES, UNGATED, tied
from normplace.models.transformer.families.family import Family, Row, rows
from normplace.models.transformer.families.layouts import CONCATENATED
from normplace.models.transformer.families.rope import rotary_by_window
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
from normplace.placement import BlockSpec, First, Placement

BERT_LAYER = {
    "attention.self.query": "attention.branch.query",
    "attention.self.key": "attention.branch.key",
    "attention.self.value": "attention.branch.value",
    "attention.output.dense": "attention.branch.output",
    "attention.output.LayerNorm": "attention.stream_norm",
    "intermediate.dense": "mlp.branch.up",
    "output.dense": "mlp.branch.down",
    "output.LayerNorm": "mlp.stream_norm",
}

BERT = (
    SIZES,
    copied({"type_vocab_size": "token_types", "layer_norm_eps": "eps"}),
    constant(
        {
            "norm": "layer",
            "causal": False,
            "attention.bias": True,
            "mlp.bias": True,
            "positions.kind": "learned",
            "head.bias": True,
            "head.transform": True,
        }
    ),
    placed(Placement.named("embedding-norm", base="post")),
    inert("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
)
"""What the descendants of BERT share."""


def bert_rows(name: str) -> tuple[Row, ...]:
    """Weights of the descendants of BERT below the head."""
    tables = {
        "word_embeddings": "embed",
        "position_embeddings": "positions",
        "token_type_embeddings": "types",
        "LayerNorm": "embedding_norm",
    }
    return *rows(tables, f"{name}.embeddings."), *rows(BERT_LAYER, f"{name}.encoder.layer.{{}}.", "layers.{}.")


def _roberta_positions(settings: Settings) -> Mapping[str, Any]:
    padding = settings.get("pad_token_id")
    if padding is None:
        raise UsageError("the positions of a RoBERTa depend on its padding token: set pad_token_id.")
    return {
        "positions.padding": padding,
        "positions.offset": padding + 1,
        "positions.length": settings["max_position_embeddings"] - padding - 1,
    }


ROBERTA_POSITIONS = Rule(
    ("max_position_embeddings", "pad_token_id"),
    _roberta_positions,
    lambda config: {
        "max_position_embeddings": (config.positions.length or 0) + config.positions.offset,
        "pad_token_id": config.positions.padding,
    },
)


def _modernbert_windows(settings: Settings) -> Mapping[str, Any]:
    size = settings["local_attention"] // 2 + 1
    sizes = tuple(size if kind == "sliding_attention" else None for kind in settings["layer_types"])
    return {"attention.windows": sizes if any(sizes) else ()}


def _write_modernbert_windows(config: TransformerConfig) -> Mapping[str, Any]:
    sizes = [config.attention.window(layer) for layer in range(1, config.depth + 1)]
    window = next((size for size in sizes if size is not None), None)
    kinds = ["full_attention" if size is None else "sliding_attention" for size in sizes]
    return {"layer_types": kinds, **({} if window is None else {"local_attention": 2 * (window - 1)})}


MODERNBERT_WINDOWS = Rule(("layer_types", "local_attention"), _modernbert_windows, _write_modernbert_windows)
NORM_BIAS = Rule(
    ("norm_bias",),
    lambda settings: {"norm_parameters": "all" if settings["norm_bias"] else "gain"},
    lambda config: {"norm_bias": config.norm_parameters == "all"},
)
MODERNBERT_TOKENS = ("cls_token_id", "sep_token_id")
MODERNBERT_PLACEMENT = Placement.by_kind(
    {
        "attention": ((First(1), BlockSpec()), (1.0, BlockSpec(input=True))),  # the embedding is normalized already
        "mlp": BlockSpec(input=True),
    },
    embedding=True,
    final=True,
)

ENCODERS = {
    "bert": Family(
        "BertForMaskedLM",
        (
            *BERT, copied({"max_position_embeddings": "positions.length"}),
            activation("hidden_act", {"gelu": "gelu"}),  # the head's transform supports no other
        ),
        (
            *bert_rows("bert"),
            *rows({
                "transform.dense": "head.transform", "transform.LayerNorm": "head.transform_norm",
                "decoder": "head.projection",
            }, "cls.predictions."),
            *rows({"cls.predictions": "head", "cls.predictions.decoder": "head"}),
            *rows({"cls.predictions.decoder": "embed"}, when=tied),
        ),
    ),
    "roberta": Family(
        "RobertaForMaskedLM",
        (*BERT, ROBERTA_POSITIONS, activation("hidden_act", UNGATED)),
        (
            *bert_rows("roberta"),
            *rows({
                "dense": "head.transform", "layer_norm": "head.transform_norm", "decoder": "head.projection",
            }, "lm_head."),
            *rows({"lm_head": "head", "lm_head.decoder": "head"}), *rows({"lm_head.decoder": "embed"}, when=tied),
        ),
    ),
    "modernbert": Family(
        "ModernBertForMaskedLM",
        (
            SIZES,
            copied({
                "norm_eps": "eps", "attention_bias": "attention.bias", "mlp_bias": "mlp.bias",
                "decoder_bias": "head.bias", "classifier_bias": "head.transform_bias",
            }),
            constant({"norm": "layer", "causal": False, "head.transform": True}),
            activation("hidden_activation", GATED), NORM_BIAS, rotary_by_window(),
            MODERNBERT_WINDOWS, placed(MODERNBERT_PLACEMENT), neutral(classifier_activation="gelu"),
            inert(
                "attention_dropout", "embedding_dropout", "mlp_dropout", "classifier_dropout", "classifier_pooling",
                "deterministic_flash_attn", "initializer_cutoff_factor", "sparse_prediction",
                "sparse_pred_ignore_index", "global_attn_every_n_layers",
            ),
            Rule(MODERNBERT_TOKENS, lambda settings: {}, lambda config: dict.fromkeys(MODERNBERT_TOKENS)),
        ),
        (
            *rows({
                "embeddings.tok_embeddings": "embed", "embeddings.norm": "embedding_norm", "final_norm": "final_norm",
            }, "model."),
            *rows({
                "attn_norm": "attention.input_norm", "attn.Wo": "attention.branch.output",
                "mlp_norm": "mlp.input_norm", "mlp.Wo": "mlp.branch.down",
            }, "model.layers.{}.", "layers.{}."),
            *rows({"attn.Wqkv": "query key value"}, "model.layers.{}.", "layers.{}.attention.branch.", CONCATENATED),
            *rows({"mlp.Wi": "gate up"}, "model.layers.{}.", "layers.{}.mlp.branch.", CONCATENATED),
            *rows({"head.dense": "head.transform", "head.norm": "head.transform_norm", "decoder": "head.projection"}),
            *rows({"decoder": "head"}), *rows({"decoder": "embed"}, when=tied),
        ),
    ),
}  # fmt: skip
"""Families of encoders by the ``model_type`` of their configuration."""
