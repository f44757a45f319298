"""The table of encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping

from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families.common import GATED, UNGATED
from normplace.models.transformer.families.family import Family, Row, rows
from normplace.models.transformer.families.rules import Rule, activation, constant, copied, inert, neutral, placed
from normplace.models.transformer.feedforward import KINDS
from normplace.placement import Placement

T5_KINDS = {
    "gated-gelu": "geglu",
    **{f"gated-{name}": kind for name, kind in GATED.items() if name != "gelu"},
    **UNGATED,
}
"""``gated-gelu`` of T5 is the tanh approximation."""
T5_SCALE = Rule(
    ("scale_decoder_outputs", "tie_word_embeddings"),  # the embedding is always tied; the key switches the scale
    lambda settings: {"head.scale": settings["d_model"] ** -0.5 if settings["scale_decoder_outputs"] else 1.0},
    lambda config: {"tie_word_embeddings": config.head.scale != 1},
)


def _gated(config: TransformerConfig) -> bool:
    return KINDS[config.mlp.kind][1]


def _ungated(config: TransformerConfig) -> bool:
    return not _gated(config)


def _t5_rows(hf: str, own: str, branches: Mapping[str, str]) -> tuple[Row, ...]:
    """Weights of one of T5's stacks.

    Args:
        hf: Common start of Hugging Face's names.
        own: Common start of the names here.
        branches: Branches here by Hugging Face's name, in the order of their layers.
    """
    table: list[Row] = [
        *rows({"block.0.layer.0.SelfAttention.relative_attention_bias": "relative"}, hf, own),
        *rows({"final_layer_norm": "final_norm"}, hf, own),
    ]
    for number, (module, branch) in enumerate(branches.items()):
        layer, block = f"{hf}block.{{}}.layer.{number}.", f"{own}layers.{{}}.{branch}."
        table += rows({"layer_norm": "input_norm"}, layer, block)
        if branch != "mlp":
            table += rows(
                {"q": "query", "k": "key", "v": "value", "o": "output"}, f"{layer}{module}.", f"{block}branch."
            )
            continue
        table += rows({"wo": "down"}, f"{layer}{module}.", f"{block}branch.")
        table += rows({"wi_0": "gate", "wi_1": "up"}, f"{layer}{module}.", f"{block}branch.", when=_gated)
        table += rows({"wi": "up"}, f"{layer}{module}.", f"{block}branch.", when=_ungated)
    return tuple(table)


SELF, CROSS, MLP = {"SelfAttention": "attention"}, {"EncDecAttention": "cross"}, {"DenseReluDense": "mlp"}

ENCODER_DECODERS = {
    "t5": Family(
        "T5ForConditionalGeneration",
        (
            copied({
                "vocab_size": "vocab_size", "d_model": "dim", "d_kv": "attention.head_dim", "d_ff": "mlp.hidden",
                "num_layers": "encoder_depth", "num_decoder_layers": "depth", "num_heads": "attention.heads",
                "relative_attention_num_buckets": "positions.buckets",
                "relative_attention_max_distance": "positions.distance", "layer_norm_epsilon": "eps",
            }),
            constant({"positions.kind": "relative", "attention.score_scale": 1.0}),
            activation("feed_forward_proj", T5_KINDS), T5_SCALE, placed(Placement.named("pre")),
            neutral(is_encoder_decoder=True),
            inert(  # the first two follow from feed_forward_proj
                "dense_act_fn", "is_gated_act", "dropout_rate", "classifier_dropout", "initializer_factor",
                "decoder_start_token_id",
            ),
        ),
        (
            *rows({"shared": "embed", "encoder.embed_tokens": "embed", "decoder.embed_tokens": "embed",
                   "lm_head": "embed"}),
            *_t5_rows("encoder.", "encoder.", {**SELF, **MLP}),
            *_t5_rows("decoder.", "", {**SELF, **CROSS, **MLP}),
        ),
    ),
}  # fmt: skip
"""Families of encoder-decoders by the ``model_type`` of their configuration."""
