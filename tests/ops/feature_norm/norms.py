"""Inputs of norms, their results, and a brute force in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.ops import feature_norm


@dataclass
class NormCase:
    """A call of the op and its gradients."""

    norm: str = "rms"
    shape: tuple[int, ...] = (5, 12)
    dtype: torch.dtype = torch.float32
    gain: bool = True
    bias: bool = False
    unit_offset: bool = False
    rounding: str = "once"
    device: str = "cpu"

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, self.dtype)

        width = self.shape[-1]
        self.x, self.seed = random(*self.shape), random(*self.shape)
        self.weight = 1 - self.unit_offset + random(width) / 4 if self.gain else None
        self.shift = random(width) / 4 if self.bias else None

    def results(self, backend: str) -> list[Tensor]:
        """The result and the gradients of the op."""
        return self._with_gradients(
            lambda x, *rest: feature_norm(
                x, *rest, norm=self.norm, unit_offset=self.unit_offset, rounding=self.rounding, backend=backend
            ),
            None,
        )

    def expected(self) -> list[Tensor]:
        """The result and the gradients of the definition, in float64 without rounding."""
        return self._with_gradients(self._define, torch.float64)

    def _with_gradients(self, call, dtype: torch.dtype | None) -> list[Tensor]:
        tensors = (self.x, self.weight, self.shift)
        leaves = [None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_() for t in tensors]
        y = call(*leaves)
        used = [leaf for leaf in leaves if leaf is not None]
        return [y.detach(), *torch.autograd.grad(y, used, self.seed.to(y.dtype))]

    def _define(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        v = x - x.mean(-1, keepdim=True) if self.norm == "layer" else x
        v = v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        v = v if weight is None else v * (weight + self.unit_offset)
        return v if bias is None else v + bias

    def compare(self, backend: str) -> None:
        """Assert that the op agrees with the brute force.

        A result is rounded at most twice, and a gradient is a sum of at most 300 such terms of random sign.
        """
        eps = torch.finfo(self.dtype).eps
        tolerance = 4 * eps if eps > 1e-4 else 2e-5
        for value, truth in zip(self.results(backend), self.expected(), strict=True):
            # A norm over one feature, or LayerNorm over two, returns a sign, whose gradient vanishes.
            least = 1 if self.shape[-1] <= 2 else 1e-2
            error = (value.double() - truth).abs().max() / truth.abs().max().clamp(min=least)
            assert value.dtype == self.dtype and error <= tolerance, f"{self} is off by {error:.1e}"


def variants(**common) -> Iterator[NormCase]:
    """Both norms with every option."""
    for norm, gain, bias, offset, rounding in itertools.product(
        ("rms", "layer"), (False, True), (False, True), (False, True), ("once", "gain")
    ):
        if gain or not offset:
            yield NormCase(norm, gain=gain, bias=bias, unit_offset=offset, rounding=rounding, **common)
