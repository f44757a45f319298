"""The networks of the study: the paper's MLP, and a small Transformer that continues a sequence of numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_choice
from normplace.models import MLP
from normplace.models.mlp import Dense, DenseBranch
from normplace.models.positions import sinusoids
from normplace.norms import BatchNorm, LayerNorm
from normplace.residual import Residual

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
    """Build the paper's MLP: two hidden layers, with a norm between linear map and activation.

    Raises:
        UsageError: If one of the names is unknown.
    """
    expect_choice("norm", norm, NORMS)
    options |= {"norm": NORMS[norm], "norm_at": norm_at, "activation": activation, "generator": generator}
    return MLP((inputs, width, width, 1), **options)


class CausalAttention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, dim: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        if dim % heads:
            raise UsageError(f"the width {dim} is not a multiple of the {heads} heads: change one of them.")
        self.heads = heads
        self.read = Dense(dim, 3 * dim, generator=generator)
        self.write = Dense(dim, dim, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention to ``x``, (n, t, dim)."""
        query, key, value = self.read(x).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2).unbind(-3)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.write(mixed.transpose(-3, -2).flatten(-2))


class SequenceRegressor(nn.Module):
    """A decoder-only Transformer that predicts the next number of a sequence.

    The paper (arXiv 2505.14512, Figure 7) gives layers, heads and width, and whether a LayerNorm follows the input
    embedding. Our choices: the blocks have no norms, so the LayerNorm is the only difference; positions are sinusoidal
    and added before the LayerNorm; the MLP is four times as wide as the stream.

    Args:
        dim: Width of the stream.
        heads: Number of attention heads.
        layers: Number of pairs of attention and MLP.
        embedding_norm: Whether a LayerNorm, without gain or shift, follows the embedding.
        generator: Source of the initial weights.
    """

    def __init__(self, dim: int, heads: int, layers: int, embedding_norm: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.dim = dim
        self.embed = Dense(1, dim, generator=generator)
        self.embedding_norm = LayerNorm(dim, elementwise_affine=False) if embedding_norm else nn.Identity()
        branches: list[nn.Module] = []
        for _ in range(layers):
            branches.append(CausalAttention(dim, heads, generator))
            hidden = DenseBranch(Dense(dim, 4 * dim, weight_std=math.sqrt(2), generator=generator), "relu")
            branches.append(nn.Sequential(hidden, Dense(4 * dim, dim, generator=generator)))
        self.blocks = nn.Sequential(
            *(Residual(branch, dim, "none", layer=n, depth=len(branches)) for n, branch in enumerate(branches, start=1))
        )
        self.head = Dense(dim, 1, generator=generator)

    def forward(self, values: Tensor) -> Tensor:
        """Predict the successor of each of ``values``, (n, t)."""
        x = self.embed(values[..., None]) + sinusoids(values.shape[-1], self.dim, values[..., None])
        return self.head(self.blocks(self.embedding_norm(x)))[..., 0]
