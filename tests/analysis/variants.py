"""Hand-written networks around the edges of what is a norm, an attention and a residual add."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS = 16, 2
TOKENS = torch.linspace(-1, 1, 2 * 6 * 5).view(2, 6, 5)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, 24), nn.GELU(), nn.Linear(24, DIM))


class Attention(nn.Module):
    """Attention of many kinds, with norms on queries and keys: to itself, or to a memory."""

    def __init__(self, core: str) -> None:
        super().__init__()
        self.core = core
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.q_norm, self.k_norm = nn.LayerNorm(DIM // HEADS), nn.LayerNorm(DIM // HEADS)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q(x), self.k(memory), self.v(memory))
        )
        gathered = getattr(self, self.core)(self.q_norm(q), self.k_norm(k), v)
        return self.out(gathered.transpose(1, 2).flatten(2))

    def softmax(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ v

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    def linear(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = F.elu(q) + 1, F.elu(k) + 1
        return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)

    def causal_linear(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state = torch.einsum("bhnd,bhne->bhnde", F.elu(k) + 1, v).cumsum(2)
        return torch.einsum("bhnd,bhnde->bhne", F.elu(q) + 1, state)

    def retention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at = torch.arange(q.shape[-2])
        decay = (0.9 ** (at[:, None] - at)).tril()
        return (torch.einsum("bhid,bhjd->bhij", q, k) * decay) @ v

    def squared(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT).relu().square() @ v

    def hashed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT
        return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


CORES = ("softmax", "fused", "linear", "causal_linear", "retention", "squared", "hashed")


class Block(nn.Module):
    def __init__(self, core: str) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = nn.LayerNorm(DIM), Attention(core), nn.LayerNorm(DIM), mlp()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), memory)
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    """A stem, blocks, a final norm and a head; ``memory`` makes the first block read one."""

    def __init__(self, *blocks: nn.Module, memory: bool = False) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(5, DIM), nn.ModuleList(blocks)
        self.memory = nn.Linear(5, DIM) if memory else None
        self.end, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        more = () if self.memory is None else (self.memory(x[:, :4]),)
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, *more)
        return self.head(self.end(x))


class Routed(nn.Module):
    """A mixture of experts whose router divides its weights by their 1-norm, in one of two ways."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.norm, self.router, self.functional = nn.LayerNorm(DIM), nn.Linear(DIM, 3), functional
        self.experts = nn.ModuleList(mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        weights, chosen = self.router(read).softmax(-1).topk(2)
        weights = (
            F.normalize(weights, p=1, dim=-1) if self.functional else weights / weights.norm(p=1, dim=-1, keepdim=True)
        )
        out = torch.stack([expert(read) for expert in self.experts], -2)
        picked = out.gather(-2, chosen[..., None].expand(*chosen.shape, DIM))
        return x + (weights[..., None] * picked).sum(-2)


class Coupled(nn.Module):
    """A reversible block without a function of its own: each half of the stream is added a branch of the other."""

    def __init__(self) -> None:
        super().__init__()
        half = DIM // 2
        self.first, self.second = (nn.Sequential(nn.LayerNorm(half), nn.Linear(half, half), nn.GELU()) for _ in "12")

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        left = left + self.first(right)
        return torch.cat([left, right + self.second(left)], -1)


class Gate(nn.Module):
    """The gate of GTrXL (Parisotto et al. 2019, arXiv 1910.06764)."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset_y, reset_x, update_y, update_x, new_y, new_x = self.maps
        reset = torch.sigmoid(reset_y(y) + reset_x(x))
        update = torch.sigmoid(update_y(y) + update_x(x) - 2)
        return (1 - update) * x + update * torch.tanh(new_y(y) + new_x(reset * x))


class Cell(nn.Module):
    """The same by PyTorch's cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(DIM, DIM)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.cell(y.flatten(0, 1), x.flatten(0, 1)).view_as(x)


class Gated(nn.Module):
    def __init__(self, gate: type[nn.Module]) -> None:
        super().__init__()
        self.norm1, self.attention, self.gate1 = (
            nn.LayerNorm(DIM),
            nn.MultiheadAttention(DIM, 2, batch_first=True),
            gate(),
        )
        self.norm2, self.mlp, self.gate2 = nn.LayerNorm(DIM), mlp(), gate()

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm1(x)
        x = self.gate1(x, self.attention(read, read, read)[0].relu())
        return self.gate2(x, self.mlp(self.norm2(x)).relu())


class HyperConnection(nn.Module):
    """Four copies of the stream, recombined by weights that a norm of them gives."""

    COPIES = 4

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.alpha, self.beta = nn.Linear(DIM, self.COPIES + 1), nn.Linear(DIM, 1)
        self.branch_norm, self.branch = nn.LayerNorm(DIM), mlp()

    def forward(self, copies: Tensor) -> Tensor:
        read = self.norm(copies)
        alpha, beta = self.alpha(read), self.beta(read).sigmoid()
        alpha = torch.cat([alpha[..., :1].sigmoid(), F.normalize(alpha[..., 1:].exp(), p=1, dim=-2)], -1)
        mixed = torch.einsum("bnst,bnsd->bntd", alpha, copies)
        out = self.branch(self.branch_norm(mixed[..., 0, :]))
        return out[..., None, :] * beta + mixed[..., 1:, :]


class HyperConnected(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.stem, self.layers = nn.Linear(5, DIM), nn.ModuleList(HyperConnection() for _ in range(depth))
        self.end, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)[..., None, :].expand(-1, -1, HyperConnection.COPIES, -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.end(x.sum(-2)))


class LowRank(nn.Module):
    """A linear map with a low-rank update (Hu et al. 2021, arXiv 2106.09685)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


class EinsumRMS(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        square = torch.einsum("bd,bd->b", flat, flat) / DIM
        return (flat * torch.rsqrt(square + 1e-6)[:, None]).view_as(x) * self.gain


class NormedCell(nn.Module):
    """A step of an LSTM with norms (Ba et al. 2016, arXiv 1607.06450)."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.carried = nn.Linear(5, 4 * DIM), nn.Linear(DIM, 4 * DIM)
        self.read_norm, self.carried_norm, self.end = nn.LayerNorm(4 * DIM), nn.LayerNorm(4 * DIM), nn.LayerNorm(DIM)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = (self.read_norm(self.read(x)) + self.carried_norm(self.carried(hidden))).chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(self.end(cell)), cell


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = NormedCell(), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), DIM)
        steps = []
        for at in range(x.shape[1]):
            hidden, cell = self.cell(x[:, at], hidden, cell)
            steps.append(hidden)
        return self.head(torch.stack(steps, 1))


