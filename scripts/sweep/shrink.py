"""Small versions of configurations, by the names of their fields."""

from __future__ import annotations

import re
from typing import Any

LAYERS = re.compile(
    r"(num|n)_(?!feat_extract)(\w+_)?(layers?|blocks)|(\w+_)?layers|num_decoder_layers|depth|\w+_depth|n_layer"
)
WIDTHS = re.compile(r"\w*(size|dim|width|channels|rank|embd|embed|d_model|d_ff|d_inner|d_state|hidden|inner)\w*")
FIXED = re.compile(
    r"(max|num)_\w+|n_(?!embd|inner|hidden)\w+|\w*(image|patch|kernel|window|chunk|pool|vocab|codebook|group|stride|state)\w*_size"
)
TOKENS = re.compile(r"\w*(token_id|token_index|token_idx|start_id|end_id)")
VOCABULARY = 160
OPEN = {"vocab_size": VOCABULARY, "num_experts_per_tok": 2, "prediction_length": 4, "pad_token_id": 0}
SMALL = {
    "vocab_size": VOCABULARY, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "num_queries": 6, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}  # fmt: skip


def shrink(config: dict[str, Any], factor: int, image: int | None, fewer_layers: bool = True) -> dict[str, Any]:
    """A configuration with few layers, widths divided by a factor, a small vocabulary and few experts.

    Every width is divided by the same number, so that heads still divide widths.

    Args:
        config: A configuration as a dictionary, with those of its parts inside.
        factor: What widths are divided by.
        image: Largest side of an image; None keeps it.
        fewer_layers: Whether to keep two layers only.
    """
    layers = None
    if fewer_layers:
        layers = {value for key, value in config.items() if isinstance(value, int) and LAYERS.fullmatch(key)}
    small = {key: _shrunk(key, value, factor, image, layers) for key, value in config.items()}
    # Some defaults leave open what their model needs.
    small |= {key: value for key, value in OPEN.items() if small.get(key, 0) is None}
    if small.get("head_dim", 0) is None and small.get("hidden_size") and small.get("num_attention_heads"):
        small["head_dim"] = small["hidden_size"] // small["num_attention_heads"]
    if small.get("sliding_window", 0) is None and "sliding_attention" in (small.get("layer_types") or ()):
        small["sliding_window"] = 8
    return small


def _shrunk(key: str, value: Any, factor: int, image: int | None, layers: set[int] | None) -> Any:
    if isinstance(value, dict):
        kept = {part: inner for part, inner in value.items() if not str(part).isdigit() or int(part) < 2}
        return shrink(kept, factor, image, fewer_layers=layers is not None)
    if isinstance(value, list):
        if layers is not None and key.startswith("depths"):
            return [min(part, 1) for part in value]
        if key.endswith("section") and all(part % factor == 0 for part in value):
            return [part // factor for part in value]
        per_layer = len(value) > 4 or "layer" in key or isinstance(value[0] if value else 0, str | bool)
        if layers and len(value) in layers and len(value) > 2 and per_layer:
            return _kinds(value)
        return [_shrunk(key, part, factor, image, layers) for part in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    if key in SMALL:
        return min(value, SMALL[key])
    if TOKENS.fullmatch(key):
        return value if value < VOCABULARY else value % VOCABULARY
    if LAYERS.fullmatch(key):
        return value if layers is None else min(value, 2)
    if key in ("image_size", "img_size") and image is not None:
        return min(value, image)
    if WIDTHS.fullmatch(key) and not FIXED.fullmatch(key) and value >= 4 * factor:
        return max(value // factor, 4)
    return value


def _kinds(layers: list[Any]) -> list[Any]:
    """Two of a list of layers, of different kinds if there are such."""
    other = next((layer for layer in layers if layer != layers[0]), layers[1])
    return [layers[0], other]
