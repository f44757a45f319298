"""Random networks with attention variants, mixtures, gates and several streams, whose norms' slots are known."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from tests.analysis.random_networks import Builder
from torch import Tensor, nn
from torch.nn import functional as F

CORES = ("softmax", "fused", "linear", "causal linear", "retention", "squared", "cosine", "gated")
ROUTERS = ("norm", "normalize", "sum", "none")
STREAMS = ("plain", "plain", "plain", "gated", "cell", "coupled", "reversible", "static copies", "dynamic copies")


class Held(nn.Module):
    """A module that holds the parts of the norms it draws."""

    def __init__(self, build: Builder) -> None:
        super().__init__()
        self.build, self.parts = build, nn.ModuleList()

    def norm(self, slot: str, dim: int = 0) -> Callable[[Tensor], Tensor]:
        width, self.build.dim = self.build.dim, dim or self.build.dim
        made = self.build.norm(slot)
        self.build.dim = width
        self.parts.append(made.part)  # type: ignore[attr-defined]
        return made

    def maybe(self, slot: str, chance: float = 0.5, dim: int = 0) -> Callable[[Tensor], Tensor]:
        return self.norm(slot, dim) if self.build.draw.random() < chance else lambda x: x


class Attention(Held):
    """Attention to a memory, or to what it reads, with norms on queries and keys of a head or of all."""

    def __init__(self, build: Builder, dim: int) -> None:
        super().__init__(build)
        draw = build.draw
        self.core, self.split_first = draw.choice(CORES), draw.random() < 0.5
        self.heads = draw.choice([heads for heads in (1, 2, 4) if dim // heads > 1])  # a norm of one number is nothing
        width = dim // self.heads if self.split_first else dim
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=draw.random() < 0.5) for _ in range(4))
        self.gate = nn.Linear(dim, dim)
        self.einsum = draw.random() < 0.5
        self.q_norm, self.k_norm = self.maybe("inner.q", 0.6, width), self.maybe("inner.k", 0.6, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = self.q(x), self.k(memory), self.v(memory)
        if not self.split_first:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        if self.split_first:
            q, k = self.q_norm(q), self.k_norm(k)
        gathered = self.gather(q, k, v).transpose(1, 2).flatten(2)
        if self.core == "gated":
            gathered = gathered * torch.sigmoid(self.gate(x))
        return self.out(gathered)

    def gather(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.core == "fused":
            return F.scaled_dot_product_attention(q, k, v)
        if self.core == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = torch.einsum("bhnd,bhne->bhde", k, v) if self.einsum else k.mT @ v
            return q @ state / (q @ k.sum(-2, keepdim=True).mT)
        if self.core == "causal linear" and q.shape == k.shape:
            state = torch.einsum("bhnd,bhne->bhnde", F.elu(k) + 1, v).cumsum(2)
            return torch.einsum("bhnd,bhnde->bhne", F.elu(q) + 1, state)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) if self.einsum else q @ k.mT
        if self.core == "retention":
            at = torch.arange(max(scores.shape[-2:]))
            return scores * (0.9 ** (at[: q.shape[-2], None] - at[: k.shape[-2]]).abs()) @ v
        if self.core == "squared":
            return scores.relu().square() @ v
        return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


class Mixture(Held):
    """Experts, weighed by a router whose weights are divided by their sum in one of several ways, which is no norm."""

    def __init__(self, build: Builder, dim: int) -> None:
        super().__init__(build)
        self.router, self.how = nn.Linear(dim, 3), build.draw.choice(ROUTERS)
        self.first, self.last = (nn.ModuleList(nn.Linear(dim, dim) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        if self.how == "norm":
            weights = weights / weights.norm(p=1, dim=-1, keepdim=True)
        elif self.how == "normalize":
            weights = F.normalize(weights, p=1, dim=-1)
        elif self.how == "sum":
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.stack([last(first(x).relu()) for first, last in zip(self.first, self.last, strict=True)], -2)
        picked = out.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))
        return (weights[..., None] * picked).sum(-2)


class Mlp(Held):
    def __init__(self, build: Builder, dim: int) -> None:
        super().__init__(build)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.mid = self.maybe("inner.mid", 0.2, 2 * dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.mid(F.gelu(self.up(x))))


def branch(build: Builder, dim: int) -> nn.Module:
    return build.draw.choice([Attention, Attention, Mixture, Mlp])(build, dim)


class GatedAdd(nn.Module):
    """The gate of GTrXL, or PyTorch's cell."""

    def __init__(self, dim: int, cell: bool) -> None:
        super().__init__()
        self.cell = nn.GRUCell(dim, dim) if cell else None
        self.maps = nn.ModuleList(nn.Linear(dim, dim) for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if self.cell is not None:
            return self.cell(y.flatten(0, 1), x.flatten(0, 1)).view_as(x)
        a, b, c, d, e, f = self.maps
        reset, update = torch.sigmoid(a(y) + b(x)), torch.sigmoid(c(y) + d(x) - 2)
        return (1 - update) * x + update * torch.tanh(e(y) + f(reset * x))


class Block(Held):
    """One branch, or two parallel ones, in any of the usual slots."""

    def __init__(self, build: Builder, slots: set[str], add: str, memory: bool) -> None:
        super().__init__(build)
        dim, draw = build.dim, build.draw
        self.input = self.norm("input") if "input" in slots else lambda x: x
        self.memory = self.maybe("input", 0.3) if memory else None
        self.branch = Attention(build, dim) if memory else branch(build, dim)
        self.beside = branch(build, dim) if add == "plain" and not memory and draw.random() < 0.25 else None
        self.output = self.norm("output") if "output" in slots else lambda x: x
        self.stream = self.norm("stream") if "stream" in slots else lambda x: x
        self.gate = None if add == "plain" else GatedAdd(dim, add == "cell")

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        read = self.input(x)
        out = self.branch(read) if self.memory is None else self.branch(read, self.memory(memory))
        out = out if self.beside is None else out + self.beside(read)
        out = self.output(out)
        return self.stream(x + out if self.gate is None else self.gate(x, out))


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right, first, second):
        left = left + first(right)
        return left, right + second(left)


