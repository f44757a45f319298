"""Means and roots against float64; test_rounding.py runs it with TRITON_INTERPRET=1 or on a GPU."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl

from normplace.ops.rounding import mean_of, reciprocal_root

SIZE = 4096


@triton.jit
def both(x, counts, means, roots, SIZE: tl.constexpr):
    """Write the mean and the reciprocal root of every number."""
    place = tl.arange(0, SIZE)
    value = tl.load(x + place)
    tl.store(means + place, mean_of(value, tl.load(counts + place)))
    tl.store(roots + place, reciprocal_root(value))


def main(device: str) -> None:
    """Compare; a mismatch raises an AssertionError."""
    generator = torch.Generator().manual_seed(0)
    x = torch.exp2(torch.rand(SIZE, generator=generator) * 200 - 100)
    x[0] = float("inf")
    counts = torch.randint(1, 20_000, (SIZE,), generator=generator).float()
    counts[:100] = 1
    means, roots = (torch.empty(SIZE, device=device) for _ in range(2))
    both[(1,)](x.to(device), counts.to(device), means, roots, SIZE=SIZE)
    means, roots = means.cpu(), roots.cpu()
    assert torch.equal(means[1:100], x[1:100])
    exact = x.double() / counts.double()
    assert ((means.double() - exact).abs() <= 1.001 * 2.0**-24 * exact)[1:].all()
    assert roots[0] == 0
    # The step of Newton's method rounds four times itself.
    exact = x.double().rsqrt()
    assert ((roots.double() - exact).abs() <= 2.0**-23 * exact)[1:].all()
    print("every kernel agrees")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["cpu"])
