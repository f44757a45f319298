"""A diffusion Transformer (DiT) as it is, compiled and fused, and the op behind it at the shapes of such models.

    python benchmarks/dit.py --out benchmarks/results/dit-cuda.json

``gate_add_norm`` computes gate, add, norm, scale and shift in one pass, forward and backward, in bfloat16. It is timed
against the same operators of PyTorch, one after another and compiled. The model has blocks as in DiT-XL (Peebles & Xie
2023, arXiv 2212.09748) of width 1152; a training step takes 16,384 tokens. All variants run in turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl
from normplace.lab.bench.record import run_environment

SHAPES = {
    "DiT-XL, 256 tokens": (64, 256, 1152),
    "DiT-XL, 1,024 tokens": (16, 1024, 1152),
    "width 3072, 4,608 tokens": (4, 4608, 3072),
}
WARM_UP = 3


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """As DiT has it."""
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def separate(x: Tensor, f: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The op by operators of PyTorch."""
    x = x + gate.unsqueeze(1) * f
    return x, modulate(F.layer_norm(x, x.shape[-1:], eps=1e-6), shift, scale)


def one_pass(x: Tensor, f: Tensor, gate: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """The op of normplace."""
    return npl.ops.gate_add_norm(x, f, gate=gate, scale=scale, shift=shift, eps=1e-6)


class Attention(nn.Module):
    """Self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        """Mix the tokens of each sample."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A block of DiT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """The stream after the block, with factors computed from ``c``."""
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_msa.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_msa, scale_msa))
        return x + gate_mlp.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_mlp, scale_mlp))


class DiT(nn.Module):
    """Blocks in sequence."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """The stream after all blocks."""
        for block in self.blocks:
            x = block(x, c)
        return x


def time_in_turns(calls: Mapping[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """The median milliseconds of each call, with one of each in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(WARM_UP + rounds):
        for name, call in calls.items():
            _synchronize(device)
            start = time.perf_counter()
            call()
            _synchronize(device)
            if number >= WARM_UP:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure_op(shape: tuple[int, int, int], settings: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of the op, forward alone and with the backward pass."""
    generator = torch.Generator(settings.device).manual_seed(0)
    options = {"generator": generator, "device": settings.device}
    samples, _, width = shape
    x, f = (torch.randn(shape, **options).bfloat16().requires_grad_() for _ in range(2))
    factors = torch.randn(samples, 3 * width, **options).bfloat16().requires_grad_()
    grads = [torch.randn(shape, **options).bfloat16() for _ in range(2)]
    variants = {"separate": separate, "torch.compile": torch.compile(separate), "gate_add_norm": one_pass}

    def forward(op: Callable[..., tuple[Tensor, Tensor]]) -> None:
        with torch.no_grad():
            op(x, f, *factors.chunk(3, 1))

    def training(op: Callable[..., tuple[Tensor, Tensor]]) -> None:
        torch.autograd.grad(op(x, f, *factors.chunk(3, 1)), (x, f, factors), grads)

    calls = {name: lambda op=op: forward(op) for name, op in variants.items()}
    steps = {name: lambda op=op: training(op) for name, op in variants.items()}
    return {
        "forward_ms": time_in_turns(calls, settings.rounds, settings.device),
        "training_ms": time_in_turns(steps, settings.rounds, settings.device),
    }


def measure_model(settings: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a forward and backward pass of the model, and what was fused."""
    torch.manual_seed(0)
    samples, tokens, width = settings.model
    model = DiT(width, 16, settings.depth).to(settings.device, torch.bfloat16)
    x = torch.randn(samples, tokens, width, device=settings.device).bfloat16()
    c = torch.randn(samples, width, device=settings.device).bfloat16()
    fused = npl.fuse(model, x, c, only_if_faster=False)
    variants = {
        "model": model,
        "torch.compile": torch.compile(copy.deepcopy(model)),
        "fused": fused,
        "fused, branches compiled": npl.fuse(model, x, c, only_if_faster=False, compile_branches=True),
    }
    grad = torch.randn_like(x)

    def step(variant: Callable[..., Tensor]) -> None:
        variant(x, c).backward(grad)

    calls = {name: lambda variant=variant: step(variant) for name, variant in variants.items()}
    counts: dict[str, int] = {}
    for part in npl.changes(fused).fusions:
        key = part.parts if part.fused else f"not fused: {part.parts}"
        counts[key] = counts.get(key, 0) + 1
    return {"parts": counts, "training_ms": time_in_turns(calls, settings.rounds, settings.device)}


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--model", type=int, nargs=3, default=(64, 256, 1152), help="samples, tokens and width")
    parser.add_argument("--op", type=int, nargs=3, help="samples, tokens and width of one shape in place of all")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    shapes = SHAPES if settings.op is None else {"chosen": tuple(settings.op)}
    report = run_environment()
    report["op"] = {name: {"shape": shape, **measure_op(shape, settings)} for name, shape in shapes.items()}
    report["model"] = measure_model(settings)
    text = json.dumps(report, indent=1)
    print(text)
    if settings.out is not None:
        settings.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
