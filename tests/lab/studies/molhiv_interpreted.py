"""The kernels of the aggregation on a CPU; test_deepergcn_molhiv.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from tests.lab.studies.molhiv_cases import random_bonds
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)

from normplace.lab.studies.deepergcn import molhiv_aggregation as aggregation


def main() -> None:
    """Compare both kernels with the definition in float64; a mismatch raises an AssertionError."""
    generator = torch.Generator().manual_seed(0)
    for seeds, atoms, channels, kinds in ((2, 9, 5, 3), (3, 14, 16, 60), (1, 3, 1, 2)):
        bonds = random_bonds(seeds, atoms, kinds, generator)
        x, grad = torch.randn(2, seeds, atoms, channels, generator=generator, dtype=torch.float64)
        table = torch.randn(seeds, kinds, channels, generator=generator, dtype=torch.float64)
        temperature = torch.rand(seeds, generator=generator, dtype=torch.float64) + 0.5
        inputs = (x, table, temperature)
        expected = aggregation._aggregate(*inputs, *bonds)
        found = aggregation.launch_forward(*inputs, *bonds)
        saved = (*inputs, *expected[1:], *bonds)
        gradients = aggregation._aggregate_backward(grad, *saved)
        computed = aggregation.launch_backward(grad, *saved)
        # The constants are rounded to float32 when they are passed to a kernel: eps = 1e-7 by less than 1e-14.
        for one, other in zip((*found, *computed[:2]), (*expected, *gradients[:2]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(computed[2].sum(1), gradients[2].sum(1), rtol=1e-10, atol=1e-10)
    print("every kernel agrees")


if __name__ == "__main__":
    main()
