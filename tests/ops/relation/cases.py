"""Inputs and brute-force relations in float64, for the tests of every backend."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops import relation_pairwise, relation_scan

ACTIVATIONS = {"exp": torch.exp, "relu": F.relu, "gelu": F.gelu, "elu": F.elu}


def norm(x: Tensor, eps: float) -> Tensor:
    """The norm by its definition; zero if all entries are equal and eps is zero."""
    x = x - x[..., :1]
    x = x - x.mean(-1, keepdim=True)
    variance = x.square().mean(-1, keepdim=True) + eps
    return torch.where(variance > 0, x / torch.where(variance > 0, variance, 1).sqrt(), 0)


@dataclasses.dataclass
class Case:
    """A relation and its inputs."""

    shape: tuple[int, int, int] = (2, 37, 12)
    norm: str = "joint"
    activation: str = "exp"
    post_norm: bool = False
    eps: float = 1e-5
    causal: bool = True
    heads: int = 1
    mean: bool = True
    masked: bool = False
    scale: float = 1.0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        self.a, self.b, self.grad = (torch.randn(self.shape, generator=generator) for _ in range(3))
        self.a, self.b = ((x * self.scale).to(self.dtype) for x in (self.a, self.b))
        self.mask = torch.rand(self.shape[:2], generator=generator) > 0.3 if self.masked else None

    @property
    def options(self) -> dict[str, Any]:
        mask = None if self.mask is None else self.mask.to(self.device)
        names = ("norm", "post_norm", "eps", "causal", "heads", "mean")
        return {name: getattr(self, name) for name in names} | {"mask": mask}

    def brute(self, a: Tensor, b: Tensor) -> Tensor:
        """The relation by its definition, with all pairs at once."""
        (batch, length, _), split = a.shape, (self.heads, -1)
        a, b = a.unflatten(-1, split), b.unflatten(-1, split)
        if self.norm == "separate":
            a, b = norm(a, self.eps), norm(b, self.eps)
        x = a[:, :, None] + b[:, None]
        x = norm(x, self.eps) if self.norm == "joint" else x
        mask = torch.ones(batch, length, dtype=torch.bool) if self.mask is None else self.mask
        pairs = mask[:, :, None] & mask[:, None, :]
        pairs = pairs.tril() if self.causal else pairs
        y = torch.where(pairs[..., None], ACTIVATIONS[self.activation](x).flatten(-2), 0).sum(2)
        y = y / pairs.sum(2, keepdim=True).clamp(min=1) if self.mean else y
        return norm(y, self.eps) if self.post_norm else y

    def expected(self) -> dict[str, Tensor]:
        """The value and both gradients, in float64."""
        return self._with_gradients(self.brute, self.a.double(), self.b.double())

    def results(self, op: str, backend: str = "auto") -> dict[str, Tensor]:
        """The value and both gradients by a backend; ``op`` is ``scan`` or ``pairwise``."""

        def run(a: Tensor, b: Tensor) -> Tensor:
            if op == "scan":
                return relation_scan(a, b, backend=backend, **self.options)
            return relation_pairwise(a, b, activation=self.activation, backend=backend, **self.options)

        return self._with_gradients(run, self.a.to(self.device), self.b.to(self.device))

    def _with_gradients(self, run, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        y = run(a, b)
        da, db = torch.autograd.grad((y * self.grad.to(y)).sum(), (a, b))
        return {"y": y.detach(), "a": da, "b": db}

    def compare(self, op: str, backend: str = "auto", tolerance: float = 1e-5, of_gradients: float = 3e-5) -> None:
        """Assert that value and gradients agree with the brute force, relative to the largest entry of each."""
        results, expected = self.results(op, backend), self.expected()
        for name, truth in expected.items():
            assert results[name].shape == truth.shape
            assert results[name].dtype == self.dtype
            error = (results[name].double().cpu() - truth).abs().max() / truth.abs().max().clamp(min=1e-30)
            allowed = tolerance if name == "y" else of_gradients
            assert error <= allowed, f"{op} by {backend}, {self}: {name} is wrong by {error:.1e}"


def cancelling(**options: Any) -> Case:
    """Half the keys nearly cancel a later query, and one cancels it up to a constant."""
    case = Case(**options)
    half = case.shape[1] // 2
    left = 0.02 * case.b[:, :half]
    case.b[:, :half] = -case.a[:, half : 2 * half] + left
    case.b[:, 0] = -case.a[:, half]
    return case


def kinked(**options: Any) -> Case:
    """ReLU with pairs exactly at zero in every channel: pairs with equal sums, and two constant rows."""
    case = Case(activation="relu", **options)
    half, step = case.shape[1] // 2, 1 / 1024
    rows = case.a[:, half : 2 * half]
    # Their means are on both sides of 1, where rounding differs.
    rows = ((rows - rows.mean(-1, keepdim=True) + 1 + step / 2) / step).round() * step
    case.a[:, half : 2 * half], case.b[:, :half] = rows, step - rows
    case.a[:, 0], case.b[:, 0] = 2.0, 0.3
    return case


def distant(**options: Any) -> Case:
    """Rows whose mean is ten thousand times their deviation, some of them constant."""
    case = Case(norm="separate", **options)
    case.a, case.b = case.a + 1e4, case.b - 1e4
    case.a[:, ::3], case.b[:, ::2] = -3.3, 2.7
    return case
