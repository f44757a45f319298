"""The paper's network: two hidden layers, and a norm in none, the first, the last or every one of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from normplace.errors import unknown
from normplace.models import MLP
from normplace.norms import BatchNorm, LayerNorm

VARIANTS = ("none", "first", "last", "every")
NORMED = VARIANTS[1:]
NAMES = {"none": "no LN", "first": "LN first", "last": "LN last", "every": "LN every"}
NORMS = {"layer": partial(LayerNorm, elementwise_affine=False), "batch": BatchNorm}
"""As in the paper, LayerNorm has no learned gain or shift; BatchNorm has both, PyTorch's default."""


def build_network(
    inputs: int,
    width: int,
    norm_at: str,
    generator: torch.Generator,
    *,
    activation: str = "relu",
    norm: str = "layer",
    **options: Any,
) -> MLP:
    """The network, its norms between linear map and activation.

    Args:
        inputs: How many features it reads.
        width: Of both hidden layers.
        norm_at: One of :data:`VARIANTS`.
        generator: Source of the initial weights.
        activation: Between the layers.
        norm: One of :data:`NORMS`.
        **options: Of :class:`MLP`.

    Raises:
        UsageError: If one of the names is unknown.
    """
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    options |= {"norm": NORMS[norm], "norm_at": norm_at, "activation": activation, "generator": generator}
    return MLP((inputs, width, width, 1), **options)
