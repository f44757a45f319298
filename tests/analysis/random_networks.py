"""Random residual networks that know where their norms stand, because they were built that way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DECORATIONS = ("none", "dropout", "view", "cast", "scale", "gain", "activation")


class HandRMS(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.to(torch.float64)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class HandLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.gain + self.shift


class Squash(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.alpha, self.gain = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.gain * torch.tanh(self.alpha * x)


def functional_layer(x):
    return F.layer_norm(x, x.shape[-1:])


def functional_length(x):
    return F.normalize(x, dim=-1)


def functional_rms(x):
    return x / ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt()


KINDS: dict[str, Callable] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "hand rms": HandRMS,
    "hand layer": HandLayer,
    "squash": Squash,
    "functional layer": lambda dim: functional_layer,
    "functional length": lambda dim: functional_length,
    "functional rms": lambda dim: functional_rms,
}


@dataclass
class Builder:
    """Draws the parts of a network and keeps the truth, norm by norm in the order they run."""

    draw: random.Random
    dim: int
    truth: list[str] = field(default_factory=list)

    def norm(self, slot: str) -> Callable[[Tensor], Tensor]:
        made = KINDS[self.draw.choice(list(KINDS))](self.dim)

        def run(x: Tensor) -> Tensor:
            self.truth.append(slot)
            return made(x)

        run.part = made if isinstance(made, nn.Module) else nn.Identity()  # type: ignore[attr-defined]
        return run

    def maybe(self, slot: str, chance: float = 0.5) -> Callable[[Tensor], Tensor] | None:
        return self.norm(slot) if self.draw.random() < chance else None


def decorated(x: Tensor, how: str, part: nn.Module | None = None) -> Tensor:
    if how == "dropout":
        return F.dropout(x, 0.1, training=True)
    if how == "view":
        return x.reshape(-1, x.shape[-1]).transpose(0, 1).contiguous().transpose(0, 1).view(x.shape)
    if how == "cast":
        return x.to(torch.float64).to(x.dtype)
    if how == "scale":
        return x * 0.7 / 1.3
    if how == "gain":
        return x * part.gain
    return F.silu(x) if how == "activation" else x


class Branch(nn.Module):
    """Attention, an MLP, a gated MLP, a convolution or scattered experts, each with norms inside or none."""

    def __init__(self, build: Builder) -> None:
        super().__init__()
        dim, draw = build.dim, build.draw
        self.kind = draw.choice(["attention", "fused attention", "mlp", "gated", "convolution", "experts"])
        self.maps = nn.ModuleList(nn.Linear(dim, dim, bias=draw.random() < 0.5) for _ in range(4))
        self.convolution = nn.Conv1d(dim, dim, 3, padding=1)
        names = ("q", "k", "v", "pre-output") if "attention" in self.kind else ("mid",)
        self.inner = {name: build.maybe(f"inner.{name}", 0.3) for name in names}
        self.parts = nn.ModuleList(norm.part for norm in self.inner.values() if norm is not None)
        self.how = draw.choice(DECORATIONS[:4])

    def place(self, name: str, x: Tensor) -> Tensor:
        norm = self.inner[name]
        return decorated(x if norm is None else norm(x), self.how)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, last = self.maps
        if "attention" in self.kind:
            q, k, v = self.place("q", first(x)), self.place("k", second(x)), self.place("v", third(x))
            if self.kind == "attention":
                scores = q @ k.transpose(-1, -2) / x.shape[-1] ** 0.5
                gathered = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -1e4).softmax(-1) @ v
            else:
                gathered = F.scaled_dot_product_attention(q, k, v)
            return last(self.place("pre-output", gathered))
        if self.kind == "mlp":
            return last(self.place("mid", F.gelu(first(x))))
        if self.kind == "gated":
            return last(self.place("mid", F.silu(first(x)) * second(x)))
        if self.kind == "convolution":
            return self.convolution(self.place("mid", first(x)).transpose(1, 2)).transpose(1, 2)
        hidden, flat = first(x), torch.zeros_like(x).flatten(0, -2)
        hidden = F.relu(self.place("mid", hidden)).flatten(0, -2)
        for part, expert in enumerate((second, third)):
            chosen = torch.arange(part, len(flat), 2)
            flat.index_add_(0, chosen, expert(hidden[chosen]))
        return flat.view(x.shape)


class Block(nn.Module):
    """One residual block in any placement, its add written in one of many ways."""

    def __init__(self, build: Builder, slots: dict[str, bool]) -> None:
        super().__init__()
        draw = build.draw
        self.input = build.norm("input") if slots["input"] else None
        self.second = build.norm("input") if slots["input"] and draw.random() < 0.5 else None
        self.branch = Branch(build)
        self.beside = Branch(build) if draw.random() < 0.2 else None
        self.output = build.norm("output") if slots["output"] else None
        self.stream = build.norm("stream") if slots["stream"] else None
        norms = (self.input, self.second, self.output, self.stream)
        self.parts = nn.ModuleList(norm.part for norm in norms if norm is not None)
        self.gain = nn.Parameter(torch.ones(build.dim))
        self.gate = nn.Linear(build.dim, 1)
        self.how = [draw.choice(DECORATIONS) for _ in range(2)]
        self.add = draw.choice(
            ["plain", "reversed", "in place", "alpha", "addcmul", "gated", "scaled skip", "half skip"]
        )

    def forward(self, x: Tensor) -> Tensor:
        read = x if self.input is None else self.input(x)
        out = self.branch(decorated(read, self.how[0] if self.how[0] != "activation" else "none", self))
        if self.beside is not None:
            other = read if self.second is None else self.second(x)
            out = out + self.beside(other)
        if self.output is not None:
            out = self.output(out)
        out = decorated(out, self.how[1], self)
        total = self.sum(x, out)
        return total if self.stream is None else self.stream(total)

    def sum(self, x: Tensor, out: Tensor) -> Tensor:
        if self.add == "reversed":
            return out + x
        if self.add == "in place":
            kept = x.clone()
            kept += out
            return kept
        if self.add == "alpha":
            return torch.add(x, out, alpha=0.5)
        if self.add == "addcmul":
            return torch.addcmul(x, self.gain, out)
        if self.add == "gated":
            return x + torch.sigmoid(self.gate(x)) * out
        if self.add == "scaled skip":
            return 1.7 * x + out
        return x.half().float() + out if self.add == "half skip" else x + out


class Network(nn.Module):
    """A stem, one or two stacks of blocks, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.build = build = Builder(draw, draw.choice([8, 12, 16]))
        self.stem = nn.Linear(5, build.dim)
        self.embedding = build.maybe("embedding", 0.3)
        fixed = {slot: draw.random() < 0.5 for slot in ("input", "output", "stream")}
        uniform = draw.random() < 0.5
        self.stacks = nn.ModuleList()
        for _ in range(draw.choice([1, 1, 2])):
            blocks = [
                Block(build, fixed if uniform else {slot: draw.random() < 0.4 for slot in fixed})
                for _ in range(draw.randint(1, 4))
            ]
            self.stacks.append(nn.ModuleList(blocks))
        self.before, self.after = build.maybe("transition"), build.maybe("transition")
        self.between = nn.Linear(build.dim, build.dim)
        self.final = build.maybe("final")
        self.head, self.last = nn.Linear(build.dim, build.dim), nn.Linear(build.dim, 3)
        self.in_head = build.maybe("head", 0.3)
        norms = (self.embedding, self.before, self.after, self.final, self.in_head)
        self.parts = nn.ModuleList(norm.part for norm in norms if norm is not None)
        self.pooled = draw.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        self.build.truth.clear()
        x = self.stem(x)
        x = x if self.embedding is None else self.embedding(x)
        for at, blocks in enumerate(self.stacks):
            if at:
                x = x if self.before is None else self.before(x)
                x = self.between(x)
                x = x if self.after is None else self.after(x)
            for block in blocks:
                x = block(x)
        x = x.mean(1) if self.pooled else x
        x = x if self.final is None else self.final(x)
        x = self.head(x)
        return self.last(x if self.in_head is None else self.in_head(x))


