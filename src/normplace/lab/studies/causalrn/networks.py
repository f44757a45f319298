"""The networks that are compared, by name, at the size that makes the comparison fair."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from normplace.models.sequence import (
    GatedMixer,
    LinearMixer,
    Mixer,
    Relation,
    SelfAttention,
    SequenceModel,
    count_parameters,
    matched_width,
)

NETWORKS = ("pairwise", "scan", "transformer", "linear-attention", "gated-linear")
TITLES = {
    "pairwise": "CausalRN, pairwise",
    "scan": "CausalRN, scan",
    "transformer": "Transformer",
    "linear-attention": "linear attention",
    "gated-linear": "gated linear attention",
}
SIZES = ("equal", "published")


def mixer_of(network: str, heads: int = 1, hidden: int | None = None) -> Mixer:
    """What mixes tokens in the network of that name.

    Args:
        network: One of :data:`NETWORKS`.
        heads: Of attention; CausalRN has one, as published.
        hidden: Channels of a pair in CausalRN, inner width of the MLP in the others; by default as published.
    """
    if network in ("pairwise", "scan"):
        return Relation(hidden, norm="joint" if network == "pairwise" else "separate")
    return {"transformer": SelfAttention, "linear-attention": LinearMixer, "gated-linear": GatedMixer}[network](
        heads, hidden
    )


def build(
    network: str,
    vocab_size: int,
    dim: int,
    depth: int,
    *,
    size: str = "equal",
    heads: int = 1,
    positions: str = "learned",
    context: int | None = None,
) -> SequenceModel:
    """The network of that name; its initial weights come from the global generator.

    Args:
        network: One of :data:`NETWORKS`.
        vocab_size: Number of tokens.
        dim: Width of CausalRN, whose pairs have as many channels.
        depth: Blocks of every network.
        size: ``equal`` gives the others CausalRN's number of parameters within 2%: the nearest width, and what is then
            missing or too much comes from the inner width of their MLPs; ``published`` gives them CausalRN's width,
            hence up to four times its parameters.
        heads: Of attention.
        positions: Kind of position.
        context: The longest sequence, where positions are learned.
    """
    shape: dict[str, Any] = {"positions": positions, "context": context}
    common = {**shape, "positions": positions if positions in mixer_of("pairwise").positions else "none"}
    if network in ("pairwise", "scan") or size == "published":
        return SequenceModel(vocab_size, dim, depth, mixer=mixer_of(network, heads), **shape)
    reference = count_parameters(SequenceModel(vocab_size, dim, depth, mixer="relation", device="meta", **common))

    def make(width: int, hidden: int | None = None) -> SequenceModel:
        return SequenceModel(vocab_size, width, depth, mixer=mixer_of(network, heads, hidden), **shape)

    width = matched_width(make, reference, multiple=2 * heads, tolerance=math.inf)
    return make(width, matched_width(partial(make, width), reference, multiple=1))
