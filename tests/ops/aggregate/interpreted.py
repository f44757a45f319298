"""Every branch of the kernels on a CPU; test_triton.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import math

import torch
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)
from tests.ops.aggregate.cases import EDGES, Inputs, graph

from normplace.ops import Neighbours, powermean_aggregate, softmax_aggregate
from normplace.ops.aggregate import layouts


def compare_channels(kind: str, exponents: torch.Tensor, piece: int = 4, relative: float = 3e-5) -> None:
    """Compare one exponent per channel with the reference; the values and every gradient."""
    run = softmax_aggregate if kind == "softmax" else powermean_aggregate
    generator = torch.Generator().manual_seed(1)
    width = len(exponents)
    x, weight = (torch.rand(9, width, generator=generator, dtype=exponents.dtype) for _ in range(2))
    edges = Neighbours(graph(9, 9, 40), 9, piece=piece)
    results = []
    for backend in ("triton", "reference"):
        leaf, t = x.clone().requires_grad_(), exponents.clone().requires_grad_()
        y = run(leaf, edges, t, relu=True, eps=1e-2, backend=backend)
        (y * weight).sum().backward()
        results.append({"y": y, "x": leaf.grad, "exponent": t.grad})
    for name, expected in results[1].items():
        error = (results[0][name] - expected).abs().max() / expected.abs().max()
        assert error <= relative, f"{kind}, one exponent per channel: {name} is wrong by {error:.1e}"


def main() -> None:
    """Compare with the brute force; a mismatch raises an AssertionError."""
    small = {"edge_index": graph(7, 7, 34), "num_src": 7, "num_dst": 7, "channels": 3}
    for edge in EDGES:
        Inputs("softmax", 1.5, edge, **small).compare("triton")
        Inputs("power", 1.5, edge, **small).compare("triton")
    for exponent in (-20.0, 0.0, math.inf, -math.inf):
        Inputs("softmax", exponent, "dense", **small).compare("triton")
    for exponent in (-3.0, 0.0, 1e-3, 8.0):
        Inputs("power", exponent, **small).compare("triton")
    # Far from one, the power of a message of one, which fills a row that is shorter than a tile, is infinite.
    Inputs("power", 8.0, scale=1e-6, **small).compare("triton", 1e-4)
    Inputs("power", -8.0, scale=1e6, **small).compare("triton", 1e-4)
    Inputs("softmax", 20.0, scale=1e2, relu=False, **small).compare("triton", 1e-4)
    Inputs("softmax", 1.5, "linear", dtype=torch.float64, **small).compare("triton")
    Inputs("power", 1e-3, "table", dtype=torch.float64, **small).compare("triton")
    # More channels than a program has, and two sets of nodes.
    Inputs("softmax", 1.5, edge_index=graph(5, 9, 20), num_src=5, num_dst=9, channels=130).compare("triton")
    for kind in ("softmax", "power"):
        # More channels than a program has, of both signs; and fewer programs than pieces of rows.
        compare_channels(kind, torch.linspace(-2, 3, 131))
        compare_channels(kind, torch.linspace(-2, 3, 3, dtype=torch.float64), relative=1e-10)
        layouts.WEIGHT_PROGRAMS, usual = 3, layouts.WEIGHT_PROGRAMS
        compare_channels(kind, torch.linspace(-2, 3, 5))
        layouts.WEIGHT_PROGRAMS = usual
    case = Inputs("softmax", 1.5, **small)
    case.x = case.x.bfloat16().float()
    half = Inputs("softmax", 1.5, **small)
    half.x, half.dtype = case.x.bfloat16(), torch.bfloat16
    error = (half.results("triton")["x"].double() - case.expected()["x"]).abs().max()
    assert error < 2e-2, error
    print("every kernel agrees")


if __name__ == "__main__":
    main()
