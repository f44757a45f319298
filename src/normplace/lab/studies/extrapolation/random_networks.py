"""Random feed-forward networks, with and without norms, to test certificates on."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from normplace._shared.seeding import seeded

INPUTS, WIDTH = 4, 8
NORMS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.LayerNorm(WIDTH),
    lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    lambda: nn.RMSNorm(WIDTH, eps=1e-6),
    lambda: nn.GroupNorm(2, WIDTH),
    lambda: nn.BatchNorm1d(WIDTH),
)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus)
SATURATING: tuple[Callable[[], nn.Module], ...] = (nn.Tanh, nn.Sigmoid, nn.Softsign)


class RandomLayer(nn.Module):
    """A linear map, perhaps a norm on either side of the activation, perhaps a gate, perhaps a skip."""

    def __init__(self, source: random.Random, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, WIDTH)
        self.gate = nn.Linear(inputs, WIDTH) if source.random() < 0.2 else None
        pool = SATURATING if source.random() < 0.1 else ACTIVATIONS
        self.activation = source.choice(pool)()
        self.before = source.choice(NORMS)() if source.random() < 0.25 else nn.Identity()
        self.after = source.choice(NORMS)() if source.random() < 0.1 else nn.Identity()
        self.skips = inputs == WIDTH and source.random() < 0.3

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        h = self.activation(self.before(self.linear(x)))
        if self.gate is not None:
            h = h * self.gate(x)
        h = self.after(h)
        return x + h if self.skips else h


def random_network(seed: int) -> nn.Module:
    """A network of one to four random layers in float64, in evaluation mode."""
    source = random.Random(seed)
    with seeded(seed, gpus=True):
        layers = [RandomLayer(source, INPUTS)]
        layers += [RandomLayer(source, WIDTH) for _ in range(source.randrange(4))]
        return nn.Sequential(*layers, nn.Linear(WIDTH, 1)).double().eval()


def search_growth(network: nn.Module, generator: torch.Generator) -> float:
    """The largest growth, in decades per four decades of distance, that an ascent over directions finds.

    Directions are changed to increase the output at distance 1e8; the growth of the best is measured from 1e4. A
    bounded network has 0 up to rounding, a linear one 4.
    """
    near, far, steps = 1e4, 1e8, 30
    directions = torch.randn(256, INPUTS, generator=generator, dtype=torch.float64)
    axes = torch.eye(INPUTS, dtype=torch.float64)
    directions = torch.cat([directions, axes, -axes])
    best = -torch.inf
    for _ in range(steps):
        units = (directions / directions.norm(dim=1, keepdim=True)).requires_grad_()
        size = (network(far * units).abs() + 1e-300).log10()
        with torch.no_grad():
            # A zero of the output near the data would count as growth, so one unit is added there.
            growth = size - (network(near * units).abs() + 1).log10()
        best = max(best, float(growth.max()))
        (gradient,) = torch.autograd.grad(size.sum(), units)
        length = gradient.norm(dim=1, keepdim=True)
        directions = (units + 0.1 * gradient / length.clamp(min=1e-300)).detach()
    return best
