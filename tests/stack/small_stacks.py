"""Small stacks of blocks, and the comparison of fused with separate boundaries."""

from __future__ import annotations

import torch
from torch import nn

from normplace import Residual, fusion_mode

DIM = 6


def results(model, run):
    """The output and the gradient of every parameter."""
    out = run()
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    parameters = list(model.parameters())
    return [out, *torch.autograd.grad((out * direction).sum(), parameters, allow_unused=True, materialize_grads=True)]


def compare(model, run, rtol=1e-9, atol=1e-11):
    """Compare fused with separate results."""
    with fusion_mode("never"):
        expected = results(model, run)
    with fusion_mode("always"):
        actual = results(model, run)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def perturbed(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def blocks(placement="peri", count=3, norm="rms", **options):
    generator = torch.Generator().manual_seed(0)
    made = nn.ModuleList(
        Residual(nn.Linear(DIM, DIM), DIM, placement, norm, layer, count, **options) for layer in range(1, count + 1)
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def stream(*shape, dtype=torch.float64):
    return torch.randn(*(shape or (4, DIM)), generator=torch.Generator().manual_seed(2), dtype=dtype)


def hook_norm(block, seen):
    block.output_norm.register_forward_hook(lambda *_: seen.append("called"))


def hook_next(block, seen):
    block.input_norm.register_forward_pre_hook(lambda *_: seen.append("called"))


class Own(Residual):
    def forward(self, x, *args, **kwargs):
        return 2 * super().forward(x, *args, **kwargs)
