"""Published placements for Transformers with several kinds of branches, inner norms or several streams.

Each is a function as in :mod:`normplace.placement.presets`. The kinds of branches are ``attention`` and ``mlp``. Inner
norms are at the norm sites of ``Attention`` and ``FeedForward`` in :mod:`normplace.models.transformer`. A preset that
extends another placement takes that as ``base``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from normplace.errors import UsageError, expect_choice, unknown
from normplace.placement.factors import LearnedScale, Power
from normplace.placement.placement import Placement
from normplace.placement.segments import First
from normplace.placement.spec import BlockSpec

PROJECTIONS = {"head": "", "each": "_each", "projection": "_full"}


def _sites(names: str, over: str) -> tuple[str, ...]:
    expect_choice("extent of the norm on queries and keys:", over, PROJECTIONS)
    return tuple(name + PROJECTIONS[over] for name in names)


def _based_on(base: str | Placement) -> Placement:
    return Placement.named(base) if isinstance(base, str) else base


def sub(part: str = "stack", encoder: int | None = None, decoder: int | None = None) -> Placement:
    """Sub-LN of Magneto (Wang et al. 2022, arXiv 2210.06423): pre, and a norm before the last matrix of each branch.

    The initial weights of values, output and MLP are multiplied by sqrt(ln 2L) in a single ``stack``. In a pair of N
    encoder and M decoder layers, the factor is sqrt(ln(3M) ln(2N) / 3) in the ``encoder`` (``encoder=N, decoder=M``)
    and sqrt(ln 3M) in the ``decoder``.
    """
    if (part == "encoder") != (encoder is not None) or (part == "encoder") != (decoder is not None):
        raise UsageError(
            "sub needs the numbers of encoder and decoder layers for an encoder, and only there: part='encoder', "
            "encoder=6, decoder=6."
        )
    gain: float | Power
    if encoder is not None and decoder is not None:
        gain = math.sqrt(math.log(3 * decoder) * math.log(2 * encoder) / 3)
    elif part in ("stack", "decoder"):
        gain = Power("depth", 1 / 2, times=2 if part == "stack" else 3, log=True)
    else:
        raise unknown("part of sub-LN:", part, ("stack", "encoder", "decoder"))
    return Placement.uniform(BlockSpec(input=True, inner=("pre_output",), init_gain=gain), final=True)


def normformer(scale_skip: bool = False) -> Placement:
    """NormFormer (Shleifer et al. 2021, arXiv 2110.09456): pre, an output norm on attention, one inside the MLP, heads.

    ``scale_skip`` adds a learned factor per channel, initially 1, on the skip of the MLP.
    """
    attention = BlockSpec(input=True, output=True, inner_scale=("heads",))
    learned = LearnedScale(per_channel=True, init=1.0) if scale_skip else 1.0
    mlp = BlockSpec(input=True, inner=("pre_output",), skip_scale=learned)
    return Placement.by_kind({"attention": attention, "mlp": mlp}, final=True)


def qk(base: str | Placement = "pre", over: str = "head") -> Placement:
    """QK-norm (Henry et al. 2020, arXiv 2010.04245): norms on queries and keys of ``base``.

    ``over`` is ``head``, each head separately with one gain for all, ``each``, with a gain of its own for each head, or
    ``projection``, all heads together. OLMo 2 (arXiv 2501.00656) is ``base="output", over="projection"``.
    """
    sites = _sites("qk", over)
    return _based_on(base).map_specs(lambda spec: replace(spec, inner=(*spec.inner, *sites)), "attention")


def qkv(base: str | Placement = "pre", over: str = "head") -> Placement:
    """QKV-norm (part of HybridNorm, arXiv 2503.04598): norms on queries, keys and values of ``base``."""
    sites = _sites("qkv", over)
    return _based_on(base).map_specs(lambda spec: replace(spec, inner=(*spec.inner, *sites)), "attention")


def hybrid(over: str = "head") -> Placement:
    """HybridNorm (Zhuo et al. 2025, arXiv 2503.04598): QKV-norm without a pre-norm, and post-norm around the MLP.

    The MLP's skip starts after the MLP's norm, as in the authors' configuration (``ffn_residual_after_norm``).
    """
    return Placement.by_kind(
        {"attention": BlockSpec(inner=_sites("qkv", over)), "mlp": BlockSpec(input=True, skip_normed=True)}, final=True
    )


def hybrid_star(over: str = "head") -> Placement:
    """HybridNorm* (Zhuo et al. 2025, arXiv 2503.04598): the first layer is pre with QKV-norm, the others hybrid."""
    sites = _sites("qkv", over)
    return Placement.by_kind(
        {
            "attention": ((First(1), BlockSpec(input=True, inner=sites)), (1.0, BlockSpec(inner=sites))),
            "mlp": ((First(1), BlockSpec(input=True)), (1.0, BlockSpec(input=True, skip_normed=True))),
        },
        final=True,
    )


def b2t() -> Placement:
    """B2T (Takase et al. 2022, arXiv 2206.00330): post, and the layer's input added again before its last norm."""
    return Placement.by_kind({"attention": BlockSpec(stream=True), "mlp": BlockSpec(stream=True)}, streams="b2t")