class ResidualRecurrent(nn.Module):
    """A recurrent network that adds to its state in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.step, self.head = nn.LayerNorm(DIM), nn.Linear(DIM + 5, DIM), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), DIM)
        steps = []
        for at in range(x.shape[1]):
            state = state + torch.tanh(self.step(torch.cat([self.norm(state), x[:, at]], -1)))
            steps.append(state)
        return self.head(torch.stack(steps, 1))


class Unrolled(nn.Module):
    """A residual branch that a recurrent module computes."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.norm, self.rnn = nn.LayerNorm(5), kind(5, 5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.rnn(x)[0])


class Modulated(nn.Module):
    """A block of DiT (Peebles and Xie 2022, arXiv 2212.09748): a condition shifts, scales and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(DIM, elementwise_affine=False) for _ in range(2))
        self.attn, self.mlp = nn.MultiheadAttention(DIM, 2, batch_first=True), mlp()
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(condition.mean(1, keepdim=True)).chunk(6, -1)
        read = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attn(read, read, read)[0]
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Dual(nn.Module):
    """ResiDual (Xie et al. 2023, arXiv 2304.14802)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.end = nn.Linear(5, DIM), nn.Linear(DIM, 3), nn.LayerNorm(DIM)
        self.parts, self.norms = (
            nn.ModuleList(mlp() for _ in range(3)),
            nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = other = self.stem(x)
        for part, norm in zip(self.parts, self.norms, strict=True):
            out = part(x)
            x, other = norm(x + out), other + out
        return self.head(x + self.end(other))


class ParallelPost(nn.Module):
    """Two branches and one norm on their sum with the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(5, DIM), nn.Linear(DIM, 3)
        self.first, self.second = nn.ModuleList(mlp() for _ in range(3)), nn.ModuleList(mlp() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            x = norm(x + first(x) + second(x))
        return self.head(x)


class Positional(nn.Module):
    """A convolution that adds positions before every branch, as in DaViT (Ding et al. 2022, arXiv 2204.03645)."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv1d(DIM, DIM, 3, padding=1, groups=DIM) for _ in range(2))
        self.norm1, self.attention = nn.LayerNorm(DIM), nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(DIM), mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.convolutions[0](x.mT).mT
        read = self.norm1(x)
        x = x + self.attention(read, read, read)[0]
        x = x + self.convolutions[1](x.mT).mT
        return x + self.mlp(self.norm2(x))


class Shortcut(nn.Module):
    """A branch that is added one branch later (as in ScMoE, Cai et al. 2024, arXiv 2404.05019)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms, self.parts = (
            nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2)),
            nn.ModuleList(mlp() for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        read = self.norms[0](x)
        late = self.parts[2](read)
        x = x + self.parts[0](read)
        x = x + self.parts[1](self.norms[1](x))
        return x + late


class IdentityExperts(nn.Module):
    """A mixture in which the last expert returns what it reads (as in LongCat-Flash, arXiv 2509.01322)."""

    def __init__(self, all_rows: bool) -> None:
        super().__init__()
        self.router, self.expert, self.all_rows = nn.Linear(DIM, 2), mlp(), all_rows

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights = self.router(rows).softmax(-1)
        half = torch.arange(0, len(rows), 2)
        out = torch.zeros_like(rows)
        out.index_add_(0, half, self.expert(rows[half]) * weights[half, :1])
        chosen = torch.arange(len(rows)) if self.all_rows else half + 1
        out.index_add_(0, chosen, rows[chosen] * weights[chosen, 1:])
        return out.view_as(x)


class Queries(nn.Module):
    """A decoder of queries that starts with zeros (Carion et al. 2020, arXiv 2005.12872)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.queries, self.head = nn.Linear(5, DIM), nn.Parameter(torch.randn(3, DIM)), nn.Linear(DIM, 3)
        self.own, self.cross = (
            nn.ModuleList(nn.MultiheadAttention(DIM, 2, batch_first=True) for _ in "12") for _ in "12"
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        memory, at = self.stem(x), self.queries[None].expand(len(x), -1, -1)
        x = torch.zeros_like(at)
        for own, cross, first, second in zip(self.own, self.cross, self.norms[::2], self.norms[1::2], strict=True):
            x = first(x + own(x + at, x + at, x)[0])
            x = second(x + cross(x + at, memory, memory)[0])
        return self.head(x)


class BiasedAttention(nn.Module):
    """Attention written out, with a bias on its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.mT + bias
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), scores


class SharedBias(nn.Module):
    """Blocks that pass a bias of their attention scores on: the same in every layer, or the scores before (RealFormer).

    RealFormer: He et al. 2020, arXiv 2012.11747.
    """

    def __init__(self, bias: str) -> None:
        super().__init__()
        self.bias, self.stem, self.end, self.head = bias, nn.Linear(5, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, 3)
        self.norms, self.parts = (
            nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3)),
            nn.ModuleList(BiasedAttention() for _ in range(3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        examples, tokens = x.shape[:2]
        bias = x.new_zeros(examples, HEADS, tokens, tokens)
        if self.bias == "mask":  # of the input, and as large as the scores
            bias = bias.masked_fill(x[:, None, None, :, 0] > 0.5, -1e9)
        x = self.stem(x)
        for norm, part in zip(self.norms, self.parts, strict=True):
            out, scores = part(norm(x), bias)
            x = x + out
            bias = scores if self.bias == "scores" else bias
        return self.head(self.end(x))


class DynamicTanh(nn.Module):
    """Zhu et al. 2025, arXiv 2503.10622, with slope and gain learned as differences from constants."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.gain, self.shift = (nn.Parameter(torch.zeros(size)) for size in ((), DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return (x * (self.slope + 0.5)).tanh() * (1 - self.gain) + self.shift


class ClassToken(nn.Module):
    """A class token that reads itself and the patches behind a stack of them (Touvron et al. 2021, arXiv 2103.17239).

    Args:
        early: Whether the token is repeated for every example before the stack, or behind it.
    """

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early, self.stem, self.token = early, nn.Linear(5, DIM), nn.Parameter(torch.randn(1, 1, DIM))
        self.blocks = nn.ModuleList(Block("softmax") for _ in range(2))
        self.norm1, self.attention, self.norm2, self.mlp = (
            nn.LayerNorm(DIM),
            Attention("fused"),
            nn.LayerNorm(DIM),
            mlp(),
        )
        self.end, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        token = self.token.expand(len(x), -1, -1) if self.early else None
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        token = self.token.expand(len(x), -1, -1) if token is None else token
        both = self.norm1(torch.cat((token, x), 1))
        token = token + self.attention(both[:, :1], both)
        token = token + self.mlp(self.norm2(token))
        return self.head(self.end(token))


class Stage(nn.Module):
    """Blocks within a skip, behind a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.out = nn.ModuleList(Block("softmax") for _ in range(2)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        skip = x
        for block in self.blocks:
            x = block(x)
        return skip + self.out(x)


class LongSkip(nn.Module):
    """Stages within one skip over the whole network, as in image restoration (Liang et al. 2021, arXiv 2108.10257)."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.stem, self.embed = nn.Linear(5, DIM), nn.Linear(DIM, DIM)
        self.stages = nn.ModuleList(Stage() for _ in range(stages))
        self.end, self.out = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.stem(x)
        x = self.embed(skip)
        for stage in self.stages:
            x = stage(x)
        return skip + self.out(self.end(x))


class ValueResidual(nn.Module):
    """Attention whose values are mixed with those of the first layer (Zhou et al. 2024, arXiv 2410.17897)."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(DIM, DIM, bias=False) for name in "qkvo"}) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * layers + 1))
        self.mlps, self.share = nn.ModuleList(mlp() for _ in range(layers)), nn.Parameter(torch.tensor(0.5))
        self.stem = nn.Linear(5, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x, first = self.stem(x), None
        for number, layer in enumerate(self.layers):
            y = self.norms[2 * number](x)
            value = layer["v"](y)
            first = value if first is None else first
            value = self.share * value + (1 - self.share) * first
            x = x + layer["o"](F.scaled_dot_product_attention(layer["q"](y), layer["k"](y), value))
            x = x + self.mlps[number](self.norms[2 * number + 1](x))
        return self.norms[-1](x)


class SharedValues(nn.Module):
    """A decoder whose first and last layer share an embedding of values, and whose layers add earlier streams."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.stem, self.values = nn.Embedding(9, DIM), nn.Embedding(9, DIM)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: nn.Linear(DIM, DIM, bias=False) for name in "qkvo"}) for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(4 * layers))
        self.mlps = nn.ModuleList(mlp() for _ in range(layers))
        self.shares = nn.Parameter(torch.full((layers, 2), 0.5))
        self.end, self.last = nn.RMSNorm(DIM), layers - 1

    def forward(self, tokens: Tensor) -> Tensor:
        x = first = self.stem(tokens)
        values, early = self.values(tokens), []
        for number, (layer, share) in enumerate(zip(self.layers, self.shares, strict=True)):
            norms = self.norms[4 * number : 4 * number + 4]
            x = share[0] * x + share[1] * first
            if 2 * number > self.last:
                x = x + share[0] * early.pop()
            y = norms[0](x)
            value = norms[1](layer["v"](y))
            if number in (0, self.last):
                value = share[0] * value + share[1] * values
            attended = F.scaled_dot_product_attention(norms[2](layer["q"](y)), layer["k"](y), value)
            x = x + layer["o"](attended)
            x = x + self.mlps[number](norms[3](x))
            if 2 * number < self.last:
                early.append(x)
        return self.end(x)


class Losses(nn.Module):
    """A decoder that returns its loss plus a loss of each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net(*(Block("softmax") for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        x, losses = self.net.stem(x), []
        for block in self.net.blocks:
            x = block(x)
            losses.append(4 * x.softmax(-1).mean(0).square().sum())
        return self.net.head(self.net.end(x)).square().mean() + 0.01 * sum(losses)
