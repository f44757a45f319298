"""Small models whose queries, keys and values come from one projection, in the layouts that are in use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, KV_HEADS, TOKENS = 16, 4, 2, 5
SIZE = WIDTH // HEADS


def rotate(x: Tensor) -> Tensor:
    """A rotary embedding over the last two dimensions (tokens, features of a head)."""
    angles = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), 0.5 ** torch.arange(SIZE // 2, dtype=x.dtype))
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Contiguous(nn.Module):
    """As nanoGPT: all queries, then all keys, then all values."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.flash = True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).split(WIDTH, dim=2)
        k = k.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)
        q = q.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)
        v = v.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * SIZE**-0.5
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class Interleaved(nn.Module):
    """As GPT-NeoX: query, key and value of the first head, then those of the second; rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], HEADS, 3 * SIZE).transpose(1, 2).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Stacked(nn.Module):
    """As the Vision Transformer of timm: a dimension of three, permuted to the front."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q * SIZE**-0.5) @ k.transpose(-2, -1)
        return self.proj((weights.softmax(dim=-1) @ v).transpose(1, 2).reshape(x.shape))


class Grouped(nn.Module):
    """As Phi-3: fewer keys than queries, sliced from one projection; rotary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(WIDTH, WIDTH + 2 * KV_HEADS * SIZE, bias=False)
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv, end = self.qkv_proj(x), WIDTH + KV_HEADS * SIZE
        q = qkv[..., :WIDTH].unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        k = qkv[..., WIDTH:end].unflatten(-1, (KV_HEADS, SIZE)).transpose(1, 2)
        v = qkv[..., end:].unflatten(-1, (KV_HEADS, SIZE)).transpose(1, 2)
        k, v = (part.repeat_interleave(HEADS // KV_HEADS, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class KeysAndValues(nn.Module):
    """Queries from their own projection, keys and values from a common one."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_kv, self.to_out = (
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor) -> Tensor:
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in (self.to_q(x), k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(y.transpose(1, 2).flatten(-2))


LAYOUTS: dict[str, type[nn.Module]] = {
    "contiguous": Contiguous,
    "interleaved": Interleaved,
    "stacked": Stacked,
    "grouped": Grouped,
    "keys-and-values": KeysAndValues,
}
ROTARY = ("interleaved", "grouped")


class Layer(nn.Module):
    def __init__(self, layout: str) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), LAYOUTS[layout](), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Model(nn.Module):
    def __init__(self, layout: str, layers: int = 2) -> None:
        super().__init__()
        self.h = nn.ModuleList(Layer(layout) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.h:
            x = layer(x)
        return self.head(self.ln_f(x))


def build(layout: str, **options: Any) -> tuple[Model, Tensor]:
    """A model in double precision and its input."""
    torch.manual_seed(0)
    return Model(layout, **options).double().eval(), torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
