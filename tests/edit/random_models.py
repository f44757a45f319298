"""Random networks of known placement, and their output in any other placement, written by hand.

The arithmetic here is independent of the code under test: norms are formulas, norms are kept, moved, removed and added
by the rules of the documentation, and the branches are modules of the original model, which a move does not change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

EPS = 1e-12  # so small that it does not show in the gain of a new norm
SOURCES = {
    "pre": ("input",),
    "post": ("stream",),
    "peri": ("input", "output"),
    "output": ("output",),
    "pre-and-post": ("input", "stream"),
    "none": (),
}
TARGETS = ("none", "pre", "post", "peri", "output", "pre-post", "mix", "lns", "layerscale", "rezero")
OTHER_STREAM_SLOT = {"input": "stream", "stream": "input"}


class HandNorm(nn.Module):
    """RMSNorm from elementary operations."""

    def __init__(self, dim: int, eps: float = EPS) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "hand": HandNorm}


def by_formula(kind: str, x: Tensor, gain: Tensor | float, shift: Tensor | float = 0.0) -> Tensor:
    """Normalize with a given gain and shift."""
    centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    return gain * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + shift


class Attention(nn.Module):
    def __init__(self, dim: int, how: str) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.how == "fused":
            return self.o(F.scaled_dot_product_attention(q, k, v))
        if self.how == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            return self.o(q @ (k.mT @ v) / (q @ k.sum(-2).unsqueeze(-1)))
        return self.o((q @ k.mT / x.shape[-1] ** 0.5).softmax(-1) @ v)


class Feed(nn.Module):
    def __init__(self, dim: int, how: str) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(dim, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "gated":
            return self.down(F.silu(self.gate(x)) * self.up(x))
        return self.down(F.gelu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(dim, 3), nn.ModuleList(Feed(dim, "plain") for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        shares = shares / shares.sum(-1, keepdim=True)
        return sum(shares[..., at : at + 1] * expert(x) for at, expert in enumerate(self.experts))


class Layer(nn.Module):
    """Branches in sequence, or in parallel."""

    def __init__(
        self, draw: random.Random, dim: int, norm: str, slots: tuple[str, ...], parallel: bool, way: str
    ) -> None:
        super().__init__()
        first = Attention(dim, draw.choice(["plain", "fused", "linear"]))
        second = draw.choice([Feed(dim, "plain"), Feed(dim, "gated"), Mixture(dim)])
        self.branches = nn.ModuleList([first, second] if parallel or draw.random() < 0.7 else [second])
        self.parallel, self.way = parallel, way
        self.norms = nn.ModuleDict()
        for at in range(1 if parallel else len(self.branches)):
            for slot in slots:
                self.norms[f"{slot}{at}"] = NORMS[norm](dim, eps=EPS)
        if parallel and "output" in slots:
            self.norms["output1"] = NORMS[norm](dim, eps=EPS)

    def normed(self, slot: str, at: int, x: Tensor) -> Tensor:
        key = f"{slot}{at}"
        return self.norms[key](x) if key in self.norms else x

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            read = self.normed("input", 0, x)
            one = self.normed("output", 0, self.branches[0](read))
            other = self.normed("output", 1, self.branches[1](read))
            return self.normed("stream", 0, x + one + other)
        for at, branch in enumerate(self.branches):
            out = self.normed("output", at, branch(self.normed("input", at, x)))
            if self.way == "reversed":
                x = out + x
            elif self.way == "function":
                x = torch.add(x, out)
            elif self.way == "in place":
                x = x.clone()
                x += out
            else:
                x = x + out
            x = self.normed("stream", at, x)
        return x


class Network(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.dim, self.norm_kind = draw.choice([8, 12, 16]), draw.choice(list(NORMS))
        self.source = draw.choice(list(SOURCES))
        slots = SOURCES[self.source]
        self.stem, self.head = nn.Linear(5, self.dim), nn.Linear(self.dim, 3)
        self.entry = NORMS[self.norm_kind](self.dim, eps=EPS) if draw.random() < 0.3 else None
        parallel = draw.random() < 0.25
        way = draw.choice(["plain", "reversed", "function", "in place"])
        shape = draw.randint(0, 10**6)  # all layers have the same branches, so that the layers are unambiguous
        self.layers = nn.ModuleList(
            Layer(random.Random(shape), self.dim, self.norm_kind, slots, parallel, way)
            for _ in range(draw.randint(1, 4))
        )
        ends = "stream" not in slots and slots != () and draw.random() < 0.8
        self.final = NORMS[self.norm_kind](self.dim, eps=EPS) if ends else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x if self.entry is None else self.entry(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x if self.final is None else self.final(x))


@dataclass
class Block:
    """One residual block: its branches, its norms by slot and branch, and the layer it is in."""

    branches: list[nn.Module]
    norms: dict[tuple[str, int], nn.Module]
    layer: int


def blocks_of(model: Network) -> list[Block]:
    blocks = []
    for number, layer in enumerate(model.layers, 1):
        if layer.parallel:
            norms = {(key[:-1], int(key[-1])): norm for key, norm in layer.norms.items()}
            blocks.append(Block(list(layer.branches), norms, number))
        else:
            for at, branch in enumerate(layer.branches):
                norms = {(key[:-1], 0): norm for key, norm in layer.norms.items() if int(key[-1]) == at}
                blocks.append(Block([branch], norms, number))
    return blocks


def size(x: Tensor, rounded: bool) -> float:
    rms = float(x.square().mean().sqrt())
    return float(f"{rms:.2g}") if rounded else rms


def by_hand(model: Network, x: Tensor, target: npl.Placement, scale: float, rounded: bool) -> Tensor:
    """The output of the network in the target placement, with learned scales of a given value."""
    kind, blocks = model.norm_kind, blocks_of(model)

    def own(norm: nn.Module, y: Tensor) -> Tensor:
        return by_formula(kind, y, norm.weight, getattr(norm, "bias", 0.0) if kind == "layer" else 0.0)

    # The stream of the original gives the initial gains of new norms.
    x = model.stem(x)
    x = original = x if model.entry is None else own(model.entry, x)
    changed = False
    for block in blocks:
        wanted = target.at(block.layer, len(model.layers))
        # The original's step.
        shared = own(block.norms["input", 0], original) if ("input", 0) in block.norms else original
        outputs = [branch(shared) for branch in block.branches]
        outs = [
            own(block.norms["output", at], out) if ("output", at) in block.norms else out
            for at, out in enumerate(outputs)
        ]
        summed = original + sum(outs)
        after = own(block.norms["stream", 0], summed) if ("stream", 0) in block.norms else summed
        # The target's step, with the norms that are kept, moved or added.
        has = {slot for slot, _ in block.norms}
        wants = {slot for slot in ("input", "output", "stream") if getattr(wanted, slot)}
        changed = changed or has != wants

        def through(slot: str, at: int, y: Tensor, before: Tensor, block=block, has=has, wants=wants) -> Tensor:
            if slot in has:
                return own(block.norms[slot, at if (slot, at) in block.norms else 0], y)
            spare = OTHER_STREAM_SLOT.get(slot)
            if spare in has and spare not in wants and at == 0:
                return own(block.norms[spare, 0], y)
            return by_formula(kind, y, size(before, rounded))

        total = x
        for at, (branch, out) in enumerate(zip(block.branches, outputs, strict=True)):
            read = through("input", at, x, original) if "input" in wants else x
            value = branch(read * npl.placement.resolved(wanted.input_scale))
            # The initial gain of a new output norm is the size of the original branch output.
            value = through("output", at, value, out) if "output" in wants else value
            total = total + (scale * value if isinstance(wanted.branch_scale, npl.LearnedScale) else value)
        x = through("stream", 0, total, summed) if "stream" in wants else total
        original = after
    if model.final is not None:
        x = own(model.final, x) if target.final or not changed else x
    elif (target.final and changed and ("stream", 0) in blocks[-1].norms) or (
        target.final and changed and not blocks[-1].norms
    ):
        x = by_formula(kind, x, size(original, rounded))
    return model.head(x)


@torch.no_grad()
def check(seed: int) -> tuple[str, str]:
    """Move the network of a seed to a target of the same seed.

    Returns:
        ``done``, ``refused`` or ``wrong``, and a description.
    """
    torch.manual_seed(seed)
    draw = random.Random(seed + 10**6)
    model = Network(seed).double().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.startswith(("entry", "final")):
            parameter.copy_(
                0.5 + torch.rand(parameter.shape) if name.endswith("weight") else torch.randn(parameter.shape)
            )
        else:
            parameter.normal_(std=0.4)
    x, to = torch.randn(3, 6, 5, dtype=torch.float64), draw.choice(TARGETS)
    parallel = " parallel" if model.layers[0].parallel else ""
    description = f"seed {seed}: {model.source}{parallel} to {to}, {model.norm_kind}"
    kind = {"layer": "layer", "rms": "rms", "hand": "rms"}[model.norm_kind] if model.source == "none" else None
    if kind is not None:
        description += f", norm={kind}"
    try:
        moved = npl.move(model, x, to=to, norm=kind)
    except npl.UsageError as reason:
        return "refused", f"{description}: {reason}"
    scale, rounded = 1.3, kind is not None
    for name, parameter in moved.named_parameters():
        if name.endswith("_scale.weight") and ".placed." in name:
            parameter.fill_(scale)
    if rounded:  # the eps of normplace's norms shows in the gains, so gains are rounded and eps is set
        for module in moved.modules():
            if isinstance(module, npl.LayerNorm | npl.RMSNorm):
                module.eps = EPS
                module.weight.fill_(float(f"{float(module.weight[0]):.2g}"))
    expected, result = by_hand(model, x, npl.Placement.named(to), scale, rounded), moved(x)
    error = float((result - expected).abs().max() / expected.abs().max())
    return ("done", description) if error < 1e-8 else ("wrong", f"{description}: relative difference {error:.2g}")
