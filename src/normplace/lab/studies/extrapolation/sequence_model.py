"""A small decoder-only Transformer that reads a sequence of numbers and guesses each one's successor."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.models.mlp import Dense, DenseBranch
from normplace.models.positions import sinusoids
from normplace.norms import LayerNorm
from normplace.residual import Residual


class CausalAttention(nn.Module):
    """Multi-head attention of each position to itself and those before it.

    Args:
        dim: Width of the stream.
        heads: How many share it.
        generator: Source of the initial weights.
    """

    def __init__(self, dim: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        if dim % heads:
            raise UsageError(f"{heads} heads cannot share a width of {dim} equally.")
        self.heads = heads
        self.read = Dense(dim, 3 * dim, generator=generator)
        self.write = Dense(dim, dim, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """The mixture of values each position attends to."""
        query, key, value = self.read(x).unflatten(-1, (3, self.heads, -1)).transpose(-4, -2).unbind(-3)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.write(mixed.transpose(-3, -2).flatten(-2))


class SequenceRegressor(nn.Module):
    """Number and position embedded, [LayerNorm], blocks without norms, one number out.

    The paper (arXiv 2505.14512, Figure 7) gives layers, heads and width, and that a LayerNorm stands after the input
    embedding or not. That the blocks hold no norm themselves, that positions are sinusoidal and added before the
    LayerNorm, and that the inner width is four times the stream's is ours: so the one norm is the only difference.

    Args:
        dim: Width of the stream.
        heads: Of the attention.
        layers: Pairs of attention and MLP.
        embedding_norm: Whether there is a LayerNorm, without gain or shift, after the embedding.
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
            inner = DenseBranch(Dense(dim, 4 * dim, weight_std=math.sqrt(2), generator=generator), "relu")
            branches.append(nn.Sequential(inner, Dense(4 * dim, dim, generator=generator)))
        self.blocks = nn.Sequential(
            *(Residual(branch, dim, "none", layer=n, depth=len(branches)) for n, branch in enumerate(branches, start=1))
        )
        self.head = Dense(dim, 1, generator=generator)

    def forward(self, values: Tensor) -> Tensor:
        """A guess at the successor of each of ``values``, (n, t)."""
        x = self.embed(values[..., None]) + sinusoids(values.shape[-1], self.dim, values[..., None])
        return self.head(self.blocks(self.embedding_norm(x)))[..., 0]
