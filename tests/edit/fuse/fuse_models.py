"""Small models of Hugging Face and hand-written ones that the tests of ``fuse`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from tests.analysis.architectures.every import ARCHITECTURES
from torch import Tensor, nn

from normplace.edit.fuse import forms as fuse_forms
from normplace.edit.fuse import runtime as fuse_runtime
from normplace.edit.fuse.runtime import SUMS, FusedForward, FusedSum

WIDTH = 16
CALLS = {architecture.name: architecture for architecture in ARCHITECTURES if not architecture.model}


def build(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict]:
    """A small model of Hugging Face with random gains, and the keyword arguments of a call."""
    case = CALLS[name]
    model = case.build().to(dtype)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # gains and biases, which start at one and zero
                parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) / 4)
    inputs = {
        key: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in case.inputs.items()
    }
    return model, inputs


def first_output(result) -> Tensor:
    """The hidden states of a result of Hugging Face, or the result."""
    return result if isinstance(result, Tensor) else result[0]


def gradients(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of a run, and the gradients of a fixed combination of it."""
    model.zero_grad()
    output = run(model)
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).reshape(output.shape).to(output)
    (output * weights).sum().backward()
    values = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return output.detach(), values


def agree(one: tuple[Tensor, dict], other: tuple[Tensor, dict], tolerance: float = 1e-5) -> None:
    """Assert that outputs and all gradients agree, relative to the largest entry of each."""
    assert one[1].keys() == other[1].keys() and one[1]
    for name, value in {"output": other[0], **other[1]}.items():
        found = one[0] if name == "output" else one[1][name]
        error = (found.double() - value.double()).abs().max() / value.double().abs().max().clamp(min=1e-3)
        assert error <= tolerance, f"{name} differs by {error:.1e}"


def fused_parts(model: nn.Module) -> Iterator[FusedSum | FusedForward]:
    """The fused sums and norms of a model."""
    for module in model.modules():
        yield from vars(module).get(SUMS, ())
        if isinstance(vars(module).get("forward"), FusedForward):
            yield vars(module)["forward"]


def count_kernels(monkeypatch) -> dict[str, int]:
    """The numbers of sums and norms that run as one kernel from now on."""
    counts = {"sum": 0, "norm": 0}
    for module, name, key in ((fuse_runtime, "norm_add_norm", "sum"), (fuse_forms, "feature_norm", "norm")):
        plain = getattr(module, name)

        def counted(*args, plain=plain, key=key, **kwargs):
            counts[key] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)
    return counts


class RMSNorm(nn.Module):
    """As Hugging Face writes it for Llama."""

    def __init__(self, width: int = WIDTH, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.linspace(0.5, 1.5, width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))


class PeriBlock(nn.Module):
    """Norms around two branches; the sums are written in different ways."""

    def __init__(self, norm: Callable[[], nn.Module] = RMSNorm):
        super().__init__()
        self.before, self.after, self.before2, self.after2 = (norm() for _ in range(4))
        self.first, self.second = mlp(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = self.after(self.first(self.before(x))) + x
        branch = self.second(self.before2(x))
        branch = self.after2(branch)
        branch += x
        return branch


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module, norm: Callable[[], nn.Module] = RMSNorm):
        super().__init__()
        self.blocks, self.final, self.head = nn.ModuleList(blocks), norm(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


def peri(norm: Callable[[], nn.Module] = RMSNorm) -> Stack:
    """Two blocks with norms around their branches, and a final norm."""
    torch.manual_seed(0)
    return Stack(PeriBlock(norm), PeriBlock(norm), norm=norm)


def rows(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 5)), WIDTH, generator=torch.Generator().manual_seed(1))
