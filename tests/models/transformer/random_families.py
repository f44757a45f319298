"""Random and changed settings of every Hugging Face family of decoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tests.models.transformer.family_cases import (
    CASES,
    EAGER,
    LONG,
    ROPES,
    VOCABULARY,
    logits,
    own_logits,
    relative,
    small_model,
    token_ids,
    wide_casts,
)

from normplace import UsageError
from normplace.models.transformer import from_huggingface, to_huggingface

Draw = Callable[[Sequence[Any]], Any]
"""Draws one of several options."""

FREE_HEADS = {"llama", "mistral", "qwen3", "hyperclovax", "gemma", "gemma2", "gemma3_text"}
"""Families whose heads have a width of their own."""
WINDOWED = {"gemma2", "gemma3_text", "olmo3", "cohere2"}
"""Families whose layers have types."""
SWITCHES: dict[str, dict[str, Sequence[Any]]] = {
    "llama": {"attention_bias": (False, True), "mlp_bias": (False, True)},
    "mistral": {"sliding_window": (None, 1, 3, 40)},
    "qwen2": {"max_window_layers": (0, 1, 2), "use_sliding_window": (False, True), "sliding_window": (2, 5)},
    "qwen3": {
        "attention_bias": (False, True), "max_window_layers": (0, 1), "use_sliding_window": (False, True),
        "sliding_window": (2, 5),
    },
    "hyperclovax": {
        "use_post_norm": (False, True), "residual_multiplier": (1.0, 0.22), "logits_scaling": (1.0, 0.3),
        "embedding_multiplier": (1.0, 12.0), "attention_multiplier": (0.1, 0.5),
    },
    "granite": {
        "residual_multiplier": (1.0, 0.22), "logits_scaling": (1.0, 8.0), "embedding_multiplier": (1.0, 12.0),
        "attention_multiplier": (0.1, 0.5), "attention_bias": (False, True), "mlp_bias": (False, True),
    },
    "gemma": {"attention_bias": (False, True)},
    "gemma2": {
        "query_pre_attn_scalar": (4, 17), "attn_logit_softcapping": (None, 0.7), "sliding_window": (1, 3, 40),
        "final_logit_softcapping": (None, 2.0),
    },
    "gemma3_text": {"query_pre_attn_scalar": (4, 17), "sliding_window": (1, 3), "final_logit_softcapping": (None, 2.0)},
    "olmo": {"clip_qkv": (None, 0.1, 3.0), "attention_bias": (False, True)},
    "olmo2": {"attention_bias": (False, True)},
    "olmo3": {"sliding_window": (1, 3, 40)},
    "phi3": {"sliding_window": (None, 1, 3)},
    "smollm3": {"attention_bias": (False, True), "mlp_bias": (False, True), "sliding_window": (None, 1, 3)},
    "stablelm": {"use_parallel_residual": (False, True), "use_qkv_bias": (False, True), "qk_layernorm": (False, True)},
    "cohere": {"use_qk_norm": (False, True), "attention_bias": (False, True), "logit_scale": (1.0, 0.0625)},
    "cohere2": {"attention_bias": (False, True), "sliding_window": (1, 3, 40), "logit_scale": (1.0, 0.0625)},
    "gpt2": {"activation_function": ("gelu_new", "relu", "gelu", "silu"), "scale_attn_weights": (False, True)},
    "gptj": {"activation_function": ("gelu_new", "relu", "gelu")},
    "gpt_neox": {
        "use_parallel_residual": (False, True), "attention_bias": (False, True), "hidden_act": ("gelu", "relu"),
    },
    "phi": {"hidden_act": ("gelu_new", "gelu")},
    "falcon": {"bias": (False, True), "activation": ("gelu", "relu")},
    "opt": {
        "do_layer_norm_before": (False, True), "enable_bias": (False, True), "word_embed_proj_dim": ("same", 10),
        "layer_norm_elementwise_affine": (False, True), "activation_function": ("relu", "gelu"),
        "_remove_final_layer_norm": (False, True),
    },
    "bloom": {"apply_residual_connection_post_layernorm": (False, True)},
}  # fmt: skip
"""Settings that are drawn independently."""
EPS = {
    "olmo": None, "opt": None, "gpt2": "layer_norm_epsilon", "gptj": "layer_norm_epsilon",
    "bloom": "layer_norm_epsilon", "falcon": "layer_norm_epsilon", "stablelm": "layer_norm_eps",
    "cohere": "layer_norm_eps", "cohere2": "layer_norm_eps", "phi": "layer_norm_eps", "gpt_neox": "layer_norm_eps",
}  # fmt: skip
GATED_ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu", "relu")


def random_settings(family: str, draw: Draw) -> dict[str, Any]:
    """Settings of a small model of a family.

    Args:
        family: A key of :data:`SWITCHES`.
        draw: Draws one of several options.
    """
    heads, depth = draw((1, 2, 3, 4, 6)), draw((1, 2, 3))
    groups = draw([count for count in range(1, heads + 1) if heads % count == 0])
    without_pairs = family in ("gpt2", "opt", "bloom")
    width = draw((3, 5, 7, 8)) if without_pairs else draw((4, 6, 8, 10, 16))
    fields = {name: draw(options) for name, options in SWITCHES[family].items()}
    fields |= {"vocab_size": VOCABULARY, "tie_word_embeddings": draw((False, True))}
    if (eps := EPS.get(family, "rms_norm_eps")) is not None:
        fields[eps] = draw((1e-6, 1e-5, 1e-2))
    hidden = draw((12, 20, 33))
    if family in ("gpt2", "gptj"):
        fields |= {"n_embd": heads * width, "n_layer": depth, "n_head": heads, "n_inner": draw((None, hidden))}
        fields |= {"rotary_dim": draw((2, 4))} if family == "gptj" else {}
        return {**fields, "n_positions": 32}
    fields["hidden_size"] = heads * width
    if family == "bloom":
        return {**fields, "n_layer": depth, "n_head": heads}
    fields |= {"num_hidden_layers": depth, "num_attention_heads": heads, "max_position_embeddings": 64}
    if family == "opt":
        narrow = fields.pop("word_embed_proj_dim")
        fields["_remove_final_layer_norm"] &= fields["do_layer_norm_before"]
        return {**fields, "ffn_dim": hidden, "word_embed_proj_dim": heads * width if narrow == "same" else narrow}
    if family == "falcon":
        return {**fields, **_falcon(heads, groups, draw), "ffn_hidden_size": hidden, **_rope(family, draw)}
    fields["intermediate_size"] = hidden
    if family == "gpt_neox":
        return {**fields, **_rope(family, draw, width)}
    fields["num_key_value_heads"] = groups
    if family in FREE_HEADS:
        fields["hidden_size"] = heads * draw((5, 8, 9)) if family.startswith("gemma") else heads * draw((3, 5, 8))
        fields["head_dim"] = width
    if family != "phi":
        fields["hidden_activation" if family in ("gemma2", "gemma3_text") else "hidden_act"] = draw(GATED_ACTIVATIONS)
    if family in WINDOWED:
        kinds = ("sliding_attention", "full_attention")
        fields["layer_types"] = [draw(kinds) for _ in range(depth)]
    if family == "smollm3":
        fields["no_rope_layers"] = [draw((0, 1)) for _ in range(depth)]
        fields["use_sliding_window"] = fields["sliding_window"] is not None
    return {**fields, **_rope(family, draw, width)}


def _falcon(heads: int, groups: int, draw: Draw) -> dict[str, Any]:
    form = draw(("multi-query", "multi-head", "new", "new, one norm", "sequential"))
    if form.startswith("new"):
        count = 1 if "one" in form else draw((None, 2))
        return {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": count}
    return {"multi_query": form == "multi-query" or draw((False, True)), "parallel_attn": form != "sequential"}


def _rope(family: str, draw: Draw, width: int = 0) -> dict[str, Any]:
    """``rope_parameters``, of a type that the family has."""
    plain = {"rope_type": "default", "rope_theta": draw((100.0, 1e4, 5e5))}
    scaled = draw((plain, *ROPES.values()))
    # The original length of dynamic scaling; shorter and longer than the sequence.
    longest = {"max_position_embeddings": draw((8, 64))}
    if family in ("gemma3_text", "olmo3"):
        full = draw((plain, *(rope for name, rope in ROPES.items() if name not in ("dynamic", "yarn of DeepSeek"))))
        return {"rope_parameters": {"full_attention": dict(full), "sliding_attention": dict(plain)}}
    if family == "phi3":
        short, long = ([draw((1.0, 1.5, 4.0)) for _ in range(width // 2)] for _ in range(2))
        rope = draw((plain, {**LONG, "short_factor": short, "long_factor": long}))
        return {"rope_parameters": dict(rope), "original_max_position_embeddings": 12, **longest}
    if family in ("gpt_neox", "stablelm", "phi"):
        features = draw(range(2, width + 1, 2))  # int(width * (features / width)) may be one less
        return {"rope_parameters": {**plain, "partial_rotary_factor": min(1.0, (features + 0.1) / width)}, **longest}
    return {"rope_parameters": dict(scaled), **longest}


@torch.no_grad()
def fast_parity(family: str, fields: Mapping[str, Any], seed: int = 0) -> tuple[float, float]:
    """The relative differences of the logits in float64, of ours and of the model that ours is converted to."""
    ids = token_ids(seed)
    with wide_casts():
        model = small_model(family, fields, seed).double()
        wanted = model(ids).logits
        ours = from_huggingface(model)
        back = to_huggingface(ours, family, **EAGER)(ids).logits
    return relative(ours(ids), wanted), relative(back, wanted)


def other_values(value: Any) -> list[Any]:
    """Other values of a setting."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, 2 * value + 1, value / 2]
    if isinstance(value, list):
        return [[*value[1:], value[0]], value[::-1]]
    if isinstance(value, dict):
        return [{**value, key: other} for key, one in value.items() for other in other_values(one)[:1]]
    return [True, 3, 0.5] if value is None else ["relu", "surprise"]


@torch.no_grad()
def changed_setting(family: str, key: str, value: Any) -> str:
    """What a changed setting does: it is ``impossible``, ``refused``, ``kept``, or ``ignored`` although it matters."""
    fields = {**CASES[family][""], key: value}
    try:
        with wide_casts():
            model = small_model(family, fields).double()
            wanted = logits(model, token_ids())
    except Exception:  # of many kinds: their classes check little
        return "impossible"
    try:
        ours = from_huggingface(model)
    except UsageError:
        return "refused"
    return "kept" if relative(own_logits(ours, token_ids()), wanted) < 1e-9 else "ignored"