class Flat(nn.Module):
    """A stack in one forward, without a module per block, in one placement."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.build = build = Builder(draw, 8)
        self.stem, self.head = nn.Linear(5, 8), nn.Linear(8, 3)
        self.branches = nn.ModuleList(Branch(build) for _ in range(draw.randint(2, 5)))
        slots = draw.choice([("input",), ("stream",), ("output",), ("input", "output"), ("output", "stream")])
        self.norms = [{slot: build.norm(slot) for slot in slots} for _ in self.branches]
        self.final = build.maybe("final") if "stream" not in slots else None
        held = [norm for norms in self.norms for norm in norms.values()] + [self.final] * (self.final is not None)
        self.parts = nn.ModuleList(norm.part for norm in held)

    def forward(self, x: Tensor) -> Tensor:
        self.build.truth.clear()
        x = self.stem(x)
        for branch, norms in zip(self.branches, self.norms, strict=True):
            out = branch(norms["input"](x) if "input" in norms else x)
            x = x + (norms["output"](out) if "output" in norms else out)
            x = norms["stream"](x) if "stream" in norms else x
        return self.head(x if self.final is None else self.final(x))


class Plain(nn.Module):
    """Layers without a skip."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.build = build = Builder(draw, 8)
        self.maps = nn.ModuleList(nn.Linear(5 if at == 0 else 8, 8) for at in range(draw.randint(2, 5)))
        self.norms = [build.maybe("plain") for _ in self.maps]
        self.parts = nn.ModuleList(norm.part for norm in self.norms if norm is not None)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.build.truth.clear()
        for linear, norm in zip(self.maps, self.norms, strict=True):
            x = linear(x)
            x = torch.relu(x if norm is None else norm(x))
        return self.last(x)