class Half(Held):
    def __init__(self, build: Builder, dim: int, slots: set[str]) -> None:
        super().__init__(build)
        self.input = self.norm("input", dim) if "input" in slots else lambda x: x
        self.branch = branch(build, dim)
        self.output = self.norm("output", dim) if "output" in slots else lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.branch(self.input(x)))


class Coupled(nn.Module):
    """Two halves, each added a branch of the other; with a backward pass of its own or without."""

    def __init__(self, build: Builder, slots: set[str], reversible: bool) -> None:
        super().__init__()
        self.first, self.second = (Half(build, build.dim // 2, slots) for _ in range(2))
        self.reversible = reversible

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        if self.reversible:
            return torch.cat(_Reversible.apply(left, right, self.first, self.second), -1)
        left = left + self.first(right)
        return torch.cat([left, right + self.second(left)], -1)


class Copies(Held):
    """Hyper-connections, with weights of their own or made of the copies."""

    def __init__(self, build: Builder, slots: set[str], copies: int, dynamic: bool) -> None:
        super().__init__(build)
        dim, self.dynamic = build.dim, dynamic
        self.read, self.write = nn.Parameter(torch.rand(copies)), nn.Parameter(torch.rand(copies))
        self.mix = nn.Parameter(torch.rand(copies, copies))
        self.weights_norm = self.maybe("input") if dynamic else None
        self.alpha, self.beta = nn.Linear(dim, copies + 1), nn.Linear(dim, 1)
        self.wrapped = Half(build, dim, slots)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        if self.weights_norm is None:
            out = self.wrapped((x * self.read[:, None]).sum(-2))
            return torch.einsum("st,bnsd->bntd", self.mix, x) + out[..., None, :] * self.write[:, None]
        normed = self.weights_norm(x)
        alpha = self.alpha(normed)
        alpha = torch.cat([alpha[..., :1].sigmoid(), F.normalize(alpha[..., 1:].exp(), p=1, dim=-2)], -1)
        mixed = torch.einsum("bnst,bnsd->bntd", alpha, x)
        return self.wrapped(mixed[..., 0, :])[..., None, :] * self.beta(normed).sigmoid() + mixed[..., 1:, :]


class Network(Held):
    """A stem, blocks of one kind of stream, a final norm or none, and a head."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        super().__init__(Builder(draw, draw.choice([8, 16, 24, 32])))
        build, dim = self.build, self.build.dim
        self.streams, depth = draw.choice(STREAMS), draw.randint(1, 5)
        self.copies = draw.choice([2, 3, 4]) if "copies" in self.streams else 0
        self.stem, self.memory_stem = nn.Linear(5, dim), nn.Linear(5, dim)
        self.embedding = self.maybe("embedding", 0.3)
        choices = [{"input"}, {"input", "output"}, {"output"}, {"stream"}, {"input", "stream"}]
        single = self.streams in ("plain", "gated", "cell")
        # What a gate's maps read is within the branch, so that there is no output slot before a gate.
        allowed = {"plain": choices, "gated": choices[:1], "cell": choices[:1]}
        slots = draw.choice(allowed.get(self.streams, choices[:2]))
        if single:
            self.blocks = nn.ModuleList(
                Block(build, slots, self.streams, self.streams == "plain" and draw.random() < 0.25)
                for _ in range(depth)
            )
        elif self.copies:
            self.blocks = nn.ModuleList(
                Copies(build, slots, self.copies, "dynamic" in self.streams) for _ in range(depth)
            )
        else:
            self.blocks = nn.ModuleList(Coupled(build, slots, self.streams == "reversible") for _ in range(depth))
        self.final = self.maybe("final") if "stream" not in slots else lambda x: x
        self.head = nn.Linear(dim, 3)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        self.build.truth.clear()
        x, memory = self.embedding(self.stem(x)), self.memory_stem(memory)
        x = x[..., None, :].expand(-1, -1, self.copies, -1) if self.copies else x
        for block in self.blocks:
            x = block(x, memory)
        x = x.sum(-2) if self.copies else x
        return self.head(self.final(x))


def network(seed: int) -> tuple[Network, tuple[Tensor, Tensor], list[str]]:
    """The network of a seed, inputs for it, and the list it keeps its truth in while it runs."""
    torch.manual_seed(seed)
    made, draw = Network(seed).eval(), random.Random(-seed - 1)
    batch, tokens, memory = draw.randint(1, 3), draw.randint(2, 9), draw.randint(2, 9)
    return made, (torch.randn(batch, tokens, 5), torch.randn(batch, memory, 5)), made.build.truth
