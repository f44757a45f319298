"""Diffusion Transformers, whose blocks are written in different ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 16


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """As DiT has it (Peebles & Xie 2023)."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def broadcast_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """As PixArt has it, for factors of shape [batch, 1, width]."""
    return x * (1 + scale) + shift


def bounded_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Something else."""
    return x * (1 + scale.unsqueeze(1).tanh()) + shift.unsqueeze(1)


def layer_norm() -> nn.Module:
    return nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj(torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v)


class Block(nn.Module):
    """A block as in DiT."""

    def __init__(self, norm=layer_norm):
        super().__init__()
        self.norm1, self.attn, self.norm2 = norm(), Attention(), norm()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(approximate="tanh"), nn.Linear(24, WIDTH))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        return x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class StatementBlock(Block):
    """One statement for each step, as in diffusers."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        normed = self.norm1(x)
        normed = normed * (1 + scale_msa[:, None]) + shift_msa[:, None]
        branch = self.attn(normed)
        branch = gate_msa.unsqueeze(1) * branch
        x = x + branch
        normed = self.norm2(x)
        normed = normed * (1 + scale_mlp[:, None]) + shift_mlp[:, None]
        branch = gate_mlp.unsqueeze(1) * self.mlp(normed)
        return branch + x


class BroadcastBlock(Block):
    """Factors of shape [batch, 1, width] after the branch, and keyword arguments."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        factors = self.adaLN_modulation(c).unflatten(1, (6, WIDTH)).chunk(6, dim=1)
        x = self.attn(broadcast_modulate(self.norm1(x), shift=factors[0], scale=factors[1])) * factors[2] + x
        return x + self.mlp(broadcast_modulate(self.norm2(x), shift=factors[3], scale=factors[4])) * factors[5]


class LateBlock(Block):
    """The factors of the second norm are computed after the first sum."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        shift, scale, gate, *_ = self.adaLN_modulation(c).chunk(6, dim=1)
        return x + gate.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift, scale))


class ReassignedBlock(Block):
    """The scale changes between the sum and the norm."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *_ = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(self.norm1(x))
        scale = 2 * scale
        return x + self.mlp(modulate(self.norm2(x), shift, scale))


class WrittenBlock(Block):
    """The scale is written to in place between the sum and the norm."""

    write = False

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *_ = (part.clone() for part in self.adaLN_modulation(c).chunk(6, dim=1))
        x = x + gate.unsqueeze(1) * self.attn(self.norm1(x))
        if self.write:
            scale.mul_(2)
        return x + self.mlp(modulate(self.norm2(x), shift, scale))


class OtherBlock(Block):
    """The modulation is another function."""

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale, gate, *_ = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate.unsqueeze(1) * self.attn(bounded_modulate(self.norm1(x), shift, scale))
        return x + self.mlp(self.norm2(x))


class ChannelBlock(Block):
    """A gate for each channel (LayerScale, Touvron et al. 2021), and plain norms."""

    def __init__(self, norm=layer_norm):
        super().__init__(norm)
        self.gamma1, self.gamma2 = (nn.Parameter(torch.linspace(0.1, 1, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        x = x + self.gamma1 * self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x)) * self.gamma2


class Final(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = layer_norm(), nn.Linear(WIDTH, 4)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(c).chunk(2, dim=1)
        return self.linear(modulate(self.norm(x), shift, scale))


class DiT(nn.Module):
    """Two blocks and a modulated final norm."""

    def __init__(self, block: type[Block] = Block, **options):
        super().__init__()
        self.embed, self.blocks = nn.Linear(4, WIDTH), nn.ModuleList(block(**options) for _ in range(2))
        self.final = Final()

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x, c)
        return self.final(x, c)


def build(
    block: type[Block] = Block, dtype: torch.dtype = torch.float32, **options
) -> tuple[DiT, tuple[Tensor, Tensor]]:
    """A small model, and the arguments of a call."""
    torch.manual_seed(0)
    model, generator = DiT(block, **options), torch.Generator().manual_seed(1)
    x, c = (torch.randn(shape, generator=generator) for shape in ((3, 5, 4), (3, WIDTH)))
    return model.to(dtype), (x.to(dtype), c.to(dtype))
