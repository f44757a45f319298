"""Cumulative sums of rows against PyTorch's ``cumsum``, and their accuracy."""

from __future__ import annotations

import pytest
import torch

from normplace.ops.relation.scan_reference import BLOCK, cumulative_sum_


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7])
def test_cumulative_sums_forward_and_backward(length):
    generator = torch.Generator().manual_seed(length)
    x, before = (torch.randn(2, rows, 3, generator=generator, dtype=torch.float64) for rows in (length, 1))
    torch.testing.assert_close(cumulative_sum_(x.clone(), before), before + x.cumsum(1), rtol=0, atol=1e-13)
    torch.testing.assert_close(
        cumulative_sum_(x.clone(), before, reverse=True), before + x.flip(1).cumsum(1).flip(1), rtol=0, atol=1e-13
    )


def test_a_small_sum_is_not_lost_next_to_a_large_later_one():
    """No sum is computed as a difference of larger sums."""
    x = torch.full((1, 3 * BLOCK, 1), 1e-6)
    x[:, 2 * BLOCK :] = 1e6
    found = cumulative_sum_(x.clone(), torch.zeros(1, 1, 1))
    torch.testing.assert_close(found[0, 2 * BLOCK - 1, 0], torch.tensor(2 * BLOCK * 1e-6))
