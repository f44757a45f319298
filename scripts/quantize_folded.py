"""Compare int8 and int4 weight-only quantization of a trained decoder before and after ``npl.fold``.

Usage: python scripts/quantize_folded.py [--steps 500] [--seeds 3]

A decoder of four layers learns the Markdown files of docs/, byte by byte. Its matrices are rounded to integers with one
scale per output channel (absmax) or per matrix, as weight-only quantization does, and the loss on held-out text is
measured. Folding does not change the function, but it changes the matrices that are rounded.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

WIDTH, DEPTH, HEADS, CONTEXT, BATCH = 64, 4, 4, 64, 16
SCHEMES = ((8, "channel"), (8, "matrix"), (4, "channel"), (4, "matrix"))


class Block(nn.Module):
    """Attention and a gated MLP, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add both branches."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(DEPTH)), nn.RMSNorm(WIDTH, eps=1e-6)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of every position."""
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text() -> tuple[Tensor, Tensor]:
    """The bytes of the documentation, every tenth page held out."""
    pages = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
    parts = ([], [])
    for number, page in enumerate(pages):
        parts[number % 10 == 0].append(page.read_bytes())
    train, held_out = (torch.tensor(list(b"".join(part))) for part in parts)
    return train, held_out


def draw(text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of windows and the next bytes."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=generator)
    windows = text[starts + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


def train(text: Tensor, steps: int, seed: int) -> Decoder:
    """Train a decoder; its gains have no weight decay and a larger learning rate, so that they leave one."""
    torch.manual_seed(seed)
    model, generator = Decoder(), torch.Generator().manual_seed(seed)
    gains = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    groups = [{"params": gains, "lr": 1e-2, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 3e-3], total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        tokens, targets = draw(text, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def quantized(model: nn.Module, bits: int, scope: str) -> nn.Module:
    """A copy whose linear maps have weights rounded to integers of so many bits."""
    result, most = copy.deepcopy(model), 2 ** (bits - 1) - 1
    for module in result.modules():
        if isinstance(module, nn.Linear):
            size = module.weight.abs()
            scale = (size.amax(1, keepdim=True) if scope == "channel" else size.amax()) / most
            module.weight.copy_((module.weight / scale).round() * scale)
    return result


@torch.no_grad()
def bits_per_byte(model: nn.Module, text: Tensor) -> float:
    """The loss on held-out text."""
    generator, total = torch.Generator().manual_seed(0), 0.0
    for _ in range(40):
        tokens, targets = draw(text, generator)
        total += float(F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())) / torch.log(torch.tensor(2.0))
    return float(total) / 40


def main() -> None:
    """Train, fold, quantize and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    settings = parser.parse_args()
    text, held_out = read_text()
    rows: dict[str, list[tuple[float, float]]] = {}
    for seed in range(settings.seeds):
        model = train(text, settings.steps, seed)
        folded = npl.fold(model, held_out[None, :CONTEXT])
        gains = torch.cat([parameter.detach() for parameter in model.parameters() if parameter.ndim == 1])
        print(f"seed {seed}: gains {gains.min():.2f} to {gains.max():.2f}; {npl.changes(folded).note}", flush=True)
        rows.setdefault("float32", []).append((bits_per_byte(model, held_out), bits_per_byte(folded, held_out)))
        for bits, scope in SCHEMES:
            pair = tuple(bits_per_byte(quantized(one, bits, scope), held_out) for one in (model, folded))
            rows.setdefault(f"int{bits}, one scale per {scope}", []).append(pair)
    print("| weights | unfolded, bits per byte | folded | difference per seed |\n|---|---|---|---|")
    for name, pairs in rows.items():
        means = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
        gaps = ", ".join(f"{after - before:+.4f}" for before, after in pairs)
        print(f"| {name} | {means[0]:.4f} | {means[1]:.4f} | {gaps} |")


if __name__ == "__main__":
    main()
