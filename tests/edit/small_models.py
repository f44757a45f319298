"""Small networks whose moves the tests of the verification refuse or check."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 8


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.norm(x))


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Caching(nn.Module):
    """Attention that keeps a table of positions from its first pass, and a loss of each pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < x.shape[1]:
            self.table = torch.cos(torch.arange(x.shape[1]) / 10)[:, None]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k = q * self.table[: x.shape[1]], k * self.table[: x.shape[1]]
        y = self.out((q @ k.mT).softmax(-1) @ v)
        self.loss = y.square().mean()
        return x + y


class Shortcut(nn.Module):
    """Four blocks. A fifth branch reads the stream at the second block and is added after the fourth."""

    def __init__(self):
        super().__init__()
        self.norms, self.maps = (
            nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4)),
            nn.ModuleList(mlp() for _ in range(4)),
        )
        self.shortcut = mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.maps[0](self.norms[0](x))
        normed = self.norms[1](x)
        shortcut = self.shortcut(normed)
        x = x + self.maps[1](normed)
        x = x + self.maps[2](self.norms[2](x))
        return x + self.maps[3](self.norms[3](x)) + shortcut
