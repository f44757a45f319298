"""Networks for the empirical kernel: each case is a model in evaluation mode and samples for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from normplace.models import MLP


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    vocabulary: int | None = None
    fallback: tuple[str, ...] | None = ()
    """Parameters expected to need the Jacobian; None if the case does not test it."""

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = self.build().double().eval()
            for p in model.parameters():  # away from the ones and zeros that norms and biases start with
                p.data.add_(0.1 * torch.randn_like(p))
        return model

    def samples(self, n: int, seed: int = 0) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        if self.vocabulary is not None:
            return torch.randint(self.vocabulary, (n, *self.shape), generator=g)
        return torch.randn(n, *self.shape, generator=g, dtype=torch.float64)


def mlp(norm: Callable[[int], nn.Module], where: str, outputs: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [norm(3)] if where == "input" else []
    for i, (a, b) in enumerate(((3, 7), (7, 5))):
        layers.append(nn.Linear(a, b))
        if where == "every" or where == ("first", "second")[i]:
            layers.append(norm(b))
        layers.append(nn.ReLU(inplace=True))
        if where == "after":
            layers.append(norm(b))
    return nn.Sequential(*layers, nn.Linear(5, outputs))


class Attention(nn.Module):
    def __init__(self, flat: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.RMSNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.head = nn.Linear(8, 2)
        self.flat = flat

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        h = h.reshape(-1, 8) if self.flat else h  # positions folded into rows, as in many hand-written blocks
        return self.head((x + self.down(F.gelu(self.up(h))).view_as(x))[:, -1])


class TimeFirst(nn.Module):
    """Folds (time, sample) into rows with the sample running fastest."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.head = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x):
        h = x.transpose(0, 1).reshape(-1, 3)
        h = torch.tanh(self.norm(self.lin(h))).view(x.shape[1], x.shape[0], 4)
        return self.head(h).sum(0)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Cell(nn.Module):
    """A recurrence written with linear layers that are called once per step."""

    def __init__(self):
        super().__init__()
        self.inp, self.rec, self.norm, self.head = (
            nn.Linear(3, 5),
            nn.Linear(5, 5),
            nn.LayerNorm(5),
            nn.Linear(5, 1),
        )

    def forward(self, x):
        h = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h = torch.tanh(self.norm(self.inp(x[:, t]) + self.rec(h)))
        return self.head(h)


class Tied(nn.Module):
    """One matrix embeds and unembeds; positions are a raw parameter."""

    def __init__(self, padding: int | None = None):
        super().__init__()
        self.emb = nn.Embedding(6, 4, padding_idx=padding)
        self.pos = nn.Parameter(torch.randn(5, 4))
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, ids):
        h = self.emb(ids) + self.pos
        return self.out(torch.tanh(self.mix(h))).mean(1)


class Positions(nn.Module):
    """A position embedding that all samples share, and a token embedding with a padding row."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(9, 4, padding_idx=2), nn.Embedding(5, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, ids):
        return self.head(torch.tanh(self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))).sum(1))


class NTKLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * (1.5 / math.sqrt(self.in_features)), 0.3 * self.bias)


class HalfLinear(nn.Linear):
    """Passes the weight to a layer, and uses it a second time outside the layer's formula."""

    def forward(self, x):
        return super().forward(x) + x @ self.weight.T.detach() + self.weight.square().sum()


class WideNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.double()).to(x.dtype)


class ShiftedNorm(nn.RMSNorm):
    """The gain is one plus the weight, as in Gemma."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, 1.0 + self.weight, 1e-5)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.head = nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)

    def forward(self, x):
        h = torch.tanh(self.lin(x))
        return self.head(self.norm(self.lin(self.norm(h)) + h))


class Force(nn.Module):
    """Returns the derivative of an energy, so its output reaches the weights through a backward pass."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(nn.LayerNorm, "every", 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(checkpoint(self.body, x, use_reentrant=False))


class Router(nn.Module):
    """Mixture of experts: which rows an expert sees depends on the data."""

    def __init__(self):
        super().__init__()
        self.gate, self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        gate = self.gate(x)
        chosen = gate[:, 0] > 0
        y = x.new_zeros(len(x), 2)
        y[chosen] = self.a(x[chosen])
        y[~chosen] = self.b(x[~chosen])
        return y * torch.sigmoid(gate)


class Sorter(nn.Module):
    """Shuffles its batch, so that row i of a layer's input is not sample i."""

    def __init__(self):
        super().__init__()
        self.lin, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        order = x[:, 0].argsort()
        h = torch.empty_like(x[:, :1]).expand(-1, 4).index_put((order,), torch.tanh(self.lin(x[order])))
        return self.head(h)


def convnet(groups: int = 1, padding: str | int = 1, mode: str = "zeros") -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=padding, padding_mode=mode),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, (3, 2), stride=(1, 2), dilation=(2, 1), groups=groups, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(2),
    )


def ready(model: nn.Module, *shape: int) -> nn.Module:
    model.eval()(torch.zeros(2, *shape))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return model


def plain_norm(width: int) -> nn.Module:
    return nn.LayerNorm(width, elementwise_affine=False)


