"""Graphs, inputs and a brute-force aggregation in float64, for the tests of every backend."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate

EDGES = ("none", "dense", "linear", "table")
TEMPERATURES = (-20.0, -1.0, 0.0, 1e-3, 1.0, 20.0, math.inf, -math.inf)
POWERS = (-3.0, -1.0, 0.0, 1e-3, 0.3, 1.0, 2.4, 8.0)
EXPONENTS = [("softmax", t) for t in TEMPERATURES] + [("power", p) for p in POWERS]


def graph(num_src=13, num_dst=13, num_edges=70, seed=0, hub=True) -> Tensor:
    """Random edges. Node 3 has no arriving edge; with a hub, a third of all edges arrive at node 1."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(0, num_src, (num_edges,), generator=generator)
    dst = torch.randint(0, num_dst, (num_edges,), generator=generator)
    dst[dst == 3] = 4
    if hub:
        dst[: num_edges // 3] = 1
        src[-num_edges // 3 :] = 2
    return torch.stack([src, dst])


def brute(kind: str, message: Tensor, edge_index: Tensor, exponent: Tensor, num_dst: int) -> Tensor:
    """The aggregation row by row, by its definition."""
    rows = []
    for i in range(num_dst):
        m = message[edge_index[1] == i]
        if not len(m):
            rows.append(message.new_zeros(message.shape[1]))
        elif kind == "softmax":
            if exponent.isinf():
                rows.append(m.amax(0) if exponent > 0 else m.amin(0))
            else:
                rows.append((m * torch.softmax(exponent * m, 0)).sum(0))
        elif exponent == 0:
            rows.append(m.log().mean(0).exp())
        else:
            log_mean = torch.logsumexp(exponent * m.log(), 0) - math.log(len(m))
            rows.append((log_mean / exponent).exp())
    return torch.stack(rows)


@dataclass
class Inputs:
    """The inputs of an aggregation and the gradient of its result."""

    kind: str
    exponent: float
    edge: str = "none"
    edge_index: Tensor | None = None
    num_src: int = 13
    num_dst: int = 13
    channels: int = 5
    scale: float = 1.0
    dtype: torch.dtype = torch.float32
    relu: bool = True
    eps: float = 1e-2
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.edge_index is None:
            self.edge_index = graph(self.num_src, self.num_dst)
        generator = torch.Generator().manual_seed(1)
        count = self.edge_index.shape[1]

        def random(*shape: int) -> Tensor:
            return (torch.randn(shape, generator=generator) * self.scale).to(self.dtype)

        self.eps *= self.scale
        self.x = random(self.num_src, self.channels)
        self.dense, self.features = random(count, self.channels), random(count, 3) / self.scale
        self.weight, self.bias, self.table = random(self.channels, 3), random(self.channels), random(4, self.channels)
        self.types = torch.randint(0, 4, (count,), generator=generator)
        # Positive, so that the gradient of the exponent is a sum without cancellation.
        self.seed = torch.rand(self.num_dst, self.channels, generator=generator).to(self.dtype) + 0.5

    def leaves(self, dtype: torch.dtype, device: str) -> dict[str, Tensor]:
        named = {"x": self.x, "exponent": torch.tensor(self.exponent, dtype=self.dtype)}
        extra = {"none": (), "dense": ("dense",), "linear": ("weight", "bias"), "table": ("table",)}[self.edge]
        named |= {name: getattr(self, name) for name in extra}
        return {name: value.to(device, dtype).requires_grad_() for name, value in named.items()}

    def expected(self) -> dict[str, Tensor]:
        """The value and every gradient, in float64."""
        assert self.edge_index is not None
        leaves = self.leaves(torch.float64, "cpu")
        before = leaves["x"][self.edge_index[0]]
        if self.edge == "dense":
            before = before + leaves["dense"]
        elif self.edge == "linear":
            before = before + self.features.double() @ leaves["weight"].T + leaves["bias"]
        elif self.edge == "table":
            before = before + leaves["table"][self.types]
        message = (before.relu() if self.relu else before) + self.eps
        y = brute(self.kind, message, self.edge_index, leaves["exponent"], self.num_dst)
        return self._with_gradients(y, leaves)

    def results(self, backend: str = "auto", piece: int = 4) -> dict[str, Tensor]:
        """The value and every gradient by a backend; rows longer than 4 edges are split."""
        assert self.edge_index is not None
        leaves = self.leaves(self.dtype, self.device)
        edge = {
            "none": lambda: None,
            "dense": lambda: leaves["dense"],
            "linear": lambda: LinearEdge(self.features.to(self.device), leaves["weight"], leaves["bias"]),
            "table": lambda: TableEdge(self.types.to(self.device), leaves["table"]),
        }[self.edge]()
        aggregate = softmax_aggregate if self.kind == "softmax" else powermean_aggregate
        neighbours = Neighbours(self.edge_index.to(self.device), self.num_src, self.num_dst, piece=piece)
        y = aggregate(
            leaves["x"], neighbours, leaves["exponent"], edge, relu=self.relu, eps=self.eps, backend=backend
        )  # fmt: skip
        return self._with_gradients(y, leaves)

    def _with_gradients(self, y: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        differentiated = {
            name: tensor for name, tensor in leaves.items() if name != "exponent" or math.isfinite(self.exponent)
        }
        if self.kind == "power" and self.exponent == 0:
            differentiated.pop("exponent")  # the brute force computes the limit, which has no gradient
        grads = torch.autograd.grad((y * self.seed.to(y)).sum(), list(differentiated.values()), allow_unused=True)
        return {"y": y.detach(), **dict(zip(differentiated, grads, strict=True))}

    def compare(self, backend: str = "auto", tolerance: float | None = None) -> None:
        """Assert that value and gradients agree with the brute force, relative to the largest entry of each."""
        tolerance = tolerance or (1e-10 if self.dtype == torch.float64 else 3e-5)
        results, expected = self.results(backend), self.expected()
        assert results.keys() == expected.keys()
        for name, truth in expected.items():
            assert results[name].shape == truth.shape
            error = (results[name].double().cpu() - truth).abs().max()
            largest = truth.abs().max().clamp(min=1e-30)
            allowed = tolerance
            if name == "exponent":
                # A variance, which may be tiny compared with the spread of the messages.
                largest += 1e-2 * self.scale ** (2 if self.kind == "softmax" else 1)
                allowed = max(tolerance, 3e-4) if backend == "factorised" and self.dtype == torch.float32 else tolerance
            label = f"{self.kind} {self.exponent}, edges {self.edge}, {self.dtype}, scale {self.scale} by {backend}"
            assert error <= allowed * largest, f"{label}: {name} is wrong by {error / largest:.1e}"
