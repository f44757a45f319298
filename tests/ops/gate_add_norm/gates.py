"""Inputs of gate, add, norm and modulation, their results, and a brute force in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops import gate_add_norm

FACTORS = ("gate", "scale", "shift")


@dataclass
class GateCase:
    """A call of the op and its gradients.

    Args:
        norm: As the operator takes it.
        shape: Of the stream.
        dtype: Of the branch's output and of the factors.
        x_dtype: Of the stream that is read, and of the new stream; ``dtype`` by default.
        y_dtype: As the operator takes it.
        leading: Dimensions of x that the factors distinguish.
        factors: Which factors there are.
        affine: Whether the norm has a gain and a bias.
        branch: Whether there is a branch.
        rounding: As the operator takes it.
        device: Where the tensors are.
    """

    norm: str | None = "layer"
    shape: tuple[int, ...] = (3, 5, 12)
    dtype: torch.dtype = torch.float32
    x_dtype: torch.dtype | None = None
    y_dtype: torch.dtype | None = None
    leading: int = 1
    factors: tuple[str, ...] = FACTORS
    affine: bool = False
    branch: bool = True
    rounding: str = "once"
    device: str = "cpu"

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype)

        width, x_dtype = self.shape[-1], self.x_dtype or self.dtype
        self.tensors = {"x": random(*self.shape, dtype=x_dtype)}
        if self.branch:
            self.tensors["f"] = random(*self.shape)
        self.seeds = [random(*self.shape, dtype=x_dtype), random(*self.shape, dtype=self.y_dtype or self.dtype)]
        # As a diffusion Transformer computes them: slices of one tensor.
        wide = random(*self.shape[: self.leading], 3 * width) / 2
        for name, factor in zip(FACTORS, wide.chunk(3, -1), strict=True):
            has_subject = self.branch if name == "gate" else self.norm is not None
            if name in self.factors and has_subject:
                self.tensors[name] = factor
        if self.affine and self.norm is not None:
            self.tensors |= {"weight": 1 + random(width) / 4, "bias": random(width) / 4}

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        return {name: t.detach().to(dtype or t.dtype).requires_grad_() for name, t in self.tensors.items()}

    def _results(self, call: Callable[..., tuple[Tensor, Tensor]], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        stream, y = call(**leaves)
        outputs = [stream] if self.norm is None else [stream, y] if self.branch else [y]
        seeds = self.seeds if self.branch else self.seeds[1:]
        seeds = [seed.to(out.dtype) for seed, out in zip(seeds, outputs, strict=False)]
        grads = torch.autograd.grad(outputs, list(leaves.values()), seeds)
        values = {"stream": stream.detach(), "y": y.detach()}
        return values | {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}

    def options(self) -> dict:
        return {"norm": self.norm, "eps": 1e-5, "y_dtype": self.y_dtype, "rounding": self.rounding}

    def results(self, backend: str = "reference", wrap: Callable = lambda call: call) -> dict[str, Tensor]:
        """Results and gradients of the op, wrapped by ``wrap``."""
        options = self.options()

        def call(x, f=None, **tensors):
            return gate_add_norm(x, f, **tensors, **options, backend=backend)

        return self._results(wrap(call), self.leaves())

    def expected(self) -> dict[str, Tensor]:
        """Results and gradients of the definition, in float64 without rounding."""
        return self._results(self.define, self.leaves(torch.float64))

    def define(self, x: Tensor, f: Tensor | None = None, **tensors: Tensor) -> tuple[Tensor, Tensor]:
        """The same by separate operators of PyTorch."""
        missing = (1,) * (len(self.shape) - 1 - self.leading)
        gate, scale, shift = (
            tensors[name].reshape(*self.shape[: self.leading], *missing, self.shape[-1]) if name in tensors else None
            for name in FACTORS
        )
        if f is not None:
            x = x + (f if gate is None else gate * f)
        if self.norm is None:
            return x, x
        weight, bias = tensors.get("weight"), tensors.get("bias")
        if self.norm == "layer":
            y = F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
        else:
            y = F.rms_norm(x, x.shape[-1:], weight, 1e-5)
            y = y if bias is None else y + bias
        y = y if scale is None else y * (1 + scale)
        return x, y if shift is None else y + shift

    def compare(self, backend: str = "reference", wrap: Callable = lambda call: call) -> None:
        """Assert that the op agrees with the brute force.

        A result is rounded at most once per step, and depends on the rounded stream by a derivative of order one.
        """
        results, expected = self.results(backend, wrap), self.expected()
        eps = max(torch.finfo(tensor.dtype).eps for tensor in self.tensors.values())
        tolerance = 1e-11 if eps < 1e-12 else 4 * eps if eps > 1e-4 else 2e-5
        assert results["stream"].dtype == (self.x_dtype or self.dtype) and results["y"].shape == self.shape
        assert self.norm is None or results["y"].dtype == (
            self.y_dtype or (self.dtype if self.branch else self.tensors["x"].dtype)
        )
        for name, value in expected.items():
            # A norm over one feature, or LayerNorm over two, returns a sign, whose gradient vanishes.
            least = 1 if self.shape[-1] <= 2 else 1e-2
            error = (results[name].double() - value).abs().max() / value.abs().max().clamp(min=least)
            assert error <= tolerance, f"{name} of {self} is off by {error:.1e}, allowed {tolerance:.1e}"


def variants(**common) -> Iterator[GateCase]:
    """Every norm with every choice of factors and other options."""
    options = (
        {},
        {"affine": True},
        {"factors": ()},
        {"factors": ("gate",), "affine": True},
        {"factors": ("scale",), "affine": True},
        {"factors": ("gate", "shift")},
        {"leading": 0},
        {"leading": 2, "affine": True},
        {"branch": False},
        {"branch": False, "affine": True, "factors": ("scale", "shift")},
    )
    for norm, option in itertools.product(("layer", "rms", None), options):
        if norm is not None or option.get("branch", True):
            yield GateCase(norm, **(option | common))
