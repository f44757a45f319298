"""The table of encoders."""

from __future__ import annotations

from normplace.models.transformer.families.family import Family, rows
from normplace.models.transformer.families.rules import activation, constant, copied, inert, placed
from normplace.placement import Placement

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

ENCODERS = {
    "bert": Family(
        "BertForMaskedLM",
        (
            copied({
                "vocab_size": "vocab_size", "hidden_size": "dim", "num_hidden_layers": "depth",
                "num_attention_heads": "attention.heads", "intermediate_size": "mlp.hidden",
                "max_position_embeddings": "positions.length", "type_vocab_size": "token_types",
                "layer_norm_eps": "eps", "tie_word_embeddings": "head.tied",
            }),
            constant({
                "norm": "layer", "causal": False, "attention.bias": True, "mlp.bias": True,
                "positions.kind": "learned", "head.bias": True, "head.transform": True,
            }),
            activation("hidden_act", {"gelu": "gelu"}),  # the head's transform supports no other
            placed(Placement.named("embedding-norm", base="post")),
            inert("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"),
        ),
        (
            *rows({
                "word_embeddings": "embed", "position_embeddings": "positions", "token_type_embeddings": "types",
                "LayerNorm": "embedding_norm",
            }, "bert.embeddings."),
            *rows(BERT_LAYER, "bert.encoder.layer.{}.", "layers.{}."),
            *rows({
                "transform.dense": "head.transform", "transform.LayerNorm": "head.transform_norm",
                "decoder": "head.projection",
            }, "cls.predictions."),
            *rows({"cls.predictions": "head", "cls.predictions.decoder": "head"}),
            *rows({"cls.predictions.decoder": "embed"}, when=lambda config: config.head.tied),
        ),
    ),
}  # fmt: skip
"""Families of encoders by the ``model_type`` of their configuration."""