class Cross(nn.Module):
    """A decoder's block: attention to a memory, with a norm for either or none."""

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(build.dim, build.dim) for _ in range(4))
        self.query, self.memory = build.maybe("input"), build.maybe("input", 0.3)
        self.output, self.stream = build.maybe("output", 0.3), build.maybe("stream", 0.3)
        norms = (self.query, self.memory, self.output, self.stream)
        self.parts = nn.ModuleList(norm.part for norm in norms if norm is not None)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        read = x if self.query is None else self.query(x)
        memory = memory if self.memory is None else self.memory(memory)
        out = self.out((self.q(read) @ self.k(memory).mT).softmax(-1) @ self.v(memory))
        x = x + (out if self.output is None else self.output(out))
        return x if self.stream is None else self.stream(x)


class EncoderDecoder(nn.Module):
    """Two stacks, the second of which reads the end of the first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.build = build = Builder(draw, 8)
        self.stems = nn.ModuleList(nn.Linear(5, 8) for _ in range(2))
        slots = {slot: draw.random() < 0.5 for slot in ("input", "output", "stream")}
        self.encoder = nn.ModuleList(Block(build, slots) for _ in range(draw.randint(1, 3)))
        self.decoder = nn.ModuleList(Block(build, slots) for _ in range(draw.randint(1, 3)))
        self.crosses = nn.ModuleList(Cross(build) for _ in self.decoder)
        self.ends = [build.maybe("final"), build.maybe("final")]
        self.parts = nn.ModuleList(norm.part for norm in self.ends if norm is not None)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.build.truth.clear()
        memory, x = self.stems[0](x), self.stems[1](x[:, :3])
        for block in self.encoder:
            memory = block(memory)
        memory = memory if self.ends[0] is None else self.ends[0](memory)
        for block, cross in zip(self.decoder, self.crosses, strict=True):
            x = cross(block(x), memory)
        return self.head(x if self.ends[1] is None else self.ends[1](x))


SHAPES = (Network, Network, Network, Flat, Plain, EncoderDecoder)


def network(seed: int) -> tuple[nn.Module, Tensor, list[str]]:
    """The network of a seed, an input for it, and the list it keeps its truth in while it runs."""
    torch.manual_seed(seed)
    made = SHAPES[seed % len(SHAPES)](seed)
    return made, torch.randn(2, 5, 5), made.build.truth
