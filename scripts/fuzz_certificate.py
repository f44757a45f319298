"""Search for a network that is unbounded by construction but proven bounded.

    python scripts/fuzz_certificate.py --count 500 --seed 0

Every network is a random composition of layers with a known effect on boundedness: norms, saturating activations and
softmax bound a tensor; linear maps, sums, products, concatenations, attention and dense routing keep it bounded or
unbounded. Half of the networks have an unbounded path to the output, sometimes through one of several experts only. The
script prints how many of the bounded networks were proven, and exits 1 if an unbounded one was.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.ntk.certification.proof import prove

WIDTH = 6


class Lambda(nn.Module):
    """A module from a function of the input and submodules."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(x, *self.parts)


def _manual_rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _manual_layer_norm(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


# Layers with a bounded output.
BOUNDING: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.RMSNorm(WIDTH),
    lambda: nn.GroupNorm(2, WIDTH),
    nn.Tanh,
    nn.Sigmoid,
    nn.Softsign,
    lambda: nn.Softmax(-1),
    lambda: nn.Hardtanh(-3, 3),
    lambda: Lambda(_manual_rms_norm),
    lambda: Lambda(_manual_layer_norm),
    lambda: Lambda(lambda x: F.normalize(x, dim=-1)),
    lambda: Lambda(lambda x: torch.sin(x)),
    lambda: Lambda(lambda x: torch.exp(-x.abs())),
)
# Layers that keep bounded tensors bounded and unbounded tensors unbounded.
KEEPING: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(WIDTH, WIDTH),
    lambda: nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.LeakyReLU(), nn.Linear(3 * WIDTH, WIDTH)),
    lambda: nn.LeakyReLU(0.2),
    lambda: Lambda(lambda x: x.clone().mul_(0.5)),
    lambda: Lambda(lambda x: torch.cat([x[:, 1:], x[:, :1]], dim=-1)),
    lambda: Lambda(lambda x: x * (1 + torch.sigmoid(x))),
    lambda: Lambda(lambda x: x / (2 + torch.cos(x))),
    lambda: Lambda(lambda x: x.flip(-1) / (1 + torch.sigmoid(x))),
    lambda: nn.BatchNorm1d(WIDTH).eval(),
)


def bounded(source: random.Random, depth: int) -> nn.Module:
    """A network from WIDTH to WIDTH features that is bounded over all inputs."""
    start = source.choice(BOUNDING)()
    before = [source.choice(KEEPING)() for _ in range(source.randrange(3))]
    after = [_keeping_layer(source, depth) for _ in range(source.randrange(3))]
    return nn.Sequential(*before, start, *after)


def _keeping_layer(source: random.Random, depth: int) -> nn.Module:
    """A layer that keeps bounded tensors bounded."""
    kind = source.randrange(5) if depth else 0
    if kind == 0:
        return source.choice((*KEEPING, *BOUNDING, nn.ReLU, nn.GELU))()
    branch = bounded(source, depth - 1)
    if kind == 1:
        return Lambda(lambda x, layer: x + layer(x), branch)
    if kind == 2:
        return Lambda(lambda x, layer: x * layer(x), branch)
    if kind == 3:
        return Lambda(_routed, branch, source.choice(KEEPING)(), bounded(source, depth - 1))
    return Lambda(_attention, nn.Linear(WIDTH, WIDTH))


def _routed(x: Tensor, *experts: nn.Module) -> Tensor:
    outputs = torch.stack([expert(x) for expert in experts], dim=1)
    chosen = x[:, : len(experts)].argmax(1)[:, None, None].expand(-1, 1, WIDTH)
    return outputs.gather(1, chosen)[:, 0]


def _attention(x: Tensor, project: nn.Module) -> Tensor:
    tokens = x.reshape(-1, 2, WIDTH // 2)
    queries = project(x).reshape(-1, 2, WIDTH // 2)
    return ((queries @ tokens.transpose(1, 2)).softmax(-1) @ tokens).reshape(-1, WIDTH)


def unbounded(source: random.Random, depth: int) -> nn.Module:
    """A network with an unbounded path from the input to the output."""
    path = nn.Sequential(*(source.choice(KEEPING)() for _ in range(1 + source.randrange(3))))
    other = bounded(source, depth)
    kind = source.randrange(5)
    if kind == 0:
        return Lambda(lambda x, a, b: a(x) + b(x), path, other)
    if kind == 1:
        return Lambda(_routed, other, path, bounded(source, 0))
    if kind == 2:  # the norm of another tensor does not bound this one
        return Lambda(lambda x, a: x / (a(x).norm(dim=-1, keepdim=True) + 1), bounded(source, 0))
    if kind == 3:
        return Lambda(lambda x, a, b: torch.where(b(x) > 0, a(x), b(x)) + 2 * a(x), path, other)
    return Lambda(lambda x, a, b: a(x) * (b(x).sigmoid() + 0.5), path, other)


def network(seed: int) -> tuple[nn.Module, bool]:
    """A random network, and whether it is bounded by construction."""
    source = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        is_bounded = source.random() < 0.5
        body = bounded(source, 2) if is_bounded else unbounded(source, 2)
        model = nn.Sequential(nn.Linear(4, WIDTH), body, nn.Linear(WIDTH, 2))
    return model.double().eval(), is_bounded


def main() -> int:
    """Run the search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    proven, total, wrong = 0, 0, []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        model, is_bounded = network(seed)
        is_proven = prove(model, torch.randn(1, 4, dtype=torch.float64)).output
        total += is_bounded
        proven += is_bounded and is_proven
        wrong += [seed] if is_proven and not is_bounded else []
    rest = arguments.count - total
    print(f"proven: {proven} of {total} bounded networks, {len(wrong)} of {rest} unbounded ones {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