class Scaled(nn.Module):
    """A factor that is one number, applied in place, and another that two layers share."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.two(torch.tanh(self.one(x).mul_(self.scale))).mul_(self.scale).add_(self.shift)


def shared_module() -> nn.Module:
    """One activation module with a parameter, registered twice."""
    activation = nn.PReLU(4)
    return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 4), activation, nn.Linear(4, 2))


MLPS = [
    Case(f"mlp-{label}-{where}", lambda norm=norm, where=where: mlp(norm, where), (3,))
    for label, norm in (("plain", plain_norm), ("affine", nn.LayerNorm), ("rms", nn.RMSNorm))
    for where in ("input", "first", "second", "every", "after")
]
LSTM = tuple(f"rnn.{kind}_{part}_l{i}" for i in range(2) for kind in ("weight", "bias") for part in ("ih", "hh"))
CASES = [
    *MLPS,
    Case("mlp-none", lambda: mlp(plain_norm, "none"), (3,)),
    Case("mlp-outputs", lambda: mlp(nn.LayerNorm, "every", 3), (3,)),
    Case("conv-groupnorm", lambda: ready(convnet(), 2, 6, 7), (2, 6, 7)),
    Case("conv-grouped", lambda: ready(convnet(2, "same"), 2, 6, 7), (2, 6, 7)),
    Case("conv-circular", lambda: ready(convnet(4, 1, "circular"), 2, 6, 7), (2, 6, 7)),
    Case(
        "conv1d",
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 4, stride=2, padding="valid", dilation=2),
            nn.Tanh(),
            nn.Conv1d(4, 1, 2, padding="same"),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
        ),
        (2, 15),
    ),
    Case("attention", Attention, (4, 8)),
    Case("attention-folded", lambda: Attention(flat=True), (4, 8)),
    Case("time-first", TimeFirst, (4, 3)),
    Case(
        "encoder-layer",
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True), nn.Flatten(), nn.Linear(24, 1)
        ),
        (3, 8),
    ),
    Case("rnn", lambda: Recurrent(nn.RNN), (4, 3), fallback=LSTM),
    Case("lstm", lambda: Recurrent(nn.LSTM), (3, 3), fallback=LSTM),
    Case("cell", Cell, (4, 3)),
    Case("tied", Tied, (5,), 6, fallback=("pos",)),
    Case("tied-padding", lambda: Tied(3), (5,), 6, fallback=("pos",)),
    Case("positions", Positions, (5,), 9, fallback=("pos.weight",)),
    Case("twice", Twice, (3,)),
    Case("ntk-linear", lambda: nn.Sequential(NTKLinear(3, 4), nn.ReLU(), NTKLinear(4, 2)), (3,), fallback=None),
    Case(
        "half-linear",
        lambda: nn.Sequential(HalfLinear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        (3,),
        fallback=("0.weight",),
    ),
    Case("upcasting-norms", lambda: mlp(WideNorm, "every"), (3,)),
    Case("shifted-norm", lambda: mlp(ShiftedNorm, "first"), (3,), fallback=("1.weight",)),
    Case(
        "weight-norm",
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 1)),
        (3,),
        fallback=("0.parametrizations.weight.original0", "0.parametrizations.weight.original1"),
    ),
    Case("router", Router, (3,), fallback=None),
    Case("sorter", Sorter, (3,), fallback=("lin.weight", "lin.bias")),
    Case("force", Force, (3,), fallback=None),
    Case("checkpointed", Checkpointed, (3,)),
    Case("bilinear", lambda: Bilinear(), (3,), fallback=("form.weight", "form.bias")),
    Case("rezero", lambda: MLP((3, 6, 6, 1), placement="rezero"), (3,), fallback=None),
    Case("scaled", Scaled, (3,), fallback=("scale", "shift")),
    Case("shared-module", shared_module, (3,), fallback=("1.weight",)),
    Case(
        "embedding-bag",
        lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Linear(4, 2)),
        (3,),
        7,
        fallback=("0.weight",),
    ),
    Case("sequence-output", lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), (3, 3)),
]


class Bilinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.form, self.lin = nn.Bilinear(3, 3, 2), nn.Linear(3, 3)

    def forward(self, x):
        return self.form(x, torch.tanh(self.lin(x)))


def jacobian(model: nn.Module, x: Tensor, parameters: list[nn.Parameter] | None = None) -> Tensor:
    """Every gradient by plain autograd, one sample and one output at a time: N × O × P."""
    chosen = [p for p in model.parameters() if p.requires_grad] if parameters is None else parameters
    rows = []
    for i in range(len(x)):
        y = model(x[i : i + 1].clone()).reshape(-1)
        for o in range(len(y)):
            grads = torch.autograd.grad(y[o], chosen, retain_graph=True, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for g, p in zip(grads, chosen, strict=True)]
            rows.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(rows).unflatten(0, (len(x), -1))


def contraction(model: nn.Module, x1: Tensor, x2: Tensor, parameters: list[nn.Parameter] | None = None) -> Tensor:
    """The kernel from the definition, N1 × O × N2 × O."""
    return torch.einsum("aop,bqp->aobq", jacobian(model, x1, parameters), jacobian(model, x2, parameters))
