"""The networks of the study by name, at equal or published parameter counts."""

from __future__ import annotations

import math
from functools import cache, partial

from normplace.models.sequence import (
    GatedMixer,
    LinearMixer,
    MambaMixer,
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
    "mamba-2": "Mamba-2",
}
ALL_NETWORKS = tuple(TITLES)
"""Also Mamba-2, which only the parts at the published size train."""
SIZES = ("equal", "published")
MIXERS = {
    "transformer": SelfAttention,
    "linear-attention": LinearMixer,
    "gated-linear": GatedMixer,
    "mamba-2": MambaMixer,
}
PAIR_NORMS = {"joint": "joint pair norm", "separate": "separate norms", "none": "no norm"}


def mixer_of(network: str, heads: int = 1, hidden: int | None = None) -> Mixer:
    """The token mixer of a network.

    Args:
        network: One of :data:`ALL_NETWORKS`.
        heads: Number of attention heads; CausalRN has one, as published.
        hidden: Pair channels of CausalRN, channels of Mamba-2, hidden width of the MLP in the others; by default as
            published.
    """
    if network in ("pairwise", "scan"):
        return Relation(hidden, norm="joint" if network == "pairwise" else "separate")
    return MIXERS[network](heads, hidden)


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
    alignment: int = 1,
) -> SequenceModel:
    """Build a network with initial weights from the global RNG.

    Args:
        network: One of :data:`ALL_NETWORKS`.
        vocab_size: Vocabulary size.
        dim: Width and number of pair channels of CausalRN.
        depth: Number of blocks.
        size: ``equal`` matches CausalRN's parameter count within 2%, by the nearest width and then by the hidden width
            of the MLPs; ``published`` uses CausalRN's width, which gives up to four times its parameters.
        heads: Number of attention heads.
        positions: Kind of position.
        context: Longest sequence, for learned positions.
        alignment: Widths of heads and of MLPs at an equal parameter count are multiples of this, for fast kernels.
    """
    if network in ("pairwise", "scan") or size == "published":
        width, hidden = dim, None
    else:
        width, hidden = equal_widths(network, vocab_size, dim, depth, heads, positions, context, alignment)
    mixer = mixer_of(network, heads, hidden)
    return SequenceModel(vocab_size, width, depth, mixer=mixer, positions=positions, context=context)


@cache
def equal_widths(
    network: str,
    vocab_size: int,
    dim: int,
    depth: int,
    heads: int,
    positions: str,
    context: int | None,
    alignment: int,
) -> tuple[int, int]:
    """The width and hidden width at which a network has CausalRN's parameter count; arguments as in :func:`build`."""
    common = positions if positions in mixer_of("pairwise").positions else "none"
    causalrn = SequenceModel(vocab_size, dim, depth, positions=common, context=context, device="meta")
    parameters = count_parameters(causalrn)

    def make(width: int, hidden: int | None = None) -> SequenceModel:
        mixer = mixer_of(network, heads, hidden)
        return SequenceModel(vocab_size, width, depth, mixer=mixer, positions=positions, context=context)

    # Rotary positions need heads of even width; the heads of Mamba-2 share its hidden channels.
    head, step = (2, heads) if network == "mamba-2" else (max(2, alignment), alignment)
    width = matched_width(make, parameters, multiple=head * heads, tolerance=math.inf)
    return width, matched_width(partial(make, width), parameters, multiple=step)
