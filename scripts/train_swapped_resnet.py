"""Train a residual network with per-sample gradients after its batch norms were swapped for group norms.

Usage: python scripts/train_swapped_resnet.py [--steps 200]

A small ResNet with batch norms learns to classify ten random patterns, shifted, scaled and under noise. ``npl.swap``
replaces its batch norms, and the copy is trained further with clipped per-sample gradients (torch.func), which batch
norms do not allow.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

import normplace as npl

CLIP, NOISE, BATCH = 1.0, 0.3, 32


class Block(nn.Module):
    """Two convolutions, each with a batch norm, and a projected skip where the width changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.skip = nn.Identity()
        if before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to the skip."""
        return F.relu(self.skip(x) + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    """Images of 16 by 16 pixels to ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and their classes."""
    patterns = torch.randn(10, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.randint(10, (count,), generator=generator)
    shifts = torch.randint(0, 11, (count, 2), generator=generator)
    scale = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
    x = NOISE * torch.randn(count, 1, 16, 16, generator=generator)
    for image, label, (row, column), size in zip(x, y, shifts.tolist(), scale, strict=True):
        image[:, row : row + 6, column : column + 6] += size * patterns[label]
    return x, y


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of correct answers, in evaluation mode."""
    return float((model.eval()(x).argmax(1) == y).double().mean())


def per_sample_gradients(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient of the loss of every sample."""

    def loss(parameters: dict[str, Tensor], sample: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (sample[None],)), target[None])

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return vmap(grad(loss), (None, 0, 0))(parameters, x, y)


def clipped_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    """A step along the mean of the per-sample gradients, each clipped to length one."""
    gradients = per_sample_gradients(model, x, y)
    lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]).norm(dim=0)
    factors = (CLIP / lengths).clamp(max=1) / len(x)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.einsum("n,n...->...", factors, gradients[name])
    optimizer.step()


def main() -> None:
    """Train with batch norms, swap, train with per-sample gradients, and print the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    model, generator = ResNet(), torch.Generator().manual_seed(1)
    test = draw(2000, torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        x, y = draw(4 * BATCH, generator)
        optimizer.zero_grad()
        F.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
    print(f"batch norm, {steps} steps: {accuracy(model, *test):.1%} of held-out images", flush=True)
    try:
        per_sample_gradients(model.train(), *draw(4, generator))
    except (RuntimeError, ValueError) as error:
        print(f"per-sample gradients with batch norm: {str(error).splitlines()[0]}", flush=True)
    for norm in ("group", "layer"):
        swapped = npl.swap(model, draw(256, generator)[0], norm=norm)
        start = accuracy(swapped, *test)
        optimizer = torch.optim.SGD(swapped.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            clipped_step(swapped.train(), optimizer, *draw(BATCH, generator))
        print(
            f"{norm} norm: {start:.1%} after the swap, {accuracy(swapped, *test):.1%} after {steps} steps with clipped "
            "per-sample gradients",
            flush=True,
        )


if __name__ == "__main__":
    main()
