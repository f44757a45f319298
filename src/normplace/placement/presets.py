"""The published placements by name.

Each preset is a function. Its keyword arguments are the choices its paper leaves open, and its docstring cites the
paper. ``F`` is the branch, ``N`` a norm, ``l`` the layer counted from 1, ``L`` the depth. Placements with several kinds
of branches, inner norms or several streams are in :mod:`normplace.placement.transformer_presets`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from normplace.errors import UsageError, expect_choice, unknown
from normplace.placement.factors import LearnedScale, Power
from normplace.placement.placement import Placement
from normplace.placement.spec import BlockSpec
from normplace.placement.transformer_presets import TRANSFORMER_PRESETS


def plain(norm: str = "none") -> Placement:
    """A layer without a skip: ``F(x)``, or with one norm after the branch or inside it.

    ``norm`` is ``none``, ``output``, or the name of a norm site inside the branch (``preactivation`` in the MLP).
    """
    inner = () if norm in ("none", "output") else (norm,)
    return Placement.uniform(BlockSpec(skip_scale=0.0, output=norm == "output", inner=inner))


def none() -> Placement:
    """A residual block without any norm (He et al. 2016, arXiv 1512.03385, without its BatchNorm)."""
    return Placement.uniform(BlockSpec())


def post() -> Placement:
    """The original Transformer (Vaswani et al. 2017, arXiv 1706.03762)."""
    return Placement.uniform(BlockSpec(stream=True))


def pre() -> Placement:
    """GPT-2's order, analysed by Xiong et al. 2020 (arXiv 2002.04745)."""
    return Placement.uniform(BlockSpec(input=True), final=True)


def peri() -> Placement:
    """Peri-LN (Kim et al. 2025, arXiv 2502.02732); CogView's sandwich (Ding et al. 2021, arXiv 2105.13290)."""
    return Placement.uniform(BlockSpec(input=True, output=True), final=True)


def output() -> Placement:
    """OLMo 2's reordered norm (arXiv 2501.00656); Swin v2's res-post (Liu et al. 2022, arXiv 2111.09883)."""
    return Placement.uniform(BlockSpec(output=True), final=True)


def pre_post() -> Placement:
    """Norms on the branch's input and on the sum, without KEEL's skip scale (cf. arXiv 2601.19895)."""
    return Placement.uniform(BlockSpec(input=True, stream=True))


def deepnorm(part: str = "stack", decoder: int | None = None) -> Placement:
    """DeepNorm (Wang et al. 2022, arXiv 2203.00555): ``N(a x + F(x))`` with initial weights times b.

    A single ``stack`` has a = (2L)^(1/4) and b = (8L)^(-1/4). The ``encoder`` of an encoder-decoder pair whose decoder
    has M layers (``decoder=M``) has a = 0.81 (L^4 M)^(1/16) and b = 0.87 (L^4 M)^(-1/16); the ``decoder`` has
    a = (3L)^(1/4) and b = (12L)^(-1/4). L counts layers of two branches, in a decoder of three.
    """
    if (part == "encoder") != (decoder is not None):
        raise UsageError(
            "deepnorm needs the number of decoder layers for an encoder, and only there: part='encoder', decoder=6."
        )
    if part == "encoder" and decoder is not None:
        root = decoder**0.25  # (L^4 M)^(1/16) is (M^(1/4) L)^(1/4)
        skip, init = 0.81**4 * root, 0.87**-4 * root
    elif part in ("stack", "decoder"):
        skip, init = (2, 8) if part == "stack" else (3, 12)
    else:
        raise unknown("part of DeepNorm:", part, ("stack", "encoder", "decoder"))
    return Placement.uniform(
        BlockSpec(
            stream=True, skip_scale=Power("depth", 1 / 4, times=skip), init_gain=Power("depth", -1 / 4, times=init)
        )
    )


def lns() -> Placement:
    """LayerNorm-Scaling (Sun et al. 2025, arXiv 2502.05795): a fixed 1/sqrt(l) after the input norm."""
    return Placement.uniform(BlockSpec(input=True, input_scale=Power("layer", -1 / 2)), final=True)


def mix(fraction: float = 0.25) -> Placement:
    """Mix-LN (Li et al. 2024, arXiv 2412.13795): post for the first floor(fraction L) layers, pre after them."""
    if not 0 < fraction < 1:
        raise UsageError(f"fraction must lie between 0 and 1, got {fraction}: use 'pre' or 'post' for the ends.")
    return Placement(((float(fraction), BlockSpec(stream=True)), (1.0, BlockSpec(input=True))), final=True)


def rezero() -> Placement:
    """ReZero (Bachlechner et al. 2020, arXiv 2003.04887): no norm, one learned scalar per branch, initially 0."""
    return Placement.uniform(BlockSpec(branch_scale=LearnedScale(per_channel=False, init=0.0)))


def layerscale(init: float = 1e-4) -> Placement:
    """LayerScale (Touvron et al. 2021, arXiv 2103.17239): pre with a learned factor per channel on the branch."""
    return Placement.uniform(BlockSpec(input=True, branch_scale=LearnedScale(per_channel=True, init=init)), final=True)


PRESETS: dict[str, Callable[..., Placement]] = {
    "plain": plain,
    "none": none,
    "post": post,
    "pre": pre,
    "peri": peri,
    "output": output,
    "pre-post": pre_post,
    "deepnorm": deepnorm,
    "lns": lns,
    "mix": mix,
    "rezero": rezero,
    "layerscale": layerscale,
}

ALIASES = {"sandwich": "peri", "reordered": "output", "res-post": "output"}
ALL_PRESETS = {**PRESETS, **TRANSFORMER_PRESETS}


def build_preset(name: str, options: Mapping[str, Any]) -> Placement:
    """Build a preset, with the preset's name as the name of the placement.

    Raises:
        UsageError: If there is no such preset, or the preset has no such option.
    """
    key = ALIASES.get(name, name)
    if key not in ALL_PRESETS:
        raise unknown("placement", name, [*ALL_PRESETS, *ALIASES])
    function = ALL_PRESETS[key]
    choices = inspect.signature(function).parameters
    for option in options:
        expect_choice(f"option of placement {key!r}:", option, choices)
    return replace(function(**options), name=key)