def residual_dual() -> Placement:
    """ResiDual (Xie et al. 2023, arXiv 2304.14802): post, and a second stream that is normalized only at the end."""
    return Placement(((1.0, BlockSpec(stream=True)),), final=True, streams="dual")


def siamese() -> Placement:
    """SiameseNorm (Li et al. 2026, arXiv 2602.08064): a post-norm and a pre-norm stream through the same branches."""
    return Placement(((1.0, BlockSpec(input=True, stream=True)),), final=True, streams="siamese")


def keel() -> Placement:
    """KEEL (Chen and Wei 2026, arXiv 2601.19895): pre-post with the skip times 2L.

    The factor is taken from a port of the method, not from the paper's equation.
    """
    return Placement.uniform(BlockSpec(input=True, stream=True, skip_scale=Power("depth", 1, times=2)))


def lns_init() -> Placement:
    """The LNS of GPAS (arXiv 2506.22049): pre with gains that are initially 1/sqrt(l) and then trained; cf. ``lns``."""
    return Placement.uniform(BlockSpec(input=True, input_gain=Power("layer", -1 / 2)), final=True)


def gpas(base: str | Placement = "pre") -> Placement:
    """GPAS (Chen et al. 2025, arXiv 2506.22049): ``base`` whose sums, or skips, shrink in the forward pass only.

    Every add has its own gate; in the authors' code the two adds of a layer share one.
    """
    return _based_on(base).map_specs(lambda spec: replace(spec, damped=True))


def bert_residual() -> Placement:
    """Pre whose skip starts after the norm, ``apply_residual_connection_post_layernorm`` of Megatron-LM and BLOOM."""
    return Placement.uniform(BlockSpec(input=True, skip_normed=True), final=True)


def embedding_norm(base: str | Placement = "pre") -> Placement:
    """A norm on the embedding of ``base``, as in BLOOM (arXiv 2211.05100); Peri-LN's option is ``base="peri"``."""
    return replace(_based_on(base), embedding=True)


def parallel(norm: str = "shared") -> Placement:
    """Both branches of a layer read the stream at the same point (GPT-J, Wang and Komatsuzaki 2021; arXiv 2204.02311).

    ``norm`` is ``shared``, one input norm for both branches, or ``separate``, one for each, as in GPT-NeoX (arXiv
    2204.06745).
    """
    expect_choice("input norm of parallel branches:", norm, ("shared", "separate"))
    separate = norm == "separate"
    return Placement.by_kind(
        {"attention": BlockSpec(input=True), "mlp": BlockSpec(input=separate)},
        final=True,
        streams="parallel" if separate else "parallel-shared",
    )


TRANSFORMER_PRESETS: dict[str, Callable[..., Placement]] = {
    "sub": sub,
    "normformer": normformer,
    "qk": qk,
    "qkv": qkv,
    "hybrid": hybrid,
    "hybrid-star": hybrid_star,
    "b2t": b2t,
    "residual-dual": residual_dual,
    "siamese": siamese,
    "keel": keel,
    "lns-init": lns_init,
    "gpas": gpas,
    "bert-residual": bert_residual,
    "embedding-norm": embedding_norm,
    "parallel": parallel,
}
