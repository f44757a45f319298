"""Inputs of boundaries, their results, and a brute force in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.ops import norm_add_norm

KINDS = (None, "rms", "layer")


@dataclasses.dataclass
class Boundary:
    """A call of the op and its gradients.

    Args:
        out_norm: As the operator takes it.
        in_norm: As the operator takes it.
        shape: Of the stream.
        dtype: Of the branch's output, and of the stream that is read.
        gains: Whether the norms have gains.
        shifts: Whether they have shifts.
        scales: Whether rows are scaled after either norm.
        branch: ``number``, ``scalar`` or ``channel``.
        dropout: The chance.
        unit_offset: As the operator takes it.
        skip: Multiplies the stream.
        stream_dtype: As the operator takes it.
        mean: Added to every element of both inputs.
        device: Where the tensors are.
        parameter_dtype: Of gains, shifts and scales.
    """

    out_norm: str | None = "rms"
    in_norm: str | None = "rms"
    shape: tuple[int, ...] = (5, 12)
    dtype: torch.dtype = torch.float32
    gains: bool = True
    shifts: bool = False
    scales: bool = False
    branch: str = "number"
    dropout: float = 0.0
    unit_offset: bool = False
    skip: float = 1.0
    stream_dtype: torch.dtype | None = None
    mean: float = 0.0
    device: str = "cpu"
    parameter_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        width, kept = self.shape[-1], self.parameter_dtype or self.dtype

        def random(*shape: int, dtype: torch.dtype = kept) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype)

        self.tensors = {name: random(*self.shape, dtype=self.dtype) + self.mean for name in ("x", "f")}
        self.seeds = [random(*self.shape, dtype=self.dtype) for _ in range(2)]
        for side in ("out", "in"):
            if getattr(self, f"{side}_norm"):
                if self.gains:
                    self.tensors[f"{side}_weight"] = 1 - self.unit_offset + random(width) / 4
                if self.shifts:
                    self.tensors[f"{side}_bias"] = random(width) / 4
            if self.scales and (side == "out" or self.in_norm):
                self.tensors[f"{side}_scale"] = random(*self.shape[:-1]).abs() + 0.5
        if self.branch != "number":
            self.tensors["branch_scale"] = random(*([width] if self.branch == "channel" else [])) / 4 + 0.7

    def options(self) -> dict:
        options = {
            "out_norm": self.out_norm, "in_norm": self.in_norm, "unit_offset": self.unit_offset, "out_eps": 1e-6,
            "in_eps": 1e-5, "skip_scale": self.skip, "dropout": self.dropout, "seed": 2**40 + 7,
            "stream_dtype": self.stream_dtype,
        }  # fmt: skip
        return options if self.branch != "number" else options | {"branch_scale": 0.7}

    def leaves(self, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        return {name: t.to(dtype or t.dtype, copy=True).requires_grad_() for name, t in self.tensors.items()}

    def _results(self, call: Callable[..., tuple[Tensor, Tensor]], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        x, f, *rest = leaves.values()
        stream, y = call(x, f, **dict(zip(list(leaves)[2:], rest, strict=True)))
        outputs = [stream] if self.in_norm is None else [stream, y]
        seeds = [seed.to(out.dtype) for seed, out in zip(self.seeds, outputs, strict=False)]
        grads = torch.autograd.grad(outputs, list(leaves.values()), seeds)
        values = {"stream": stream.detach(), "y": y.detach()}
        return values | {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}

    def results(self, backend: str | None = None, wrap: Callable = lambda call: call) -> dict[str, Tensor]:
        """Results and gradients of the op, wrapped by ``wrap``; by the reference on a CPU unless a backend is given."""
        options, backend = self.options(), backend or ("reference" if self.device == "cpu" else "auto")

        def call(x, f, **tensors):
            return norm_add_norm(x, f, **tensors, **options, backend=backend)

        return self._results(wrap(call), self.leaves())

    def expected(self) -> dict[str, Tensor]:
        """Results and gradients of the definition, in float64 without rounding."""
        return self._results(self._define, self.leaves(torch.float64))

    def _define(self, x: Tensor, f: Tensor, **tensors: Tensor) -> tuple[Tensor, Tensor]:
        def normed(v: Tensor, side: str, eps: float) -> Tensor:
            kind, weight, bias = (
                getattr(self, f"{side}_norm"),
                tensors.get(f"{side}_weight"),
                tensors.get(f"{side}_bias"),
            )
            if weight is not None and self.unit_offset:
                weight = weight + 1
            if kind == "layer":
                v = F.layer_norm(v, v.shape[-1:], weight, bias, eps)
            elif kind == "rms":
                v = F.rms_norm(v, v.shape[-1:], weight, eps)
                v = v if bias is None else v + bias
            scale = tensors.get(f"{side}_scale")
            return v if scale is None else v * scale[..., None]

        u = normed(f, "out", 1e-6)
        if self.dropout:
            kept = torch.from_numpy(keep(2**40 + 7, u.numel() // u.shape[-1], u.shape[-1], self.dropout))
            u = u * kept.reshape(u.shape).to(u.device) / (1 - self.dropout)
        stream = self.skip * x + tensors.get("branch_scale", 0.7) * u
        return stream, normed(stream, "in", 1e-5)

    def tolerance(self) -> float:
        """Error that rounding explains, relative to the largest entry of each result.

        A result is rounded once, and depends on the stream, rounded once, by a derivative of order one: 2 units in the
        last place, and as much again for the sums of gradients. Sums of 16384 terms lose some digits more.
        """
        coarsest = max((t.dtype for t in self.tensors.values()), key=lambda dtype: torch.finfo(dtype).eps)
        eps = torch.finfo(coarsest).eps
        return 1e-11 if eps < 1e-12 else 4 * eps if eps > 1e-4 else 2e-5

    def compare(self, backend: str | None = None, wrap: Callable = lambda call: call) -> None:
        """Assert that the op agrees with the brute force."""
        results, expected = self.results(backend, wrap), self.expected()
        assert results["stream"].dtype == (self.stream_dtype or self.dtype) and results["y"].shape == self.shape
        for name, value in expected.items():
            # A norm over one feature, or LayerNorm over two, returns a sign, whose gradient vanishes, and the gradient
            # of one number for all is a sum whose terms cancel: rounding leaves what it leaves of one.
            least = 1 if self.shape[-1] <= 2 or not value.dim() else 1e-2
            error = (results[name].double() - value).abs().max() / value.abs().max().clamp(min=least)
            assert error <= self.tolerance(), f"{name} of {self} is off by {error:.1e}, allowed {self.tolerance():.1e}"


def keep(seed: int, rows: int, width: int, dropout: float) -> np.ndarray:
    """The elements that dropout keeps, computed with NumPy's 32-bit integers."""

    def mix(h: np.ndarray) -> np.ndarray:
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
        return h ^ (h >> np.uint32(16))

    low, high = (np.array([part], np.uint32) for part in (seed & 0xFFFFFFFF, seed >> 32))
    row, col = np.arange(rows, dtype=np.uint32)[:, None], np.arange(width, dtype=np.uint32)
    first, second = mix(row ^ mix(low)), mix(row ^ mix(high ^ np.uint32(0x9E3779B9)))
    return (mix(mix(col ^ first) + second) >> np.uint32(8)).astype(np.float64) / 2**24 >= dropout


def variants(**common) -> Iterator[Boundary]:
    """Every pair of norms with every other option."""
    options = (
        {},
        {"gains": False},
        {"shifts": True, "branch": "channel"},
        {"unit_offset": True, "branch": "scalar", "skip": 0.8},
        {"shifts": True, "scales": True, "branch": "scalar"},
        {"dropout": 0.3, "skip": 1.3},
        {"dropout": 0.3, "shifts": True, "scales": True, "branch": "channel", "unit_offset": True},
    )
    for out_norm, in_norm in itertools.product(KINDS, KINDS):
        for option in options:
            yield Boundary(out_norm, in_norm, **(option | common))
